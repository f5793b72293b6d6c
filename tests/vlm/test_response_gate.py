"""When to speak."""

import math

import pytest

from mmaccel.errors import SettingError
from mmaccel.vlm import ResponseGate


def test_it_speaks_when_the_last_answer_fits_less():
    gate = ResponseGate(1.04)
    assert gate.update(10.0)  # nothing was said yet
    for perplexity, speak in ((10.0, False), (10.39, False), (2.0, False), (10.41, True), (10.8, False), (10.83, True)):
        assert gate.update(perplexity) is speak, perplexity
    assert gate.reference == 10.83


def test_silence_does_not_creep():
    """Slow changes add up: the comparison is with what was said, not with the frame before."""
    gate = ResponseGate()
    assert [gate.update(10 * 1.01**step) for step in range(6)] == [True, False, False, False, True, False]


def test_a_new_answer_and_a_new_stream():
    gate = ResponseGate()
    gate.update(10.0)
    gate.answered(2.0)
    assert not gate.update(2.05) and gate.update(2.1)
    gate.reset()
    assert gate.reference is None and gate.update(1.0)


def test_the_neutral_threshold_speaks_at_any_rise():
    gate = ResponseGate(threshold=1)
    assert [gate.update(x) for x in (2.0, 2.0, 2.001, 2.0)] == [True, False, True, False]


def test_an_impossible_answer_speaks():
    gate = ResponseGate()
    gate.update(2.0)
    assert gate.update(math.inf)


@pytest.mark.parametrize("threshold", (0.9, math.inf, math.nan, "1.04", True, None))
def test_bad_thresholds(threshold):
    with pytest.raises(SettingError, match=r"^ResponseGate\(threshold=.*such as 1.04"):
        ResponseGate(threshold)


@pytest.mark.parametrize("perplexity", (0.5, 0.0, -1.0, math.nan))
def test_bad_perplexities(perplexity):
    gate = ResponseGate()
    for use in (gate.update, gate.answered):
        with pytest.raises(SettingError, match="^perplexity=.*at least 1"):
            use(perplexity)
    assert gate.reference is None
