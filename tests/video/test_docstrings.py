"""The examples in docstrings say what happens."""

import doctest
import importlib
import pkgutil

import pytest

from mmaccel import stepping, video

PACKAGES = (video, stepping)
MODULES = [m.name for p in PACKAGES for m in pkgutil.walk_packages(p.__path__, f"{p.__name__}.") if not m.ispkg]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    assert not doctest.testmod(importlib.import_module(name)).failed
