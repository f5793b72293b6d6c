"""Questions about one video: how they reach the model, and what a comparison calls and shows."""

import copy
import importlib.util
import io
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from accelerate import cpu_offload
from PIL import Image
from safetensors import SafetensorError
from transformers import BatchFeature

import mmaccel
from mmaccel import vlm
from mmaccel.adapter import find_adapter
from mmaccel.cli import main as cli
from mmaccel.demos.families.visual_models import build as visual_model
from mmaccel.errors import MissingExtraError, PromptError, UnsupportedTargetError, WeightsError
from mmaccel.plan import Plan
from mmaccel.vlm import answering, command, comparing, examples, visual_examples
from mmaccel.vlm.command import VlmCommand
from mmaccel.vlm.comparing import AnswerTrial
from mmaccel.vlm.input.read_video import read_video

QUESTIONS = ["what moves up?", "how many pictures are there on the blue background?"]


class Processor:
    """A processor for the tiny model: a letter is a token, and an answer is told by its numbers."""

    def apply_chat_template(self, conversation, add_generation_prompt):
        (turn,) = conversation
        video, text = turn["content"]
        assert video == {"type": "video"} and add_generation_prompt
        return text["text"] + ">"

    def __call__(self, videos, text, return_tensors, padding):
        assert padding and len(videos) == len(text) and return_tensors == "pt"
        shown = [visual_examples.VIDEO] * (16 * len(videos[0]) + 1)
        rows = [[5, *shown, *(4 + ord(letter) % 40 for letter in question)] for question in text]
        width = max(map(len, rows))
        ids = torch.tensor([[0] * (width - len(row)) + row for row in rows])
        pixels = torch.tensor(np.stack([np.stack(video) for video in videos])).permute(0, 1, 4, 2, 3) / 128 - 1
        return BatchFeature({"input_ids": ids, "attention_mask": (ids > 0).long(), "pixel_values_videos": pixels})

    def batch_decode(self, tokens, skip_special_tokens):
        assert skip_special_tokens
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
    assert trial.no_simple.startswith("every token of a text has to be written"), "there are no frames to give"


@pytest.mark.parametrize("name", ("pixel_values", "pixel_values_videos", "pixel_values_images", "mm_encoder_outputs"))
def test_whatever_is_shown_may_be_given_as_frames(name):
    """Also to a model whose visual tokens no method leaves out."""
    model, arguments = examples.llama()
    assert "give frames=" in AnswerTrial(find_adapter(model), {**arguments(), name: torch.zeros(1, 3, 8, 8)}).no_simple


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


class QwenProcessor(Processor):
    """One for the tiny Qwen2.5-VL, which sees the same clip whatever it is given, and hears no question."""

    def __init__(self, arguments):
        self.arguments = arguments

    def __call__(self, videos, text, return_tensors, padding):
        call = self.arguments(len(text), len(videos[0]))
        return BatchFeature({name: value for name, value in call.items() if isinstance(value, torch.Tensor)})


def test_a_model_may_be_off_loaded(frames):
    """Between passes accelerate leaves its weights on "meta", where inputs would lose what they hold."""
    model, arguments = visual_examples.qwen2_5_vl()
    processor = QwenProcessor(arguments)
    away = cpu_offload(copy.deepcopy(model), execution_device=torch.device("cpu"))
    assert away.device.type == "meta"
    plain, other = (answering.ask(each, processor, frames, QUESTIONS, max_new_tokens=4)[0] for each in (model, away))
    assert plain == other
    trial = trial_of((away, processor), frames, QUESTIONS)
    assert trial.answers(trial.run(away, 0)) == plain
    with mmaccel.accelerate(model, vlm.VidCom2(keep=0.4)) as fast:
        short = answering.ask(fast, processor, frames, QUESTIONS, max_new_tokens=4)[0]
    with mmaccel.accelerate(away, vlm.VidCom2(keep=0.4)) as fast:
        assert answering.ask(fast, processor, frames, QUESTIONS, max_new_tokens=4)[0] == short != plain


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


