"""Registry, plans, sessions and reports."""

import copy
import dataclasses
import gc
import json
import pickle
import weakref
from contextlib import ExitStack, nullcontext
from os import PathLike
from types import SimpleNamespace
from typing import get_args, get_type_hints

import numpy as np
import pytest
import torch

import mmaccel
from mmaccel import adapter, image, registry
from mmaccel.adapter import Adapter
from mmaccel.comparison.comparison import Comparison
from mmaccel.errors import (
    ActiveSessionError,
    ConflictError,
    MmaccelError,
    SettingError,
    UnknownNameError,
    UnsupportedTargetError,
    UsageError,
    WeightsError,
    unknown_name,
)
from mmaccel.image import GroupedSpeculative, SpeculativeJacobi, ZipAR, examples
from mmaccel.method import Method, is_count, is_number
from mmaccel.plan import Plan
from mmaccel.report import Report
from mmaccel.session import Session
from mmaccel.speech.stream.stats import StreamStats
from mmaccel.testing import contract
from mmaccel.testing.contract import Interrupted, broken_after, snapshot
from mmaccel.tuning.tune import Tuning
from mmaccel.video import EasyCache, HeterogeneousSteps, MagCache, TeaCache
from mmaccel.video import examples as video_examples
from mmaccel.vlm import DFlashDraft, EagleDraft, HoliTom, MTPDraft, SparsePrefill, StoredContext, SuffixDecoding

FAST = SpeculativeJacobi(window=8)


@pytest.fixture
def janus():
    return examples.janus()


# Registry


def test_methods_are_sorted_and_named():
    table = mmaccel.methods()
    assert list(table) == sorted(table) and {"image.ZipAR", "image.SpeculativeJacobi"} <= set(table)
    names = {*table, *(cls.role for cls in table.values() if cls.role)}
    for name, cls in table.items():
        assert cls.name == name and mmaccel.get_method(name) is cls
        assert cls.paper[-4:].isdigit(), f"{name}: the paper needs a year"
        assert cls.summary().endswith("."), f"{name}: {cls.summary()!r}"
        assert cls.excludes <= names, f"{name} excludes a method that is not there"
        assert isinstance(cls(), Method)


def test_short_names():
    assert mmaccel.get_method("ZipAR") is ZipAR


@pytest.mark.parametrize(
    "name", ("image.get_method", "image.Method", "video.ZipAR", "nothing.ZipAR", "image.nothing", "")
)
def test_other_names_of_a_package_are_no_methods(name, monkeypatch):
    monkeypatch.setattr(image, "get_method", mmaccel.get_method, raising=False)
    monkeypatch.setattr(image, "Method", Method, raising=False)
    with pytest.raises(UnknownNameError, match="unknown method"):
        mmaccel.get_method(name)


@pytest.mark.parametrize(
    ("found", "told"),
    (
        ({"name": "x", "settings": {}}, True),
        ({"name": "x", "settings": {"a": [1]}, "more": 1}, True),
        ({"name": "x", "settings": {1: 1}}, False),
        ({"name": "x", "settings": [["a", 1]]}, False),
        ({"name": 1, "settings": {}}, False),
        ({"name": "x"}, False),
        ([], False),
    ),
)
def test_what_may_be_a_saved_method(found, told):
    assert registry.is_saved(found) is told


@pytest.mark.parametrize(
    ("name", "suggestion"),
    (("image.ZipAr", "'image.ZipAR'"), ("image.SpeculativeJakobi", "'image.SpeculativeJacobi'")),
)
def test_unknown_method_suggests(name, suggestion):
    with pytest.raises(UnknownNameError) as error:
        mmaccel.get_method(name)
    assert repr(name) in str(error.value) and "did you mean " + suggestion in str(error.value)


@pytest.mark.parametrize("wrong", (["ZipAR"], 3, None, ZipAR))
def test_a_method_is_asked_for_by_its_name(wrong):
    with pytest.raises(UsageError, match="is not the name of a method, such as 'video.EasyCache'"):
        mmaccel.get_method(wrong)


def test_unknown_name_lists_all_where_none_is_near():
    text = str(unknown_name("preset", "qqq", ["exact", "fast"]))
    assert text == "unknown preset 'qqq': choose from 'exact', 'fast'"


