"""A streamer or a criterion fails in the middle of a text: the caller's cache holds what is true, and nothing else."""

import pytest
import torch
from draft_models import call, falcon_h1, gemma2, gemma3, inkling, lfm2, mistral, qwen3_next, zaya
from noted_streamer import NotedStreamer
from transformers import DynamicCache, StoppingCriteria

import mmaccel
from mmaccel.vlm import SuffixDecoding, TextDraft, examples

PROMPT, NEW = 36, 24


def llama():
    return examples.llama()[0]


class Failing(NotedStreamer):
    """Nobody listens after so many tokens."""

    def __init__(self, tokens):
        super().__init__()
        self.most = PROMPT + tokens

    def put(self, value):
        super().put(value)
        if len(self.tokens) > self.most:
            raise RuntimeError("nobody listens")


class Short(StoppingCriteria):
    """Takes no texts of so many tokens."""

    rowwise = True

    def __init__(self, length):
        self.length = length

    def __call__(self, input_ids, scores, **kwargs):
        if input_ids.shape[1] >= self.length:
            raise RuntimeError("nobody listens")
        return torch.zeros(len(input_ids), dtype=torch.bool)


def wrong_in_part(plain):
    """What the model writes, but for some tokens, which are others in each row."""
    expected = plain[:, PROMPT:].clone()
    for row, tokens in enumerate(expected):
        tokens[2 + row :: 5] = 3
    return expected


def go_on(model, plain, given, cache):
    """From a cache, with the tokens that it holds and one more."""
    held = cache.get_seq_length()
    mask = torch.cat([given["attention_mask"], torch.ones(len(plain), held + 1 - PROMPT, dtype=torch.long)], 1)
    more = {"input_ids": plain[:, : held + 1], "attention_mask": mask, "max_new_tokens": plain.shape[1] - held - 1}
    return model.generate(**{**given, **more}, past_key_values=cache)


@pytest.mark.parametrize(
    "build",
    (llama, gemma3, mistral, gemma2, qwen3_next, falcon_h1, lfm2, inkling, zaya),
    ids=lambda build: build.__name__,
)
@pytest.mark.parametrize("method", (TextDraft(always=True), SuffixDecoding(shortest=1)), ids=lambda method: method.name)
def test_a_text_goes_on_from_the_cache_of_one_that_broke_off(build, method):
    """In trees and in chains, beside windows and states; within drafts that are right, and within wrong ones."""
    model, given = build(), call(max_new_tokens=NEW)
    plain = model.generate(**given)
    known = {"prediction": wrong_in_part(plain)} if isinstance(method, TextDraft) else {}
    with mmaccel.accelerate(model, method) as fast:
        fast.generate(**given, **known)
        for tokens in (0, 1, 2, 3, 4, 7, 18):
            cache = DynamicCache(config=model.config)
            with pytest.raises(RuntimeError, match="nobody listens"):
                fast.generate(**given, **known, past_key_values=cache, streamer=Failing(tokens))
            assert PROMPT <= cache.get_seq_length() <= PROMPT + tokens
            assert torch.equal(go_on(model, plain, given, cache), plain)


@pytest.mark.parametrize("build", (llama, gemma3, mistral, qwen3_next), ids=lambda build: build.__name__)
@pytest.mark.parametrize("pad", (0, 5))
def test_the_texts_of_a_batch_go_on_from_the_cache_of_those_that_broke_off(build, pad):
    """It holds what all of them have."""
    model, given = build(), call(3, pad, max_new_tokens=NEW)
    plain = model.generate(**given)
    end = next(token for token in range(4, 64) if token not in plain)  # without one the model's own loop runs
    asked = {**given, "eos_token_id": end, "prediction": wrong_in_part(plain)}
    with mmaccel.accelerate(model, TextDraft(always=True, block=6)) as fast:
        for tokens in (1, 2, 5, 18):
            cache = DynamicCache(config=model.config)
            with pytest.raises(RuntimeError, match="nobody listens"):
                fast.generate(**asked, past_key_values=cache, stopping_criteria=[Short(PROMPT + tokens)])
            assert PROMPT <= cache.get_seq_length() < PROMPT + tokens
            assert torch.equal(go_on(model, plain, given, cache), plain)
        assert torch.equal(fast.generate(**asked, stopping_criteria=[Short(PROMPT + NEW + 1)]), plain)
        assert not any("own loop" in warning for warning in fast.report.warnings)
