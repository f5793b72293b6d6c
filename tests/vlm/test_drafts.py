"""Drafts on models of all kinds of cache and position: one text and batches, greedy and sampled, trees and chains."""

import copy
import threading
from functools import cache
from types import SimpleNamespace

import pytest
import torch
from accelerate import cpu_offload
from draft_models import (
    NEW,
    call,
    deepseek_v3,
    eager,
    falcon_h1,
    gemma2,
    gemma3,
    gpt_oss,
    inkling,
    jamba,
    lfm2,
    mistral,
    mixtral,
    qwen3_next,
    recurrent_gemma,
    zaya,
)
from noted_streamer import NotedStreamer
from tensor_calls import TensorCalls
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    DeepseekV4ForCausalLM,
    DynamicCache,
    Gemma3ForCausalLM,
    GenerationConfig,
    LlamaForCausalLM,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedTokenizerFast,
    StopStringCriteria,
    SynthIDTextWatermarkingConfig,
)
from transformers.generation import utils

import mmaccel
from mmaccel.decoding import Stats, generation
from mmaccel.decoding.generated_text import aligned, copied
from mmaccel.decoding.generated_texts import GeneratedTexts
from mmaccel.decoding.passes import slots
from mmaccel.decoding.passes.rollback import can_go_back
from mmaccel.vlm import (
    FastV,
    FrameFusion,
    FusedDraft,
    HoliTom,
    SparsePrefill,
    SuffixDecoding,
    TextDraft,
    TokenRecycling,
    VisionZip,
    examples,
    visual_examples,
)

METHODS = (SuffixDecoding(shortest=1), TokenRecycling(always=True), FusedDraft(always=True), FusedDraft())
IDS = ("suffix", "recycling", "fused", "fused as it pays")


@pytest.fixture(scope="module")
def llama():
    return examples.llama()[0]


@cache
def without_drafts(build, batch, pad, eos=None):
    """A model, and what it writes: the same for all methods."""
    model = build()
    return model, model.generate(**call(batch, pad, eos_token_id=eos))


def plain_llama():
    return examples.llama()[0]


@pytest.mark.parametrize("method", METHODS, ids=IDS)
@pytest.mark.parametrize("eos", (None, 7))
@pytest.mark.parametrize(("batch", "pad"), ((1, 0), (1, 5), (3, 0), (8, 5)))
def test_texts_of_a_batch_are_those_of_the_model(method, batch, pad, eos):
    """Rows accept different numbers of drafts, end at different times, and are padded; twice, with what was learned."""
    given = call(batch, pad, eos_token_id=eos)
    llama, plain = without_drafts(plain_llama, batch, pad, eos)
    with mmaccel.accelerate(llama, method) as fast:
        for _ in range(2):
            assert torch.equal(fast.generate(**given), plain)
    report = fast.report
    assert report.exact and report.tokens <= batch * NEW
    if method != FusedDraft():  # on a model so small no draft need be worth its cost
        assert report.engaged and not report.warnings and report.details["accepted"] > 0


@pytest.mark.parametrize("build", (gemma3, deepseek_v3), ids=lambda build: build.__name__)
@pytest.mark.parametrize("method", METHODS, ids=IDS)
@pytest.mark.parametrize(("batch", "pad"), ((1, 0), (8, 5)))
def test_caches_of_other_kinds(build, method, batch, pad):
    (model, plain), given = without_drafts(build, batch, pad), call(batch, pad)
    with mmaccel.accelerate(model, method) as fast:
        for _ in range(2):
            result = fast.generate(**given, return_dict_in_generate=True)
            assert torch.equal(result.sequences, plain)
        assert fast.report.details["accepted"] > 0 or method == FusedDraft()
    cache = result.past_key_values
    assert cache.get_seq_length() == plain.shape[1] - 1
    assert not any(getattr(layer, "record_past", False) for layer in cache.layers), "it forgets again what it may"


@pytest.mark.parametrize("build", (mixtral, qwen3_next), ids=("trees", "chains"))
@pytest.mark.parametrize("method", METHODS[:3], ids=IDS[:3])
@pytest.mark.parametrize(("batch", "pad"), ((1, 0), (3, 5)))
def test_router_logits_are_left_out(build, method, batch, pad):
    """Which a config asks for that was trained with their loss: that takes no mask of a pass over drafts."""
    (model, plain), given = without_drafts(build, batch, pad), call(batch, pad)
    for config, argument in ((True, {}), (False, {"output_router_logits": True})):
        model.config.output_router_logits = config
        with mmaccel.accelerate(model, method) as fast:
            for _ in range(2):
                assert torch.equal(fast.generate(**given, **argument), plain)
            assert fast.report.details["accepted"] > 0
        assert model.config.output_router_logits is config


@cache
def gone_on_with(build, eos):
    """A model, what it writes, the call that goes on with that, and what is written then: for all methods."""
    model, given = build(), call(eos_token_id=eos, return_dict_in_generate=True, output_logits=True)
    plain = model.generate(**given)
    more = {"input_ids": torch.cat([plain.sequences, given["input_ids"][:, :7]], 1), "max_new_tokens": NEW}
    more |= {"do_sample": False, "eos_token_id": None}
    return model, plain, more, model.generate(**more, past_key_values=plain.past_key_values)


