"""The shipped model: its lists, its pictures, its commands."""

import io
import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

import mmaccel
from mmaccel import canvas, zoo
from mmaccel.canvas.generation import inputs_of, load
from mmaccel.cli import main as cli
from mmaccel.errors import PromptError, SettingError, UnsupportedTargetError
from mmaccel.files.pictures import read_picture
from mmaccel.zoo.tiny_onevision import sprites_of
from mmaccel.zoo.worlds import listed_world

PLAIN = {"threshold": 2}


@pytest.fixture(scope="module")
def loaded():
    return zoo.load("tiny-canvas")


@pytest.fixture(scope="module")
def asked():
    return zoo.questions("tiny-canvas", 5, seed=9)


@pytest.fixture(scope="module")
def inputs(loaded, asked):
    return loaded[1](videos=[each.frames for each in asked], text=[each.question for each in asked])


@pytest.fixture(scope="module")
def plain(loaded, inputs):
    return loaded[0](**inputs, **PLAIN)


def right(texts, asked):
    return sum(text == each.answer for text, each in zip(texts, asked, strict=True))


def test_lists_are_right_in_a_batch_and_alone(loaded, asked, plain):
    pipe, processor = loaded
    assert right(plain.texts, asked) == len(asked)
    alone = pipe(**processor(videos=[asked[0].frames], text=asked[0].question), **PLAIN).texts
    assert alone == plain.texts[:1]


def test_exact_methods_give_equal_tokens_in_half_the_passes(loaded, inputs, plain):
    with mmaccel.accelerate(loaded[0], canvas.FreeDave(8), canvas.PrefixCache()) as fast:
        found = fast(**inputs, **PLAIN)
        assert torch.equal(found.sequences, plain.sequences) and fast.report.exact
        assert fast.report.details["passes"] < 0.7 * fast.report.plain_forwards


@pytest.mark.parametrize("rule", (canvas.FactorCommit(0.25), canvas.EntropyBound(0.03)))
def test_careful_rules_keep_the_lists_in_a_quarter_of_the_passes(loaded, inputs, asked, rule):
    with mmaccel.accelerate(loaded[0], rule, canvas.PrefixCache()) as fast:
        assert right(fast(**inputs, **PLAIN).texts, asked) >= len(asked) - 1
        assert fast.report.work_ratio < 0.25


