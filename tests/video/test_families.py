"""Every denoiser of diffusers, small, in a sampler's loop: what `docs/families.json` says of it is so."""

import importlib
import json
from contextlib import ExitStack
from pkgutil import iter_modules

import diffusers
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from diffusers.models import transformers, unets

import mmaccel
from mmaccel.demos.families.models import ABSENT, build, rows
from mmaccel.demos.families.sampling import Sampling, pipeline
from mmaccel.demos.families.table import EXACT, METHODS, TARGET, count_halved, tried
from mmaccel.errors import MmaccelError, UnsupportedTargetError
from mmaccel.video.families.families import FAMILIES, layout_of
from mmaccel.video.heterogeneous.partial import PartialForward

TABLE = json.loads(TARGET.read_text(encoding="utf-8"))
QUICK = ("HeterogeneousSteps", "EasyCache", "BlockCache")


@pytest.mark.parametrize("name", rows())
def test_a_class_does_what_the_table_says(name):
    found = tried(name, {label: METHODS[label] for label in QUICK}, EXACT[1:2])
    told = TABLE[name]
    assert found["exact"] and found["clean"]
    assert found["work"] == {label: told["work"][label] for label in QUICK if label in told["work"]}
    assert found["refused"] == {label: told["refused"][label] for label in QUICK if label in told["refused"]}


def test_half_the_calls_are_saved_on_at_least_45_classes():
    assert TABLE.keys() == rows().keys()
    assert count_halved(TABLE) >= 45
    assert all(row["exact"] and row["clean"] for row in TABLE.values())
    for name, row in TABLE.items():
        assert row["work"].keys().isdisjoint(row["refused"]) and row["work"].keys() | row["refused"].keys() == set(
            METHODS
        )
        assert row["work"]["HeterogeneousSteps"] == 0.5, name


def denoisers():
    """Names of all classes of diffusers' folders of transformers and UNets."""
    parts = (transformers, unets)
    modules = [
        importlib.import_module(f"{part.__name__}.{m.name}") for part in parts for m in iter_modules(part.__path__)
    ]
    own = [(module, cls) for module in modules for cls in vars(module).values() if isinstance(cls, type)]
    return {
        cls.__name__
        for module, cls in own
        if issubclass(cls, diffusers.ModelMixin) and cls.__module__ == module.__name__
    }


def test_every_class_of_diffusers_is_run_or_has_a_reason():
    """A new one takes a line in `models.json`."""
    assert denoisers() <= rows().keys() | ABSENT.keys()
    assert not rows().keys() & ABSENT.keys() and rows().keys() <= set(dir(diffusers))


def test_refusals_are_those_of_the_plans():
    """Also of the methods that are not run here."""
    for name in rows():
        pipe, _ = pipeline(name)
        for label, method in METHODS.items():
            try:
                mmaccel.plan(pipe, method)
            except MmaccelError as error:
                assert TABLE[name]["refused"][label] == str(error)
            else:
                assert label in TABLE[name]["work"], (name, label)


PARTIAL = [name for name, row in TABLE.items() if "HeterogeneousSteps(fraction=...)" in row["work"]]


def test_last_blocks_that_begin_again_are_given_all_tokens():
    """Those of the released Motif-Video: what first blocks make of some tokens is not what these are given."""
    name = "MotifVideoTransformer3DModel"
    model, _ = build(name)
    assert {name, *PARTIAL} == {name for name, row in FAMILIES.items() if row.is_divisible} and name not in PARTIAL
    with ExitStack() as stack, pytest.raises(UnsupportedTargetError, match=f"{name} begin again.*fraction=0"):
        PartialForward(model, stack)
    plain = type(model).from_config(model.config, num_decoder_layers=0)
    for label in ("FirstBlockCache", "MagCache", "HeterogeneousSteps(fraction=...)"):
        assert "begin again" in TABLE[name]["refused"][label]
        assert mmaccel.plan(Sampling(FlowMatchEulerDiscreteScheduler(), plain), METHODS[label])


@pytest.mark.parametrize("name", PARTIAL)
def test_tokens_that_are_computed_alone_come_out_as_among_all(name):
    model, inputs = build(name)
    with ExitStack() as stack:
        part, call = PartialForward(model, stack), {**inputs, "return_dict": False}
        whole = part.keeping(0, model.forward, (), call)[0]
        assert torch.equal(whole, model(**call)[0])
        layout = layout_of(model, whole)
        expected = layout.tokens(whole)
        tokens = torch.arange(0, expected.shape[1], 3)
        some = layout.tokens(part.only(tokens, 0, model.forward, (), call)[0])
    assert expected.shape[1] == part.total and expected.abs().max() > 0
    torch.testing.assert_close(some[:, tokens], expected[:, tokens], rtol=1e-3, atol=1e-4)
    assert not torch.allclose(some, expected), "the others are not computed"


BLOCKS = {name: {"BlockCache", "TeaCache", "TokenCache"} & row["work"].keys() for name, row in TABLE.items()}


@pytest.mark.parametrize("name", [name for name, labels in BLOCKS.items() if labels])
def test_blocks_that_are_reused_give_what_they_would_compute(name):
    """Where latents and timestep stand still, every step's prediction is the first one's."""
    pipe, inputs = pipeline(name)
    expected = pipe(inputs, steps=1, still=True)
    for label in BLOCKS[name]:
        with mmaccel.accelerate(pipe, METHODS[label]) as fast:
            out = fast(inputs, steps=4, still=True)
            assert fast.report.engaged, label
        torch.testing.assert_close(out, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))
