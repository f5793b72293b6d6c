"""Every text that a model can sample, with its probability: the same with and without drafts.

`torch.multinomial` is replaced by a walk over all of its outcomes, so that what is enumerated is the loop that runs.
"""

from functools import cache
from math import prod

import pytest
import torch

import mmaccel
from mmaccel.vlm import FusedDraft, SuffixDecoding, TextDraft, TokenRecycling, examples

METHODS = (SuffixDecoding(shortest=1), TokenRecycling(always=True), FusedDraft(always=True), TextDraft(always=True))


class Outcomes:
    """Stands for `torch.multinomial`; each walk takes the next path through its outcomes."""

    def __init__(self):
        self.path, self.taken, self.shares = [], 0, []  # outcomes to take, how many were, and their probabilities

    def __call__(self, probabilities, num_samples):
        assert num_samples == 1
        return torch.tensor([[self._drawn(row)] for row in probabilities])

    def _drawn(self, row):
        possible = row.nonzero()[:, 0].tolist()
        if self.taken == len(self.path):
            self.path.append((0, len(possible)))
        token = possible[self.path[self.taken][0]]
        self.taken += 1
        self.shares.append(float(row[token] / row.sum()))
        return token

    def again(self):
        """Go on to the next path; False after the last."""
        self.taken, self.shares = 0, []
        while self.path and self.path[-1][0] + 1 == self.path[-1][1]:
            self.path.pop()
        if self.path:
            self.path[-1] = (self.path[-1][0] + 1, self.path[-1][1])
        return bool(self.path)


def distribution(write):
    """Probabilities of all texts that a function can write, and the sum of what else it returns."""
    outcomes, found, total = Outcomes(), {}, 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "multinomial", outcomes)
        while True:
            ids, count = write()
            key = tuple(map(tuple, ids.tolist()))
            found[key] = found.get(key, 0.0) + prod(outcomes.shares)
            total += count
            if not outcomes.again():
                return found, total


def call(batch):
    ids = torch.randint(4, 60, (batch, 9), generator=torch.Generator().manual_seed(batch))
    ids = torch.cat([ids, ids[:, :4]], 1)
    choice = {"top_k": 3 if batch == 1 else 2, "temperature": 1.5, "top_p": 0.98, "do_sample": True}
    length = {"max_new_tokens": 4 if batch == 1 else 3, "eos_token_id": None, "pad_token_id": 0}
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **choice, **length}


@cache
def plain_distribution(batch):
    """Without drafts, so the same for all methods."""
    model = examples.llama()[0]
    return distribution(lambda: (model.generate(**call(batch)), 0))[0]


@pytest.mark.parametrize(
    ("method", "batch"),
    [*((method, 2) for method in METHODS), *((method, 1) for method in METHODS[2:])],  # 1 has four times as many texts
    ids=lambda value: getattr(value, "name", value),
)
def test_the_distribution_is_that_of_the_model(method, batch):
    model, given, plain = examples.llama()[0], call(batch), plain_distribution(batch)
    known = {"prediction": [[7, 8, 9, 10]]} if isinstance(method, TextDraft) else {}
    if known:  # a text that is possible, so that some of it is accepted
        known = {"prediction": [list(row)[13:] for row in max(plain, key=plain.get)]}

    def drafted():
        with mmaccel.accelerate(model, method) as fast:
            return fast.generate(**given, **known), fast.report.details["accepted"]

    found, accepted = distribution(drafted)
    assert len(plain) > 60 and sum(plain.values()) == pytest.approx(1)
    assert found.keys() == plain.keys()
    assert sum(abs(found[text] - plain[text]) for text in plain) / 2 < 1e-5, "total variation, in float32"
    if known or (batch == 1 and isinstance(method, FusedDraft)):  # the others need longer texts
        assert accepted > 0, "no draft was accepted on any path"
