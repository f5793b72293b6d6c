"""SuffixDraft: `generate` of every kind gives what it gives without, in fewer passes."""

import copy
import types

import pytest
import tiny_recognisers
import torch
from noted_streamer import NotedStreamer
from tiny_recognisers import END, START
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

import mmaccel
from mmaccel.adapter import find_adapter
from mmaccel.cache.argument import cache_of
from mmaccel.decoding import SuffixIndex, generation
from mmaccel.decoding.generation import Call
from mmaccel.errors import SettingError
from mmaccel.speech import examples
from mmaccel.speech.decoding.suffix_draft import SuffixDraft
from mmaccel.speech.families.moonshine import MoonshineAdapter
from mmaccel.speech.families.moonshine_streaming import MoonshineStreamingAdapter
from mmaccel.speech.families.whisper import WhisperAdapter

NEW, SIZES = 40, {"scale": 12.0, "vocab_size": 80}
NO_TIMES = 60  # tokens from 61 on are times, 0.02 s apart


def noise(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


def whisper():
    model = tiny_recognisers.whisper(**SIZES)
    model.generation_config.update(
        is_multilingual=False, max_length=64, suppress_tokens=[3, 4], begin_suppress_tokens=[END]
    )
    model.generation_config.no_timestamps_token_id = NO_TIMES
    return model, lambda batch=1, **more: call({"input_features": noise(batch, 8, 100)}, **more)


def moonshine():
    model = tiny_recognisers.moonshine(**SIZES)
    return model, lambda batch=1, **more: call({"input_values": noise(batch, 8000)}, **more)


def moonshine_streaming():
    model = tiny_recognisers.moonshine_streaming(**SIZES)

    def arguments(batch=1, **more):
        values = noise(batch, 8000)
        return call({"input_values": values, "attention_mask": torch.ones_like(values).long()}, **more)

    return model, arguments


def call(inputs, **more):
    # no end, so that a batch has the shape that its rows have
    return {**inputs, "max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False, **more}


MODELS = {"whisper": whisper, "moonshine": moonshine, "moonshine_streaming": moonshine_streaming}


@pytest.fixture(scope="module", params=MODELS)
def case(request):
    return MODELS[request.param]()


@pytest.fixture
def spoken():
    return whisper()


def drafted(model, arguments, method=None, **more):
    with mmaccel.accelerate(model, method or SuffixDraft()) as session:
        return session.generate(**arguments(**more)), session.report


def test_adapters_of_the_families():
    families = [find_adapter(build()[0]) for build in MODELS.values()]
    assert [type(adapter) for adapter in families] == [WhisperAdapter, MoonshineAdapter, MoonshineStreamingAdapter]
    assert {adapter.family for adapter in families} == SuffixDraft.families
    assert SuffixDraft.families <= {example.family for example in examples.examples()}, "the contract runs on them"


@pytest.mark.parametrize(
    "method", (SuffixDraft(), SuffixDraft(shortest=1), SuffixDraft(block=3, longest=2), SuffixDraft(block=64)), ids=str
)
def test_the_tokens_of_the_model_in_fewer_passes(case, method):
    model, arguments = case
    plain = model.generate(**arguments())
    calls = []
    handle = model.get_decoder().register_forward_hook(lambda *_: calls.append(1))
    tokens, report = drafted(model, arguments, method)
    handle.remove()
    assert torch.equal(tokens, plain)
    assert report.engaged and report.exact and not report.warnings
    assert report.forwards == len(calls) < report.plain_forwards == report.tokens == NEW
    assert report.details["accepted"] == NEW - report.forwards <= report.details["drafted"]


def test_an_end(case):
    model, arguments = case
    full = model.generate(**arguments())[0].tolist()
    for end in dict.fromkeys(full[5:30:6]):  # any token can be made the end
        more = {"eos_token_id": end, "min_new_tokens": 5}
        tokens, _ = drafted(model, arguments, **more)
        assert torch.equal(tokens, model.generate(**arguments(**more)))


def test_earlier_texts_are_remembered(case):
    model, arguments = case
    plain = model.generate(**arguments())
    with mmaccel.accelerate(model, SuffixDraft()) as session:
        passes = []
        for _ in range(2):
            assert torch.equal(session.generate(**arguments()), plain)
            passes.append(session.report.forwards)
        assert passes[1] < passes[0]
    assert drafted(model, arguments)[1].forwards == passes[0], "another session remembers nothing"


class Raise(LogitsProcessor):
    """A processor with a state: it must see each token once, in order."""

    def __init__(self):
        self.seen = []

    def __call__(self, input_ids, scores):
        self.seen.append(input_ids[0].tolist())
        scores = scores.clone()
        scores[:, 10 + len(self.seen) // 7] += 2.0
        return scores


class Stop(StoppingCriteria):
    def __call__(self, input_ids, scores, **_):
        return torch.tensor([input_ids.shape[1] > 11])


def test_processors_and_criteria_see_every_token_once(case):
    model, arguments = case
    seen = []
    for run in (
        lambda **more: model.generate(**arguments(**more)),
        lambda **more: drafted(model, arguments, **more)[0],
    ):
        processor = Raise()
        more = {"logits_processor": LogitsProcessorList([processor]), "repetition_penalty": 1.3}
        tokens = run(**more)
        stopped = run(stopping_criteria=StoppingCriteriaList([Stop()]), min_new_tokens=1)
        seen.append((processor.seen, tokens.tolist(), stopped.tolist()))
    assert seen[0] == seen[1] and len(seen[0][0]) == NEW and len(seen[0][2][0]) < NEW


def test_scores_and_logits(case):
    model, arguments = case
    more = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    plain = model.generate(**arguments(**more))
    found, report = drafted(model, arguments, **more)
    assert report.engaged and torch.equal(found["sequences"], plain["sequences"])
    for name in ("scores", "logits"):
        for one, two in zip(found[name], plain[name], strict=True):
            assert torch.allclose(one, two, rtol=1e-4, atol=1e-4)
    length = cache_of(plain).get_seq_length()
    assert cache_of(found).get_seq_length() == length


def test_long_form_with_times(spoken):
    """Segments of Whisper, each with its own call of the loop, and times that rule out tokens."""
    model, _ = spoken
    arguments = long_form()
    plain = model.generate(**arguments, return_segments=True)
    with mmaccel.accelerate(model, SuffixDraft(shortest=1)) as session:
        found = session.generate(**arguments, return_segments=True)
        assert session.report.engaged and session.report.forwards < session.report.plain_forwards
        assert session.report.tokens == session.report.plain_forwards, "of all segments"
    assert torch.equal(found["sequences"], plain["sequences"])
    one, two = ([(float(s["start"]), float(s["end"])) for s in x["segments"][0]] for x in (found, plain))
    assert one == two and len(one) > 1


@pytest.mark.parametrize(
    ("more", "reason"),
    (
        ({"num_beams": 2}, "num_beams=2"),
        ({"prompt_lookup_num_tokens": 3}, "prompt_lookup_num_tokens=3"),
        ({"use_cache": False}, "no cache"),
        ({"cache_implementation": "static"}, "cache_implementation='static'"),
        ({"return_dict_in_generate": True, "output_attentions": True}, "attentions"),
        (
            {"custom_generate": lambda model, input_ids, **_: torch.nn.functional.pad(input_ids, (0, 1), value=7)},
            "custom_generate was given",
        ),
    ),
    ids=lambda value: "+".join(value) if isinstance(value, dict) else str(value),
)
def test_what_is_left_to_the_model(case, more, reason):
    model, arguments = case
    if "output_attentions" in more:
        model.set_attn_implementation("eager")
    plain = model.generate(**arguments(**more))
    found, report = drafted(model, arguments, **more)
    if "output_attentions" in more:
        assert len(found["cross_attentions"]) == len(plain["cross_attentions"])
        found, plain = found["sequences"], plain["sequences"]
        model.set_attn_implementation("sdpa")
    assert torch.equal(found, plain) and not report.engaged
    assert report.tokens == (1 if "custom_generate" in more else NEW)
    assert report.warnings[0].startswith("the model's own loop ran: ") and reason in report.warnings[0]


@pytest.mark.parametrize("given", (False, True))
def test_what_a_configuration_asks_for_is_left_to_the_model(given):
    """Beams of the call's configuration, or of the model's own."""
    model, arguments = moonshine()
    config = copy.deepcopy(model.generation_config) if given else model.generation_config
    config.num_beams = 2
    call = {"generation_config": config} if given else {}
    plain = model.generate(**arguments(**call))
    found, report = drafted(model, arguments, **call)
    assert torch.equal(found, plain) and report.warnings == ["the model's own loop ran: num_beams=2"]


def test_a_padded_prompt_is_left_to_the_model():
    model, arguments = moonshine()
    prompt = torch.tensor([[0, START, 7]])
    more = {"decoder_input_ids": prompt, "decoder_attention_mask": (prompt > 0).long()}
    plain = model.generate(**arguments(**more))
    found, report = drafted(model, arguments, **more)
    assert torch.equal(found, plain) and report.warnings == ["the model's own loop ran: the prompt is padded"]
    assert report.tokens == NEW


@pytest.mark.parametrize("prompt", ([START, 7], [9, 7]), ids=("begun", "to be begun"))
def test_a_mask_that_hides_nothing_leaves_nothing_to_the_model(prompt):
    model, arguments = moonshine()
    prompt = torch.tensor([prompt])
    more = {"decoder_input_ids": prompt, "decoder_attention_mask": torch.ones_like(prompt)}
    plain = model.generate(**arguments(**more))
    found, report = drafted(model, arguments, **more)
    assert torch.equal(found, plain) and not report.warnings
    assert report.forwards < report.plain_forwards == report.tokens == NEW
    for given in ({}, {"return_dict_in_generate": True}, {"num_return_sequences": 2}):
        _, beams = drafted(model, arguments, **more, num_beams=2, **given)
        texts = given.get("num_return_sequences", 1)
        assert beams.tokens == NEW * texts, "without the prompt, and what it is begun with"


def test_a_prompt_that_is_none_is_no_prompt():
    model, arguments = moonshine()
    more = {"decoder_input_ids": None, "num_beams": 2}
    found, report = drafted(model, arguments, **more)
    assert torch.equal(found, model.generate(**arguments(**more))) and report.tokens == NEW


@pytest.mark.parametrize("prompt", ({"language": "en"}, {"decoder_input_ids": torch.tensor([[START, 5, 6, NO_TIMES]])}))
@pytest.mark.parametrize(
    ("more", "tokens"),
    (
        ({}, NEW),
        ({"return_segments": True}, NEW),
        ({"return_dict_in_generate": True}, 0),
        ({"force_unique_generate_call": True}, 0),
    ),
    ids=str,
)
def test_marks_of_language_and_task_are_no_tokens_of_a_text(prompt, more, tokens):
    """Results that have them do not say how many, and are not counted."""
    model, arguments = whisper()
    no_text = [START, 5, 6, *range(NO_TIMES, SIZES["vocab_size"])]
    model.generation_config.update(is_multilingual=True, suppress_tokens=no_text)
    model.generation_config.lang_to_id, model.generation_config.task_to_id = {"<|en|>": 5}, {"transcribe": 6}
    _, report = drafted(model, arguments, **prompt, **more, num_beams=2)
    assert report.warnings == ["the model's own loop ran: num_beams=2"] and report.tokens == tokens


def long_form(**more):
    """Of three segments, which end by times."""
    return {
        "input_features": noise(1, 8, 260),
        "attention_mask": torch.ones(1, 260, dtype=torch.long),
        "return_timestamps": True,
        "do_sample": False,
        "max_new_tokens": 20,
        **more,
    }


def test_segments_that_know_the_text_before_them(spoken):
    """Whisper then gives a mask with each prompt but the first, which hides nothing of one recording."""
    model, _ = spoken
    model.generation_config.prev_sot_token_id = 59
    arguments = long_form(condition_on_prev_tokens=True)
    seen = []
    handle = model.get_decoder().register_forward_pre_hook(
        lambda _, args, kwargs: seen.append(kwargs.get("attention_mask")), with_kwargs=True
    )
    plain = model.generate(**arguments)
    passes = len(seen)
    assert any(mask is not None for mask in seen)
    with mmaccel.accelerate(model, SuffixDraft(shortest=1)) as session:
        seen.clear()
        found, report = session.generate(**arguments), session.report
    handle.remove()
    assert torch.equal(found, plain) and not report.warnings
    assert report.forwards == len(seen) < report.plain_forwards == passes


def test_passes_of_segments_that_are_left_to_the_model_count_on_both_sides(spoken, monkeypatch):
    model, _ = spoken
    reasons = iter([None, "a reason"])
    monkeypatch.setattr(generation, "unfit", lambda *_: next(reasons, "a reason"))
    passes = []
    handle = model.get_decoder().register_forward_hook(lambda *_: passes.append(1))
    plain = model.generate(**long_form())
    whole = len(passes)
    with mmaccel.accelerate(model, SuffixDraft(shortest=1)) as session:
        passes.clear()
        found, report = session.generate(**long_form()), session.report
    handle.remove()
    assert torch.equal(found, plain) and report.warnings == ["the model's own loop ran: a reason"]
    assert report.forwards == len(passes) < report.plain_forwards == whole == report.tokens


def test_each_call_has_its_own_report(case):
    """And the sound may be given by place."""
    model, arguments = case
    with mmaccel.accelerate(model, SuffixDraft()) as session:
        session.generate(**arguments(use_cache=False))
        assert session.report.warnings
        call = arguments()
        session.generate(call.pop(next(iter(call))), **call)
        assert session.report.engaged and not session.report.warnings and session.report.tokens == NEW


def test_the_first_bans_hold_for_the_first_token_alone(spoken):
    """Whisper bans some tokens, its end among them, at the first place; drafts reach further."""
    model, arguments = spoken
    text = model.generate(**arguments())[0].tolist()
    later = next(token for token in text[3:] if token != text[0])
    model.generation_config.begin_suppress_tokens = [END, later]
    plain = model.generate(**arguments())
    assert plain[0].tolist() == text
    with mmaccel.accelerate(model, SuffixDraft(shortest=1)) as session:
        for _ in range(2):
            assert torch.equal(session.generate(**arguments()), plain)
        assert session.report.forwards < NEW / 2


def test_the_tokens_that_the_model_samples(case):
    """Each token is drawn as `generate` draws it, from the same random state; the second time all drafts are known."""
    model, arguments = case
    more = {"do_sample": True, "temperature": 0.7}
    torch.manual_seed(5)
    plain = model.generate(**arguments(**more))
    with mmaccel.accelerate(model, SuffixDraft()) as session:
        for _ in range(2):
            torch.manual_seed(5)
            assert torch.equal(session.generate(**arguments(**more)), plain)
        report = session.report
    assert report.engaged and report.exact and not report.warnings
    assert report.forwards < report.plain_forwards == report.tokens == NEW


def test_a_streamer_is_served():
    model, arguments = moonshine()
    streamer = NotedStreamer()
    tokens, report = drafted(model, arguments, streamer=streamer)
    assert (
        streamer.tokens == tokens[0].tolist() and report.forwards and not any("own loop" in w for w in report.warnings)
    )


@pytest.mark.parametrize("attention", ("sdpa", "eager"))
def test_recordings_of_a_batch_are_those_of_the_model(case, attention, request):
    """Rows accept different numbers of drafts; the second time most are known."""
    model, arguments = case
    model.set_attn_implementation(attention)
    request.addfinalizer(lambda: model.set_attn_implementation("sdpa"))
    plain = model.generate(**arguments(batch=3))
    with mmaccel.accelerate(model, SuffixDraft(shortest=1)) as session:
        for _ in range(2):
            assert torch.equal(session.generate(**arguments(batch=3)), plain)
        report = session.report
    assert report.engaged and not report.warnings and report.tokens == 3 * NEW
    assert report.forwards < report.plain_forwards == NEW


def test_the_index():
    index = SuffixIndex(longest=3, shortest=2, remember=8)
    index.begin([5, 6, 7, 8, 9, 5, 6])
    assert index.propose(16).tokens == (7, 8, 9, 5) and index.propose(2).tokens == (7, 8)
    index.add(7)
    assert index.propose(16).tokens == (8, 9, 5, 6, 7, 8), "three match: six are proposed, past the end those again"
    index.begin([6])
    assert index.propose(16).tokens == (), "one token is too little, and the text before does not count"
    index.add(7)
    assert index.propose(16).tokens == (8, 9, 5, 6), "an earlier text, up to its end"
    index.begin([1, 2])
    assert len(index) <= 8 + 2 and index.propose(4).tokens == ()


def test_the_settings_reach_the_index():
    session = types.SimpleNamespace(memory={}, target=types.SimpleNamespace(config=None))
    method, call = SuffixDraft(longest=5, shortest=3, remember=7), Call(session)
    index = method.drafter(call, 0)
    assert (index.longest, index.shortest, index.remember) == (5, 3, 7) and method.drafter(call, 0) is index
    assert method.drafter(call, 1) is not index, "rows of a batch are texts of their own"


def test_bad_settings():
    for settings in ({"block": -1}, {"block": 300}, {"longest": 0}, {"shortest": 9}, {"shortest": 0}, {"remember": -1}):
        with pytest.raises(SettingError, match=next(iter(settings))):
            SuffixDraft(**settings)