@pytest.mark.parametrize("build", (qwen3_next, falcon_h1, lfm2, inkling, zaya), ids=lambda build: build.__name__)
@pytest.mark.parametrize("method", (*METHODS[:3], TextDraft(always=True)), ids=(*IDS[:3], "text"))
@pytest.mark.parametrize("eos", (None, 7))
def test_states_are_put_back(build, method, eos):
    """After a rejected draft, and when the text ends with one: a text that goes on from the cache is the model's."""
    given = call(eos_token_id=eos, return_dict_in_generate=True, output_logits=True)
    model, plain, more, further = gone_on_with(build, eos)
    accepted = rejected = 0
    expected = plain.sequences[0, given["input_ids"].shape[1] :].clone()
    expected[2::5] = 3
    known = {"prediction": expected} if isinstance(method, TextDraft) else {}
    with mmaccel.accelerate(model, method) as fast:
        for _ in range(2):
            result = fast.generate(**given, **known)
            accepted += fast.report.details["accepted"]
            rejected += fast.report.details["drafted"] - fast.report.details["accepted"]
            assert torch.equal(result.sequences, plain.sequences)
            assert result.past_key_values.get_seq_length() == plain.sequences.shape[1] - 1
            assert not any("the model's own loop" in warning for warning in fast.report.warnings)
            torch.testing.assert_close(torch.stack(result.logits), torch.stack(plain.logits), rtol=1e-3, atol=1e-3)
            assert torch.equal(fast.generate(**more, past_key_values=result.past_key_values), further)
    assert accepted and (rejected or not known)


@pytest.mark.parametrize("build", (gemma2, gpt_oss, mistral, eager), ids=lambda build: build.__name__)
def test_attention_that_other_methods_cannot_take_over(build):
    model, given = build(), call()
    plain = model.generate(**given)
    with mmaccel.accelerate(model, FusedDraft(always=True)) as fast:
        for _ in range(2):
            assert torch.equal(fast.generate(**given), plain)
        assert fast.report.details["accepted"] > 0 and not fast.report.warnings


