"""Every keyword of the public functions is given by some test; a new one needs a test of its own."""

import ast
import inspect
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

import mmaccel
from mmaccel import image, speech, video, vlm, zoo

TESTS = Path(__file__).parents[1]
CLASSES = (
    mmaccel.Comparison, mmaccel.Plan, mmaccel.Session, mmaccel.Tuning, speech.BackgroundStream,
    speech.SpeechStream, speech.StreamingCodecDecoder, speech.StreamingRecognizer, speech.SubtitleLayout,
    speech.Transcript, vlm.VideoFrames, vlm.VideoStream,
)  # fmt: skip
# Made by the library and not by its users, or checked through what makes them.
INNER = {"Plan", "SpeechStream", "VideoFrames", "Transcript", "Session"}
# Given by no test in its own name yet.
OPEN = {
    ("StreamingRecognizer", "context"),  # tests/speech/test_stream.py does, by a function of its own
    *((f"calibrate_{name}", "prompts") for name in ("mag_cache", "steps", "tea_cache", "token_cache")),
    ("VideoStream", "gate"),
    ("BackgroundStream", "on_error"),  # tests/speech/test_stream.py does, by a fixture
}
KINDS = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def public():
    """Public functions and classes by the name that a call has, and public methods of the classes."""
    for module in (mmaccel, image, video, vlm, speech, zoo):
        for name in getattr(module, "__all__", ("prompts", "questions")):
            found = getattr(module, name)
            if inspect.isfunction(found):
                yield name, found
    for cls in CLASSES:
        if cls.__name__ not in INNER:
            yield cls.__name__, cls
        for name, method in inspect.getmembers(cls, inspect.isfunction):
            if not name.startswith("_"):
                yield name, method


def keywords():
    """What has a default, by function."""
    for name, function in public():
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind in KINDS and parameter.default is not parameter.empty:
                yield name, parameter.name


@cache
def given():
    """Keywords that tests give, by the name that is called; of a dictionary that is unpacked, the keys of the file."""
    found = defaultdict(set)
    for path in TESTS.rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
        keys = {key.value for node in nodes if isinstance(node, ast.Dict) for key in node.keys if _is_text(key)}
        for node in nodes:
            if isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                found[name] |= {one.arg for one in node.keywords if one.arg}
                found[name] |= keys if any(one.arg is None for one in node.keywords) else set()
                found[name, len(node.args)] = {True}
    return found


def _is_text(node):
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


@pytest.mark.parametrize(("name", "keyword"), sorted({*keywords()} - OPEN))
def test_a_keyword_is_given_by_some_test(name, keyword):
    if keyword in given()[name]:
        return
    functions = [function for called, function in public() if called == name]
    places = [list(inspect.signature(each).parameters) for each in functions]
    assert any((name, count) in given() for each in places if keyword in each for count in _counts(each, keyword))


def _counts(parameters, keyword):
    """How many arguments a call has that gives it by its place."""
    first = parameters.index(keyword) + (parameters[0] != "self")
    return range(first, len(parameters) + 1)