@pytest.fixture
def hub(monkeypatch):
    """What is asked of transformers without torchvision, which finds a model or what it is told to raise."""
    asked, found = [], {"model": visual_examples.onevision()[0], "processor": Processor(), "config": None}
    found["info"] = {"missing_keys": [], "mismatched_keys": []}

    def from_pretrained(kind, name, **more):
        asked.append((kind, name, more))
        if isinstance(found[kind], Exception):
            raise found[kind]
        return (found[kind], found["info"]) if kind == "model" else found[kind]

    for kind, auto in (
        ("config", "AutoConfig"),
        ("processor", "AutoProcessor"),
        ("model", "AutoModelForImageTextToText"),
    ):
        cls = getattr(transformers, auto)
        monkeypatch.setattr(cls, "from_pretrained", lambda name, kind=kind, **more: from_pretrained(kind, name, **more))
    monkeypatch.setitem(sys.modules, "torchvision", None)
    return asked, found


def test_a_model_of_the_hub_is_loaded_without_its_code(hub):
    asked, found = hub
    found["model"].train()
    model, processor = answering.load("org/name", dtype=torch.float64)
    assert processor.padding_side == "left"
    assert model is found["model"] and processor is found["processor"]
    assert not model.training and model.dtype == torch.float32, "what is read in float32 stays so"
    assert [kind for kind, *_ in asked] == ["config", "processor", "model"]
    assert all(name == "org/name" and more.pop("trust_remote_code") is False for _, name, more in asked)
    ours = {"use_safetensors": True, "output_loading_info": True, "attn_implementation": "sdpa"}
    assert asked[-1][2] == {"dtype": torch.float64, **ours}
    answering.load("org/name")
    assert asked[-1][2]["dtype"] == "auto"


@pytest.mark.parametrize(
    ("kind", "found", "error", "says"),
    (
        ("processor", ImportError("no torchvision"), MissingExtraError, r"of org/name needs .*torchvision \(no torchv"),
        (
            "config",
            OSError("not found\nmore"),
            UnsupportedTargetError,
            r"give a zoo name \(.*tiny-onevision.*\(not found",
        ),
        ("model", SafetensorError("header"), WeightsError, r"weights in org/name are damaged \(header\): fetch or"),
        (
            "info",
            {"missing_keys": ["projector.weight"], "mismatched_keys": []},
            WeightsError,
            "1 tensors are missing .* such as projector.weight",
        ),
        ("model", ImportError("pip install it"), MissingExtraError, r"^the weights in org/name .* \(pip install it\)$"),
        ("model", RuntimeError("No GPU found."), UnsupportedTargetError, "cannot be loaded on this machine: No GPU"),
        ("model", ValueError("another"), UnsupportedTargetError, "'org/name' is not a vision-language model"),
        ("model", examples.llama()[0], UnsupportedTargetError, "is a LlamaForCausalLM, which sees no videos"),
    ),
    ids=("processor", "nothing there", "damaged", "incomplete", "package", "GPU", "another kind", "language alone"),
)
def test_what_cannot_be_loaded_says_why(hub, kind, found, error, says):
    hub[1][kind] = found
    with pytest.raises(error, match=says) as raised:
        answering.load("org/name")
    assert "\n" not in str(raised.value)
    assert not isinstance(found, Exception) or raised.value.__cause__ is found


def test_a_processor_that_needs_something_else_is_not_told_to_need_torchvision(hub, monkeypatch):
    hub[1]["processor"] = ImportError("Package `num2words` is required")
    with pytest.raises(MissingExtraError, match="of org/name needs more: pip install torchvision"):
        answering.load("org/name")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    with pytest.raises(MissingExtraError, match=r"of org/name needs more \(Package `num2words` is required\)"):
        answering.load("org/name")


def test_an_answer_has_32_tokens_at_most_unless_asked_otherwise(parts, frames):
    calls = []

    def generate(**call):
        calls.append(call)
        return call["input_ids"]

    target = SimpleNamespace(device="cpu", dtype=torch.float32, generate=generate)
    answering.ask(target, parts[1], frames, QUESTIONS)
    assert calls[0]["max_new_tokens"] == 32 and calls[0]["do_sample"] is False


@pytest.fixture
def file(frames, tmp_path):
    """A clip of four frames in a second."""
    path, images = tmp_path / "clip.gif", [Image.fromarray(frame) for frame in frames]
    images[0].save(path, save_all=True, append_images=images[1:], duration=250)
    return path