def test_double_registration_is_refused():
    before = dict(registry._methods)

    @dataclasses.dataclass(frozen=True)
    class ZipAR(Method):  # noqa: F811
        """Another one."""

        paper = "Nobody, 2000"

    with pytest.raises(ValueError, match="image.ZipAR is registered already"):
        registry.register("image")(ZipAR)
    assert registry._methods == before


def test_a_definition_that_is_run_again_replaces_the_first(register, monkeypatch):
    """As cells of a notebook are."""
    monkeypatch.setattr(adapter, "_adapters", list(adapter._adapters))

    class Mine:
        pass

    def define(word):
        @register("vlm")
        @dataclasses.dataclass(frozen=True)
        class Changed(Method):
            """A method."""

            paper = word

        @adapter.register_adapter
        class MineAdapter(Adapter):
            family, classes, modality = word, ("Mine",), "vlm"

        return Changed

    define("first")
    second = define("second")
    assert mmaccel.get_method("vlm.Changed") is second
    assert adapter.find_adapter(Mine()).family == "second"
    assert sum(each.__name__ == "MineAdapter" for each in adapter.adapters()) == 1


@pytest.mark.parametrize("missing", ("paper", "doc"))
def test_registration_needs_a_paper_and_a_docstring(missing):
    before = dict(registry._methods)
    body = {"paper": "" if missing == "paper" else "Nobody, 2000", "__doc__": "" if missing == "doc" else "Text."}
    with pytest.raises(ValueError, match="paper"):
        registry.register("image")(type("Nameless", (Method,), body))
    assert registry._methods == before


# Methods


def test_methods_are_frozen_and_compare_by_settings():
    assert ZipAR(window=2) == ZipAR(window=2) != ZipAR(window=3)
    assert len({ZipAR(window=2), ZipAR(window=2)}) == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        ZipAR().window = 3


def test_exactness_of_an_instance():
    assert SpeculativeJacobi().exact and not ZipAR().exact
    assert not GroupedSpeculative().exact and GroupedSpeculative(group_size=1).exact


@pytest.mark.parametrize(
    ("cls", "given", "plain"),
    (
        (ZipAR, {"window": np.int64(2)}, {"window": 2}),
        (ZipAR, {"window": torch.tensor(2)}, {"window": 2}),
        (EasyCache, {"threshold": np.float32(0.25)}, {"threshold": 0.25}),
        (HoliTom, {"keep": np.float32(0.25)}, {"keep": 0.25}),  # whose check goes on to that of its base
        (SuffixDecoding, {"longest": np.int64(9)}, {"longest": 9}),  # whose check is that of its base
        (MagCache, {"ratios": torch.tensor([1.0, 0.75])}, {"ratios": (1.0, 0.75)}),
        (MagCache, {"ratios": list(torch.tensor([1.0, 0.75]))}, {"ratios": (1.0, 0.75)}),
        (TeaCache, {"coefficients": np.array([2.0, -0.5])}, {"coefficients": (2.0, -0.5)}),
        (HeterogeneousSteps, {"steps": np.arange(0, 9, 4)}, {"steps": (0, 4, 8)}),
        (HeterogeneousSteps, {"steps": list(np.arange(0, 9, 4))}, {"steps": (0, 4, 8)}),
    ),
)
def test_numbers_of_numpy_and_torch_are_plain_settings(cls, given, plain):
    made = cls(**given)
    assert made == cls(**plain) == dataclasses.replace(cls(), **given)
    assert json.dumps(made.settings()) == json.dumps(cls(**plain).settings())


NAMED = ((EagleDraft, "head"), (DFlashDraft, "head"), (MTPDraft, "checkpoint"), (StoredContext, "folder"))


@pytest.mark.parametrize(("cls", "name"), NAMED)
def test_paths_are_settings_as_texts(cls, name, tmp_path):
    made = cls(**{name: tmp_path})
    assert made == cls(**{name: str(tmp_path)})
    assert json.loads(json.dumps(made.settings()))[name] == str(tmp_path)
    assert PathLike[str] in get_args(get_type_hints(cls)[name]), "for type checkers too"


def test_numbers_of_numpy_are_within_the_same_bounds():
    with pytest.raises(SettingError, match=r"ZipAR\(window=0\): window must be"):
        ZipAR(window=np.int64(0))
    with pytest.raises(SettingError, match=r"ZipAR\(window=\[2\]\): window must be"):
        ZipAR(window=np.array([2]))


