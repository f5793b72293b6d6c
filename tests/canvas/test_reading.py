"""Rules that let a model, or a guide, read word by word what was drafted as a block."""

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

import mmaccel
from mmaccel import canvas
from mmaccel.canvas import examples
from mmaccel.canvas.method import Block
from mmaccel.errors import SettingError


def block(tokens, read, masked, temperature=0.0, chance=0.6):
    """A block of so many positions; `read` is what is likeliest word by word."""
    logits = torch.nn.functional.one_hot(torch.tensor([tokens]), 5).float() * 8
    chances = torch.full((1, len(tokens)), chance)
    by_word = torch.nn.functional.one_hot(torch.tensor([read]), 5).float() * 8
    made = Block(logits, torch.tensor([tokens]), chances, torch.tensor([masked]).bool(), 0, 8, temperature=temperature)
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
    made = Block(q.log().expand(count, 1, 3), tokens, q[tokens], masked, 0, 8, temperature=1.0, generator=generator)
    made.read = lambda tokens: p.log().expand(count, 1, 3)
    assert canvas.S2D2(cost=0).choose(made).all()
    found = made.tokens[:, 0].bincount(minlength=3) / count
    assert torch.allclose(found, p, atol=0.015), found
    assert not torch.allclose(found, q, atol=0.1)


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


def test_a_guide_of_another_vocabulary_is_refused():
    pipe, arguments = examples.bidirectional()
    with mmaccel.accelerate(pipe, canvas.GuidedCommit()) as fast:
        with pytest.raises(
            SettingError, match="has 80 tokens, this model 64: give a causal model of the same"
        ) as error:
            fast(**arguments(), guide_model=guide(80))
        assert "\n" not in str(error.value)
