"""Several turns over one cache, copies of it, and direct calls of the model."""

import copy

import pytest
import torch
from transformers import DynamicCache

import mmaccel
from mmaccel.kernels.policies import DECODE
from mmaccel.vlm import CompressKV, SelectKV, SparsePrefill, examples

METHODS = (
    SelectKV(budget=0.3, dense_layers=1),
    CompressKV(budget=0.3),
    CompressKV(policy="streaming", window=4),
    CompressKV(budget=0.3, head_budgets=True),
)
TURNS = pytest.mark.parametrize("method", METHODS, ids=str)


def turn(session, ids, mask, cache, new=4):
    """Generate with the cache of the turn before; returns tokens, mask and cache."""
    result = session.generate(
        input_ids=ids,
        attention_mask=mask,
        past_key_values=cache,
        max_new_tokens=new,
        do_sample=False,
        return_dict_in_generate=True,
    )
    ones = torch.ones(len(ids), result.sequences.shape[1] - mask.shape[1], dtype=mask.dtype)
    return result.sequences, torch.cat([mask, ones], 1), result.past_key_values


def talk(session, ids, mask, question, answered):
    """Two turns; `answered [B, Q]` is the mask of the second question."""
    tokens, mask, cache = turn(session, ids, mask, None)
    tokens, mask = torch.cat([tokens, question], 1), torch.cat([mask, answered], 1)
    tokens, _, cache = turn(session, tokens, mask, cache)
    return tokens, cache, session.report


def test_a_cache_of_the_user_survives_calls_that_return_tokens_alone(llama):
    """Three turns over one cache, the second without `return_dict_in_generate`."""
    model, _ = llama
    ids, mask = examples.prompts(1, 60, pad=0)
    question = examples.prompts(1, 5, seed=1, pad=0)[0]
    last = []
    for plainly in (False, True):
        with mmaccel.accelerate(model, METHODS[0]) as session:
            tokens, seen, cache = turn(session, ids, mask, None)
            tokens, seen = torch.cat([tokens, question], 1), torch.cat([seen, torch.ones_like(question)], 1)
            if plainly:
                tokens = session.generate(
                    input_ids=tokens, attention_mask=seen, past_key_values=cache, max_new_tokens=4, do_sample=False
                )
                seen = torch.ones_like(tokens)
            else:
                tokens, seen, cache = turn(session, tokens, seen, cache)
            assert cache.get_seq_length() == 60 + 4 + 5 + 3
            tokens, seen = torch.cat([tokens, question], 1), torch.cat([seen, torch.ones_like(question)], 1)
            last.append(turn(session, tokens, seen, cache)[0])
    assert torch.equal(*last)


@TURNS
def test_a_cache_that_the_caller_made_serves_all_turns(llama, method):
    """The usual loop of a conversation: one empty cache, and tokens alone from each call."""
    model, _ = llama
    ids, mask = examples.prompts(1, 60, pad=0)
    question, seen = examples.prompts(1, 40, seed=1, pad=0)
    for cache in (DynamicCache(), DynamicCache(config=model.config)):
        tokens, told = ids, {"max_new_tokens": 4, "do_sample": False}
        with mmaccel.accelerate(model, method) as session:
            expected, *_ = talk(session, ids, mask, question, seen)
            for more in (question[:, :0], question):
                tokens = torch.cat([tokens, more], 1)
                tokens = session.generate(tokens, past_key_values=cache, **told)
                report = session.report
                assert report.engaged and report.peak_extra_bytes and not report.warnings
            assert torch.equal(tokens, expected) and cache.get_seq_length() == tokens.shape[1] - 1
            again = copy.deepcopy(cache)
            tokens = torch.cat([tokens, question], 1)
            later = [session.generate(tokens, past_key_values=each, **told) for each in (cache, again)]
            assert torch.equal(*later) and session.report.engaged