@pytest.mark.parametrize(
    ("value", "count", "number"),
    ((1, True, True), (0, False, True), (True, False, False), (1.0, False, True), ("1", False, False)),
)
def test_kinds_of_values(value, count, number):
    assert is_count(value) is count and is_number(value, 0) is number


# Plans


def test_plan_is_printable_and_touches_nothing(janus):
    model, _ = janus
    before = snapshot(model)
    made = mmaccel.plan(model, ZipAR(window=2))
    assert str(made) == "plan for janus (lossy)\n  image.ZipAR(window=2): lossy"
    assert snapshot(model) == before and not made.exact
    assert set(made.versions) >= {"mmaccel", "torch", "transformers", "diffusers", "python"}
    assert made.versions["torch"].startswith(torch.__version__.split("+")[0])


@pytest.mark.parametrize("method", (FAST, ZipAR(window=3, verify=True), GroupedSpeculative(distance=None)), ids=str)
def test_plan_round_trip(janus, method, tmp_path):
    model, arguments = janus
    made, path = mmaccel.plan(model, method), tmp_path / "plan.json"
    made.save(path)
    loaded = Plan.load(path)
    assert loaded == made and loaded.versions == made.versions and loaded.methods == (method,)
    assert Plan.load(str(path)) == made
    with mmaccel.accelerate(model, loaded) as fast:
        assert fast.generate(**arguments(), generator=torch.Generator().manual_seed(0)).shape == (1, 16)
        assert fast.plan == made


def test_a_plan_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    made, path = Plan((FAST,), "janus"), tmp_path / "plan.json"
    made.save(path)
    text = path.read_text()

    def no_room(self, text, **more):
        self.write_bytes(b"{")
        raise OSError("no room")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="no room"):
        patch.setattr(type(path), "write_text", no_room)
        made.save(path)
    assert path.read_text() == text and list(tmp_path.iterdir()) == [path]


def test_a_plan_that_is_saved_from_python_is_told_of_no_option(tmp_path):
    with pytest.raises(OSError, match=r"there is no folder .*none: create it first, or give another path$"):
        Plan((FAST,), "janus").save(tmp_path / "none" / "plan.json")


def test_plan_keeps_the_versions_it_was_made_with(janus):
    data = mmaccel.plan(janus[0], FAST).to_dict()
    data["versions"]["torch"] = "1.0"
    loaded = Plan.from_dict(data)
    assert loaded.versions["torch"] == "1.0"
    assert mmaccel.plan(janus[0], loaded).versions["torch"] == "1.0", "also when it is used and saved again"


def test_binary_plan_file(tmp_path):
    path = tmp_path / "plan.json"
    path.write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(WeightsError, match="not JSON"):
        Plan.load(path)


def test_plan_of_another_family(janus):
    made = mmaccel.plan(janus[0], FAST)
    with pytest.raises(UnsupportedTargetError, match="made for janus, and the target is emu3"):
        mmaccel.accelerate(examples.emu3()[0], made)


def test_presets(janus):
    model, _ = janus
    assert mmaccel.plan(model, preset="exact").exact
    assert not mmaccel.plan(examples.glm_image()[0], preset="fast").exact
    with pytest.raises(UnknownNameError, match="preset for janus 'exakt': did you mean 'exact'"):
        mmaccel.plan(model, preset="exakt")
    with pytest.raises(ConflictError, match="not both"):
        mmaccel.plan(model, FAST, preset="exact")
    for wrong in (["fast"], {"fast"}, 1, FAST):
        for do in (mmaccel.plan, mmaccel.accelerate, mmaccel.compare):
            with pytest.raises(UsageError, match="give the name of one, such as preset='balanced'"):
                do(model, preset=wrong)
    with pytest.raises(ConflictError, match="nothing to do.*'exact'"):
        mmaccel.plan(model)


@pytest.mark.parametrize(
    "pair", ((FAST, ZipAR(window=2)), (ZipAR(window=2), GroupedSpeculative()), (FAST, SpeculativeJacobi())), ids=str
)
def test_conflicts_name_both_in_any_order(janus, pair):
    model, _ = janus
    before = snapshot(model)
    for methods in (pair, pair[::-1], (mmaccel.plan(model, pair[0]), pair[1])):
        with pytest.raises(ConflictError) as error:
            mmaccel.accelerate(model, *methods)
        assert str(pair[0]) in str(error.value) and str(pair[1]) in str(error.value)
    assert snapshot(model) == before


