"""Rules that let a model, or a guide, read word by word what was drafted as a block."""

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

import mmaccel
from mmaccel import canvas
from mmaccel.canvas import examples
from mmaccel.canvas.method import Block
from mmaccel.errors import SettingError


def block(tokens, read, masked, chance=0.6):
    """A block of so many positions; `read` is what is likeliest word by word."""
    logits = torch.nn.functional.one_hot(torch.tensor([tokens]), 5).float() * 8
    chances = torch.full((1, len(tokens)), chance)
    by_word = torch.nn.functional.one_hot(torch.tensor([read]), 5).float() * 8
    made = Block(logits, torch.tensor([tokens]), chances, torch.tensor([masked]).bool(), 0, 8)
    made.read = lambda tokens: by_word
    return made


def test_s2d2_takes_what_agrees_and_the_reading_where_it_ends():
    made = block([1, 2, 3, 4, 1], [1, 2, 0, 4, 1], [1, 1, 1, 1, 1])
    assert canvas.S2D2().choose(made).int().tolist() == [[1, 1, 1, 0, 0]]
    assert made.tokens.tolist() == [[1, 2, 0, 4, 1]]


def test_s2d2_verifies_the_leftmost_span_alone():
    made = block([1, 2, 3, 4, 1], [1, 2, 3, 4, 1], [0, 1, 1, 0, 1])
    assert canvas.S2D2().choose(made).int().tolist() == [[0, 1, 1, 0, 0]]


def test_s2d2_does_not_verify_where_that_costs_more_than_it_promises():
    made = block([1, 2, 3], [1, 2, 0], [1, 1, 1], chance=0.9)
    assert canvas.S2D2(cost=4).choose(made).all() and made.tokens.tolist() == [[1, 2, 3]], "above the threshold"


def test_s2d2_draws_what_the_reading_says_whatever_is_drafted():
    """By enumeration of a vocabulary of three: drafts of one distribution, a reading of another."""
    p, q = torch.tensor([0.5, 0.2, 0.3]), torch.tensor([0.1, 0.7, 0.2])
    count, generator = 20000, torch.Generator().manual_seed(0)
    tokens = torch.multinomial(q, count, True, generator=generator)[:, None]
    masked = torch.ones(count, 1, dtype=torch.bool)
    made = Block(q.log().expand(count, 1, 3), tokens, q[tokens], masked, 0, 8, generator=generator)
    made.drawn = lambda logits: logits.softmax(-1)
    made.read = lambda tokens: p.log().expand(count, 1, 3)
    assert canvas.S2D2(cost=0).choose(made).all()
    found = made.tokens[:, 0].bincount(minlength=3) / count
    assert torch.allclose(found, p, atol=0.015), found
    assert not torch.allclose(found, q, atol=0.1)


def test_a_row_that_is_not_verified_keeps_its_own_tokens_beside_one_that_is():
    logits = torch.zeros(2, 2, 6)
    logits[0, 0, 1], logits[1, :, 1] = 4.0, 30.0  # the first row is sure of one token, the second of both
    made = Block(logits, logits.argmax(-1), logits.softmax(-1).amax(-1), torch.ones(2, 2).bool(), 0, 2)
    made.read = lambda tokens: torch.nn.functional.one_hot(torch.full_like(tokens, 3), 6).float() * 9
    chosen = canvas.S2D2(least=0.8).choose(made)
    assert chosen[0].tolist() == [True, False] and made.tokens[0].tolist() == [1, 0]


