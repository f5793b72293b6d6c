"""APE's join, the rival of JoinedContext: exact for one page at the settings that change nothing."""

import pytest
import torch

from mmaccel.cache.argument import cache_of
from mmaccel.demos.vlm.parallel_pages import ParallelPages
from mmaccel.vlm import examples


def test_one_page_that_nothing_softens_is_the_plain_model():
    model, arguments = examples.llama()
    call = arguments(max_new_tokens=6, output_logits=True, return_dict_in_generate=True)
    plain = torch.stack(model.generate(**call).logits)
    rival = ParallelPages(model, 1.0, 1.0)
    with rival.on():
        joined = rival.join(call["input_ids"], [(9, 60)])
        found = torch.stack(model.generate(**{**call, **joined}).logits)
    torch.testing.assert_close(found, plain, atol=1e-5, rtol=1e-5)
    assert torch.equal(torch.stack(model.generate(**call).logits), plain), "the model attends as before"


def test_pages_share_their_positions_and_do_not_see_each_other():
    model, arguments = examples.llama()
    ids = arguments()["input_ids"]
    rival = ParallelPages(model, 0.9, 0.9)
    with rival.on():
        one = rival.join(ids, [(9, 40), (40, 60)])
        other = rival.join(torch.cat([ids[:, :9], ids[:, 40:60], ids[:, 9:40], ids[:, 60:]], 1), [(9, 29), (29, 60)])
    assert one["position_ids"][0, 60:].tolist() == list(range(40, 60)), "behind the longest page"
    keys, moved = (cache_of(found).layers[-1].keys for found in (one, other))
    assert torch.equal(keys[:, :, 9:40], moved[:, :, 29:60]) and torch.equal(keys[:, :, 40:60], moved[:, :, 9:29])


def test_pages_are_softened_together():
    rival = ParallelPages(None, 0.5, 0.8)
    rival.pages = slice(1, 3)
    weights = rival.softened(torch.tensor([0.3, 1.0, 2.0, 0.1])).exp()
    assert weights[[0, 3]].tolist() == pytest.approx(torch.tensor([0.3, 0.1]).exp().tolist())
    pages = torch.tensor([2.0, 4.0]).exp()
    assert float(weights[1:3].sum()) == pytest.approx(float(pages.sum() ** 0.8))
    assert float(weights[2] / weights[1]) == pytest.approx(float(pages[1] / pages[0]))