@TURNS
def test_a_turn_goes_on_from_one_in_inference_mode(llama, method):
    """What is made there cannot be written to elsewhere; an answer that ends early leaves room to write."""
    model, _ = llama
    ids, _ = examples.prompts(2, 60, pad=0)
    question, _ = examples.prompts(2, 5, seed=1, pad=0)
    told = {"max_new_tokens": 30, "do_sample": False, "stopping_criteria": [lambda ids, _: torch.ones(2).bool()]}
    answers = []
    with mmaccel.accelerate(model, method) as session:
        for modes in ((False, False, False), (True, False, True), (True, True, False)):
            tokens, more = ids, {"return_dict_in_generate": True, **told}
            for mode in modes:
                with torch.inference_mode(mode):
                    result = session.generate(tokens, attention_mask=torch.ones_like(tokens), **more)
                tokens = torch.cat([result.sequences, question], 1)
                more["past_key_values"] = result.past_key_values
            answers.append(tokens)
    assert torch.equal(answers[0], answers[1]) and torch.equal(answers[0], answers[2])


@TURNS
def test_a_baseline_between_two_turns_changes_nothing(llama, method):
    model, _ = llama
    ids, mask = examples.prompts(2, 60, pad=9)
    question, seen = examples.prompts(2, 40, seed=1, pad=0)
    with mmaccel.accelerate(model, method) as session:
        expected, *_ = talk(session, ids, mask, question, seen)
        own = DynamicCache()
        for cache in (None, own):
            tokens, known, cache = turn(session, ids, mask, cache)
            with session.baseline() as plain:
                plain.generate(ids, attention_mask=mask, max_new_tokens=2)
            tokens, known = torch.cat([tokens, question], 1), torch.cat([known, seen], 1)
            assert torch.equal(turn(session, tokens, known, cache)[0], expected)
            assert session.report.engaged and not session.report.warnings


@pytest.mark.parametrize("method", METHODS[:2], ids=str)
def test_a_cache_may_be_read_in_a_baseline(llama, method):
    """The next call, whose layers have no cache, is not taken for one of that cache."""
    model, _ = llama
    ids, mask = examples.prompts(1, 60, pad=0)
    alone = {"attention_mask": mask, "max_new_tokens": 4, "do_sample": False, "use_cache": False}
    with mmaccel.accelerate(model, method) as session:
        expected = session.generate(ids, **alone)
        tokens, _, cache = turn(session, ids, mask, None)
        with session.baseline() as plain:
            plain.generate(tokens, past_key_values=cache, max_new_tokens=2, do_sample=False)
        assert torch.equal(session.generate(ids, **alone), expected)


@pytest.mark.parametrize(("length", "goes_on"), ((5, True), (40, False)))
@pytest.mark.parametrize("policy", ("token_select", "recycled_attention"))
def test_a_policy_begins_anew_after_a_turn_that_it_did_not_read(llama, policy, length, goes_on, monkeypatch):
    """Its votes are none for tokens that were not there: it would leave out most of a long question."""
    states, choose = [], DECODE[policy]

    def noted(*given, state, **more):
        states.append(dict(state))
        return choose(*given, state=state, **more)

    monkeypatch.setitem(DECODE, policy, noted)
    model, _ = llama
    ids, mask = examples.prompts(1, 60, pad=0)
    question, seen = examples.prompts(1, length, seed=1, pad=0)
    with mmaccel.accelerate(model, SelectKV(policy, budget=0.3, dense_layers=2)) as session:
        tokens, mask, cache = turn(session, ids, mask, None)
        before = len(states)
        turn(session, torch.cat([tokens, question], 1), torch.cat([mask, seen], 1), cache)
    assert before == 3 and bool(states[2]) and bool(states[3]) == goes_on


@pytest.mark.parametrize("length", (5, 40))
@TURNS
def test_rows_of_a_conversation_are_what_they_are_alone(llama, method, length):
    model, _ = llama
    ids, mask = examples.prompts(3, 60, pad=9)
    question = examples.prompts(3, length, seed=1, pad=0)[0]
    seen = torch.ones_like(question)
    with mmaccel.accelerate(model, method) as session:
        together, cache, report = talk(session, ids, mask, question, seen)
        assert report.engaged and report.keys < report.plain_keys and not report.warnings
        assert cache.get_seq_length() == 60 + 4 + length + 3
        for row in range(3):
            start = 9 * (row % 2)
            tokens, *_ = talk(
                session, ids[row : row + 1, start:], mask[row : row + 1, start:], question[row : row + 1], seen[:1]
            )
            assert torch.equal(tokens[0, -4:], together[row, -4:]), f"row {row}"


