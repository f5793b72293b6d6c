"""Caches that a caller hands on: to a later turn, to another session, without the earlier turns."""

import pytest
import torch
from transformers import DynamicCache

import mmaccel
from mmaccel import vlm
from mmaccel.errors import PromptError, SettingError
from mmaccel.vlm import examples, visual_examples

QUESTION = torch.tensor([[5, 6, 7, 8, 9]])


@pytest.fixture(scope="module")
def onevision():
    return visual_examples.onevision()


def text(ids, **more):
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "max_new_tokens": 3, "do_sample": False, **more}


def told(model, arguments, method):
    """Tokens and the cache of a turn about a clip."""
    cache = DynamicCache()
    with mmaccel.accelerate(model, method) as fast:
        return fast.generate(**arguments(), past_key_values=cache), cache


def test_a_turn_that_lacks_the_earlier_ones_is_refused(onevision):
    """Its question would be cut off as known."""
    model, arguments = onevision
    with mmaccel.accelerate(model, vlm.VidCom2()) as fast:
        cache = DynamicCache()
        tokens = fast.generate(**arguments(), past_key_values=cache)
        with pytest.raises(PromptError, match=r"do not go on from them.*torch\.cat\(\[tokens, question\], 1\)"):
            fast.generate(**text(QUESTION, past_key_values=cache))
        with pytest.raises(PromptError, match="do not go on"):
            fast.generate(**text(tokens, past_key_values=cache))
        whole = torch.cat([tokens, QUESTION], 1)
        longer = text(torch.cat([whole, QUESTION], 1), past_key_values=cache)  # alone behind a mask of all turns
        longer["attention_mask"] = torch.ones(1, tokens.shape[1] + longer["input_ids"].shape[1])
        with pytest.raises(PromptError, match="do not go on"):
            fast.generate(**longer)
        assert fast.generate(**text(whole, past_key_values=cache)).shape[1] == whole.shape[1] + 3


@pytest.mark.parametrize("first", (vlm.VidCom2(keep=0.3), vlm.FastV(keep=0.3)), ids=str)
@pytest.mark.parametrize(
    "second",
    (vlm.VidCom2(keep=0.5), vlm.VidCom2(keep=1.0), vlm.SparsePrefill(), vlm.FusedDraft(), vlm.StoredContext()),
    ids=str,
)
def test_no_other_session_goes_on_from_a_shortened_prompt(onevision, first, second):
    model, arguments = onevision
    tokens, cache = told(model, arguments, first)
    with mmaccel.accelerate(model, second) as fast:
        with pytest.raises(PromptError, match="another session has shortened"):
            fast.generate(**text(torch.cat([tokens, QUESTION], 1), past_key_values=cache))
        assert torch.equal(fast.generate(**text(QUESTION)), model.generate(**text(QUESTION)))


@pytest.mark.parametrize("second", (vlm.SparsePrefill(), vlm.FusedDraft(), vlm.PrefillDrop(keep=1.0)), ids=str)
def test_only_a_drop_goes_on_from_a_drop(second):
    model, arguments = examples.llama()
    drop = vlm.PrefillDrop(keep=0.3, min_length=16, window=4)
    with mmaccel.accelerate(model, drop) as fast:
        first = fast.generate(**arguments(1), return_dict_in_generate=True)
    more = text(torch.cat([first.sequences, QUESTION], 1), past_key_values=first.past_key_values)
    with mmaccel.accelerate(model, second) as fast, pytest.raises(PromptError, match=r"vlm\.PrefillDrop has dropped"):
        fast.generate(**more)
    with mmaccel.accelerate(model, drop) as fast:
        assert fast.generate(**more).shape[1] == more["input_ids"].shape[1] + 3


def test_what_was_kept_is_that_of_the_last_call(onevision):
    model, arguments = onevision
    with mmaccel.accelerate(model, vlm.VidCom2()) as fast:
        fast.generate(**arguments())
        assert vlm.kept(fast)[0].share < 1
        fast.generate(**text(QUESTION))
        with pytest.raises(SettingError, match="the last call of this session left out no visual tokens"):
            vlm.kept(fast)


@pytest.mark.parametrize("turned", (False, True))
@pytest.mark.parametrize("draft", (vlm.ModelDraft(always=True), vlm.FusedDraft(always=True)), ids=str)
def test_stored_contexts_are_within_drafts_in_any_order(tmp_path, draft, turned):
    model, arguments = examples.llama()
    small, _ = examples.llama(seed=1, num_hidden_layers=1)
    given = {**arguments(1), **({"assistant_model": small} if isinstance(draft, vlm.ModelDraft) else {})}
    plain = model.generate(**arguments(1))
    methods = [vlm.StoredContext(folder=str(tmp_path), least=16), draft]
    with mmaccel.accelerate(model, *(reversed(methods) if turned else methods)) as fast:
        for stored in (0, 64):
            assert torch.equal(fast.generate(**given), plain)
            assert fast.report.details["context"]["from_store"] == stored


