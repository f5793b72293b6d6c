"""Every registered method keeps the contract of `mmaccel.testing`."""

import pytest
import torch

import mmaccel
from mmaccel import testing
from mmaccel.image import SpeculativeJacobi, ZipAR


@pytest.mark.parametrize("name", mmaccel.methods())
def test_contract(name):
    testing.check_method(mmaccel.get_method(name))


# The contract itself must be able to fail.


def test_contract_sees_a_trace(monkeypatch):
    """A method that leaves an attribute behind."""
    example = testing.examples("image")[0]
    attach = ZipAR.attach

    def leaky(self, session, stack):
        attach(self, session, stack)
        session.target.left_behind = True

    monkeypatch.setattr(ZipAR, "attach", leaky)
    with pytest.raises(AssertionError, match="left a trace"):
        testing.engaged_and_clean(ZipAR, example)


def test_contract_sees_a_hook():
    model, _ = testing.examples("image")[0].build()
    before = testing.snapshot(model)
    handle = next(model.children()).register_forward_hook(lambda *_: None)
    assert testing.snapshot(model) != before
    handle.remove()
    assert testing.snapshot(model) == before


def test_contract_sees_the_global_random_state(monkeypatch):
    decode = SpeculativeJacobi.decode

    def careless(self, task, generator, progress, session):
        torch.rand(1)
        return decode(self, task, generator, progress, session)

    monkeypatch.setattr(SpeculativeJacobi, "decode", careless)
    with pytest.raises(AssertionError, match="global random state"):
        testing.seeded(SpeculativeJacobi, testing.examples("image")[0])


def test_contract_sees_a_false_neutral_setting(monkeypatch):
    monkeypatch.setattr(ZipAR, "neutral", {"window": 1})
    with pytest.raises(AssertionError, match="neutral settings"):
        testing.neutral(ZipAR, testing.examples("image")[0])


def test_contract_sees_a_method_that_does_nothing(monkeypatch):
    monkeypatch.setattr(SpeculativeJacobi, "engaging", {"window": 1})
    with pytest.raises(AssertionError, match="did not engage"):
        testing.engaged_and_clean(SpeculativeJacobi, testing.examples("image")[0])
