"""Drafts of decoders: the model's own tokens, greedy and sampled, whatever the prompt holds."""

from dataclasses import dataclass

import pytest
import torch

import mmaccel
from mmaccel import vlm
from mmaccel.decoding.drafters.draft_method import DraftMethod
from mmaccel.errors import ConflictError, SettingError
from mmaccel.vlm import SuffixDecoding, examples, visual_examples

NEW = 40


@pytest.fixture(scope="module", params=("llama", "qwen2"))
def case(request):
    """A model, and arguments of a prompt whose second half begins to repeat the first."""
    model, _ = getattr(examples, request.param)()
    ids = torch.randint(4, 60, (1, 24), generator=torch.Generator().manual_seed(1))
    ids = torch.cat([ids, ids[:, :12]], 1)

    def arguments(**more):
        call = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "max_new_tokens": NEW, "do_sample": False}
        return {**call, **more}

    return model, arguments


def drafted(model, arguments, method=None, **more):
    with mmaccel.accelerate(model, method or SuffixDecoding(shortest=1)) as session:
        return session.generate(**arguments(**more)), session.report


@pytest.mark.parametrize(
    "method", (SuffixDecoding(shortest=1), SuffixDecoding(block=3), SuffixDecoding(block=64)), ids=str
)
def test_the_tokens_of_the_model_in_fewer_passes(case, method):
    model, arguments = case
    plain, passes = model.generate(**arguments()), []
    handle = model.get_decoder().register_forward_hook(lambda *_: passes.append(1))
    with mmaccel.accelerate(model, method) as session:
        for _ in range(2):
            passes.clear()
            assert torch.equal(session.generate(**arguments()), plain)
            assert session.report.forwards == len(passes)
            assert session.report.plain_forwards == session.report.tokens == NEW
    handle.remove()
    report = session.report
    assert report.engaged and report.exact and not report.warnings
    assert len(passes) <= -(-NEW // (method.block + 1)) + 4, "the second time nearly all is known"


def test_a_comparison_knows_no_answer_by_heart(case):
    model, arguments = case
    with mmaccel.accelerate(model, SuffixDecoding(shortest=1)) as session:
        session.generate(**arguments())
        first = session.report.work_ratio
        session.generate(**arguments())
        assert session.report.work_ratio < 0.8 * first, "the second time nearly all is known"
    found = mmaccel.compare(model, SuffixDecoding(shortest=1), simple=False, **arguments())
    assert found.rows[1]["work_ratio"] == pytest.approx(first)


def test_drafts_of_no_tokens_are_none(case):
    model, arguments = case
    passes = []
    with mmaccel.accelerate(model, SuffixDecoding(block=0, shortest=1)) as session:
        handle = model.get_decoder().register_forward_hook(lambda *_: passes.append(1))
        session.generate(**arguments())
        handle.remove()
        report = session.report
    assert len(passes) == NEW and not report.engaged and not report.details.get("drafted")
    assert any("drafts of 0 tokens" in text for text in report.warnings)


@pytest.mark.parametrize("block", (1, 3, 12))
def test_no_draft_is_longer_than_the_block(case, block):
    model, arguments = case
    widths = []
    with mmaccel.accelerate(model, SuffixDecoding(block=block, shortest=1)) as session:
        session.generate(**arguments())
        handle = model.get_decoder().register_forward_pre_hook(
            lambda module, args, kwargs: widths.append(kwargs["input_ids"].shape[1]), with_kwargs=True
        )
        session.generate(**arguments())
        handle.remove()
    assert max(widths[1:]) == 1 + block, "the last token and a draft, all of it once the text is known"


def test_a_text_in_which_nothing_comes_back_says_so(case):
    """Of a prompt of different tokens and three new ones there is nothing to draft, and so nothing that was wrong."""
    model, arguments = case
    ids = torch.arange(4, 28)[None]
    more = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "max_new_tokens": 3}
    _, report = drafted(model, arguments, SuffixDecoding(longest=8, shortest=8), **more)
    assert report.details["drafted"] == 0
    assert report.warnings == ["nothing was drafted: no repeat was found in the prompt or the answer"]


def test_tokens_that_stand_for_pictures_are_never_drafted():
    model, arguments = visual_examples.qwen2_5_vl()
    config = model.config
    call = arguments()
    plain = model.generate(**call)
    with mmaccel.accelerate(model, SuffixDecoding(shortest=1)) as session:
        for _ in range(2):
            assert torch.equal(session.generate(**call), plain)
        assert session.report.engaged
        index = session.memory["vlm.SuffixDecoding"]
    assert {config.video_token_id, config.image_token_id} <= index.forbidden
    assert not index.forbidden & set(index._tokens)


def test_one_session_has_one_drafter(case):
    @dataclass(frozen=True)
    class Other(DraftMethod):
        name = "vlm.Other"

    with pytest.raises(ConflictError, match="vlm.SuffixDecoding"):
        mmaccel.plan(case[0], SuffixDecoding(), Other())


@pytest.mark.parametrize("cache", (vlm.SelectKV(), vlm.CompressKV()), ids=str)
def test_no_plan_has_drafts_beside_a_cache_that_takes_none_back(case, cache):
    with pytest.raises(ConflictError, match="cannot be combined: keep one of them"):
        mmaccel.plan(case[0], vlm.FusedDraft(), cache)


def test_a_prediction_for_drafts_that_take_none(case):
    model, arguments = case
    with mmaccel.accelerate(model, SuffixDecoding()) as session:
        with pytest.raises(SettingError, match=r"SuffixDecoding takes no prediction; vlm\.TextDraft does"):
            session.generate(**arguments(prediction=[5]))
        assert torch.equal(session.generate(**arguments()), model.generate(**arguments()))
