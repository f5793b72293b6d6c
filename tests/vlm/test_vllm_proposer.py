"""Our proposer, held to what vLLM publishes of custom proposers; vLLM itself has no build for this machine.

Facts of `vllm/v1/spec_decode/custom_class_proposer.py`: the class is found by `speculative_config.model`, a dotted
path, made with the configuration alone, and its `propose` is called with four arguments by name. After a step the
runner has written the sampled tokens behind those of before, rows of requests that ended are filled by others, and
prompts that are not read yet have sampled nothing.
"""

import importlib
import inspect
from types import SimpleNamespace

import numpy as np
import pytest

from mmaccel.vlm import FusedDraft
from mmaccel.vlm.vllm_proposer import Proposer

PATH = "mmaccel.vlm.vllm_proposer.Proposer"
PLACEHOLDER = 63


def config(most=4, longest=200):
    return SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=most, model=PATH, method="custom_class"),
        model_config=SimpleNamespace(
            max_model_len=longest, hf_config=SimpleNamespace(image_token_id=PLACEHOLDER, video_token_id=None)
        ),
    )


class Runner:
    """A batch as vLLM's runner has it: an array of tokens, how many each row has, and drafts that it verifies."""

    def __init__(self, proposer, texts, prompts, rows=3):
        self.proposer, self.waiting = proposer, list(zip(texts, prompts, strict=True))
        self.tokens, self.counts = np.zeros((rows, 300), np.int32), np.zeros(rows, np.int32)
        self.rows, self.passes, self.written = [], 0, []

    def step(self):
        """One pass of the model, which writes the known texts, and the next drafts."""
        while self.waiting and len(self.rows) < len(self.tokens):
            text, prompt = self.waiting.pop(0)
            row = len(self.rows)
            self.tokens[row, :prompt], self.counts[row] = text[:prompt], prompt
            self.rows.append({"text": text, "draft": [], "read": False})
        sampled = [self._sample(row, request) for row, request in enumerate(self.rows)]
        self.passes += 1
        drafts = self.proposer.propose(
            sampled_token_ids=sampled,
            num_tokens_no_spec=self.counts,
            token_ids_cpu=self.tokens,
            slot_mappings=None,
        )
        assert isinstance(drafts, list) and len(drafts) == len(self.rows)
        for request, draft, new in zip(self.rows, drafts, sampled, strict=True):
            assert all(type(token) is int for token in draft) and (new or not draft)
            assert len(draft) <= self.proposer.most
            request["draft"] = draft
        self._end()

    def _sample(self, row, request):
        if not request["read"]:  # a prompt is read in two parts
            request["read"] = True
            return []
        count = int(self.counts[row])
        ahead = request["text"][count : count + len(request["draft"]) + 1]
        kept = next((n for n, t in enumerate(request["draft"]) if n >= len(ahead) - 1 or t != ahead[n]), len(ahead) - 1)
        new = ahead[: kept + 1]
        self.tokens[row, count : count + len(new)], self.counts[row] = new, count + len(new)
        return new

    def _end(self):
        """Rows of texts that have ended are filled by the last ones."""
        for row in reversed(range(len(self.rows))):
            if self.counts[row] == len(self.rows[row]["text"]):
                self.written.append(self.tokens[row, : self.counts[row]].tolist())
                last = len(self.rows) - 1
                self.tokens[row], self.counts[row] = self.tokens[last].copy(), self.counts[last]
                self.rows[row] = self.rows[last]
                self.rows.pop()


def found(path=PATH):
    module, name = path.rsplit(".", 1)
    return getattr(importlib.import_module(module), name)


def test_the_class_is_what_vllm_makes_and_calls():
    assert list(inspect.signature(found()).parameters) == ["vllm_config"]
    parameters = inspect.signature(found().propose).parameters
    assert list(parameters) == ["self", "sampled_token_ids", "num_tokens_no_spec", "token_ids_cpu", "slot_mappings"]
    assert parameters["slot_mappings"].default is None


class Fused(Proposer):
    method = FusedDraft(always=True)


@pytest.mark.parametrize("kind", (Proposer, Fused))
def test_texts_are_written_in_fewer_steps_while_rows_change_places(kind):
    phrase = [5, 6, 7, 8, 9, 10, 11, 12]
    texts = [[start, *phrase * repeats, start] for start, repeats in ((20, 6), (21, 3), (22, 5), (23, 4), (24, 6))]
    proposer = kind(config())
    runner = Runner(proposer, texts, [12, 10, 16, 9, 11])
    while runner.rows or runner.waiting:
        runner.step()
        assert runner.passes < 200 and len(proposer.texts) <= 3
    assert sorted(runner.written) == sorted(texts)
    plain = Runner(
        SimpleNamespace(most=0, propose=lambda sampled_token_ids, **_: [[] for _ in sampled_token_ids]),
        texts,
        [12, 10, 16, 9, 11],
    )
    while plain.rows or plain.waiting:
        plain.step()
    assert runner.passes < 0.6 * plain.passes


def test_texts_that_are_written_at_once_do_not_mix():
    """Each is drafted from itself, and the row of one that ended is taken by the next."""
    proposer = Proposer(config())
    runner = Runner(proposer, [[*range(start, start + 8)] * 4 for start in (10, 20, 30, 40, 50)], [9] * 5)
    while runner.rows or runner.waiting:
        runner.step()
        assert {text.row for text in proposer.texts} <= {0, 1, 2}
        assert len({text.row for text in proposer.texts}) == len(proposer.texts)
        for request in runner.rows:
            assert all(token in request["text"] for token in request["draft"])
    assert runner.passes < 40, "of 5 texts of 23 tokens in 3 rows, which take 50 one by one"


def test_nothing_is_proposed_beyond_the_longest_text_and_no_placeholder():
    text = [5, 6, 7, 8, 9, PLACEHOLDER, 5, 6, 7]
    given = {"sampled_token_ids": [[7]], "num_tokens_no_spec": [len(text)], "token_ids_cpu": np.array([text])}
    assert Proposer(config()).propose(**given) == [[8, 9]], "a placeholder would follow"
    assert Proposer(config(longest=len(text) + 1)).propose(**given) == [[]]
    assert Proposer(config(longest=len(text) + 2)).propose(**given) == [[8]]
    assert Proposer(config(most=1)).propose(**given) == [[8]]
