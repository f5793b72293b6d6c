"""What a pipeline says of a call, and what it cannot do without."""

import json
import logging
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from diffusers import QwenImageEditPipeline, QwenImageEditPlusPipeline
from diffusers.utils import logging as diffusers_logging
from PIL import Image

import mmaccel
from mmaccel import zoo
from mmaccel.adapter import Adapter, find_adapter
from mmaccel.errors import UnsupportedTargetError
from mmaccel.plan import Plan
from mmaccel.report import Report
from mmaccel.session import Session
from mmaccel.video import EasyCache, comparing, generation

ROUNDED = "`num_frames - 1` has to be divisible by 2. Rounding to the nearest number."
SETTINGS = generation.VideoSettings()
LOGS = [logging.getLogger(f"diffusers.{name}") for name in ("pipelines", "modular_pipelines")]


@pytest.fixture(params=(diffusers_logging.ERROR, diffusers_logging.WARNING, diffusers_logging.INFO))
def printed(request):
    """What diffusers would print, silenced or not, as the command line and Python have it."""
    records, handler, before = [], logging.Handler(), diffusers_logging.get_verbosity()
    handler.emit = lambda record: records.append(record.getMessage())
    diffusers_logging.set_verbosity(request.param)
    logging.getLogger("diffusers").addHandler(handler)
    yield request.param, records
    logging.getLogger("diffusers").removeHandler(handler)
    diffusers_logging.set_verbosity(before)


class Talking(Adapter):
    call_is_run = True


def settings_of_logs():
    return [(log.level, log.propagate, list(log.handlers)) for log in LOGS]


def talking(*said, level=logging.WARNING, log=LOGS[0]):
    """A pipeline that says this in its call."""

    def pipe(*_, **__):
        for text in said:
            log.getChild("some.pipeline").log(level, text)
        return SimpleNamespace(frames=[[Image.new("RGB", (8, 8))]])

    return pipe


def session(pipe):
    return Session(Plan((), family="talking"), Talking(pipe))


def test_what_a_pipeline_rounds_is_told():
    pipe = zoo.load("tiny-wan")
    pipe.set_progress_bar_config(disable=True)
    call = {"num_inference_steps": 2, "height": 32, "width": 32, "output_type": "latent"}
    trial = comparing.VideoTrial(find_adapter(pipe), {"prompt": "red heart stays, gray background", **call})
    with mmaccel.accelerate(pipe, EasyCache()) as fast:
        for frames, is_rounded in ((6, True), (5, False)):
            trial.inputs["num_frames"] = frames
            trial.run(fast, 0)
            assert (ROUNDED in fast.report.warnings) == is_rounded
            settings = generation.VideoSettings(steps=2, frames=frames, height=32, width=32)
            generation.film(fast, "red heart stays, gray background", settings)
            assert (ROUNDED in fast.report.warnings) == is_rounded


@pytest.mark.parametrize("log", LOGS, ids=("pipeline", "modular pipeline"))
def test_it_is_printed_only_where_it_would_have_been(printed, log):
    level, records = printed
    before = settings_of_logs()
    with session(talking("cut\n  off", "cut off", log=log)) as fast:
        generation.film(fast, "a fox", SETTINGS)
        assert fast.report.warnings[-1] == "cut off" and fast.report.warnings.count("cut off") == 1
    assert len(records) == 2 * (level <= logging.WARNING)
    generation.film(talking("more", level=logging.INFO, log=log), "a fox", SETTINGS)
    assert ("more" in records) == (level <= logging.INFO)
    generation.film(talking("wrong", level=logging.ERROR, log=log), "a fox", SETTINGS)
    assert records.count("wrong") == 1, "errors are always printed"
    assert settings_of_logs() == before


def test_a_call_that_fails_leaves_the_log_as_it_was():
    def fails(*_, **__):
        raise RuntimeError("lost")

    before = settings_of_logs()
    with pytest.raises(RuntimeError, match="lost"):
        generation.film(fails, "a fox", SETTINGS)
    assert settings_of_logs() == before


def test_it_does_not_hide_that_a_method_did_nothing():
    idle = Report([], exact=True, wall_seconds=1.0).told()
    with session(talking("cut off")) as fast:
        generation.film(fast, "a fox", SETTINGS)
        assert fast.report.warnings == [*idle, "cut off"] and len(idle) == 1
    with session(talking()) as fast:
        generation.film(fast, "a fox", SETTINGS)
        assert fast.report.warnings == []


class Refusing:
    """Names what it misses, as StableDiffusionControlNetPipeline."""

    def __call__(self, prompt=None, control_image=None, generator=None, output_type="pil"):
        raise TypeError("image must be passed and be one of PIL image, but is <class 'NoneType'>")


class Broken:
    """Takes pictures, and has a fault of another kind."""

    def __call__(self, prompt=None, image=None, generator=None, output_type="pil"):
        raise TypeError("unsupported operand")


class Incomplete:
    """Takes pictures, and does without one, but not without a text encoder."""

    text_encoder = None

    def __call__(self, prompt=None, image=None, generator=None, output_type="pil"):
        return self.text_encoder(prompt)


class Without:
    """Has nothing to do with pictures."""

    def __call__(self, prompt=None, generator=None, output_type="pil"):
        raise AttributeError("'NoneType' object has no attribute 'size'")


@pytest.mark.parametrize(
    ("cls", "name"),
    (
        (QwenImageEditPipeline, "image"),
        (QwenImageEditPlusPipeline, "image"),
        (Refusing, "control_image"),
        (Incomplete, "image"),
    ),
)
def test_a_picture_that_a_pipeline_stumbles_over_is_named(cls, name):
    """With what it said, since it may have stumbled over something else."""
    pipe = object.__new__(cls)
    says = rf"^{cls.__name__} also needs {name}=, or lacks something else \(.*NoneType.*\): call it in Python"
    with pytest.raises(UnsupportedTargetError, match=says):
        generation.film(pipe, "a red coat", SETTINGS)
    trial = comparing.VideoTrial(SimpleNamespace(target=pipe), {"prompt": "a red coat"})
    with pytest.raises(UnsupportedTargetError, match=says):
        trial.run(pipe, 0)


@pytest.mark.parametrize(
    ("name", "needed"),
    (
        ("QwenImageEditPipeline", "image"),
        ("QwenImageEditPlusPipeline", "image"),
        ("StableDiffusionXLImg2ImgPipeline", "image"),
        ("LTXImageToVideoPipeline", "image"),
        ("WanVideoToVideoPipeline", "video"),
        ("WanImageToVideoPipeline", "image"),
        ("FluxPipeline", ""),
        ("Flux2Pipeline", ""),
        ("LTXConditionPipeline", ""),
        ("JoyImageEditPipeline", ""),
    ),
)
def test_a_picture_is_asked_for_before_anything_is_loaded(tmp_path, name, needed):
    (tmp_path / "model_index.json").write_text(json.dumps({"_class_name": name}))
    refused = pytest.raises(UnsupportedTargetError, match=f"^{name} also needs {needed}=: call it in Python")
    with refused if needed else nullcontext():
        generation.check_kind(str(tmp_path))


@pytest.mark.parametrize(("cls", "more"), ((Broken, {}), (Without, {}), (Refusing, {"control_image": None})))
def test_other_faults_stay_what_they_are(cls, more):
    with pytest.raises((TypeError, AttributeError)) as raised:
        generation.film(cls(), "a red coat", SETTINGS, **more)
    assert not isinstance(raised.value, UnsupportedTargetError)
