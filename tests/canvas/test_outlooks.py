"""How sure a model seems, on blocks made by hand."""

import pytest
import torch

import mmaccel
from mmaccel import canvas
from mmaccel.canvas import examples
from mmaccel.canvas.outlooks.outlook import Seen
from mmaccel.errors import SettingError

MASK, END, LINE = 9, 0, 3


class Words:
    """A tokenizer that knows a line end."""

    def encode(self, text, add_special_tokens):
        return [LINE] if text == "\n" else []


def seen(tokens, chances, sample):
    """A block whose likeliest tokens these are, with their chances."""
    logits = torch.full((1, len(tokens), 5), 0.0)
    for place, (token, chance) in enumerate(zip(tokens, chances, strict=True)):
        logits[0, place] = torch.tensor((1 - chance) / 4)
        logits[0, place, token] = chance
    return Seen(logits.log(), torch.tensor([sample]), MASK, END, Words())


def test_the_end_is_less_likely_in_an_empty_block_and_itself_in_a_full_one():
    block = seen([END, 2, END], [0.9, 0.8, 0.9], [MASK] * 3)
    found = canvas.EarlyEnd(0.5).adjust(block).softmax(-1)[0]
    assert found[0, END] == pytest.approx(0.45, abs=1e-4) and found[0].argmax() == END
    assert torch.allclose(found[1], block.logits[0, 1].softmax(-1)), "other tokens stay"
    half = seen([END, 2], [0.9, 0.8], [MASK, 2])
    assert canvas.EarlyEnd(0.5).adjust(half).softmax(-1)[0, 0, END] == pytest.approx(0.675, abs=1e-4)


def test_the_end_stays_the_likeliest():
    found = canvas.EarlyEnd(1e-6).adjust(seen([END, END], [0.9, 1 - 1e-7], [MASK] * 2))
    assert found.argmax(-1).tolist() == [[END, END]] and found.softmax(-1).amax() < 0.5


def test_a_block_ends_at_the_surest_line_end():
    tokens, masked = [2, LINE, 2, LINE, 2, 2], [MASK] * 6
    sure = canvas.AdaptiveBlocks(span=5).adjust(seen(tokens, [0.9, 0.6, 0.9, 0.8, 0.9, 0.9], masked)).softmax(-1)
    assert (sure.amax(-1)[0] > 0.5).tolist() == [True] * 4 + [False] * 2 and sure.argmax(-1).tolist() == [tokens]
    short = canvas.AdaptiveBlocks(span=2).adjust(seen(tokens, [0.9, 0.6, 0.9, 0.8, 0.9, 0.9], masked)).softmax(-1)
    assert (short.amax(-1)[0] > 0.5).tolist() == [True] * 2 + [False] * 4
    none = canvas.AdaptiveBlocks(default=3).adjust(seen([2] * 6, [0.9] * 6, masked)).softmax(-1)
    assert (none.amax(-1)[0] > 0.5).tolist() == [True] * 3 + [False] * 3


def test_the_next_part_begins_behind_what_is_filled():
    found = canvas.AdaptiveBlocks(default=2).adjust(seen([2] * 5, [0.9] * 5, [2, 2, MASK, MASK, MASK])).softmax(-1)
    assert (found.amax(-1)[0] > 0.5).tolist() == [True] * 4 + [False]


def test_the_likeliest_token_is_the_same_in_bfloat16():
    """Also beside one that is the least bit less likely."""
    likeliest = 1 + torch.arange(1, 129) / 128  # all numbers of bfloat16 from above 1 to 2
    logits = torch.stack([likeliest - 1 / 128, likeliest], 1)[None].bfloat16()
    block = Seen(logits, torch.full((1, 128), MASK), MASK, END)
    found = canvas.AdaptiveBlocks(default=1, least=1.0).adjust(block)
    assert found[0, 1:].max() < 1e-3 and bool((found.argmax(-1) == 1).all())


WAITING = (canvas.AdaptiveBlocks(default=1, least=1.0), canvas.EarlyEnd(1e-6), canvas.WindowDiffusion(2, 4))
BESIDE = ((), (canvas.Doubling(),), (canvas.FreeDave(),))


@pytest.mark.parametrize(
    ("method", "beside"),
    [(one, others) for one in WAITING for others in BESIDE if not one.excludes & {other.name for other in others}],
    ids=str,
)
def test_nothing_is_drawn_by_chances_that_the_model_does_not_give(method, beside):
    """Steps want more tokens than do not wait."""
    pipe, arguments = examples.bidirectional()

    def drawn(target, temperature=0.7, **more):
        call = arguments(2, num_inference_steps=2, temperature=temperature, **more)
        return target(**call, generator=torch.Generator().manual_seed(2)).sequences

    def drawn_by(*methods):
        with mmaccel.accelerate(pipe, *methods) as fast:
            return drawn(fast)

    plain = drawn_by(*beside) if beside else drawn(pipe)
    often = {"eos_token_id": int(plain.flatten().mode().values)}
    with mmaccel.accelerate(pipe, method, *beside) as fast:
        assert torch.equal(drawn(fast, **often), plain)
        assert sum(f"{method.name} ran plainly" in told for told in fast.report.warnings) == 1
        drawn(fast, 0.0, **often)
        assert fast.report.engaged and not any("plainly" in told for told in fast.report.warnings)


@pytest.mark.parametrize(
    "make",
    (lambda: canvas.EarlyEnd(0), lambda: canvas.AdaptiveBlocks(delimiter=""), lambda: canvas.AdaptiveBlocks(span=0)),
)
def test_settings_out_of_range(make):
    with pytest.raises(SettingError, match="must be"):
        make()
