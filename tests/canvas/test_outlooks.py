"""How sure a model seems, on blocks made by hand."""

import pytest
import torch

from mmaccel import canvas
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


@pytest.mark.parametrize(
    "make",
    (lambda: canvas.EarlyEnd(0), lambda: canvas.AdaptiveBlocks(delimiter=""), lambda: canvas.AdaptiveBlocks(span=0)),
)
def test_settings_out_of_range(make):
    with pytest.raises(SettingError, match="must be"):
        make()
