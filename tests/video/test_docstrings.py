"""The examples in docstrings say what happens."""

import doctest
import importlib
import pkgutil

import pytest

from mmaccel import video

MODULES = [name for _, name, _ in pkgutil.iter_modules(video.__path__, "mmaccel.video.")]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    assert not doctest.testmod(importlib.import_module(name)).failed
