"""A whole modality in one file: models that walk, and a method that takes longer steps."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from mmaccel.adapter import Adapter, register_adapter
from mmaccel.bench.benchmark import Benchmark, Section, in_one
from mmaccel.cli.command import Command
from mmaccel.cli.model_arguments import add_methods, chosen_methods, opened
from mmaccel.cli.run import told
from mmaccel.comparison.results import row
from mmaccel.comparison.trial import BaseTrial, Metric, Shown
from mmaccel.method import Advice, Method, is_count
from mmaccel.modality import Modality
from mmaccel.patching import wrap_method
from mmaccel.registry import register
from mmaccel.session import accelerate
from mmaccel.testing.example import Example
from mmaccel.testing.untrained import untrained

__all__ = ["Stride"]
STEPS = 8


class Walker(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.step = torch.nn.Linear(4, 4)

    @torch.no_grad()
    def generate(self, place, steps=STEPS, stride=1):
        for _ in range(0, steps, stride):
            place = place + stride * self.step(place).tanh()
        return place


@register_adapter
class WalkerAdapter(Adapter):
    family = "walker"
    classes = ("Walker",)
    modality = "toy"


@register("toy")
@dataclass(frozen=True)
class Stride(Method):
    """Take several steps at once; lossy.

    Parameters
    ----------
    stride
        Steps at once (default 2).
    """

    paper: ClassVar[str] = "A toy of the tests, 2026"
    advice: ClassVar[Advice] = Advice("Walkers that are late.", "Where they arrive.", "stride=4")
    neutral: ClassVar[dict] = {"stride": 1}
    engaging: ClassVar[dict] = {"stride": 2}
    stride: int = 2

    def __post_init__(self):
        self._require(is_count(self.stride), "stride", "an integer of at least 1")

    def attach(self, session, stack):
        def generate(original, *args, **kwargs):
            with session.run():
                session.report.forwards, session.report.plain_forwards = STEPS / self.stride, STEPS
                session.report.engaged = self.stride > 1
                return original(*args, **kwargs, stride=self.stride)

        wrap_method(stack, session.target, "generate", generate)


class ToyTrial(BaseTrial):
    unit = "steps"
    metrics = (Metric("error", "error", "distance to the plain place", higher_is_better=False, relative=True),)

    def run(self, target, seed, fewer=None):
        return target.generate(**self.inputs)

    def equal(self, one, other):
        return torch.equal(one, other)

    def judge(self, plain, other):
        return {"error": float((plain - other).abs().max())}

    def show(self, output):
        return Shown(texts=[str(output.tolist())])


class ToyCommand(Command):
    help, measured, preset = "walk", "walking", "toy.Stride"

    def add_run(self, parser):
        self.add_call(parser)
        add_methods(parser, self.preset)

    def add_call(self, parser):
        parser.add_argument("start", type=float)

    def prepare(self, arguments):
        return opened(arguments), {"place": torch.full((1, 4), arguments.start)}

    def run(self, arguments):
        model, inputs = self.prepare(arguments)
        chosen, preset = chosen_methods(arguments)
        with accelerate(model, *chosen, preset=preset) as session:
            session.generate(**inputs)
            print(told(session.report))  # noqa: T201


class Toy(Modality):
    name, title, model = "toy", "Toys", "tiny-toy"
    adapters = ()
    example = "import mmaccel\n# {method}"
    tab, tab_title = __name__, "Toy walk"

    def open(self, model, device="cpu", dtype=None):
        return untrained(Walker).to(device, dtype)

    def command(self):
        return ToyCommand()

    def trial(self):
        return ToyTrial

    def examples(self):
        def build(seed=0):
            return untrained(Walker, seed), lambda batch=1: {"place": torch.ones(batch, 4)}

        return [Example("walker", build, lambda model: model.step, takes_generator=False)]

    def absent_presets(self):
        return {"walker": dict.fromkeys(("exact", "balanced", "fast"), "nobody walked far enough")}

    def benchmarks(self):
        return {"toy": __name__}


def rows(full):
    yield row(modality="toy", model="tiny-toy", method="toy.Stride", settings={"stride": 2}, exact=False)


BENCHMARK = Benchmark(
    "toy",
    "Toys",
    in_one(rows),
    Section(lambda rows: {"": rows}, "none: a walk is a walk."),
    "How far they came.",
    lambda rows: {"Walks": f"{len(rows)} in all"},
    "Their legs.",
)


def build(frame):
    import gradio as gr

    gr.Markdown("Where to?")