@pytest.mark.parametrize("build", (gemma3, mistral), ids=lambda build: build.__name__)
@pytest.mark.parametrize(("batch", "pad"), ((1, 0), (8, 5)))
@pytest.mark.parametrize("bare", (False, True))
def test_trees_and_batches_beside_windows(build, batch, pad, bare):
    """Of three times the window, and the cache afterwards is what the model's own loop leaves.

    Also in a cache that was made without a configuration, and keeps all.
    """

    def cache():
        return {"past_key_values": DynamicCache()} if bare else {}

    model, given = build(), call(batch, pad, max_new_tokens=50, return_dict_in_generate=True)
    plain = model.generate(**given, **cache())
    with mmaccel.accelerate(model, TokenRecycling(always=True)) as fast:
        for _ in range(2):
            found = fast.generate(**given, **cache())
            assert torch.equal(found.sequences, plain.sequences)
        assert fast.report.details["accepted"] > 0 and not fast.report.warnings
    for one, two in zip(found.past_key_values.layers, plain.past_key_values.layers, strict=True):
        assert type(one) is type(two) and one.get_seq_length() == two.get_seq_length()
        torch.testing.assert_close(one.keys, two.keys, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(one.values, two.values, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("build", (gemma3, mistral), ids=lambda build: build.__name__)
@pytest.mark.parametrize("batch", (1, 3))
@pytest.mark.parametrize("turn", (False, True), ids=("prompt", "later turn"))
def test_windows_count_what_a_mask_hides_within_a_text(build, batch, turn):
    """As transformers does: what a shorter answer was padded with in an earlier turn takes places of a window."""
    model, given = build(), call(batch, max_new_tokens=50)
    first = model.generate(**{**given, "max_new_tokens": 9}, return_dict_in_generate=True)
    if turn:
        given["input_ids"] = torch.cat([first.sequences, given["input_ids"][:, 3:6]], 1)
    given["attention_mask"] = torch.ones_like(given["input_ids"])
    for row, mask in enumerate(given["attention_mask"]):
        mask[-12 + 2 * row : -3] = 0
    cache = {"past_key_values": first.past_key_values} if turn else {}
    plain = model.generate(**given, **copy.deepcopy(cache))
    with mmaccel.accelerate(model, TokenRecycling(always=True)) as fast:
        for _ in range(2):
            assert torch.equal(fast.generate(**given, **copy.deepcopy(cache)), plain)
        assert fast.report.details["accepted"] > 0 and not fast.report.warnings


@pytest.mark.parametrize("build", (gemma2, qwen3_next, falcon_h1, inkling, zaya), ids=lambda build: build.__name__)
@pytest.mark.parametrize(("batch", "pad", "eos"), ((1, 5, None), (3, 0, 7), (3, 5, None), (8, 5, 7)))
def test_batches_that_are_read_in_step(build, batch, pad, eos):
    """Where rows cannot have places of their own; texts end, and get ahead, and the cache is the model's afterwards."""
    model, given = build(), call(batch, pad, eos_token_id=eos, return_dict_in_generate=True, output_logits=True)
    plain = model.generate(**given)
    expected = plain.sequences[:, given["input_ids"].shape[1] :].clone()
    expected[1:, 2::5] = expected[:1, 3::4] = 3
    with mmaccel.accelerate(model, TextDraft(always=True, block=6)) as fast:
        found = fast.generate(**given, prediction=expected)
        report = fast.report
    assert torch.equal(found.sequences, plain.sequences)
    assert 0 < report.details["accepted"] < report.details["drafted"] and not report.warnings
    assert report.forwards < len(plain.logits)
    for one, two in zip(found.past_key_values.layers, plain.past_key_values.layers, strict=True):
        for name in ("keys", "values"):
            if isinstance(getattr(two, name, None), torch.Tensor):
                torch.testing.assert_close(getattr(one, name), getattr(two, name), rtol=1e-3, atol=1e-3)
        for name in ("conv_states", "recurrent_states"):
            for state, same in zip(getattr(one, name, {}).values(), getattr(two, name, {}).values(), strict=True):
                torch.testing.assert_close(state, same, rtol=1e-3, atol=1e-3)


def test_rows_that_wait_for_others():
    """One is drafted rightly, the other never: it sets the pace, and the passes are as many as its tokens."""
    model, given = falcon_h1(), call(2, 0)
    plain = model.generate(**given)
    expected = plain[:, 36:].clone()
    expected[1] = 3
    with mmaccel.accelerate(model, TextDraft(always=True, block=4, remember=0)) as fast:
        assert torch.equal(fast.generate(**given, prediction=expected), plain)
        assert fast.report.forwards <= NEW + 1
        widest = max(width for width in fast.memory["vlm.TextDraft, cost of 2 rows"]._seconds)
    assert widest <= 6 + 1 + 2 * 4 + 8, "what is read again is bounded"


@pytest.mark.parametrize("build", (falcon_h1, lfm2, qwen3_next), ids=lambda build: build.__name__)
@pytest.mark.parametrize("rows", (1, 3))
def test_a_model_with_states_may_be_off_loaded(rows, build):
    """Between passes accelerate leaves its weights on "meta"."""
    model = build()
    plain = model.generate(**call(rows))
    cpu_offload(model, execution_device=torch.device("cpu"))
    assert model.device.type == "meta"
    with mmaccel.accelerate(model, FusedDraft(always=True)) as fast:
        assert torch.equal(fast.generate(**call(rows)), plain)
        assert fast.report.details["accepted"] and not fast.report.warnings


def test_states_are_tried_with_as_many_rows_as_a_call_has():
    """Adapters of peft may be named for each row of a batch."""
    model = falcon_h1()
    plain = model.generate(**call(3))

    def refused(module, args, kwargs):
        assert len(args[0]) == 3, "adapter_names must have the same length as the inputs"

    handle = model.get_input_embeddings().register_forward_pre_hook(refused, with_kwargs=True)
    with mmaccel.accelerate(model, FusedDraft(always=True)) as fast:
        assert torch.equal(fast.generate(**call(3)), plain) and not fast.report.warnings
    handle.remove()


@pytest.mark.parametrize("build", (jamba, recurrent_gemma), ids=lambda build: build.__name__)
@pytest.mark.parametrize("batch", (1, 3))
def test_states_that_a_pass_of_several_tokens_does_not_begin_at(build, batch):
    model, given = build(), call(batch, max_new_tokens=12)
    plain, name = model.generate(**given), type(model).__name__
    reason = f"the model's own loop ran: the layers of {name} read several tokens without their state"
    with mmaccel.accelerate(model, FusedDraft(always=True)) as fast:
        assert torch.equal(fast.generate(**given), plain)
        assert fast.report.warnings == [reason] and not fast.report.engaged


@pytest.mark.parametrize("family", ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "onevision", "internvl", "smolvlm"))
@pytest.mark.parametrize("batch", (1, 8))
def test_answers_about_pictures(family, batch):
    """Positions of three axes and padded prompts; tokens that stand for pictures are never drafted."""
    model, arguments = getattr(visual_examples, family)()
    given = arguments(batch, max_new_tokens=16)
    plain = model.generate(**given)
    with mmaccel.accelerate(model, FusedDraft(always=True)) as fast:
        for _ in range(2):
            assert torch.equal(fast.generate(**given), plain)
        assert fast.report.details["accepted"] > 0 and not fast.report.warnings


@pytest.mark.parametrize("family", ("onevision", "qwen2_5_vl"))
@pytest.mark.parametrize("batch", (1, 2))
@pytest.mark.parametrize(
    "fewer", (HoliTom(keep=0.3), FastV(keep=0.5), FrameFusion(keep=0.5), VisionZip(keep=0.3)), ids=lambda m: m.name
)
def test_drafts_beside_fewer_visual_tokens(family, batch, fewer):
    """The answer is that of the shortened prompt alone, also where layers hold different numbers of tokens."""
    model, arguments = getattr(visual_examples, family)()
    given = arguments(batch, max_new_tokens=14)
    with mmaccel.accelerate(model, fewer) as fast:
        plain = fast.generate(**given)
    with mmaccel.accelerate(model, fewer, FusedDraft(always=True)) as fast:
        for _ in range(2):
            assert torch.equal(fast.generate(**given), plain)
        assert fast.report.details["accepted"] > 0 and not fast.report.exact


def test_a_tree_is_verified_in_one_pass(llama):
    """Some pass is given alternatives: tokens at the same position."""
    seen = []
    handle = llama.get_decoder().register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(kwargs["position_ids"].tolist()), with_kwargs=True
    )
    with mmaccel.accelerate(llama, TokenRecycling(always=True)) as fast:
        for _ in range(3):
            fast.generate(**call())
    handle.remove()
    assert any(len(set(row)) < len(row) for places in seen for row in places)