@pytest.mark.parametrize("rule", (canvas.FactorCommit(), canvas.LocalLeap()), ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize("beside", ((), (canvas.PrefixCache(),)), ids=("alone", "with a cache"))
def test_a_rule_that_the_own_threshold_leaves_nothing_to_do_is_told(loaded, asked, rule, beside):
    inputs = loaded[1](videos=[asked[0].frames], text=asked[0].question)
    told = f"threshold=0.7 commits all that {type(rule).__name__} would: pass threshold=2"
    with mmaccel.accelerate(loaded[0], rule, *beside) as fast:
        fast(**inputs)
        assert told in fast.report.warnings[0] and fast.report.engaged is bool(beside)
        fast(**inputs, **PLAIN)
        assert fast.report.warnings == [] and fast.report.engaged


def test_a_rule_that_adds_to_the_own_threshold_is_not_warned_of(loaded, asked):
    inputs = loaded[1](videos=[asked[0].frames], text=asked[0].question)
    with mmaccel.accelerate(loaded[0], canvas.FactorCommit(8.0)) as fast:
        fast(**inputs, threshold=0.9999)
        assert fast.report.warnings == [] and fast.report.engaged


def test_a_rule_that_raises_logits_is_not_warned_of(loaded):
    """The pipeline's own threshold is passed sooner by them, although the rule adds nothing to it."""
    asked = zoo.questions("tiny-canvas", 2, seed=9)[1]
    inputs, passes = loaded[1](videos=[asked.frames], text=asked.question), []
    for rule in (canvas.FactorCommit(), canvas.CreditDecoding()):
        with mmaccel.accelerate(loaded[0], rule) as fast:
            fast(**inputs)
            passes.append(fast.report.details["passes"])
            told = fast.report.warnings, fast.report.engaged
    assert passes[1] < passes[0] and told == ([], True)


def test_the_same_weights_write_word_by_word(loaded, inputs, asked):
    pipe = loaded[0]
    tokens = pipe.model.model.generate(**inputs, max_new_tokens=128, do_sample=False)
    texts = pipe.tokenizer.batch_decode(tokens[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    assert right(texts, asked) >= len(asked) - 1


def test_placeholders_and_visual_tokens_must_be_equally_many(loaded, inputs):
    broken = inputs["input_ids"].clone()
    broken[:, 2] = 5 if int(broken[0, 2]) != 5 else 6
    with pytest.raises(SettingError, match="placeholders for"):
        loaded[0](**{**inputs, "input_ids": broken}, **PLAIN)


def test_pictures_beside_a_prompt_that_has_no_place_for_them_are_not_left_out_in_silence(loaded, inputs):
    pipe, _ = loaded
    with pytest.raises(SettingError, match=r"pixel_values_videos without input_ids.*pipe\(\*\*processor\("):
        pipe("list all things", pixel_values_videos=inputs["pixel_values_videos"])


@pytest.mark.parametrize("count", (1, 2))
def test_pictures_are_taken_as_the_processor_gives_them(loaded, asked, count):
    """One comes in tiles, several do not."""
    pipe, processor = loaded
    pictures = [each.frames[0] for each in asked[:count]]
    inputs = processor(images=pictures, text=count * "<image>" + asked[0].question)
    assert inputs["batch_num_images"].tolist() == [count]
    assert pipe(**inputs, gen_length=32, **PLAIN).sequences.shape == (1, 32)


def test_pictures_are_a_function_of_their_seed_and_those_held_out_are_never_trained_on():
    sprites = sprites_of(zoo.path("tiny-onevision"))
    one, again = (listed_world.draw_listing(3, sprites=sprites) for _ in range(2))
    assert np.array_equal(one.picture, again.picture) and one.text == again.text
    trained = {listed_world.draw_listing(seed, sprites=sprites).text for seed in range(50)}
    held = {listed_world.draw_listing(seed, True, sprites).text for seed in range(50)}
    assert not (trained & held) and len(trained) == 50
    counts = [text.count("column") for text in trained]
    assert min(counts) >= listed_world.FEWEST and max(counts) <= listed_world.MOST


def test_the_command_lists_a_file(loaded, asked, tmp_path, capsys):
    path = tmp_path / "picture.png"
    Image.fromarray(asked[0].frames[0]).save(path)
    words = ["run", "canvas", str(path), "--compare", "--method", "canvas.FactorCommit", "--method", "PrefixCache"]
    assert cli.main(words) == 0
    printed = capsys.readouterr().out
    assert f"plain: {asked[0].answer}" in printed and f"fast:  {asked[0].answer}" in printed
    assert "speed-up" in printed


def test_compare_shows_texts_and_fewer_steps(work_clock, loaded, asked):
    pipe, processor = loaded
    inputs = inputs_of(processor, Image.fromarray(asked[0].frames[0]), asked[0].question)
    found = mmaccel.compare(pipe, canvas.FactorCommit(), **inputs, **PLAIN, rounds=1)
    assert [row["kind"] for row in found.rows][:2] == ["plain", "method"]
    assert any(row["method"] == "fewer steps" for row in found.rows)


def test_what_is_transparent_is_listed_as_white(loaded):
    shown = [
        inputs_of(loaded[1], picture, "?") for picture in (Image.new("RGBA", (9, 9)), Image.new("RGB", (9, 9), "white"))
    ]
    assert torch.equal(*(inputs["pixel_values_videos"] for inputs in shown))


def test_files_that_are_no_pictures(tmp_path):
    with pytest.raises(PromptError, match="there is no file"):
        read_picture(tmp_path / "none.png")
    (tmp_path / "text.png").write_text("no picture")
    with pytest.raises(PromptError, match="is no picture"):
        read_picture(tmp_path / "text.png")


@pytest.mark.parametrize("tag", (b"\x01\x0e", b"\x01\x42"), ids=("sound", "odd"))
def test_a_photograph_is_turned_whatever_else_is_told_of_it(tag, tmp_path):
    """An entry of the wrong type is no reason to refuse it."""
    exif, written = Image.Exif(), io.BytesIO()
    exif[0x0112], exif[0x010E] = 6, "hi"
    Image.new("RGB", (40, 30)).save(written, "JPEG", exif=exif)
    (tmp_path / "photo.jpg").write_bytes(written.getvalue().replace(b"\x01\x0e\x00\x02", tag + b"\x00\x02", 1))
    shown = read_picture(tmp_path / "photo.jpg")
    assert shown.size == ImageOps.exif_transpose(shown).size == (30, 40), "turned once"


def test_a_damaged_picture_is_said_to_be_none(tmp_path):
    path = tmp_path / "damaged.png"
    Image.new("RGB", (64, 64)).save(path)
    whole = path.read_bytes()
    data = whole.index(b"IDAT") + 4
    cut = (8).to_bytes(4, "big") + whole[data - 4 : data + 8]  # eight bytes of its pixels, and nothing behind them
    path.write_bytes(whole[: data - 8] + cut + bytes(12))
    with pytest.raises(PromptError, match="is no picture that can be read .*: broken PNG file"):
        read_picture(path)


def test_a_picture_whose_colours_are_not_told_is_read(tmp_path):
    path = tmp_path / "bare.png"
    Image.new("P", (4, 4)).save(path)
    whole = path.read_bytes()
    start = whole.index(b"PLTE") - 4
    end = start + 12 + int.from_bytes(whole[start : start + 4], "big")
    path.write_bytes(whole[:start] + whole[end:])
    assert read_picture(path).size == (4, 4)


def test_other_models_bring_code_that_is_not_run():
    with pytest.raises(UnsupportedTargetError, match="trust_remote_code=True"):
        load("inclusionAI/LLaDA2.1-mini")


@pytest.fixture
def trained(tmp_path):
    """A folder as the recipe writes it."""
    return shutil.copytree(zoo.path("tiny-canvas"), tmp_path / "model", ignore=shutil.ignore_patterns("*.png"))


def test_a_model_that_was_trained_anew_is_named_by_its_folder(trained, loaded, asked):
    pipe, processor = load(str(trained), dtype=torch.float64)
    assert pipe.model.dtype == torch.float64 and type(pipe) is type(loaded[0])
    pipe.model.float()
    found = pipe(**processor(videos=[asked[0].frames], text=asked[0].question), **PLAIN)
    assert found.texts == [asked[0].answer]


def test_a_folder_that_looks_like_one_brings_no_code(trained):
    settings = json.loads((trained / "tokenizer_config.json").read_text())
    settings |= {"tokenizer_class": "Tokenizer", "auto_map": {"AutoTokenizer": [None, "foreign.Tokenizer"]}}
    (trained / "tokenizer_config.json").write_text(json.dumps(settings))
    (trained / "foreign.py").write_text(f"open({str(trained / 'it-ran')!r}, 'w').close()")
    with pytest.raises(UnsupportedTargetError, match="needs Python code of its own"):
        load(str(trained))
    assert not (trained / "it-ran").exists()
