"""The small parts below every method: untrained models, values of settings, lists of what is registered."""

import contextlib
import dataclasses
import runpy
import sys
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch

import mmaccel
from mmaccel import adapter, modality, registry, video, vlm
from mmaccel.errors import MmaccelError, SettingError, UnknownNameError, UnsupportedTargetError, UsageError
from mmaccel.image import SpeculativeJacobi, ZipAR
from mmaccel.method import Method, is_count, is_number, is_share
from mmaccel.plan import Plan
from mmaccel.report import Report
from mmaccel.session import Session
from mmaccel.testing import contract
from mmaccel.testing.untrained import untrained
from mmaccel.tuning.curve import is_point

# Untrained models, and the program itself


def test_an_untrained_model_is_a_pure_function_of_its_seed_and_scale():
    def build():
        return torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Dropout())

    state = torch.get_rng_state()
    first, again, other, large = (untrained(build, *more) for more in ((), (0,), (1,), (1, 3.0)))
    assert torch.equal(torch.get_rng_state(), state) and not first.training
    assert torch.equal(first[0].weight, again[0].weight) and not torch.equal(first[0].weight, other[0].weight)
    torch.manual_seed(1)
    expected = build()
    torch.set_rng_state(state)
    assert torch.equal(other[0].weight, expected[0].weight)
    assert torch.equal(large[0].weight, 3 * other[0].weight) and torch.equal(large[0].bias, other[0].bias)


def test_the_program_ends_with_the_code_of_the_command(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["mmaccel", "presets", "--modality", "vidoe"])
    with pytest.raises(SystemExit) as stop:
        runpy.run_module("mmaccel", run_name="__main__")
    assert stop.value.code == 2 and "did you mean 'video'" in capsys.readouterr().err


# The contract


def test_an_example_runs_with_a_seed_of_its_own_or_none():
    calls = []

    def call(**given):
        calls.append(given)
        return [torch.rand(1)]

    example = contract.Example("x", None, None, call="write", result=lambda output: output[0])
    plain = SimpleNamespace(write=call)
    one, two = (example.run(plain, lambda batch, **more: {"rows": batch, **more}, 3, seed, far=1) for seed in (5, 5))
    assert torch.equal(one, two) and calls == [{"rows": 3, "far": 1}] * 2
    assert example.settings({"window": "columns", "x": 2}) == {"window": 4, "x": 2}
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    assert torch.equal(example.run(plain, lambda batch: {}, seed=None), expected), "the caller has seeded"


def test_a_model_breaks_after_so_many_calls_and_is_whole_again():
    module = torch.nn.Identity()
    with contract.broken_after(module, 2):
        assert [module(1), module(2)] == [1, 2]
        for _ in range(2):
            with pytest.raises(contract.Interrupted):
                module(3)
    assert module(4) == 4


# Values of settings


def test_both_ends_of_a_range_are_allowed():
    assert is_number(0, 0, 1) and is_number(1, 0, 1) and is_number(1.0, 0, 1) and is_count(1, 1) and is_count(3, 3, 3)
    assert not is_count(0) and not is_count(2, 3) and not is_count(4, 1, 3) and not is_number(True, 0)
    assert not is_number(float("nan"), 0) and not is_number(2.0, 0, 1) and not is_number(-1, 0)
    assert is_share(1) and is_share(0.1) and not any(map(is_share, (0, 1.1, True, "1", float("nan"))))
    assert not is_number(float("inf"), 0) and not is_number(10**400, 0) and not is_number(-(10**400), -float("inf"))


@dataclasses.dataclass(frozen=True)
class Odd(Method):
    """The first
    sentence.

    More.
    """

    name: ClassVar[str] = "x.Odd"
    word: str = "a"

    def __post_init__(self):
        self._require(self.word in {"a", "b"}, "word", "a or b")