@pytest.mark.parametrize("method", METHODS, ids=IDS)
@pytest.mark.parametrize("more", ({"temperature": 0.8}, {"top_p": 0.9, "top_k": 0}), ids=str)
def test_one_text_samples_the_tokens_of_the_model(llama, method, more):
    given = call(do_sample=True, **more)
    with mmaccel.accelerate(llama, method) as fast:
        for seed in (0, 1, 0):
            torch.manual_seed(seed)
            found, state = fast.generate(**given), torch.get_rng_state()
            with fast.baseline():
                torch.manual_seed(seed)
                assert torch.equal(found, llama.generate(**given))
                assert torch.equal(torch.get_rng_state(), state), "as many draws as plain sampling takes"


def call_of_many(rows):
    """Each of them samples three tokens."""
    every = torch.randperm(64, generator=torch.Generator().manual_seed(0))[None]  # so that whatever is drawn repeats
    more = {"input_ids": every, "attention_mask": torch.ones_like(every), "num_return_sequences": rows}
    return call(1, do_sample=True, temperature=1.5, top_k=4, max_new_tokens=3, **more)


@pytest.fixture(scope="module")
def plain_samples(llama):
    torch.manual_seed(0)
    return llama.generate(**call_of_many(6000))[:, -3:]


@pytest.mark.parametrize("method", METHODS[:3], ids=IDS[:3])
def test_a_batch_samples_from_the_distribution_of_the_model(llama, plain_samples, method):
    """Three tokens of 600 rows, of which drafts were tried, against the model's own."""
    given = call_of_many(600)
    with mmaccel.accelerate(llama, method) as fast:
        fast.generate(**given)  # so that there is something to draft
        torch.manual_seed(1)
        found = fast.generate(**given)[:, -3:]
        assert fast.report.details["drafted"] > 0
    assert_same_distribution(plain_samples, found)


def test_a_batch_in_step_samples_from_the_distribution_of_the_model():
    """Also with states that are put back, and rows that wait for others."""
    model = falcon_h1()
    given = call(1, do_sample=True, temperature=1.5, top_k=2, max_new_tokens=4, num_return_sequences=120)
    likely = model.generate(**call(1, max_new_tokens=4))[0, 36:]
    torch.manual_seed(0)
    plain = model.generate(**{**given, "num_return_sequences": 1200})[:, -4:]
    with mmaccel.accelerate(model, TextDraft(always=True)) as fast:
        torch.manual_seed(1)
        found = fast.generate(**given, prediction=likely)[:, -4:]
        assert 0 < fast.report.details["accepted"] < fast.report.details["drafted"]
    assert_same_distribution(plain, found)


def assert_same_distribution(plain, found):
    """By chi-square, for texts that are often enough; there are ten plain ones for each one that was drafted."""
    pairs, counts = torch.cat([plain, found]).unique(dim=0, return_inverse=True)
    expected = torch.bincount(counts[: len(plain)], minlength=len(pairs)).float() / 10
    seen = torch.bincount(counts[len(plain) :], minlength=len(pairs)).float()
    often = expected >= 5
    assert often.sum() > 3
    chi = ((seen - expected)[often] ** 2 / (1.1 * expected[often])).sum()
    assert chi < often.sum() + 4 * (2 * often.sum()) ** 0.5


