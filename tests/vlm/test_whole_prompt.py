"""What a caller's criteria, processors and constraints see of a prompt that a session has shortened."""

import pytest
import torch
from transformers import (
    ExponentialDecayLengthPenalty,
    ForcedEOSTokenLogitsProcessor,
    LogitsProcessor,
    LogitsProcessorList,
    MaxLengthCriteria,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    StoppingCriteria,
    StoppingCriteriaList,
    SuppressTokensAtBeginLogitsProcessor,
)

import mmaccel
from mmaccel import vlm
from mmaccel.errors import PromptError
from mmaccel.vlm import visual_examples

METHODS = (vlm.VidCom2(), vlm.FastV(keep=0.3))
END = 9
SEVERAL = {"do_sample": True, "num_return_sequences": 2}
BATCHES = pytest.mark.parametrize(("batch", "more"), ((1, {}), (2, {}), (2, {"num_beams": 2}), (2, SEVERAL)), ids=str)


@pytest.fixture(scope="module")
def qwen():
    return visual_examples.qwen2_5_vl()


class Noted(StoppingCriteria, LogitsProcessor):
    """Stops after two new tokens, and notes what it is given."""

    def __init__(self, prompt):
        self.prompt, self.seen = prompt, []

    def __call__(self, ids, scores, **kwargs):
        self.seen.append(ids.clone())
        if kwargs:
            return torch.full((len(ids),), ids.shape[1] - self.prompt >= 2)
        return scores