@pytest.mark.parametrize("ask", (video.trace_of, vlm.kept))
def test_what_is_asked_of_a_session_says_so(ask):
    with pytest.raises(UsageError, match=r"^Linear is no session: give what accelerate\(\) returned$"):
        ask(torch.nn.Linear(1, 1))


@pytest.mark.parametrize("wrong", (3, None, ["word"], "word"))
def test_settings_are_given_by_name(wrong):
    with pytest.raises(UsageError, match=r"give settings by name, as method.settings\(\) does$"):
        Odd.from_settings(wrong)


@pytest.mark.parametrize("name", sorted(mmaccel.methods()))
def test_a_setting_of_a_wrong_kind_is_an_error_of_our_own(name):
    """Or is taken, where it is one; words too that are looked up in a table."""
    method = mmaccel.get_method(name)
    for field in dataclasses.fields(method):
        for wrong in ("x", [1], {"a": 1}, {1}, object(), None, float("nan"), ["x"], True, -1, 10**400):
            with contextlib.suppress(MmaccelError):
                method(**{field.name: wrong})


def test_a_value_of_a_wrong_kind_is_told_with_the_method_and_the_value():
    with pytest.raises(SettingError, match=r"^Odd\(word=\['x'\]\): unhashable type: 'list'; `mmaccel methods` lists"):
        Odd.from_settings({"word": ["x"]})
    with pytest.raises(SettingError, match=r"^Odd\(word='c'\): word must be a or b$"):
        Odd.from_settings({"word": "c"})
    assert Odd.from_settings({"word": "b"}) == Odd("b") and Odd().settings() == {"word": "a"}
    assert Odd.summary() == "The first sentence." and str(Odd("b")) == "x.Odd(word='b')" and str(Odd()) == "x.Odd()"
    with pytest.raises(SettingError, match=r"ZipAR\(window=0\): window must be "):
        ZipAR(window=0)
    assert str(ZipAR()) == "image.ZipAR()" and str(ZipAR(window=2, verify=True)) == "image.ZipAR(window=2, verify=True)"


def test_a_saved_curve_must_have_its_figures():
    whole = {"name": "image.ZipAR", "settings": {}, "speedup": 2.0, "metric": "far", "title": "far", "far": 1.0}
    assert is_point(whole) and is_point({**whole, "far": None}) and is_point({**whole, "far": -1})
    assert is_point({**whole, "far": float("nan")}), "a figure that is unknown"
    for change in ({"speedup": None}, {"speedup": -1.0}, {"metric": 1}, {"metric": "near"}, {"title": 1}, {"far": "x"}):
        assert not is_point({**whole, **change}), change
    assert not is_point({key: value for key, value in whole.items() if key != "speedup"})
    assert not is_point({**whole, "settings": None})


# What is registered


class Base:
    pass


class Special(Base):
    pass


def test_the_adapter_of_the_nearest_class_is_taken(monkeypatch):
    class OfBase(adapter.Adapter):
        family, classes, modality = "base", ("Base",), "image"

    class OfSpecial(OfBase):
        family, classes = "special", ("Special",)

    monkeypatch.setattr(adapter, "_adapters", [*adapter.adapters(), OfBase, OfSpecial])
    target = Special()
    found = adapter.find_adapter(target)
    assert found.family == "special" and found.target is target and found.parts() == [target]
    assert adapter.find_adapter(Base()).family == "base"
    adapter.adapters().clear()
    assert adapter.adapters()[-1] is OfSpecial, "what was read is a copy"
    with pytest.raises(
        UnsupportedTargetError,
        match="no adapter for Specials: supported are Special, the classes on the page",
    ):
        adapter.find_adapter(type("Specials", (), {})())