def test_scores_of_a_batch(llama):
    """Of each step those of the model, and zeros for texts that had ended."""
    given = call(3, 5, eos_token_id=7, return_dict_in_generate=True, output_scores=True, output_logits=True)
    plain = llama.generate(**given)
    with mmaccel.accelerate(llama, FusedDraft(always=True)) as fast:
        for _ in range(2):
            found = fast.generate(**given)
    assert torch.equal(found.sequences, plain.sequences)
    new = plain.sequences[:, 36:]
    ended = (new == 7).int().cumsum(1) - (new == 7).int() > 0
    for name in ("scores", "logits"):
        assert len(found[name]) == len(plain[name])
        for step, (one, two) in enumerate(zip(found[name], plain[name], strict=True)):
            for row in range(3):
                if ended[row, step]:
                    assert not one[row].any()
                else:
                    torch.testing.assert_close(one[row], two[row], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("gaps", (slots.GAPS, 0))
def test_a_second_turn_of_a_batch(llama, gaps, monkeypatch):
    """The cache is left as the model's own loop leaves it, so that the model can go on from it alone.

    Also where rows have written so differently that what none of them needs was dropped on the way.
    """
    monkeypatch.setattr(slots, "GAPS", gaps)
    taken, take_together = [], slots.Slots._take_together
    monkeypatch.setattr(slots.Slots, "_take_together", lambda *told: (taken.append(told), take_together(*told)))
    given = call(3, 5)
    answers = []
    for method in (None, FusedDraft(always=True)):
        target = llama if method is None else mmaccel.accelerate(llama, method)
        for _ in range(2):
            first = target.generate(**given, return_dict_in_generate=True)
        if method is not None:
            target.remove()
        ids = torch.cat([first.sequences, first.sequences[:, 5:9]], 1)
        mask = torch.cat([given["attention_mask"], torch.ones(3, ids.shape[1] - 36).long()], 1)
        more = {"input_ids": ids, "attention_mask": mask, "past_key_values": first.past_key_values}
        answers.append(llama.generate(**{**given, **more}))
    assert torch.equal(*answers)
    assert len(taken) > 2 if gaps == 0 else len(taken) == 2, "once at the end of each call"


@cache
def two_turns(build, pad):
    """A model, a call of which the texts end apart, what is written then and in a second turn, and its cache."""
    model, own = build(), DynamicCache()
    whole = model.generate(**call(3, pad, max_new_tokens=50))
    end = max(range(64), key=lambda token: (len({*lengths(whole, token)}), min(lengths(whole, token))))
    assert len({*lengths(whole, end)}) > 1, "so that something is tested"
    given = call(3, pad, eos_token_id=end, max_new_tokens=50)
    first = model.generate(**given, past_key_values=own)
    held = copy.deepcopy(own)
    return model, given, first, held, model.generate(**further(given, first), past_key_values=own)


def lengths(texts, end):
    """Tokens of each answer of 50, up to one that ends it."""
    return [(row == end).nonzero()[0].item() + 1 if end in row else len(row) for row in texts[:, 36:]]


def further(given, first):
    """A second turn, to which all that was written is shown, also what shorter texts were padded with."""
    ids = torch.cat([first, first[:, 5:9]], 1)
    mask = torch.cat([given["attention_mask"], torch.ones(3, ids.shape[1] - 36).long()], 1)
    return {**given, "input_ids": ids, "attention_mask": mask, "eos_token_id": None, "max_new_tokens": NEW}


@pytest.mark.parametrize("build", (plain_llama, gemma3, mistral), ids=lambda build: build.__name__)
@pytest.mark.parametrize("method", (*METHODS[:3], TextDraft(always=True)), ids=(*IDS[:3], "text"))
@pytest.mark.parametrize("pad", (0, 5))
def test_a_second_turn_of_texts_that_end_apart(build, method, pad, monkeypatch):
    """The cache has the padding, too, which the model's own loop reads until the last text ends."""
    model, given, plain, held, answer = two_turns(build, pad)
    with mmaccel.accelerate(model, method) as fast:
        for kept in ({}, {"return_dict_in_generate": True}):
            own = DynamicCache()
            found = fast.generate(**given, **kept, past_key_values=own)
            assert torch.equal(found.sequences if kept else found, plain)
            assert fast.report.tokens == sum(lengths(plain, given["eos_token_id"]))
            for one, two in zip(own.layers, held.layers, strict=True):
                torch.testing.assert_close(one.keys, two.keys, rtol=1e-3, atol=1e-3)
                torch.testing.assert_close(one.values, two.values, rtol=1e-3, atol=1e-3)
        assert fast.report.details["accepted"] > 0
        monkeypatch.setattr(GeneratedTexts, "_read_padding", None)  # of a cache that nobody has
        assert torch.equal(fast.generate(**given), plain)
    assert torch.equal(model.generate(**further(given, plain), past_key_values=own), answer)


@pytest.mark.parametrize("more", ({}, {"use_cache": False}), ids=("drafted", "left to the model"))
def test_a_streamer_is_given_the_text_as_it_grows(llama, more):
    texts = []
    for target in (llama, mmaccel.accelerate(llama, FusedDraft())):
        for _ in range(2):
            streamer = NotedStreamer()
            result = target.generate(**call(**more), streamer=streamer)
        assert streamer.tokens == result[0].tolist() and streamer.ended == 1
        texts.append(result)
    target.remove()
    assert torch.equal(*texts)


def test_a_streamer_of_a_batch_is_given_a_token_of_every_text_at_a_time(llama):
    seen = []
    for target in (llama, mmaccel.accelerate(llama, FusedDraft(always=True))):
        streamer = NotedStreamer()
        target.generate(**call(3, 5), streamer=streamer)
        seen.append(streamer.tokens)
    assert seen[0] == seen[1]
    told = "the model's own loop ran: NotedStreamer is given a token of every text at a time"
    assert target.report.warnings == [told]
    target.remove()


def test_a_text_stops_at_strings(monkeypatch):
    """Of which each byte is a token."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    bare = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(letters)}, merges=[]))
    bare.pre_tokenizer, bare.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bare)
    model = examples.llama(vocab_size=len(letters))[0]
    new = model.generate(**call())[0, call()["input_ids"].shape[1] :].tolist()
    end = next(letters[token] for token in new[5:] if letters[token].isascii())
    given = call(stop_strings=[end], tokenizer=tokenizer)
    several = call(3, stop_strings=[end], tokenizer=tokenizer)
    plain, together = model.generate(**given), model.generate(**several)
    assert plain.shape[1] < call()["input_ids"].shape[1] + NEW
    config = GenerationConfig(max_new_tokens=NEW, stop_strings=[end])
    told = []
    monkeypatch.setattr(utils.logger, "warning_once", told.append)
    with mmaccel.accelerate(model, FusedDraft(always=True)) as fast:
        assert torch.equal(fast.generate(**given), plain)
        assert not any("own loop" in warning for warning in fast.report.warnings)
        configured = fast.generate(call()["input_ids"], generation_config=config, tokenizer=tokenizer)
        assert torch.equal(configured, plain) and config.stop_strings == [end] and not told
        model.generation_config.stop_strings = [end]
        for own in (GenerationConfig(max_new_tokens=NEW), config):
            configured = fast.generate(call()["input_ids"], generation_config=own, tokenizer=tokenizer)
            assert torch.equal(configured, plain) and not any("own loop" in word for word in fast.report.warnings)
        unstopped = fast.generate(**call(stop_strings=None, tokenizer=tokenizer))
        assert unstopped[0, -NEW:].tolist() == new, "None counts more than the configuration"
        model.generation_config.stop_strings = None
        assert torch.equal(fast.generate(**several), together)
        assert "is written on until all have ended" in fast.report.warnings[0]
    drafts, criterion = FusedDraft(always=True).custom_generate(), StopStringCriteria(tokenizer, [end])
    with pytest.raises(ValueError, match="tokenizer"):  # which transformers keeps for its own loop
        model.generate(**given, custom_generate=drafts)
    assert torch.equal(model.generate(**call(stopping_criteria=[criterion]), custom_generate=drafts), plain)
    assert not any("own loop" in warning for warning in drafts.report.warnings)


def test_a_turn_of_its_new_tokens_alone_is_left_to_the_model(llama):
    """That the text is longer the mask says."""
    first = llama.generate(**call(), return_dict_in_generate=True)
    held = first.past_key_values.get_seq_length()
    new = torch.randint(4, 60, (1, 9), generator=torch.Generator().manual_seed(9))
    given = call(input_ids=new, attention_mask=torch.ones(1, held + 9, dtype=torch.long))
    plain = llama.generate(**given, past_key_values=copy.deepcopy(first.past_key_values))
    with mmaccel.accelerate(llama, FusedDraft(always=True)) as fast:
        assert torch.equal(fast.generate(**given, past_key_values=copy.deepcopy(first.past_key_values)), plain)
        assert "only the new tokens of a text were given" in fast.report.warnings[0]


@pytest.mark.parametrize("first", (True, False))
def test_a_report_has_what_drafts_saved_beside_a_method_that_did_nothing(llama, first):
    methods = (FusedDraft(always=True), SparsePrefill())
    with mmaccel.accelerate(llama, *(methods if first else methods[::-1])) as fast:
        for _ in range(2):
            fast.generate(**call())
        report = fast.report
    assert report.engaged and report.peak_extra_bytes > 0 and report.tokens == NEW


def test_checkpoints_that_say_hybrid_have_the_usual_cache():
    """As those of Gemma do; `generate` takes it back."""
    model = gemma3()
    plain = model.generate(**call())
    model.generation_config.cache_implementation = "hybrid"
    with mmaccel.accelerate(model, FusedDraft(always=True)) as fast:
        for _ in range(2):
            assert torch.equal(fast.generate(**call()), plain)
        assert fast.report.details["accepted"] > 0 and not fast.report.warnings
    drafts = FusedDraft(always=True).custom_generate()
    assert torch.equal(model.generate(**call(), custom_generate=drafts), plain)


class Mine(LogitsProcessor):
    def __call__(self, input_ids, scores):
        return scores


WHOLE = "Mine may look at the whole batch: say rowwise = True in its class if it looks at each row alone"


@pytest.mark.parametrize(("batch", "reasons"), ((1, []), (2, [f"the model's own loop ran: {WHOLE}"])))
def test_a_processor_of_the_user_is_shown_batches_only_whole(llama, batch, reasons):
    said = f"the model's own loop ran: {WHOLE}"
    given = call(batch, logits_processor=LogitsProcessorList([Mine()]))
    plain = llama.generate(**given)
    with mmaccel.accelerate(llama, SuffixDecoding(shortest=1)) as fast:
        assert torch.equal(fast.generate(**given), plain) and fast.report.warnings == ([said] if batch > 1 else [])


class PrefixConstrainedLogitsProcessor(Mine):
    """Not that of transformers, but for the name."""

    rowwise = True


def test_a_processor_of_transformers_that_looks_at_the_whole_batch_is_named_without_advice_on_its_class(llama):
    said = "PrefixConstrainedLogitsProcessor looks at the whole batch: give one text at a time for drafts"
    given = call(2, prefix_allowed_tokens_fn=lambda row, ids: list(range(4, 40)))
    plain = llama.generate(**given)
    with mmaccel.accelerate(llama, SuffixDecoding(shortest=1)) as fast:
        assert torch.equal(fast.generate(**given), plain)
        assert fast.report.warnings == [f"the model's own loop ran: {said}"]
        fast.generate(**call(2, logits_processor=LogitsProcessorList([PrefixConstrainedLogitsProcessor()])))
        assert fast.report.details["accepted"] and not fast.report.warnings


class Judge(torch.nn.Linear):
    """As large as a model of its own may be."""

    def __deepcopy__(self, memo):
        raise AssertionError("copied")


class Judged(LogitsProcessor):
    """Takes a judge's weight from the token that was likeliest before."""

    rowwise = True

    def __init__(self, held):
        self.judge, self.held, self.last = Judge(1, 1), held, None

    def __call__(self, input_ids, scores):
        if self.last is not None:
            scores = scores.scatter_add(1, self.last, -self.judge.weight.abs().expand_as(self.last))
        self.last = scores.argmax(-1, keepdim=True)
        return scores


def test_rows_share_what_is_large_and_remember_for_themselves(llama):
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()))
    processor = Judged(tokenizer)
    given = call(2, logits_processor=LogitsProcessorList([processor]))
    plain, processor.last = llama.generate(**given), None
    with mmaccel.accelerate(llama, SuffixDecoding(shortest=1)) as fast:
        assert torch.equal(fast.generate(**given), plain)
        assert fast.report.details["accepted"] and not fast.report.warnings and processor.last is None
    (own,) = copied([processor])
    assert own is not processor and own.held is tokenizer and own.judge is processor.judge


