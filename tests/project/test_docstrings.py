"""The examples in docstrings say what happens."""

import doctest
import importlib
import pkgutil

import pytest

import mmaccel

ELSEWHERE = ("mmaccel.demos.comfyui.", "mmaccel.video.vllm_omni", "mmaccel.vlm.vllm_proposer")  # within other programs
NAMES = [module.name for module in pkgutil.walk_packages(mmaccel.__path__, "mmaccel.") if not module.ispkg]
ROOMS = sorted({name.split(".")[1] for name in NAMES})


@pytest.mark.parametrize("room", ROOMS)
def test_examples(room):
    modules = [name for name in NAMES if name.split(".")[1] == room and not name.startswith(ELSEWHERE)]
    assert [name for name in modules if doctest.testmod(importlib.import_module(name)).failed] == []