@pytest.mark.parametrize(
    ("method", "ended", "other"), ((canvas.S2D2(), 30, 0), (canvas.GuidedCommit(), 4, 30)), ids=str
)
def test_nothing_is_read_for_a_text_that_has_ended(method, ended, other, monkeypatch):
    """Where the one other mask is not worth a pass: nothing is likely there, or the threshold commits it already."""
    pipe, _ = examples.block_causal()
    logits = torch.zeros(2, examples.BLOCK, examples.VOCABULARY)
    logits[0, :, 5], logits[1, :, 5] = ended, other
    tokens = torch.full((2, examples.BLOCK), examples.MASK)
    tokens[1, 1:] = 7
    asked = []
    with mmaccel.accelerate(pipe, method) as fast:
        monkeypatch.setattr(fast.adapter.decoder, "_read", lambda *_: asked.append(None) or logits)
        pipe.scheduler.set_timesteps(examples.BLOCK)
        pipe.model(tokens)  # the pass that would be read beside
        for finished, read in ((None, [None]), (torch.tensor([True, False]), [])):
            asked.clear()
            fast.adapter.decoder.finished = finished
            pipe.scheduler.step(logits, 0, tokens, mask_token_id=examples.MASK, threshold=2.0)
            assert asked == read


@pytest.mark.parametrize("seed", range(3))
def test_what_the_reading_rejects_is_never_committed(seed, monkeypatch):
    """Not by the pipeline's own schedule either, which commits a token of each step."""
    pipe, arguments = examples.block_causal(seed)
    told, after = [], []
    choose = canvas.S2D2.choose

    def looking(self, block):
        drafts, chosen = block.tokens.clone(), choose(self, block)
        told.append((drafts != block.tokens) & chosen)
        return chosen

    def ended(pipe, step, timestep, kwargs):
        if kwargs["active_block"].any():
            after.append((told[-1] & kwargs["active_block"], kwargs["sampled_tokens"], kwargs["block_x"][:, -8:]))
        return {}

    monkeypatch.setattr(canvas.S2D2, "choose", looking)
    names = ["block_x", "active_block", "sampled_tokens"]
    with mmaccel.accelerate(pipe, canvas.S2D2(threshold=1.0, cost=0.0)) as fast:
        fast(**arguments(1, callback_on_step_end=ended, callback_on_step_end_tensor_inputs=names))
    assert sum(int(instead.sum()) for instead, _, _ in after) > 3
    assert all(bool((drawn == block)[instead].all()) for instead, drawn, block in after)


@pytest.mark.parametrize("call", ({"top_k": 1}, {"sampling_method": "greedy"}), ids=str)
def test_s2d2_draws_as_the_call_says(call):
    pipe, arguments = examples.block_causal(1)
    with mmaccel.accelerate(pipe, canvas.S2D2(cost=0.0)) as fast:
        drawn = [
            fast(**arguments(1, temperature=1.0, generator=torch.Generator().manual_seed(seed), **call)).sequences
            for seed in range(3)
        ]
    assert torch.equal(drawn[0], drawn[1]) and torch.equal(drawn[0], drawn[2])


def test_what_guides_is_left_out_of_runs_without_a_guide_in_a_comparison():
    pipe, arguments = examples.bidirectional()
    methods = canvas.GuidedCommit(), canvas.Doubling()
    found = mmaccel.compare(pipe, *methods, guide_model=guide(), rounds=1, simple=False, **arguments(2))
    assert [row["label"] for row in found.rows] == ["plain", *map(str, methods)]


@pytest.mark.parametrize("cached", (False, True))
@pytest.mark.parametrize("length", (3, 21))
def test_a_block_causal_model_reads_as_its_decoder_does(cached, length):
    """Also from the cache, in rows padded on the left, and in a block that begins within the prompt."""
    pipe, arguments = examples.block_causal()
    decoder, found = pipe.model.model, []

    class Looking(canvas.S2D2):
        def choose(self, block):
            filled = block.read(block.tokens)
            found.append((pipe_ids(block), filled))
            return super().choose(block)

    def pipe_ids(block):
        ids, kwargs = fast.adapter.decoder.call[1:]
        own = torch.where(block.masked, block.tokens, ids[:, -examples.BLOCK :])
        return torch.cat([ids[:, : -examples.BLOCK], own], 1), kwargs

    methods = [Looking(cost=0), *([canvas.PrefixCache()] if cached else [])]
    with mmaccel.accelerate(pipe, *methods) as fast:
        fast(**arguments(2, length=length))
    assert len(found) > 1
    for (ids, kwargs), logits in found:
        true = decoder(ids, attention_mask=kwargs["attention_mask"], position_ids=kwargs["position_ids"]).logits
        seen = kwargs["attention_mask"][0, -examples.BLOCK :].bool()
        first = int(ids.shape[1] == examples.BLOCK)  # nothing stands before the first token of all
        want = true[:, -examples.BLOCK - 1 + first : -1]
        assert torch.allclose(logits[:, first:][:, seen[first:]], want[:, seen[first:]], atol=1e-4)


