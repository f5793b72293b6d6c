"""What `generate` of transformers takes beside prompts arrives under every method as it does without."""

import copy

import pytest
import torch
from transformers import LogitsProcessor, StoppingCriteria

import mmaccel
from mmaccel.adapter import adapters
from mmaccel.testing import contract

LENGTHS = ("max_new_tokens", "min_new_tokens", "do_sample")
EXCLUSIVE = {adapter.family for adapter in adapters() if adapter.exclusive}  # these do not generate
METHODS = [
    name
    for name, method in mmaccel.methods().items()
    if name.split(".")[0] in ("vlm", "speech") and contract._claimed(method) - EXCLUSIVE
]
WORD = 9


class Always(LogitsProcessor):
    """One word and no other."""

    def __call__(self, input_ids, scores):
        return torch.full_like(scores, -torch.inf).index_fill(-1, torch.tensor([WORD]), 0.0)


class After(StoppingCriteria):
    """Stops when it has been asked so often."""

    def __init__(self, count):
        self.count = count

    def __call__(self, input_ids, scores, **_):
        self.count -= 1
        return torch.full((len(input_ids),), self.count <= 0)


class Streamer:
    def __init__(self):
        self.tokens = []

    def put(self, value):
        if not self.tokens:
            self.first = value.tolist()
        self.tokens += value.flatten().tolist()

    def end(self):
        self.tokens.append("end")


@pytest.fixture(params=METHODS)
def both(request):
    """`call(more)` gives what the plain model returns, and what the session does; `plain` and `fast` one of them."""
    method = mmaccel.get_method(request.param)
    families = contract._claimed(method)
    examples = contract.examples(request.param.split(".")[0])
    example = next(example for example in examples if example.adapter_family in families)
    model, arguments = example.shared

    def plain(more, without=(), target=model):
        inputs = {name: value for name, value in arguments(1).items() if name not in without}
        return target.generate(**inputs, **more())

    def fast(more, without=()):
        with mmaccel.accelerate(model, method.from_settings(example.settings(method.engaging))) as session:
            return plain(more, without, session)

    def call(more, without=()):
        return plain(more, without), fast(more, without)

    call.model, call.plain, call.fast = model, plain, fast
    return call


def test_a_configuration(both, monkeypatch):
    config = copy.deepcopy(both.model.generation_config)
    config.update(max_new_tokens=5, min_new_tokens=5, do_sample=False)
    monkeypatch.setattr(both.model.generation_config, "max_new_tokens", 2)
    before = both.model.generation_config.to_dict()
    plain, fast = both(lambda: {"generation_config": config}, LENGTHS)
    assert fast.shape == plain.shape and both.model.generation_config.to_dict() == before
    assert config.max_new_tokens == 5


def test_a_processor_of_logits(both):
    plain, fast = both(lambda: {"logits_processor": [Always()]})
    assert torch.equal(fast, plain) and fast[0, -1] == WORD


def test_a_stopping_criterion(both):
    plain, fast = both(lambda: {"stopping_criteria": [After(2)], "min_new_tokens": 0}, LENGTHS[1:2])
    assert fast.shape == plain.shape
    assert fast.shape[1] < both.plain(dict).shape[1]


def test_a_streamer(both):
    """The prompt comes first, whole even where a method leaves out visual tokens."""
    streamers = []

    def more():
        streamers.append(Streamer())
        return {"streamer": streamers[-1]}

    for tokens, streamer in zip(both(more), streamers, strict=True):
        (*ids, end) = streamer.tokens
        assert end == "end" and ids[-4:] == tokens[0, -4:].tolist()
    plain, fast = streamers
    assert fast.first == plain.first


def test_a_dictionary(both):
    more = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    plain, fast = both(lambda: more)
    assert type(fast) is type(plain) and fast.sequences.shape == plain.sequences.shape
    assert len(fast.scores) == len(plain.scores) and len(fast.logits) == len(plain.logits)
    assert torch.equal(both.fast(dict), fast.sequences)
