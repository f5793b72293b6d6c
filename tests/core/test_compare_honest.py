"""Comparisons in every modality: what does nothing, what is slow and what fails is said, and by name.

Time is counted in passes, so that a busy machine changes nothing.
"""

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import mmaccel
from mmaccel.comparison import trial
from mmaccel.image import examples as image_examples
from mmaccel.image.method import ImageMethod
from mmaccel.method import Method
from mmaccel.speech import examples as speech_examples
from mmaccel.testing.contract import Interrupted, snapshot
from mmaccel.video import examples as video_examples
from mmaccel.vlm import visual_examples

pytest.importorskip("jiwer")


@dataclass
class Case:
    """A target, its call, and the module that every pass goes through."""

    target: Any
    call: dict[str, Any]
    module: torch.nn.Module


def image() -> Case:
    model, arguments = image_examples.janus()
    return Case(model, {**arguments(), "do_sample": False}, model.model.language_model)


def video() -> Case:
    pipe, arguments = video_examples.wan_pipeline()
    return Case(pipe, {k: v for k, v in arguments().items() if k != "latents"}, pipe.transformer)


def vlm() -> Case:
    model, arguments = visual_examples.onevision()
    return Case(model, {**arguments(frames=4), "max_new_tokens": 4}, model.get_decoder())


def speech() -> Case:
    model, _ = speech_examples.moonshine()
    call = {"audio": speech_examples.sound(1, 9_000)[0], "endpoint": None, "max_new_tokens": 8}
    return Case(model, {**call, "processor": speech_examples.moonshine_processor()}, model.get_decoder())


BUILDERS: dict[str, Callable[[], Case]] = {"image": image, "video": video, "vlm": vlm, "speech": speech}


class Clock:
    """Shows how many passes there were, and more where something dawdles."""

    def __init__(self) -> None:
        self.now = 0

    def perf_counter(self) -> int:
        return self.now

    def tick(self, *_: Any) -> None:
        self.now += 1


@pytest.fixture(params=BUILDERS)
def stage(request, monkeypatch, register):
    """A case, a clock, and methods of its modality that are registered for one test."""
    case, clock = BUILDERS[request.param](), Clock()
    case.module.register_forward_pre_hook(clock.tick)
    monkeypatch.setattr(trial.Workload, "timer", staticmethod(clock.perf_counter))
    found = methods(request.param, case.module, clock, register)
    return SimpleNamespace(modality=request.param, case=case, **found)


def methods(modality: str, module: torch.nn.Module, clock: Clock, register: Any) -> dict[str, type[Method]]:
    base: Any = ImageMethod if modality == "image" else Method

    @register(modality)
    @dataclass(frozen=True)
    class Nothing(base):
        """Does nothing."""

        paper = "Nobody, 2026"
        lossless = True

        def attach(self, session, stack: ExitStack) -> None:
            pass

    @register(modality)
    @dataclass(frozen=True)
    class Slowly(base):
        """Takes twice as long, and says that it did its work."""

        paper = "Nobody, 2026"
        lossless = True

        def attach(self, session, stack: ExitStack) -> None:
            def dawdle(*_: Any) -> None:
                session.report.engaged = True
                clock.tick()

            stack.callback(module.register_forward_pre_hook(dawdle).remove)

    @register(modality)
    @dataclass(frozen=True)
    class Failing(base):
        """Fails in the middle of its third run."""

        paper = "Nobody, 2026"

        def attach(self, session, stack: ExitStack) -> None:
            runs.append(session)
            if len(runs) == 3:
                stack.callback(module.register_forward_hook(fail).remove)

    runs: list[Any] = []

    def fail(*_: Any) -> None:
        raise Interrupted("in the middle")

    return {"Nothing": Nothing, "Slowly": Slowly, "Failing": Failing}


def test_nothing_and_slowness_are_said(stage, tmp_path):
    case = stage.case
    found = mmaccel.compare(case.target, stage.Nothing(), stage.Slowly(), **case.call)
    idle, slow = found.rows[1:]
    assert idle["idle"] and idle["equal"] and idle["speedup"] == 1
    assert slow["speedup"] == 0.5 and slow["speedup_range"] == [0.5, 0.5] and slow["equal"] and not slow["idle"]
    assert slow["wall_seconds"] == 2 * slow["baseline_seconds"] > 0
    told = [f"{stage.modality}.Nothing() did nothing", f"{stage.modality}.Slowly() is slower than the plain run"]
    for name in ("x.html", "x.json", "x.png"):
        found.save(tmp_path / name)
    page = (tmp_path / "x.html").read_text()
    assert all(text in str(found) and text in page for text in told)
    assert page.count('class="slower"') == 1 and 'class="faster"' not in page and 'class="method idle"' in page
    data = json.loads((tmp_path / "x.json").read_text())["rows"]
    assert data[1]["idle"] == idle["idle"] and data[2]["speedup"] == 0.5
    assert [row["kind"] for row in found.rows] == ["plain", "method", "method"], "nobody is faster, and no simple one"


def test_a_failure_in_the_middle(stage):
    target, before = stage.case.target, snapshot(stage.case.target)
    state = torch.get_rng_state()
    with pytest.raises(Interrupted) as error:
        mmaccel.compare(target, stage.Nothing(), stage.Failing(), seeds=(4, 5), **stage.case.call)
    assert error.value.__notes__ == [f"while comparing {stage.modality}.Failing(), seed 5"]
    assert snapshot(target).keys() == before.keys() and torch.equal(torch.get_rng_state(), state)
    again = mmaccel.compare(target, stage.Nothing(), simple=False, rounds=1, **stage.case.call)
    assert again.rows[1]["equal"], "nobody holds it, and it does what it did"