@pytest.mark.parametrize("silent", (ZipAR, GroupedSpeculative))
def test_one_of_two_methods_is_enough_to_name_a_conflict(janus, silent, monkeypatch):
    monkeypatch.setattr(silent, "role", "")
    other = GroupedSpeculative if silent is ZipAR else ZipAR
    monkeypatch.setattr(other, "excludes", frozenset({silent.name}))
    for methods in ((ZipAR(window=2), GroupedSpeculative()), (GroupedSpeculative(), ZipAR(window=2))):
        with pytest.raises(ConflictError, match="cannot be combined"):
            mmaccel.plan(janus[0], *methods)


def test_a_role_can_be_excluded_too(monkeypatch):
    assert SpeculativeJacobi.conflicts(ZipAR) and not EasyCache.conflicts(ZipAR)
    monkeypatch.setattr(EasyCache, "excludes", frozenset({"image decoding"}))
    assert EasyCache.conflicts(ZipAR) and ZipAR.conflicts(EasyCache)
    monkeypatch.setattr(ZipAR, "role", "")
    assert not EasyCache.conflicts(ZipAR) and not EasyCache.conflicts(SparsePrefill)  # no role is not one role


def test_what_is_no_method(janus):
    with pytest.raises(TypeError, match=r"ZipAR is a class: write ZipAR\(\)"):
        mmaccel.plan(janus[0], ZipAR)


@pytest.mark.parametrize(
    ("given", "advice"),
    (
        ("ZipAR", r"'ZipAR' is not a method: write mmaccel.get_method\('ZipAR'\)\(\)"),
        ("balanced", "'balanced' is not a method: write preset='balanced'"),
        ("a fox in snow", "`mmaccel methods` lists them, and compare takes the input of a call by name, as in prompt="),
        ("balancd", r"'balancd' is not a method: did you mean preset='balanced'\?"),
        ("video.EasyCash", r"did you mean mmaccel.get_method\('video.EasyCache'\)\(\)"),
        ([ZipAR()], r"is not a method: give methods one by one, as in accelerate\(model, \*methods\)"),
        ({"name": "image.ZipAR", "settings": {}}, r"mmaccel.get_method\(name\).from_settings\(settings\) makes one"),
        (3, "3 is not a method: `mmaccel methods` lists them"),
    ),
    ids=str,
)
def test_what_is_typed_in_place_of_a_method(janus, given, advice):
    for do in (mmaccel.plan, mmaccel.accelerate):
        with pytest.raises(TypeError, match=advice) as error:
            do(janus[0], given)
        assert isinstance(error.value, MmaccelError)


# Sessions


def run(target, arguments, **more):
    return target.generate(**arguments(), generator=torch.Generator().manual_seed(0), **more)


def test_a_session_that_is_moved_stays_the_session(janus):
    """As in ``accelerate(pipe, ...).to("cuda")``, which else would be the pipeline without its report."""
    model, _ = janus
    with mmaccel.accelerate(model, FAST) as fast:
        assert fast.to("cpu") is fast and fast.to(dtype=torch.float64).target is model
        assert next(model.parameters()).dtype == torch.float64
        for name, given in (("eval", ()), ("train", (True,)), ("float", ()), ("cpu", ()), ("requires_grad_", (False,))):
            assert getattr(fast, name)(*given) is fast, name
        assert next(model.parameters()).dtype == torch.float32 and model.training
        assert not next(model.parameters()).requires_grad
    assert fast.eval() is fast and not model.training, "also where it is removed"


def test_what_a_method_of_the_target_returns_is_returned(janus, monkeypatch):
    model, _ = janus
    with mmaccel.accelerate(model, FAST) as fast:
        monkeypatch.setattr(model, "half", lambda: "another model", raising=False)
        assert fast.half() == "another model" and fast.forward == model.forward
    pipe, _ = video_examples.wan_pipeline()
    with mmaccel.accelerate(pipe, EasyCache()) as fast:
        assert fast.to("cpu") is fast and not hasattr(fast, "eval"), "as the pipeline has none"


def test_session_forwards_reads_and_calls(janus):
    model, arguments = janus
    with mmaccel.accelerate(model, FAST) as fast:
        assert fast.config is model.config and fast.dtype == torch.float32
        ids = arguments()["input_ids"]
        assert torch.equal(fast(input_ids=ids).logits, model(input_ids=ids).logits)
        with pytest.raises(AttributeError):
            _ = fast.no_such_attribute
        assert str(fast) == "Session(JanusForConditionalGeneration, image.SpeculativeJacobi(window=8))"
    assert str(fast).endswith(", removed)")
    with pytest.raises(UnsupportedTargetError, match="no adapter for SimpleNamespace"):
        mmaccel.accelerate(SimpleNamespace(adapter=fast.adapter), FAST)