def test_a_file_is_shown_with_the_times_of_its_frames(file):
    words = cli.build_parser().parse_args(["compare", "vlm", str(file), QUESTIONS[0]])
    assert command.frames_of(words).times.tolist() == [0.0, 0.25, 0.5, 0.75]


# What a comparison makes of it


@pytest.mark.parametrize("method", (vlm.StoredContext, vlm.FusedDraft))
def test_a_comparison_tells_that_its_prompt_was_stored(method, tmp_path):
    """By the run before: asking again is what it times."""
    model, arguments = examples.llama()
    stores = {"folder": str(tmp_path), "least": 16} if method is vlm.StoredContext else {}
    found = mmaccel.compare(model, method(**stores), simple=False, rounds=1, **arguments(1))
    assert ("a first question takes a plain run" in str(found)) == bool(stores)


def test_answers_are_judged_word_for_word_and_by_their_words(parts, frames):
    trial = trial_of(parts, frames, QUESTIONS)
    plain, other = torch.tensor([[7, 8, 9], [5, 5, 5]]), torch.tensor([[7, 8, 9], [5, 6, 6]])
    judged = trial.judge(plain, other)
    assert judged == {"agreed": 0.5, "like": pytest.approx((1 + 2 * 1 / 6) / 2)}
    assert [metric.key for metric in trial.metrics] == list(judged)
    assert trial.equal(plain, plain.clone()) and not trial.equal(plain, other) and trial.unit == "frames"
    alone = AnswerTrial(trial.adapter, trial.calls[None])
    assert alone.answers(other) == ["7 8 9", "5 6 6"], "without a processor the numbers"
    assert alone.show(other).names == []


def test_each_number_of_frames_is_prepared_once(parts, frames, monkeypatch):
    model, _ = parts
    prepared = []
    real = comparing.prepare
    monkeypatch.setattr(comparing, "prepare", lambda *a: prepared.append(len(a[1])) or real(*a))
    trial = trial_of(parts, frames, QUESTIONS)
    for fewer in (None, 2, None, 2, 3):
        trial.run(model, 0, fewer=fewer)
    assert prepared == [4, 2, 3]


def test_fewer_frames_of_a_file_keep_their_times(parts, file, monkeypatch):
    model, _ = parts
    prepared = []
    real = comparing.prepare
    monkeypatch.setattr(comparing, "prepare", lambda *a: prepared.append(a[1].times.tolist()) or real(*a))
    trial_of(parts, read_video(file, 4), QUESTIONS).run(model, 0, fewer=2)
    assert prepared == [[0.0, 0.25, 0.5, 0.75], [0.0, 0.75]]


def test_an_answer_with_its_scores_is_its_tokens(parts, frames):
    model, _ = parts
    plain = trial_of(parts, frames, QUESTIONS).run(model, 0)
    more = trial_of(parts, frames, QUESTIONS, return_dict_in_generate=True, output_logits=True).run(model, 0)
    assert torch.equal(plain, more)


def test_what_has_an_entry_for_each_token_is_cut_with_the_frames():
    model, arguments = visual_examples.onevision()
    call = arguments(2, frames=6)
    call["mm_token_type_ids"] = (call["input_ids"] == visual_examples.VIDEO).long()
    call["token_type_ids"] = call["input_ids"]
    cut = AnswerTrial(find_adapter(model), call)._prepared(2)
    length = call["input_ids"].shape[1] - 4 * 16
    assert cut["pixel_values_videos"].shape[1] == 2 and torch.equal(cut["token_type_ids"], cut["input_ids"])
    assert cut["mm_token_type_ids"].shape == cut["attention_mask"].shape == (2, length)
    assert cut["mm_token_type_ids"].sum(1).tolist() == [2 * 16 + 1] * 2


def test_a_video_in_two_prompts_cannot_have_fewer_frames():
    model, _ = visual_examples.onevision()
    call = {"input_ids": torch.tensor([[5, *[visual_examples.VIDEO] * 48, 6]] * 2)}
    call["pixel_values_videos"] = visual_examples.clip(1, 6, 32)
    assert "no video of several frames" in AnswerTrial(find_adapter(model), call).no_simple


# The command line