@pytest.mark.parametrize("length", (5, 40))
def test_padding_in_a_later_turn(llama, length):
    """Questions of different lengths, padded between the turns; what is padding is neither seen nor kept."""
    model, _ = llama
    ids, mask = examples.prompts(2, 60, pad=0)
    question, seen = examples.prompts(2, length, seed=1, pad=3)
    method = CompressKV(policy="streaming", budget=None, tokens=20, window=64)
    with mmaccel.accelerate(model, method) as session:
        together, cache, _ = talk(session, ids, mask, question, seen)
        tokens, *_ = talk(session, ids[1:], mask[1:], question[1:, 3:], seen[1:, 3:])
    assert torch.equal(tokens[0, -4:], together[1, -4:])
    layer = cache.layers[0]
    assert layer.hidden == [0, 3] and layer.starts == [0, 3]
    assert not set(range(64, 67)) & set(layer.positions[1, 0].tolist())


@pytest.mark.parametrize("pad", (3, 25))
@pytest.mark.parametrize("method", METHODS[1:], ids=str)
def test_a_padded_question_is_compressed_as_it_is_alone(llama, method, pad):
    """With 25 of its 50 columns it is short enough to be kept, beside one that is not."""
    model, _ = llama
    ids, mask = examples.prompts(2, 60, pad=0)
    question, seen = examples.prompts(2, 50, seed=1, pad=pad)
    with mmaccel.accelerate(model, method) as session:
        together, cache, _ = talk(session, ids, mask, question, seen)
        for row, start in ((0, 0), (1, pad)):
            part = slice(row, row + 1)
            tokens, *_ = talk(session, ids[part], mask[part], question[part, start:], seen[part, start:])
            assert torch.equal(tokens[0, -4:], together[row, -4:]), f"row {row}"
    assert all(layer.length < layer.total / 2 for layer in cache.layers), "nothing was dropped after the second turn"


@pytest.mark.parametrize("length", (5, 40))
@pytest.mark.parametrize("method", METHODS[1:], ids=str)
def test_rows_whose_answers_ended_early_go_on_as_alone(llama, method, length):
    """What generate pads them with is not seen, nor counted, in either turn that follows."""
    model, _ = llama
    ids, mask = examples.prompts(3, 60, pad=9)
    questions = [examples.prompts(3, length, seed=seed, pad=0)[0] for seed in (1, 2)]
    ended = torch.tensor([4, 2, 3])
    with mmaccel.accelerate(model, method) as session:
        together, cache = converse(session, ids, mask, questions, ended)
        layer = cache.layers[0]
        for row, count in enumerate(ended.tolist()):
            part, start = slice(row, row + 1), 9 * (row % 2)
            asked = [question[part] for question in questions]
            answer, alone = converse(session, ids[part, start:], mask[part, start:], asked, ended[part])
            assert torch.equal(answer[0], together[row, :count]), f"row {row}"
            assert layer.total - layer.hidden[row] - alone.get_seq_length() == 4 - count


def converse(session, ids, mask, questions, ended):
    """The last answer of a conversation in which the answers of each row have so many tokens, and its cache."""
    new, cache = int(ended.max()), None
    for question in questions:
        tokens, mask, cache = turn(session, ids, mask, cache, new)
        mask[:, -new:] = torch.arange(new) < ended[:, None]
        ids, mask = torch.cat([tokens, question], 1), torch.cat([mask, torch.ones_like(question)], 1)
    tokens, _, cache = turn(session, ids, mask, cache, new)
    return tokens[:, -new:], cache


