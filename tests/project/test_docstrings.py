"""The examples in docstrings say what happens."""

import doctest
import importlib
import pkgutil

import pytest

import mmaccel

ELSEWHERE = ("mmaccel.demos.comfyui.", "mmaccel.video.vllm_omni", "mmaccel.vlm.vllm_proposer")  # within other programs
NAMES = ["mmaccel", *(module.name for module in pkgutil.walk_packages(mmaccel.__path__, "mmaccel."))]


def room_of(name):
    return ".".join(name.split(".")[:2])


@pytest.mark.parametrize("room", sorted(set(map(room_of, NAMES))))
def test_examples(room, request):
    if room == "mmaccel.zoo":
        request.getfixturevalue("emoji_font")
    modules = [name for name in NAMES if room_of(name) == room and not name.startswith(ELSEWHERE)]
    assert [name for name in modules if doctest.testmod(importlib.import_module(name)).failed] == []
