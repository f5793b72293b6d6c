"""A clock that counts work instead of seconds, so that what is compared by time comes out the same on every machine."""

import pytest
import torch

from mmaccel.comparison.trial import Workload


@pytest.fixture
def work_clock(monkeypatch):
    """Time a comparison by the calls of modules, of which a method that skips some has fewer."""
    calls = 0

    def count(*_):
        nonlocal calls
        calls += 1

    hook = torch.nn.modules.module.register_module_forward_pre_hook(count)
    monkeypatch.setattr(Workload, "timer", staticmethod(lambda: calls))
    yield
    hook.remove()
