"""Loaders run no code of a checkpoint, whatever is answered on the terminal, and unpickle nothing."""

import importlib
import io
import json
import shutil
import sys

import pytest
import torch
from transformers import MoonshineConfig, MoonshineForConditionalGeneration

from mmaccel import zoo
from mmaccel.cli import main as cli
from mmaccel.errors import MmaccelError, UnsupportedTargetError

LOADERS = {
    "image": "mmaccel.image.generation",
    "video": "mmaccel.video.generation",
    "vlm": "mmaccel.vlm.answering",
    "speech": "mmaccel.speech.families.weights",
}
CODE = """open({marker!r}, "w").close()
from transformers import PretrainedConfig, PreTrainedTokenizerFast, ProcessorMixin
class Config(PretrainedConfig):
    model_type = "foreign"
class Tokenizer(PreTrainedTokenizerFast): pass
class Processor(ProcessorMixin): pass
class Model(PreTrainedTokenizerFast): pass
"""
FOREIGN = {
    "AutoConfig": "foreign.Config",
    "AutoModel": "foreign.Model",
    "AutoModelForImageTextToText": "foreign.Model",
    "AutoModelForSpeechSeq2Seq": "foreign.Model",
    "AutoTokenizer": [None, "foreign.Tokenizer"],
    "AutoProcessor": "foreign.Processor",
}
PIL = {"image": "JanusImageProcessor", "vlm": "LlavaOnevisionImageProcessor"}


@pytest.fixture(params=LOADERS)
def kind(request):
    return request.param


@pytest.fixture
def folder(kind, tmp_path):
    """A checkpoint of a family that is known, as files of a hub repository."""
    place = tmp_path / "checkpoint"
    source = {"image": "tiny-janus", "video": "tiny-wan", "vlm": "tiny-onevision", "speech": "tiny-onevision"}[kind]
    shutil.copytree(zoo.path(source), place, ignore=shutil.ignore_patterns("*.png", "training.json", "*.md"))
    if kind == "speech":
        for file in ("config.json", "generation_config.json", "model.safetensors"):
            (place / file).unlink()
        sizes = {"hidden_size": 8, "intermediate_size": 8, "vocab_size": 16}
        layers = {
            f"{side}_num_{what}": 1 for side in ("encoder", "decoder") for what in ("hidden_layers", "attention_heads")
        }
        MoonshineForConditionalGeneration(MoonshineConfig(**sizes, **layers)).save_pretrained(place)
        change(place / "preprocessor_config.json", feature_extractor_type="Wav2Vec2FeatureExtractor")
    elif kind in PIL:
        change(place / "preprocessor_config.json", image_processor_type=PIL[kind])
    return place


@pytest.fixture
def marker(folder):
    """A file that code of the checkpoint writes where it runs; every question on the terminal is answered with yes."""
    marker = folder / "it-ran"
    (folder / "foreign.py").write_text(CODE.format(marker=str(marker)))
    return marker


@pytest.fixture(autouse=True)
def yes(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 50))


def change(file, **values):
    known = json.loads(file.read_text()) if file.is_file() else {}
    file.write_text(json.dumps({**known, **values}))


def load(kind, folder):
    return importlib.import_module(LOADERS[kind]).load(str(folder))


def refused(kind, folder, marker):
    terminal = sys.stdin
    with pytest.raises(UnsupportedTargetError) as caught:
        load(kind, folder)
    assert not marker.exists(), "code of the checkpoint ran"
    assert sys.stdin is terminal, "the terminal was not given back"
    said = str(caught.value)
    assert "trust_remote_code=True" in said and "mmaccel.accelerate(model" in said and str(folder) in said


def test_a_model_of_foreign_code(kind, folder, marker, capsys):
    if kind == "video":
        (folder / "transformer" / "foreign.py").write_text((folder / "foreign.py").read_text())
        change(folder / "model_index.json", transformer=["foreign", "Model"])
    else:
        change(folder / "config.json", model_type="foreign", auto_map=FOREIGN)
    refused(kind, folder, marker)
    assert "[y/N]" not in capsys.readouterr().out, "it was asked"


def test_a_tokenizer_of_foreign_code_in_a_known_model(kind, folder, marker):
    """transformers forgets on the way to the tokenizer that no code is to be run."""
    place = folder
    if kind == "video":  # a processor in the tokenizer's place: pipelines load one without a word about code
        place = folder / "tokenizer"
        shutil.copy(folder / "foreign.py", place)
        change(place / "preprocessor_config.json", image_processor_type="LlavaOnevisionImageProcessor")
        change(folder / "model_index.json", tokenizer=["transformers", "LlavaProcessor"])
    change(place / "tokenizer_config.json", tokenizer_class="Tokenizer", auto_map=FOREIGN)
    refused(kind, folder, marker)


def test_a_processor_of_foreign_code(kind, folder, marker):
    if kind == "video":
        pytest.skip("pipelines name the classes of their processors")
    change(folder / "processor_config.json", processor_class="Processor", auto_map=FOREIGN)
    try:  # one that is known besides is taken instead
        load(kind, folder)
    except MmaccelError as error:
        assert "trust_remote_code=True" in str(error)
    assert not marker.exists(), "code of the checkpoint ran"


@pytest.mark.parametrize("kind", ["image", "vlm"], indirect=True)
def test_a_checkpoint_that_looks_like_one_of_the_zoo(kind, folder, marker, capsys):
    name = {"image": "tiny-janus", "vlm": "tiny-onevision"}[kind]
    shutil.copy(zoo.path(name) / "training.json", folder)
    change(folder / "tokenizer_config.json", tokenizer_class="Tokenizer", auto_map=FOREIGN)
    refused(kind, folder, marker)
    assert "[y/N]" not in capsys.readouterr().out, "it was asked"


class Pickled:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return open, (str(self.marker), "w")


def test_pickled_weights_are_not_read(kind, folder, marker):
    for weights in list(folder.rglob("*.safetensors")):
        weights.unlink()
        name = "pytorch_model" if weights.stem == "model" else weights.stem
        torch.save({"weight": Pickled(marker)}, weights.with_name(f"{name}.bin"))
    with pytest.raises((MmaccelError, OSError)):
        load(kind, folder)
    assert not marker.exists(), "a pickle was read"


def test_the_command_line_says_what_to_do(tmp_path, capsys):
    marker = tmp_path / "it-ran"
    (tmp_path / "foreign.py").write_text(CODE.format(marker=str(marker)))
    change(tmp_path / "config.json", model_type="foreign", auto_map=FOREIGN)
    refused("vlm", tmp_path, marker)
    assert cli.main(["run", "image", "red heart", "-o", str(tmp_path / "x.png"), "--model", str(tmp_path)]) == 2
    assert "load the model yourself with trust_remote_code=True" in capsys.readouterr().err
    assert not marker.exists()