@TURNS
@torch.no_grad()
def test_direct_calls_with_a_cache_of_the_session(llama, method):
    """A loop of one's own over the returned cache, and over a copy of it, gives what `generate` gives."""
    model, arguments = llama
    with mmaccel.accelerate(model, method) as session:
        whole = session.generate(**arguments(2, max_new_tokens=8))
        result = session.generate(**arguments(2, max_new_tokens=4), return_dict_in_generate=True)
        assert torch.equal(result.sequences, whole[:, :84])
        for cache in (copy.deepcopy(result.past_key_values), result.past_key_values):
            mask, tokens = arguments(2)["attention_mask"], result.sequences[:, -1:]
            mask = torch.cat([mask, torch.ones(2, 4, dtype=torch.long)], 1)
            for step in range(84, 88):
                position = mask.sum(1, keepdim=True) - 1
                logits = session(tokens, attention_mask=mask, position_ids=position, past_key_values=cache).logits
                tokens, mask = logits[:, -1:].argmax(-1), torch.cat([mask, torch.ones_like(position)], 1)
                if isinstance(method, CompressKV):  # the policy of a copy begins anew
                    assert torch.equal(tokens[:, 0], whole[:, step])


@torch.no_grad()
def test_direct_calls(llama):
    model, arguments = llama
    ids = arguments(1)["input_ids"]
    plain = model(ids).logits
    for method in METHODS:
        with mmaccel.accelerate(model, method):
            assert torch.equal(model(ids).logits, plain)
    with mmaccel.accelerate(model, SparsePrefill(**SparsePrefill.engaging)):
        assert not torch.equal(model(ids).logits, plain)
    assert torch.equal(model(ids).logits, plain)


def test_a_cache_outlives_its_session_if_rows_are_alike(llama):
    model, arguments = llama
    for batch in (1, 2):
        with mmaccel.accelerate(model, CompressKV()) as session:
            result = session.generate(**arguments(batch), return_dict_in_generate=True)
        ids = torch.cat([result.sequences, result.sequences[:, -3:]], 1)
        call = {"input_ids": ids, "past_key_values": result.past_key_values, "max_new_tokens": 3}
        if batch == 1:
            assert model.generate(**call, do_sample=False).shape == (1, 92)
        else:
            with pytest.raises(ValueError, match="use it within the session that made it"):
                model.generate(**call)


@pytest.mark.parametrize("more", ({"num_beams": 2}, {"num_return_sequences": 2, "num_beams": 2}), ids=str)
@pytest.mark.parametrize("method", METHODS, ids=str)
def test_beams_of_a_row_alone(llama, method, more):
    model, arguments = llama
    call = arguments(2, max_new_tokens=4, **more)
    with mmaccel.accelerate(model, method) as session:
        together = session.generate(**call)
        keep = call["attention_mask"][1].bool()
        ids = call["input_ids"][1:, keep]
        alone = session.generate(**{**call, "input_ids": ids, "attention_mask": torch.ones_like(ids)})
    count = len(alone)
    assert together.shape[0] == 2 * count and torch.equal(together[count:, -4:], alone[:, -4:])


@pytest.mark.parametrize("guesses", (4, 10, 40))
@pytest.mark.parametrize("method", METHODS[1:], ids=str)
def test_guesses_over_a_compressed_cache(llama, method, guesses):
    """Assisted decoding takes wrong guesses back, also those that came with the prompt.

    None of these is right here, so that it gives what single steps give: what is kept does not depend on guesses.
    """
    model, arguments = llama
    call, passes = arguments(1, max_new_tokens=16), []
    call["input_ids"][:, 40:] = call["input_ids"][:, :40]  # something to look up
    with mmaccel.accelerate(model, method) as session:
        steps = session.generate(**call)
        hook = model.model.register_forward_pre_hook(
            lambda _, args, kwargs: passes.append(kwargs["input_ids"]), with_kwargs=True
        )
        tokens = session.generate(**call, prompt_lookup_num_tokens=guesses)
        hook.remove()
        assert session.report.engaged and not session.report.warnings
    assert passes[0].shape[1] == 80 + guesses and passes[0][0, 80] != tokens[0, 80], "a first guess was right"
    assert sum(each.shape[1] for each in passes[1:]) > 15, "no later guess was rejected"
    assert torch.equal(tokens, steps)
