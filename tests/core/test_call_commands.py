"""The call that the command line makes of its words: the same one for `compare` and `tune`."""

import importlib

import pytest

from mmaccel.cli import main as cli
from mmaccel.errors import SettingError

CALLS = {
    "image": (["red heart", "--method", "ZipAR"], {"input_ids", "attention_mask"}),
    "video": (["rocket", "--method", "EasyCache", "--steps", "4"], {"prompt", "num_inference_steps"}),
    "vlm": (["--example", "--method", "DyCoke"], {"frames", "questions", "processor", "max_new_tokens"}),
    "speech": (["--example", "--method", "SuffixDraft"], {"audio", "reference", "processor"}),
}


@pytest.fixture
def compared(monkeypatch):
    """What reaches `compare`, in a list; nothing runs."""
    calls = []

    def record(target, *methods, preset=None, **inputs):
        calls.append((target, methods, inputs))
        raise SettingError("recorded")

    for name in ("comparison.compare", "tuning.tune"):
        monkeypatch.setattr(importlib.import_module(f"mmaccel.{name}"), "compare", record)
    return calls


@pytest.mark.parametrize("kind", sorted(CALLS))
def test_both_commands_make_the_same_call(kind, compared, capsys):
    if kind == "speech":
        pytest.importorskip("moonshine_voice")
    words, names = CALLS[kind]
    for command, goal in (("compare", []), ("tune", ["--target-speedup", "1.1"])):
        assert cli.main([command, kind, *words, *goal, "--rounds", "2", "--no-simple"]) == 2
        assert "recorded" in capsys.readouterr().err
    (target, methods, inputs), (again, tried, other) = compared
    assert type(target) is type(again) and {type(each) for each in methods} == {type(each) for each in tried}
    assert names <= set(inputs) <= set(other)
    assert (inputs["rounds"], inputs["simple"]) == (2, False) == (other["rounds"], other["simple"])


@pytest.mark.parametrize("command", ["compare", "tune"])
@pytest.mark.parametrize(
    ("words", "hint"),
    (
        (["vlm", "--method", "DyCoke"], "there is no input: give clip.mp4 'what moves up?', or --example"),
        (["vlm", "clip.mp4", "--method", "DyCoke"], "a part of the input is missing: give clip.mp4 'what moves"),
        (["vlm", "clip.mp4", "what?", "--example", "--method", "DyCoke"], "give one of the two"),
        (["speech", "--method", "SuffixDraft"], "--example"),
        (["speech", "talk.wav", "--example", "--method", "SuffixDraft"], "give one of the two"),
        (["image", "pizza", "--seeds", "0", "--method", "ZipAR"], "--seeds 0"),
    ),
)
def test_what_is_missing_is_said_in_a_line(command, words, hint, compared, capsys):
    assert cli.main([command, *words]) == 2
    error = capsys.readouterr().err
    assert hint in error and len(error.strip().splitlines()) == 1 and not compared


def test_a_preset_and_a_method_are_not_both_taken(capsys):
    assert cli.main(["plan", "--method", "image.ZipAR", "--preset", "fast"]) == 2
    assert "not both" in capsys.readouterr().err