def test_completion_shows_names_of_the_session_and_of_its_target(janus):
    with mmaccel.accelerate(janus[0], FAST) as fast:
        names = dir(fast)
    assert {"report", "remove", "baseline", "generate", "config", "get_input_embeddings"} <= set(names)
    assert names == sorted(set(names))


@pytest.mark.parametrize("shown", (Report, Plan, Session, Comparison, Tuning, StreamStats))
def test_a_notebook_shows_what_print_does(shown):
    assert shown.__repr__ is shown.__str__ is not object.__str__


def test_the_model_itself_is_accelerated_until_removed(janus):
    model, arguments = janus
    torch.manual_seed(0)
    plain = model.generate(**arguments())
    keys = set(vars(model))
    fast = mmaccel.accelerate(model, FAST)
    assert torch.equal(run(model, arguments), run(fast, arguments)) and fast.active
    fast.remove()
    fast.remove()
    assert not fast.active and set(vars(model)) == keys
    torch.manual_seed(0)
    assert torch.equal(model.generate(**arguments()), plain)


def test_second_session_is_refused_and_names_the_first(janus):
    model, arguments = janus
    first = mmaccel.accelerate(model, FAST)
    held = snapshot(model)
    with pytest.raises(ActiveSessionError) as error:
        mmaccel.accelerate(model, ZipAR(window=2))
    assert str(first) in str(error.value) and ".remove()" in str(error.value) and error.value.session is first
    assert snapshot(model) == held and len(run(first, arguments)) == 1
    first.remove()
    with mmaccel.accelerate(model, ZipAR(window=2)) as second:
        assert run(second, arguments).shape == (1, 16)


def test_a_session_is_no_target(janus):
    with mmaccel.accelerate(janus[0], FAST) as fast:
        with pytest.raises(UnsupportedTargetError, match=r"this Session is accelerated already: give its \.target"):
            mmaccel.accelerate(fast, ZipAR(window=2))
        with fast.baseline():
            assert str(fast).endswith(", detached)")
    assert str(fast).endswith(", removed)")


def test_removing_an_old_session_leaves_the_new_one_alone(janus):
    model, _ = janus
    old = mmaccel.accelerate(model, FAST)
    old.remove()
    with mmaccel.accelerate(model, ZipAR(window=2)) as new:
        old.remove()
        assert new.active and "generate" in vars(model)
        with pytest.raises(ActiveSessionError, match="ZipAR"):
            mmaccel.accelerate(model, FAST)


def test_a_dropped_session_keeps_working(janus):
    """Nobody holds the session but the model: it stays accelerated, and a second session is refused."""
    model, arguments = janus
    session = mmaccel.accelerate(model, FAST)
    expected, witness = run(session, arguments), weakref.ref(session)
    del session
    gc.collect()
    assert witness() is not None and torch.equal(run(model, arguments), expected)
    with pytest.raises(ActiveSessionError, match="SpeculativeJacobi") as error:
        mmaccel.accelerate(model, ZipAR(window=2))
    error.value.session.remove()  # all that a user has of it
    del error
    assert "generate" not in vars(model)
    with mmaccel.accelerate(model, ZipAR(window=2)) as fast:
        assert fast.active


@pytest.mark.parametrize(
    "name",
    ("image.SpeculativeJacobi", "canvas.WindowDiffusion", "canvas.PrefixCache", "vlm.SelectKV", "vlm.SuffixDecoding"),
)
def test_model_and_session_are_freed_together(name):
    method = mmaccel.get_method(name)
    known = contract.examples(name.partition(".")[0])
    example = next(one for one in known if method.families is None or one.adapter_family in method.families)
    model, arguments = example.build()
    session = mmaccel.accelerate(model, method(**example.settings(method.engaging)))
    example.run(session, arguments)
    gone = weakref.ref(model), weakref.ref(session)
    del model, session, arguments
    gc.collect()
    assert gone[0]() is None and gone[1]() is None


def test_error_within_the_block_restores(janus):
    model, arguments = janus
    before = snapshot(model)
    inner = model.model.language_model
    with pytest.raises(Interrupted), mmaccel.accelerate(model, FAST) as fast, broken_after(inner, 1):
        run(fast, arguments)
    assert snapshot(model) == before


