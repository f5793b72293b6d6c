"""Questions about one video: how they reach the model, and what a comparison calls and shows."""

import numpy as np
import pytest
import torch
from transformers import BatchFeature

from mmaccel.adapter import find_adapter
from mmaccel.cli import main as cli
from mmaccel.errors import PromptError, UnsupportedTargetError
from mmaccel.vlm import answering, examples, visual_examples
from mmaccel.vlm.command import VlmCommand
from mmaccel.vlm.comparing import AnswerTrial

QUESTIONS = ["what moves up?", "how many pictures are there on the blue background?"]


class Processor:
    """A processor for the tiny model: a letter is a token, and an answer is told by its numbers."""

    def apply_chat_template(self, conversation, add_generation_prompt):
        (turn,) = conversation
        video, text = turn["content"]
        assert video == {"type": "video"} and add_generation_prompt
        return text["text"] + ">"

    def __call__(self, videos, text, return_tensors, padding):
        assert padding and len(videos) == len(text)
        shown = [visual_examples.VIDEO] * (16 * len(videos[0]) + 1)
        rows = [[5, *shown, *(4 + ord(letter) % 40 for letter in question)] for question in text]
        width = max(map(len, rows))
        ids = torch.tensor([[0] * (width - len(row)) + row for row in rows])
        pixels = torch.tensor(np.stack([np.stack(video) for video in videos])).permute(0, 1, 4, 2, 3) / 128 - 1
        return BatchFeature({"input_ids": ids, "attention_mask": (ids > 0).long(), "pixel_values_videos": pixels})

    def batch_decode(self, tokens, skip_special_tokens):
        return [f" {' '.join(map(str, row))} " for row in tokens.tolist()]


@pytest.fixture(scope="module")
def parts():
    return visual_examples.onevision()[0], Processor()


@pytest.fixture(scope="module")
def frames():
    return list(np.random.default_rng(0).integers(0, 255, (4, 32, 32, 3), dtype=np.uint8))


def trial_of(parts, frames, questions, **more):
    model, processor = parts
    call = {"frames": frames, "questions": questions, "max_new_tokens": 4, **more}
    return AnswerTrial(find_adapter(model), call, processor)


def test_a_comparison_shows_the_questions_beside_their_answers(parts, frames):
    model, processor = parts
    trial = trial_of(parts, frames, QUESTIONS)
    output = trial.run(model, 0)
    shown = trial.show(output)
    assert shown.names == QUESTIONS and output.shape == (2, 4)
    assert shown.texts == answering.ask(model, processor, frames, QUESTIONS, max_new_tokens=4)[0]
    assert trial_of(parts, frames, QUESTIONS[0]).asked == QUESTIONS[:1]


def test_fewer_frames_are_taken_before_the_processor(parts, frames):
    model, processor = parts
    trial = trial_of(parts, frames, QUESTIONS)
    assert trial.count == 4 and trial.visual_share(2) == 0.5
    few = trial.show(trial.run(model, 0, fewer=2)).texts
    assert few == answering.ask(model, processor, [frames[0], frames[3]], QUESTIONS, max_new_tokens=4)[0]
    assert few != trial.show(trial.run(model, 0)).texts


def test_a_seed_counts_where_answers_are_drawn(parts, frames):
    model, _ = parts
    trial = trial_of(parts, frames, QUESTIONS, do_sample=True, temperature=5.0)
    assert trial.draws and not trial.seedless
    one, again, other = (trial.run(model, seed) for seed in (1, 1, 2))
    assert torch.equal(one, again) and not torch.equal(one, other)
    greedy = trial_of(parts, frames, QUESTIONS)
    assert not greedy.draws and "do_sample=True" in greedy.seedless


def test_the_prompt_is_no_part_of_an_answer_however_it_is_given():
    model, arguments = examples.llama()
    call = arguments(2)
    call["inputs"] = call.pop("input_ids")
    trial = AnswerTrial(find_adapter(model), call)
    assert trial.run(model, 0).shape == (2, call["max_new_tokens"])
    assert "no video of several frames" in trial.no_simple


def test_two_videos_in_one_prompt_have_no_fewer_frames():
    model, _ = visual_examples.onevision()
    video = [visual_examples.VIDEO] * 49
    call = {"input_ids": torch.tensor([[5, *video, 6, *video, 7]]), "max_new_tokens": 2, "do_sample": False}
    call["pixel_values_videos"] = visual_examples.clip(2, 3, 32)
    trial = AnswerTrial(find_adapter(model), call)
    assert trial.count == 0 and trial.visual_share(2) is None and "frames=" in trial.no_simple


def test_questions_are_answered_greedily_and_each_as_alone(parts, frames):
    model, processor = parts
    model.generation_config.do_sample = True
    try:
        together, seconds = answering.ask(model, processor, frames, QUESTIONS, max_new_tokens=6)
        alone = [answering.ask(model, processor, frames, [each], max_new_tokens=6)[0][0] for each in QUESTIONS]
    finally:
        model.generation_config.do_sample = False
    assert together == alone and seconds > 0 and all(text == text.strip() for text in together)


def test_an_empty_question_among_others_is_refused(parts, frames):
    with pytest.raises(PromptError, match="question is empty"):
        answering.prepare(parts[1], frames, ["what moves up?", " "])


def test_a_model_is_loaded_as_asked():
    model, _ = answering.load("tiny-onevision", dtype=torch.bfloat16)
    assert model.dtype == torch.bfloat16 and not model.training
    with pytest.raises(UnsupportedTargetError, match="mmaccel run image"):
        answering.load("tiny-janus")


def test_a_compared_call_is_greedy_and_as_long_as_asked():
    words = cli.build_parser().parse_args(["compare", "vlm", "--example", "--max-new-tokens", "5"])
    _, call = VlmCommand().prepare(words)
    assert call["do_sample"] is False and call["max_new_tokens"] == 5
    assert len(call["frames"]) > 1 and len(call["questions"]) == 1