def test_a_processor_that_cannot_be_copied_is_left_to_the_model(llama):
    processor = Judged(threading.Lock())
    given = call(2, logits_processor=LogitsProcessorList([processor]))
    plain, processor.last = llama.generate(**given), None
    said = "the model's own loop ran: Judged cannot be copied for each text: cannot pickle '_thread.lock' object"
    with mmaccel.accelerate(llama, SuffixDecoding(shortest=1)) as fast:
        assert torch.equal(fast.generate(**given), plain) and fast.report.warnings == [said]
        processor.last = None
        fast.generate(**call(logits_processor=[processor]))
        assert fast.report.details["accepted"] and not fast.report.warnings, "one text needs no copy"


@pytest.mark.parametrize("batch", (1, 2))
def test_the_report_says_why_drafts_are_chains(llama, batch, monkeypatch):
    """As with flash attention, which takes no mask for each token."""
    plain = llama.generate(**call(batch))
    monkeypatch.setattr(slots, "ATTENTION", ())
    for method in (FusedDraft(always=True), SuffixDecoding(shortest=1)):
        with mmaccel.accelerate(llama, method) as fast:
            assert torch.equal(fast.generate(**call(batch)), plain)
            reason = "attn_implementation='sdpa' takes no mask of its own for each token"
            told = method.branches or batch > 1
            assert fast.report.details.get("chains") == (reason if told else None) and not fast.report.warnings