def test_a_removed_session_is_not_entered_again(janus):
    model, arguments = janus
    fast = mmaccel.accelerate(model, FAST)
    with fast:
        run(fast, arguments)
    with pytest.raises(ActiveSessionError, match=r"removed.*call mmaccel.accelerate\(...\) again"), fast:
        pass
    with mmaccel.accelerate(model, FAST):
        pass


def test_a_removed_session_of_a_pipeline_says_that_its_runs_are_plain():
    pipe, arguments = video_examples.wan_pipeline()
    fast = mmaccel.accelerate(pipe, EasyCache())
    fast.remove()
    fast(**arguments())
    assert fast.report.warnings == ["the session was removed: the run was without its methods"]
    assert "did not engage" not in str(fast.report)


def test_a_removed_session_of_a_model_says_that_its_texts_are_plain(janus):
    """And no longer shows the report of the last run of its methods."""
    model, arguments = janus
    with mmaccel.accelerate(model, FAST) as fast:
        run(fast, arguments)
        assert fast.report.engaged
    torch.manual_seed(0)
    plain = fast.generate(**arguments())
    assert fast.report.warnings == ["the session was removed: the run was without its methods"]
    assert not fast.report.engaged
    torch.manual_seed(0)
    assert torch.equal(model.generate(**arguments()), plain)


def test_a_callback_that_removes_a_session_waits_for_the_end_of_the_run():
    pipe, arguments = video_examples.wan_pipeline()
    with mmaccel.accelerate(pipe, EasyCache(**EasyCache.engaging)) as fast:
        (expected,), computed = fast(**arguments()), fast.report.forwards
    before, seen = snapshot(pipe.transformer), []
    fast = mmaccel.accelerate(pipe, EasyCache(**EasyCache.engaging))

    def leave(*_):
        fast.remove()
        seen.append(fast.active)
        with pytest.raises(ActiveSessionError, match="already accelerated by"):
            mmaccel.accelerate(pipe, EasyCache())
        return {}

    (frames,) = fast(**arguments(), callback_on_step_end=leave)
    assert torch.equal(frames, expected) and seen and all(seen)
    assert fast.report.forwards == computed < fast.report.plain_forwards and not fast.active
    assert snapshot(pipe.transformer) == before


@pytest.mark.parametrize("do", (copy.copy, copy.deepcopy, pickle.dumps))
def test_a_session_is_not_copied(janus, do, monkeypatch):
    monkeypatch.setattr(torch.nn.Parameter, "__deepcopy__", lambda *_: pytest.fail("weights were copied"))
    with mmaccel.accelerate(janus[0], FAST) as fast:
        with pytest.raises(TypeError, match=r"neither copied nor pickled: copy its \.target") as error:
            do(fast)
        assert isinstance(error.value, MmaccelError)


def test_failed_attachment_leaves_no_trace(janus, monkeypatch):
    model, arguments = janus
    before = snapshot(model)
    attach = ZipAR.attach

    def half(self, session, stack):
        attach(self, session, stack)
        raise RuntimeError("half-way")

    monkeypatch.setattr(ZipAR, "attach", half)
    with pytest.raises(RuntimeError, match="half-way"):
        mmaccel.accelerate(model, ZipAR(window=2))
    assert snapshot(model) == before
    with mmaccel.accelerate(model, FAST) as fast:
        assert len(run(fast, arguments)) == 1


def test_baseline(janus):
    """Within the block the target is plain; afterwards the speed-up is known."""
    model, arguments = janus
    torch.manual_seed(0)
    plain = model.generate(**arguments())
    fast = mmaccel.accelerate(model, FAST)
    run(fast, arguments)
    assert fast.report.speedup is None and "speed-up    not measured" in str(fast.report)
    with fast.baseline() as target:
        assert target is model and "generate" not in vars(model) and not fast.active
        torch.manual_seed(0)
        assert torch.equal(target.generate(**arguments()), plain)
    assert fast.active and fast.report.baseline_seconds > 0
    run(fast, arguments)
    report = fast.report
    assert report.speedup == report.baseline_seconds / report.wall_seconds
    assert "both measured" in str(report) and report.to_dict()["speedup"] == report.speedup
    fast.remove()
    assert "generate" not in vars(model)