def guide(vocabulary=examples.VOCABULARY):
    torch.manual_seed(0)
    return Qwen2ForCausalLM(Qwen2Config(**{**examples.SIZES, "vocab_size": vocabulary})).eval()


def test_a_guide_lets_what_it_would_write_itself_be_committed():
    made = block([1, 2, 3, 4], [1, 2, 0, 4], [1, 1, 1, 1])
    assert canvas.GuidedCommit().choose(made).int().tolist() == [[1, 1, 0, 0]]
    pipe, arguments = examples.bidirectional()
    with mmaccel.accelerate(pipe, canvas.GuidedCommit()) as fast:
        found = fast(**arguments(2), guide_model=guide()).sequences
        assert not (found == examples.MASK).any()


def test_a_guide_is_asked_in_each_step_also_beside_a_cache():
    pipe, arguments = examples.bidirectional()
    model, asked = guide(), []
    model.register_forward_pre_hook(lambda *_: asked.append(None))
    with mmaccel.accelerate(pipe, canvas.GuidedCommit(threshold=1), canvas.PrefixCache()) as fast:
        fast(**arguments(2), guide_model=model)
        assert 0 < len(asked) == fast.report.details["passes"]


def test_a_guide_gives_logits_of_the_block_alone():
    """Those of a long prompt, over a large vocabulary, would fill the memory."""
    pipe, arguments = examples.bidirectional()
    model, made = guide(), []
    model.register_forward_hook(lambda _, __, output: made.append(output.logits.shape[1]))
    with mmaccel.accelerate(pipe, canvas.GuidedCommit(threshold=1)) as fast:
        fast(**arguments(2), guide_model=model)
    assert set(made) == {examples.BLOCK + 1}


def test_a_guide_of_another_vocabulary_is_refused():
    pipe, arguments = examples.bidirectional()
    with mmaccel.accelerate(pipe, canvas.GuidedCommit()) as fast:
        with pytest.raises(
            SettingError, match="has 80 tokens, this model 64: give a causal model of the same"
        ) as error:
            fast(**arguments(), guide_model=guide(80))
        assert "\n" not in str(error.value)


def test_a_refused_call_leaves_nothing_to_calls_of_the_pipeline_itself():
    pipe, arguments = examples.bidirectional()
    said = int(pipe(**arguments()).sequences.mode().values)
    with mmaccel.accelerate(pipe, canvas.GuidedCommit(), canvas.EarlyEnd(1e-6)) as fast:
        own, ended = pipe(**arguments()).sequences, fast(**arguments(eos_token_id=said)).sequences
        told = fast.report.to_dict()
        with pytest.raises(SettingError, match="give a causal model"):
            fast(**arguments(eos_token_id=said), guide_model=guide(80))
        assert torch.equal(pipe(**arguments()).sequences, own) and not torch.equal(own, ended)
        pipe(**arguments(block_length=2 * examples.BLOCK))
        assert fast.report.to_dict() == told


@pytest.mark.parametrize("size", (62, 80))
def test_vocabularies_that_are_padded_otherwise_are_one(size):
    """Of one tokenizer; a draft in the padding is none of the guide's tokens."""
    pipe, arguments = examples.bidirectional()
    pipe.tokenizer = range(60)

    def draft(module, inputs, output):
        output.logits[..., 62] = 99

    pipe.model.register_forward_hook(draft)
    with mmaccel.accelerate(pipe, canvas.GuidedCommit(threshold=1)) as fast:
        found = fast(**arguments(2), guide_model=guide(size)).sequences
        assert bool((found == 62).all()), "which a guide of 62 has not"
        with pytest.raises(SettingError, match="has 59 tokens, this tokenizer 60: give"):
            fast(**arguments(), guide_model=guide(59))