@pytest.fixture
def told(parts, file, monkeypatch, capsys):
    """Runs `mmaccel run vlm` on a clip of four frames in a second; gives lines and what was asked of the model."""
    asked, real = [], answering.ask

    def ask(target, processor, clip, *args, **more):
        asked.append((type(target).__name__, len(clip), more))
        return real(target, processor, clip, *args, **more)[0], 1234.0

    monkeypatch.setattr(command, "opened", lambda arguments: parts)
    monkeypatch.setattr(answering, "ask", ask)

    def run(*words):
        assert cli.main(["run", "vlm", str(file), QUESTIONS[0], "--method", "VidCom2", *words]) == 0
        return capsys.readouterr().out.splitlines(), asked

    return run


def test_a_question_of_the_command_line(told):
    lines, asked = told("--max-new-tokens", "3")
    assert asked == [("Session", 4, {"questions": QUESTIONS[:1], "max_new_tokens": 3})]
    assert len(lines[0].split()) == 3 and not any("plain:" in line or "speed" in line for line in lines[:1])
    assert any("VidCom2" in line for line in lines[1:])


def test_the_plain_answer_of_the_command_line_comes_first_and_is_timed(told):
    lines, asked = told("--compare", "--max-new-tokens", "3", "--frames", "2")
    plain = "LlavaOnevisionForConditionalGeneration"
    assert [call[:2] for call in asked] == [(plain, 2), (plain, 2), ("Session", 2)]
    assert asked[0][2] == {**asked[1][2], "max_new_tokens": 1}, "a first call, which is slow, is not timed"
    assert asked[1][2] == asked[2][2]
    assert lines[0].startswith("plain: ") and lines[1].startswith("fast:  ")
    assert any("both measured" in line and "1234" in line for line in lines[2:]), lines


def test_frames_of_a_second_count_before_the_number_of_frames(told):
    _, asked = told("--fps", "2", "--frames", "4")
    assert asked[0][1] == 2


def test_a_stream_has_no_preset(capsys):
    assert cli.main(["run", "vlm", "clip.mp4", "what?", "--watch", "--preset", "exact"]) == 2
    assert "--preset exact: a stream has none: leave out --watch, or --preset" in capsys.readouterr().err


def test_a_stream_takes_its_own_method_alone_or_in_a_plan(capsys):
    own = vlm.StreamingCompression(keep=0.5)
    for chosen in ([own], [Plan((own,), "vision_language")]):
        assert command._of_stream(chosen, vlm.StreamingCompression) is own
    assert cli.main(["run", "vlm", "clip.mp4", "what?", "--watch", "--method", "vlm.DyCoke:keep=0.2"]) == 2
    takes = "--watch takes --method vlm.StreamingCompression[:KEY=VALUE,...] or none, not vlm.DyCoke(keep=0.2)"
    assert takes in capsys.readouterr().err


def test_the_picture_of_the_command_line_comes_last(told, tmp_path):
    picture = tmp_path / "kept.png"
    lines, _ = told("--picture", str(picture))
    assert lines[-1] == f"wrote {picture}" and Image.open(picture).width > 4 * 200


def test_the_picture_is_drawn_though_the_reader_of_the_answer_is_gone(parts, file, monkeypatch, tmp_path):
    class Left(io.StringIO):
        def write(self, _):
            raise BrokenPipeError

    picture = tmp_path / "kept.png"
    words = ["run", "vlm", str(file), QUESTIONS[0], "--method", "VidCom2", "--picture", str(picture)]
    asked = cli.build_parser().parse_args(words)
    monkeypatch.setattr(command, "opened", lambda arguments: parts)
    monkeypatch.setattr(sys, "stdout", Left())
    with pytest.raises(BrokenPipeError):
        asked.run(asked)
    assert Image.open(picture).width > 4 * 200


def test_a_model_without_streams_is_told_so_before_it_is_asked(told, monkeypatch, file, capsys):
    with monkeypatch.context() as patched:
        patched.setattr(command, "opened", lambda arguments: (visual_model("Qwen2VLForConditionalGeneration")[0], None))
        assert cli.main(["run", "vlm", str(file), "what?", "--watch", "--compare"]) == 2
    assert "no streams for Qwen2VLForConditionalGeneration" in capsys.readouterr().err
    assert told()[1][0][0] == "Session", "nothing was asked before"