@pytest.mark.parametrize(
    ("target", "instead"),
    (
        ("org/name", "no adapter for str: load the model first"),
        ((Base(), "processor"), "no adapter for tuple: give the model alone, which is the first"),
        (SimpleNamespace(_orig_mod=Base(), get_base_model=None), "compile it in place, with model.compile()"),
        (SimpleNamespace(get_base_model=Base), r"give the model inside, model.get_base_model\(\)"),
        (SimpleNamespace(model=Base()), "no adapter for SimpleNamespace: give its .model"),
        (SimpleNamespace(module=Base()), "no adapter for SimpleNamespace: give its .module"),
        (
            SimpleNamespace(model=SimpleNamespace(get_base_model=Base)),  # a pipeline with an adapter of peft
            r"no adapter for SimpleNamespace: give its .model.get_base_model\(\)",
        ),
        (SimpleNamespace(model=3), "no adapter for SimpleNamespace: supported are the classes on"),
        (1, "no adapter for int: supported are the classes on the page Model families"),
    ),
)
def test_what_has_no_adapter_is_told_what_to_give_instead(monkeypatch, target, instead):
    class OfBase(adapter.Adapter):
        family, classes, modality = "base", ("Base",), "image"

    monkeypatch.setattr(adapter, "_adapters", [*adapter.adapters(), OfBase])
    with pytest.raises(UnsupportedTargetError, match=instead) as refused:
        adapter.find_adapter(target)
    assert len(str(refused.value)) < 250, "nobody reads that"


class Quiet(modality.Modality):
    name, title, model = "quiet", "Quiet", "tiny-quiet"
    open = command = trial = examples = None
    loaded: ClassVar[list] = []

    def load(self):
        self.loaded.append(1)


@pytest.fixture
def quiet(monkeypatch):
    kind = type("Quiet", (Quiet,), {"__abstractmethods__": frozenset(), "loaded": []})
    monkeypatch.setattr(registry, "_loaded", set(registry._loaded))
    return kind


def test_modalities_are_listed_by_rank_and_name_and_loaded_once(quiet, monkeypatch):
    first = type("First", (quiet,), {"name": "zebra", "rank": -1})
    twin = type("Twin", (quiet,), {"name": "calm"})
    installed = modality._installed()
    monkeypatch.setattr(modality, "_installed", lambda: (*installed, quiet, twin, first))
    names = [each.name for each in modality.modalities()]
    assert names[0] == "zebra" and names[-2:] == ["calm", "quiet"]
    for _ in range(2):
        registry.load_modalities()
    assert len(quiet.loaded) == 3, "each of the three once"


def test_what_a_modality_is_unless_it_says_otherwise(quiet):
    one = quiet()
    assert (
        one.models() == one.tab_models() == ("tiny-quiet",)
        and one.recognizes("tiny-quiet")
        and not one.recognizes("tiny")
    )
    assert one.target(("model", "processor")) == "model" and one.target("model") == "model"
    assert one.presets() == one.absent_presets() == one.benchmarks() == {} and one.rank == 100
    image, speech = modality.get_modality("image"), modality.get_modality("speech")
    assert image.presets() and image.absent_presets() == {}, "its module `presets` has no other table"
    assert speech.absent_presets() and speech.presets() == {}


def test_a_modality_loads_all_that_it_lists_and_each_module_of_its_adapters(monkeypatch):
    read, modules = [], []

    class Package:
        __all__ = ("One", "Slow", "Two")

        def __getattr__(self, name):
            read.append(name)

    def load(name):
        modules.append(name)
        return Package() if name == "pack" else SimpleNamespace(__name__=name, __path__=name)

    inner = {"pack.families": ["a", "b"], "pack.more": ["c"]}
    monkeypatch.setattr(modality, "import_module", load)
    monkeypatch.setattr(modality, "iter_modules", lambda path: [SimpleNamespace(name=name) for name in inner[path]])
    one = SimpleNamespace(package="pack", adapters=("families", "more"), deferred=("Slow",))
    modality.Modality.load(one)
    assert read == ["One", "Two"]
    assert modules == ["pack", "pack.families", "pack.families.a", "pack.families.b", "pack.more", "pack.more.c"]


