"""`mmaccel.compare` and the benchmarks, on the same work: what is not time agrees exactly.

For speech see tests/speech/test_comparing.py.
"""

import pytest
import torch

import mmaccel
from mmaccel import zoo
from mmaccel.adapter import find_adapter
from mmaccel.comparison.entry import PLAIN, Entry
from mmaccel.comparison.trial import trial_of
from mmaccel.image import SpeculativeJacobi, ZipAR, generation
from mmaccel.image import examples as image_examples
from mmaccel.image.bench import benchmark as image_benchmark
from mmaccel.video import EasyCache
from mmaccel.video.bench import benchmark as video_benchmark
from mmaccel.video.bench.cases import VideoCase
from mmaccel.video.bench.sampling import Sampling
from mmaccel.vlm import HoliTom
from mmaccel.vlm.bench import benchmark as vlm_benchmark

SAME = ("method", "settings", "exact", "work_ratio", "peak_extra_bytes", "seeds")


class TinyPainter(generation.JanusPainter):
    """The tiny Janus, whose prompt is always the same, and greedy: with a generator of its own, as the benchmark
    gives it, a session would draw other tokens than from the global state."""

    def __init__(self):
        model, self.arguments = image_examples.janus()
        super().__init__("tiny", model, None)

    def inputs(self, prompts, settings):
        return {**self.arguments(guidance=settings.guidance), "do_sample": False}


def test_image():
    painter, methods = TinyPainter(), (SpeculativeJacobi(window=8), ZipAR(window=2))
    case = image_benchmark.ImageCase(1, 3.0, 1, methods)
    table = [row for _, row in image_benchmark.measure(painter, case)]
    call = painter.inputs([], generation.ImageSettings(guidance=3.0))
    found = mmaccel.compare(painter.target, *methods, rounds=1, **call)
    for theirs, ours in zip(table, found.rows[1:], strict=True):
        assert {name: theirs[name] for name in SAME} == {name: ours[name] for name in SAME}
        assert ours["work_ratio"] < 1
    trial = trial_of(find_adapter(painter.target), call, None)
    settings = generation.ImageSettings(seed=0, guidance=3.0)
    with mmaccel.accelerate(painter.target, methods[0]) as session:
        assert torch.equal(trial.run(session, 0), painter.generate(session, ["any"], settings))
    assert torch.equal(trial.run(painter.target, 0), painter.generate(painter.target, ["any"], settings))


def test_video():
    method = EasyCache(threshold=1e6, warmup=2)
    judged = video_benchmark.scenes(2)
    prompts, few = (
        [scene.prompt for scene in judged],
        Sampling(4),
    )  # converged with no more steps, as it is not compared
    filming, scene = video_benchmark.Filming(prompts, sampling=few, reference=few), judged[1]
    rival = VideoCase("video.EasyCache", "rival", lambda _: method).entry(filming.target, 1.0)
    (theirs,) = video_benchmark.judge(filming, 0.5, [rival], [scene])
    call = {"prompt": scene.prompt, "num_inference_steps": filming.steps, "output_type": "pil"}
    found = mmaccel.compare(filming.target, method, seeds=[scene.seed], rounds=1, simple=False, **call)
    ours = found.rows[1]
    assert {name: theirs[name] for name in SAME} == {name: ours[name] for name in SAME} and ours["work_ratio"] < 1
    # both clips went through the decoder once more there, a batch of latents at a time
    assert ours["quality"] == pytest.approx(theirs["quality"], abs=0.05) and ours["quality"] < 100
    assert ours["metrics"].get("ssim", theirs["ssim"]) == pytest.approx(theirs["ssim"], abs=1e-3)


def test_vlm():
    model, processor = zoo.load(vlm_benchmark.MODEL)
    questions = zoo.questions(vlm_benchmark.MODEL, 4, seed=0)
    clip = [q._replace(frames=questions[0].frames[::4]) for q in questions]
    method = HoliTom(keep=0.15)

    def entries():
        return [Entry(PLAIN, PLAIN, columns={"share": 1.0}), Entry.of(model, method, share=0.15)]

    answered = vlm_benchmark.answer(model, processor, entries(), [clip])
    right = [vlm_benchmark.right(entry) for entry in answered]
    asked = {"frames": clip[0].frames, "questions": [q.question for q in clip], "processor": processor}
    call = {"max_new_tokens": vlm_benchmark.NEW, "do_sample": False}
    found = mmaccel.compare(model, method, rounds=1, simple=False, **asked, **call)
    pair = found.pairs[0]
    for found_right, texts in zip(right, (pair.plain.texts, pair.other.texts), strict=True):
        assert [text == q.answer for text, q in zip(texts, clip, strict=True)] == found_right
    assert pair.plain.names == [q.question for q in clip]
    plain, timed = vlm_benchmark.measure(model, processor, entries(), clip[:1])
    theirs = vlm_benchmark.row(timed, plain, right[1], right[0])
    ours = found.rows[1]
    assert {name: theirs[name] for name in SAME[:3]} == {name: ours[name] for name in SAME[:3]}
    assert theirs["speedup"] > 0 and ours["speedup"] > 0