@pytest.mark.parametrize("method", METHODS, ids=str)
@BATCHES
def test_a_criterion_sees_the_whole_prompt(qwen, method, batch, more):
    model, arguments = qwen
    given = arguments(batch, max_new_tokens=9, **more)
    length = given["input_ids"].shape[1]
    kwargs = {"stopping_criteria": StoppingCriteriaList([lambda ids, scores, **_: noted(ids, scores, stop=True)])}
    noted = Noted(length)
    with mmaccel.accelerate(model, method) as fast:
        tokens = fast.generate(**given, **kwargs)
    assert tokens.shape[1] == length + 2
    assert noted.seen
    for ids in noted.seen:  # beam search asks for several rows of a prompt
        assert torch.equal(ids[:, :length], given["input_ids"].repeat_interleave(len(ids) // batch, 0))


@BATCHES
def test_a_processor_sees_the_whole_prompt(qwen, batch, more):
    model, arguments = qwen
    given = arguments(batch, max_new_tokens=3, **more)
    length = given["input_ids"].shape[1]
    noted = Noted(length)
    with mmaccel.accelerate(model, METHODS[0]) as fast:
        torch.manual_seed(0)
        plain = fast.generate(**given)
        torch.manual_seed(0)
        assert torch.equal(fast.generate(**given, logits_processor=LogitsProcessorList([noted])), plain)
    assert [ids.shape[1] for ids in noted.seen] == [length, length + 1, length + 2]


class Reading(LogitsProcessor):
    """Has to be shown one of the prompts, and ends a text with its third token."""

    rowwise = True

    def __init__(self, prompts):
        self.prompts = prompts

    def __call__(self, ids, scores):
        length = self.prompts.shape[1]
        assert all(any(torch.equal(row, prompt) for prompt in self.prompts) for row in ids[:, :length])
        return scores if ids.shape[1] < length + 2 else scores.index_fill(1, torch.tensor([END]), 1e4)


class Stopping(Reading, StoppingCriteria):
    def __call__(self, ids, scores, **kwargs):
        return torch.full((len(ids),), super().__call__(ids, torch.zeros(1, 60)).any())


@pytest.mark.parametrize("drafts", ((), (vlm.FusedDraft(always=True),)), ids=("plain", "drafts"))
@BATCHES
def test_what_looks_at_each_row_alone_sees_the_whole_prompt(qwen, batch, more, drafts):
    model, arguments = qwen
    given = arguments(batch, max_new_tokens=9, eos_token_id=END, **more)
    prompts = given["input_ids"]
    with mmaccel.accelerate(model, METHODS[0], *drafts) as fast:
        for part in ({"logits_processor": [Reading(prompts)]}, {"stopping_criteria": [Stopping(prompts)]}):
            assert fast.generate(**given, **part).shape[1] <= prompts.shape[1] + 3
            assert not [told for told in fast.report.warnings if "whole batch" in told or "copied" in told]


def test_a_part_that_looks_at_the_whole_batch_is_told_by_its_name(qwen):
    model, arguments = qwen
    with mmaccel.accelerate(model, METHODS[0], vlm.FusedDraft(always=True)) as fast:
        fast.generate(**arguments(2), logits_processor=[Ending(0.0)])
    assert any("the model's own loop ran: Ending may look at the whole batch" in told for told in fast.report.warnings)


@BATCHES
def test_a_constraint_sees_the_whole_prompt(qwen, batch, more):
    model, arguments = qwen
    given = arguments(batch, max_new_tokens=5, **more)
    length = given["input_ids"].shape[1]
    seen = []

    def allowed(row, ids):
        seen.append((row, ids))
        return [7] if len(ids) >= length + 2 else list(range(60))

    with mmaccel.accelerate(model, METHODS[0]) as fast:
        tokens = fast.generate(**given, prefix_allowed_tokens_fn=allowed)
    assert bool((tokens[:, length + 2 :] == 7).all())
    prompts = given["input_ids"].repeat_interleave(more.get("num_return_sequences", 1), 0)
    assert seen and all(torch.equal(ids[:length], prompts[row]) for row, ids in seen)


def test_parts_of_transformers_stay_what_they_are(qwen):
    """`generate` looks for their types, to replace its own."""
    from transformers import TemperatureLogitsWarper

    model, arguments = qwen
    given = {**arguments(max_new_tokens=6), "do_sample": True}
    runs = []
    with mmaccel.accelerate(model, METHODS[0]) as fast:
        for more in ({"temperature": 0.5}, {"temperature": 9.0, "logits_processor": [TemperatureLogitsWarper(0.5)]}):
            torch.manual_seed(0)
            runs.append(fast.generate(**given, **more))
    assert torch.equal(*runs)


class Ending(LogitsProcessor):
    """Says of a text's end alone how good it is."""

    def __init__(self, score):
        self.score = score

    def __call__(self, ids, scores):
        told = torch.zeros_like(scores)
        told[:, END] = self.score
        return told


@pytest.mark.parametrize(
    ("of_length", "score", "new"),
    (
        (lambda length: MinLengthLogitsProcessor(length + 3, END), 1.0, 4),
        (lambda length: MinNewTokensLengthLogitsProcessor(length, 3, END), 1.0, 4),
        (lambda length: SuppressTokensAtBeginLogitsProcessor([END], length), 1.0, 2),
        (lambda length: ForcedEOSTokenLogitsProcessor(length + 4, END), -1.0, 4),
        (lambda length: ExponentialDecayLengthPenalty((1, 1e6), END, length), -1.0, 3),
        (lambda length: MaxLengthCriteria(length + 3), -1.0, 3),
    ),
)
def test_parts_of_transformers_that_count_tokens_count_the_whole_prompt(qwen, of_length, score, new):
    model, arguments = qwen
    given = arguments(max_new_tokens=6, eos_token_id=END)
    length = given["input_ids"].shape[1]
    part, processors = of_length(length), [Ending(score)]
    criteria = [part] if isinstance(part, MaxLengthCriteria) else []
    more = {
        "logits_processor": LogitsProcessorList(processors if criteria else [*processors, part]),
        "stopping_criteria": StoppingCriteriaList(criteria),
    }
    with mmaccel.accelerate(model, METHODS[0]) as fast:
        assert fast.generate(**given, **more).shape[1] == length + new
    assert model.generate(**given, **more).shape[1] == length + new, "the part itself stays as it was"


def test_repetitions_are_penalized_from_the_end_of_the_whole_prompt(qwen):
    """As by a part of a user's own, which is shown the whole prompt."""

    class Own(RepetitionPenaltyLogitsProcessor):
        pass

    model, arguments = qwen
    given = arguments(max_new_tokens=6)
    length = given["input_ids"].shape[1]
    texts = []
    with mmaccel.accelerate(model, METHODS[0]) as fast:
        for kind in (Own, RepetitionPenaltyLogitsProcessor):
            part = kind(1e3, prompt_ignore_length=length)
            texts.append(fast.generate(**given, logits_processor=LogitsProcessorList([part]))[0, length:].tolist())
    assert texts[0] == texts[1] and len({*texts[0]}) == len(texts[0]), "no token comes twice"


def test_ids_without_a_batch_are_refused(qwen):
    model, arguments = qwen
    given = arguments()
    with mmaccel.accelerate(model, METHODS[0]) as fast:
        with pytest.raises(PromptError, match=r"give \[batch, tokens\]"):
            fast.generate(**{**given, "input_ids": given["input_ids"][0]})
        assert torch.equal(fast.generate(**given), fast.generate(**given))