def test_the_whole_name_of_a_method_comes_before_its_short_one(monkeypatch):
    table = {"a.X": ZipAR, "b.X": SpeculativeJacobi}
    monkeypatch.setattr(registry, "_methods", table)
    assert registry.get_method("a.X") is ZipAR and registry.get_method("b.X") is SpeculativeJacobi
    with pytest.raises(UnknownNameError, match="'c.X'"):
        registry.get_method("c.X")
    registry.methods().clear()
    assert table, "what was read is a copy"


# Plans and reports


def test_a_plan_that_is_read_is_checked_to_its_last_measured_setting():
    point = {"name": "image.ZipAR", "settings": {"window": 2}, "speedup": 2.0, "metric": "far", "far": 1.0}
    made = Plan((ZipAR(window=2),), "janus", measured=[point, point], why="because")
    data = made.to_dict()
    again = Plan.from_dict(data)
    assert again.measured == [point, point] and again.why == "because"
    assert again.versions == data["versions"] and again.versions is not data["versions"]
    assert again.measured is not data["measured"] and str(again).splitlines()[2:] == [
        "    because",
        *["    measured image.ZipAR(window=2): 2.00x, PSNR dB 1"] * 2,
    ]
    with pytest.raises(SettingError, match="window"):
        Plan.from_dict({**data, "measured": [point, {**point, "settings": {"window": 0}}]})
    bare = Plan((ZipAR(),), "janus").to_dict()
    assert "measured" not in bare and "why" not in bare and Plan.from_dict(bare).why == ""


def test_work_is_told_in_passes_and_else_in_keys():
    assert Report(["x"], True, forwards=2, plain_forwards=8, keys=1, plain_keys=2).work_ratio == 0.25
    assert Report(["x"], True, keys=1, plain_keys=2).work_ratio == 0.5 and Report(["x"], True).work_ratio is None
    assert Report(["x"], True, baseline_seconds=2.0).speedup is None
    assert "4.00 instead of" not in str(Report(["x"], False, plain_forwards=8, wall_seconds=1.0))
    assert "0 instead of 8, 8.00x fewer" in str(Report(["x"], False, plain_forwards=8, wall_seconds=1.0))
    more = str(Report(["x"], True, forwards=10, plain_forwards=8, wall_seconds=1.0))
    assert "10 instead of 8, 1.25x as many" in more and "fewer" not in more
    many = str(Report(["x"], True, forwards=128_000.4, plain_forwards=256_000, wall_seconds=1.0))
    assert "128,000 instead of 256,000, 2.00x fewer" in many, "a batch of a thousand pictures makes so many"
    seen = str(Report(["x"], False, visual_tokens=1000, plain_visual_tokens=20_000, wall_seconds=1.0))
    assert "1,000 tokens instead of 20,000, 5.0%" in seen
    told = Report(["x", "y"], False, wall_seconds=1.0, warnings=["why"])
    assert str(told).startswith("x, y: lossy\n") and str(told).endswith("warning     why") and "engage" not in str(told)
    assert "engage" not in str(Report(["x"], True, wall_seconds=1.0, engaged=True))


class Nothing(adapter.Adapter):
    family, classes, modality = "nothing", (), "image"


def test_a_run_that_fails_keeps_no_time_and_the_next_is_its_own():
    session = Session(Plan((), "nothing"), Nothing(SimpleNamespace(generate=print)))
    with pytest.raises(ValueError, match="no"), session.run():
        session.report.forwards = 3
        raise ValueError("no")
    assert session.report.wall_seconds == 0 and session.report.forwards == 3
    with session.run():
        session.report.forwards += 1
        with session.run():
            session.report.forwards += 1
    assert session.report.forwards == 2 and session.report.wall_seconds > 0
    assert repr(session) == str(session) == "Session(SimpleNamespace, )"
    session.remove()