def test_failed_baseline_measures_nothing_and_comes_back(janus):
    model, arguments = janus
    with mmaccel.accelerate(model, FAST) as fast:
        with pytest.raises(ZeroDivisionError), fast.baseline():
            raise ZeroDivisionError
        assert fast.active and fast.report.baseline_seconds is None
        run(fast, arguments)
        assert fast.report.engaged
    with fast.baseline():  # after remove() there is nothing to come back to
        pass
    assert not fast.active and "generate" not in vars(model)


@pytest.mark.parametrize("fails", (False, True))
def test_removal_within_a_baseline_is_final(janus, fails):
    """Nothing comes back at the end of the block, also if another session holds the target by then."""
    model, arguments = janus
    torch.manual_seed(0)
    plain, before = model.generate(**arguments()), snapshot(model)
    first = mmaccel.accelerate(model, FAST)
    with pytest.raises(ZeroDivisionError) if fails else nullcontext(), first.baseline():
        first.remove()
        second = mmaccel.accelerate(model, ZipAR(window=2))
        if fails:
            raise ZeroDivisionError
    assert not first.active and second.active
    run(model, arguments)
    assert second.report.engaged and not first.report.engaged
    second.remove()
    assert snapshot(model) == before
    torch.manual_seed(0)
    assert torch.equal(model.generate(**arguments()), plain)


def test_a_baseline_within_a_baseline_stays_plain(janus):
    model, _ = janus
    with mmaccel.accelerate(model, FAST) as fast:
        with fast.baseline():
            with fast.baseline():
                pass
            assert not fast.active and "generate" not in vars(model)
        assert fast.active


def test_a_baseline_within_a_run_is_refused_and_leaves_it_its_methods(janus):
    """As a callback asks: methods that come off and on in the middle of a run would begin anew there."""
    model, arguments = janus
    with mmaccel.accelerate(model, FAST) as fast:
        wanted, asked = run(fast, arguments), []

        def ask(*_):
            with (
                pytest.raises(ActiveSessionError, match="SpeculativeJacobi.* is in the middle of a call"),
                fast.baseline(),
            ):
                pass
            asked.append(fast.active)

        handle = model.get_input_embeddings().register_forward_hook(ask)
        assert torch.equal(run(fast, arguments), wanted) and asked and all(asked)
        handle.remove()
        assert fast.report.engaged and fast.report.baseline_seconds is None


def test_leaving_the_with_block_within_a_baseline_is_final(janus):
    model, _ = janus
    with ExitStack() as stack, mmaccel.accelerate(model, FAST) as fast:
        stack.enter_context(fast.baseline())
    assert not fast.active and "generate" not in vars(model)
    with mmaccel.accelerate(model, ZipAR(window=2)) as second:
        assert second.active


def test_target_is_held_during_a_baseline(janus):
    model, _ = janus
    first = mmaccel.accelerate(model, FAST)
    try:
        with first.baseline(), pytest.raises(ActiveSessionError):
            mmaccel.accelerate(model, ZipAR(window=2))
    finally:
        vars(model).pop("generate", None)


# Reports


def test_report_before_the_first_run(janus):
    with mmaccel.accelerate(janus[0], FAST) as fast:
        assert str(fast.report) == "image.SpeculativeJacobi(window=8): exact\n  no run yet"
        assert fast.report.work_ratio is None and fast.report.speedup is None


def test_report_of_a_run(janus):
    model, arguments = janus
    with mmaccel.accelerate(model, ZipAR(window=2)) as fast:
        run(fast, arguments)
        report = fast.report
        assert str(report).startswith("image.ZipAR(window=2): lossy\n  passes      10 instead of 16, 1.60x fewer")
        assert report.work_ratio == 10 / 16 and report.tokens == 16 and report.peak_extra_bytes > 0
        assert "MiB extra, counted" in str(report) and "warning" not in str(report)
        assert json.loads(json.dumps(report.to_dict()))["details"]["stats"]["forwards"] == 10


def test_the_report_of_a_run_that_was_broken_off_says_so():
    """Also where it had figures already, and until the next run."""
    pipe, arguments = video_examples.wan_pipeline()
    call = arguments()

    def stop(_, number, *__):
        assert number < 1
        return {}

    with mmaccel.accelerate(pipe, EasyCache()) as fast:
        with pytest.raises(ValueError, match="divisible"):
            fast(**{**call, "height": 3})
        assert str(fast.report).endswith("lossy\n  the run has not come to its end")
        with pytest.raises(AssertionError):
            fast(**call, callback_on_step_end=stop)
        assert fast.report.forwards and "wall time   not measured: the run has not come to its end" in str(fast.report)
        fast(**call)
        assert not fast.report.unfinished and "come to its end" not in str(fast.report)