def test_flash_attention_takes_no_mask_of_its_own(llama, monkeypatch):
    assert slots.unfit_for_rows(llama) is None
    monkeypatch.setattr(llama.config, "_attn_implementation", "flash_attention_2")
    reason = "attn_implementation='flash_attention_2' takes no mask of its own for each token"
    assert slots.unfit_for_rows(llama) == reason


@pytest.mark.parametrize(
    "setting",
    (
        {"num_beams": 2},
        {"cache_implementation": "static"},
        {"assistant_early_exit": 1},
        {"prompt_lookup_num_tokens": 3},
    ),
    ids=str,
)
def test_other_loops_of_generate_stay_what_they_are(llama, setting):
    """One warning names them; that a setting of the model asks for the usual cache is no reason."""
    given = call(**setting)
    plain = llama.generate(**given)
    with mmaccel.accelerate(llama, FusedDraft(always=True)) as fast:
        assert torch.equal(fast.generate(**given), plain)
        ((name, value),) = setting.items()
        assert fast.report.warnings == [f"the model's own loop ran: {name}={value!r}"]
        with pytest.raises(ValueError, match="Contrastive Search"):
            fast.generate(**call(penalty_alpha=0.6, top_k=4))
        with pytest.raises(ValueError, match="Contrastive Search"):
            fast.generate(**call(penalty_alpha=0.6))
        for plain_loop in ({"penalty_alpha": 0.0, "top_k": 4}, {"penalty_alpha": 0.6, "top_k": 1}):
            fast.generate(**call(**plain_loop))
            assert fast.report.details["accepted"] > 0 and not fast.report.warnings
        fast.generate(**call(cache_implementation="dynamic"))
        assert fast.report.details["accepted"] > 0 and not fast.report.warnings


def test_a_text_without_drafts_says_why(llama):
    with mmaccel.accelerate(llama, FusedDraft()) as fast:
        fast.generate(**call(max_new_tokens=2))
        said = "nothing was drafted: the answer is two tokens, a pass each, of which drafts save none"
        assert fast.report.warnings == [said]
        for batch in (1, 3):
            fast.generate(**call(batch, max_new_tokens=1))
            said = "nothing was drafted: the answer is one token, which the pass over the prompt gives"
            assert fast.report.warnings == [said]
        fast.generate(**call(max_new_tokens=1), guidance_scale=1.5)  # a pass more for its token
        assert fast.report.warnings == [said]
    for method, why in (
        (FusedDraft(), "no guess was worth what a wider pass costs"),
        (FusedDraft(always=True), "no repeat was found in the prompt or the answer"),  # costs do not count
        (TokenRecycling(always=True), "there was nothing to guess from"),
    ):
        longer = SimpleNamespace(stats=Stats(), longest=3, method=method)
        assert generation._why_nothing(longer) == f"nothing was drafted: {why}"