def test_a_stored_context_takes_no_spans(tmp_path):
    model, arguments = examples.llama()
    refused = pytest.raises(SettingError, match=r"takes no contexts; vlm\.JoinedContext does")
    with mmaccel.accelerate(model, vlm.StoredContext(folder=str(tmp_path))) as fast, refused:
        fast.generate(**arguments(1), contexts=[(0, 5)])


@pytest.mark.parametrize("place", ("call", "model"))
@pytest.mark.parametrize("kind", (vlm.SelectKV, vlm.CompressKV, vlm.StoredContext, vlm.JoinedContext))
def test_the_usual_cache_may_be_asked_for_by_its_name(kind, place, tmp_path):
    model, arguments = examples.llama()
    stores = issubclass(kind, vlm.StoredContext)
    method = kind(folder=str(tmp_path), least=16) if stores else kind(budget=None, tokens=8)
    given, spans = arguments(), {"contexts": [(0, 64)]} if kind is vlm.JoinedContext else {}
    if place == "model":
        model.generation_config.cache_implementation = "dynamic"
    else:
        given["cache_implementation"] = "dynamic"
    with mmaccel.accelerate(model, method) as fast:
        for _ in range(2):
            fast.generate(**given, **spans)
        assert fast.report.engaged and not fast.report.warnings


@pytest.mark.parametrize(
    ("method", "cached"),
    (
        (vlm.SelectKV(budget=0.5, dense_layers=0), True),
        (vlm.CompressKV(budget=0.3), True),
        (vlm.CompressKV(budget=0.3, head_budgets=True), True),
        (vlm.SparsePrefill(**vlm.SparsePrefill.engaging), True),
        (vlm.SparsePrefill(**vlm.SparsePrefill.engaging), False),
    ),
    ids=str,
)
def test_methods_under_autocast(method, cached):
    """Where rotated keys are float32, and values are not unless a cache makes them so."""
    model, arguments = examples.llama()
    with torch.autocast("cpu", torch.bfloat16), mmaccel.accelerate(model, method) as fast:
        assert fast.generate(**arguments(2), use_cache=cached).shape == (2, 86)
        assert fast.report.engaged and not fast.report.warnings


@pytest.mark.parametrize("ends_early", (False, True))
def test_a_turn_of_a_batch_counts_no_padding_between_the_turns(ends_early):
    """Of a shorter question, or behind an answer that ended before the other."""
    model, arguments = visual_examples.qwen3_vl()
    call = arguments(2, max_new_tokens=6, return_dict_in_generate=True)
    end = int(model.generate(**call).sequences[0, -5]) if ends_early else None
    question = torch.randint(4, 50, (2, 8), generator=torch.Generator().manual_seed(7))
    asked = torch.ones_like(question).index_put((torch.tensor(1), torch.arange(4)), torch.tensor(int(ends_early)))

    def talk(target):
        first = target.generate(**call, eos_token_id=end, pad_token_id=0)
        answer = first.sequences[:, call["input_ids"].shape[1] :]
        ended = torch.zeros_like(answer) if end is None else (answer == end).cumsum(1) - (answer == end).long()
        ids = torch.cat([first.sequences, question * asked], 1)
        mask = torch.cat([call["attention_mask"], (ended == 0).long(), asked], 1)
        assert (mask == 0).any()
        again = {"input_ids": ids, "attention_mask": mask, "past_key_values": first.past_key_values}
        return target.generate(**again, **{k: v for k, v in call.items() if k in ("max_new_tokens", "do_sample")})

    plain = talk(model)
    with mmaccel.accelerate(model, vlm.VidCom2(keep=None, tokens=10**6)) as fast:
        assert torch.equal(talk(fast), plain)


@pytest.mark.parametrize("method", (vlm.VidCom2(keep=0.4), vlm.HoliTom(keep=0.4)), ids=str)
def test_token_ids_may_be_of_32_bits(method):
    model, arguments = visual_examples.onevision()
    call = arguments(2)
    with mmaccel.accelerate(model, method) as fast:
        usual = fast.generate(**call)
        assert torch.equal(fast.generate(**{**call, "input_ids": call["input_ids"].int()}), usual)