def test_report_forgets_the_last_run_and_keeps_the_baseline(janus):
    model, arguments = janus
    with mmaccel.accelerate(model, SpeculativeJacobi(window=1)) as fast:
        fast.report.baseline_seconds = 2.0
        for _ in range(2):
            fast.generate(**arguments())
            assert fast.report.warnings == ["these settings are plain decoding: the model's own generate was called"]
            assert not fast.report.engaged and "warning" in str(fast.report)
            assert fast.report.forwards == fast.report.plain_forwards == 16
        assert fast.report.baseline_seconds == 2.0 and fast.report.details == {}


FULL = {"forwards": 3, "plain_forwards": 9, "keys": 1, "plain_keys": 4, "visual_tokens": 2, "plain_visual_tokens": 8}


@pytest.mark.parametrize("measured", (None, 3.0))
def test_figures_are_at_most_eight_lines_and_no_warning_is_left_out(measured):
    told = [f"number {i}" for i in range(20)]
    report = Report(["image.ZipAR()"], exact=False, **FULL, wall_seconds=1.0, baseline_seconds=measured, warnings=told)
    lines = str(report).splitlines()
    assert lines[-20:] == [f"  warning     {text}" for text in told]
    figures = lines[:-20]
    assert len(figures) <= 8 and not any("warning" in line for line in figures)
    words = ("lossy", "passes", "visual", "keys", "wall time", "speed-up", "memory")
    assert all(word in line for word, line in zip(words, figures, strict=True))
    assert ("3.00x against 3.00 s" in str(report)) == (measured is not None)


def test_a_warning_of_a_run_that_failed_is_told():
    report = Report(["x"], exact=True, warnings=["why it failed"])
    assert str(report).splitlines() == ["x: exact", "  no run yet", "  warning     why it failed"]


def test_a_new_run_forgets_every_figure_of_the_last():
    """Whatever fields there are: all but the methods, the promise and the baseline."""
    fresh = Report(["x"], exact=False, baseline_seconds=2.0)
    report = Report(["x"], exact=False, baseline_seconds=2.0)
    for name, value in vars(fresh).items():
        if name not in ("methods", "exact", "baseline_seconds"):
            setattr(report, name, {list: ["old"], dict: {"old": 1}, bool: True}.get(type(value), 7))
    before = report.to_dict()
    report.start()
    assert report == fresh and before["details"] == {"old": 1} and before["warnings"] == ["old"]


@pytest.mark.parametrize("name", ("video.SparseAttention", "video.FirstBlockCache", "video.HeterogeneousSteps"))
def test_the_report_of_a_pipeline_tells_of_the_last_run_alone(name):
    method = mmaccel.get_method(name)
    pipe, arguments = video_examples.wan_pipeline()
    call = arguments(frames=2, height=4, width=4)
    with mmaccel.accelerate(pipe, method(**method.engaging)) as fast:
        reports = []
        for steps in (4, 6, 4):
            fast(**{**call, "num_inference_steps": steps})
            reports.append({**fast.report.to_dict(), "wall_seconds": None})
            assert fast.report.wall_seconds > 0
        fast.report.details["old"] = 1
        fast(**call)
    assert reports[0] == reports[2] != reports[1] and "old" not in fast.report.details


def test_what_was_read_of_a_run_stays_as_it_was(janus):
    """Not even a list within it is that of the next run."""
    model, arguments = janus
    with mmaccel.accelerate(model, ZipAR(window=2)) as fast:
        run(fast, arguments)
        first = fast.report.to_dict()
        kept = json.dumps(first)
        fast.report.details["stats"]["forwards"] = -1
        fast.report.warnings.append("later")
        run(fast, arguments)
        assert json.dumps(first) == kept


def test_report_that_did_not_engage_says_so():
    report = Report(["x"], exact=True, forwards=9, plain_forwards=9, wall_seconds=1.0)
    assert "did not engage" in str(report)


def test_errors_are_of_the_family_and_of_python():
    assert issubclass(SettingError, ValueError) and issubclass(UnsupportedTargetError, TypeError)
    assert issubclass(ActiveSessionError, RuntimeError) and issubclass(ConflictError, MmaccelError)