def test_what_a_session_keeps_is_bounded(llama):
    method = FusedDraft(remember=64)
    with mmaccel.accelerate(llama, method) as fast:
        sizes = []
        for seed in range(12):
            ids = torch.randint(4, 60, (1, 40), generator=torch.Generator().manual_seed(seed))
            fast.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False)
            sizes.append(len(fast.memory[method.name]))
        assert sizes[-1] <= 64 + 2 * 49 and len(set(sizes[4:])) <= 2


@pytest.mark.parametrize("method", METHODS, ids=IDS)
@pytest.mark.parametrize("negative", (False, True))
def test_a_second_pass_for_guidance_knows_nothing_of_drafts(llama, method, negative):
    """transformers runs the model again within a processor of logits, for texts of another length."""
    given = {**call(1, 0), "guidance_scale": 1.5}
    if negative:
        given["negative_prompt_ids"] = torch.randint(4, 50, (1, 30), generator=torch.Generator().manual_seed(0))
    passes, plain = [], llama.generate(**given)
    counting = llama.register_forward_hook(lambda *_: passes.append(1))
    with mmaccel.accelerate(llama, method) as fast:
        for _ in range(2):
            passes.clear()
            assert torch.equal(fast.generate(**given), plain)
            new = plain.shape[1] - given["input_ids"].shape[1]
            assert fast.report.forwards == len(passes) and fast.report.plain_forwards == 2 * new
    counting.remove()


@pytest.mark.parametrize(
    ("kind", "fits"), ((DeepseekV4ForCausalLM, False), (Gemma3ForCausalLM, True), (LlamaForCausalLM, True))
)
def test_layers_that_keep_more_than_they_crop_are_left_to_the_model(kind, fits):
    """Of DeepSeek-V4 a layer also keeps compressed keys, which stay where drafts are taken back."""
    assert can_go_back(DynamicCache(config=kind.config_class().get_text_config())) == fits


@pytest.mark.parametrize("method", METHODS, ids=IDS)
def test_training_that_keeps_no_cache_is_left_to_the_model(method):
    model, arguments = examples.llama()
    model.train()
    model.gradient_checkpointing_enable()
    given = arguments(max_new_tokens=8)
    plain = model.generate(**given)
    with mmaccel.accelerate(model, method) as fast:
        assert torch.equal(fast.generate(**given), plain)
        assert "gradient checkpointing" in fast.report.warnings[0] and fast.report.tokens == 8


@pytest.mark.filterwarnings("error::FutureWarning")
def test_no_name_is_asked_for_of_which_transformers_warns(llama):
    with mmaccel.accelerate(llama, METHODS[0]) as fast:
        fast.generate(**call())
        assert not fast.report.warnings


@pytest.mark.parametrize("batch", (1, 3))
def test_processors_know_the_padding_of_their_row(llama, batch):
    """transformers leaves padding out of the penalty by a length for each row."""
    given = call(batch, 5, repetition_penalty=1.3)
    plain = llama.generate(**given)
    for method in METHODS:
        with mmaccel.accelerate(llama, method) as fast:
            assert torch.equal(fast.generate(**given), plain), method


@pytest.mark.parametrize("method", METHODS[:3], ids=IDS[:3])
def test_processors_remember_their_row_alone(llama, method):
    """A watermark in a batch is the one that each text has alone."""
    keys = SynthIDTextWatermarkingConfig(keys=[654, 400, 836, 123, 340], ngram_len=3)
    given = call(3, 5, watermarking_config=keys)
    plain = llama.generate(**given)
    assert not torch.equal(plain, llama.generate(**call(3, 5)))
    with mmaccel.accelerate(llama, method) as fast:
        assert torch.equal(fast.generate(**given), plain)


def test_where_one_text_is_in_a_pass_is_no_matter_of_the_gpu():
    """It would be asked in every pass."""
    texts, logits = [SimpleNamespace(ids=torch.zeros(1, 8))], torch.randn(1, 3, 5)
    with TensorCalls() as calls:
        found = aligned(logits, texts, 9, 2)
    assert torch.equal(found, logits[:, 1:]) and not calls.reads and not calls.counts["new_tensor"]


@pytest.mark.parametrize("method", METHODS, ids=IDS)
def test_tokens_that_a_model_has_no_more_are_not_drafted(method):
    model = examples.llama(tie_word_embeddings=False)[0]
    prompt, settings = torch.tensor([[7, 9, 5]]), {"max_new_tokens": 8, "do_sample": False}
    with mmaccel.accelerate(model, method) as fast:
        fast.generate(torch.tensor([[5, 60] * 8]), **settings)
        model.resize_token_embeddings(50)
        found = fast.generate(prompt, **settings)
        assert torch.equal(fast.generate(prompt, **settings), found)
    assert torch.equal(model.generate(prompt, **settings), found)
