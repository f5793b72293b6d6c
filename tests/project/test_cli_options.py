"""What the options of the command line become: each reaches the work it is for, and defaults are those of the help."""

import argparse
import importlib
import io
import json
import sys
import types
from pathlib import Path

import pytest
import torch

from mmaccel import zoo
from mmaccel.bench import index as bench_index
from mmaccel.cli import arguments, bench, compare, demo, env, listing, model_arguments, tune
from mmaccel.cli import main as cli
from mmaccel.cli import run as run_command
from mmaccel.comparison import results
from mmaccel.errors import SettingError, UnknownNameError, UnsupportedTargetError
from mmaccel.files import kept_choices
from mmaccel.image import ZipAR
from mmaccel.modality import modalities
from mmaccel.report import Report
from mmaccel.speech import examples as speech_examples
from mmaccel.video import EasyCache
from mmaccel.vlm import examples


def parsed(*words):
    return cli.build_parser().parse_args(words)


# The program


def test_only_what_loads_models_silences_libraries():
    loading = ("plan", "demo", "run image x -o a.png", "compare image x", "tune image x --method ZipAR", "bench all")
    for words in loading:
        assert parsed(*words.split()).loads_models, words
    for words in ("env", "methods", "presets", "bench difference a b", "bench index"):
        assert not parsed(*words.split()).loads_models, words


def test_libraries_say_errors_only():
    from diffusers.utils import logging as diffusers_logging
    from transformers.utils import logging as transformers_logging

    places = (diffusers_logging, transformers_logging)
    before, bars = [place.get_verbosity() for place in places], transformers_logging.is_progress_bar_enabled()
    try:
        diffusers_logging.set_verbosity_info()
        transformers_logging.set_verbosity_info()
        transformers_logging.enable_progress_bar()
        cli._quiet_libraries()
        assert [place.get_verbosity() for place in places] == [diffusers_logging.ERROR, transformers_logging.ERROR]
        assert not transformers_logging.is_progress_bar_enabled()
    finally:
        for place, level in zip(places, before, strict=True):
            place.set_verbosity(level)
        if not bars:
            transformers_logging.disable_progress_bar()


@pytest.mark.parametrize(("error", "code"), ((OSError("a\n b"), 2), (SettingError("a\n b"), 2), (None, 0), (1, 1)))
def test_exit_codes(error, code, monkeypatch, capsys):
    def work(_):
        if isinstance(error, Exception):
            raise error
        return error

    monkeypatch.setattr("mmaccel.cli.env.run_env", work)
    monkeypatch.setenv("RANK", "1")  # left from a launcher that has ended: no other process tells the error
    assert cli.main(["env"]) == code
    assert capsys.readouterr().err == ("mmaccel: a b\n" if code == 2 else "")


def test_a_refusal_is_said_once_where_processes_share_a_measurement_and_by_each_elsewhere(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name in ("compare", "tune", "bench", "batch", "serve", "run"):
        assert cli.main([name, "nothing"]) == 2
        assert ("nothing" in capsys.readouterr().err) == (name in ("serve", "run")), name
    assert cli.main([]) == 2 and "COMMAND" in capsys.readouterr().err
    monkeypatch.setenv("RANK", "0")
    assert cli.main(["compare", "nothing"]) == 2 and "nothing" in capsys.readouterr().err


def test_too_little_memory_of_a_gpu_is_said_in_a_line(monkeypatch, capsys):
    def work(_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has\nless. See more")

    monkeypatch.setattr("mmaccel.cli.env.run_env", work)
    assert cli.main(["env"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("mmaccel: there is not enough memory") and "--dtype bfloat16" in said
    assert said.endswith("(CUDA out of memory. Tried to allocate 2.00 GiB.)\n")


def _beyond_the_cpu(_):
    torch.empty(10**15)


def _beyond_an_apple_gpu(_):
    raise RuntimeError("MPS backend out of memory (MPS allocated: 8.99 GB, max allowed: 9.07 GB)")


def _beyond_python(_):
    raise MemoryError


def _wrong_otherwise(_):
    raise RuntimeError("shapes cannot be multiplied")


@pytest.mark.parametrize(
    ("work", "reason"),
    (
        (_beyond_the_cpu, "can't allocate memory: you tried to allocate 4000000000000000 bytes"),
        (_beyond_an_apple_gpu, "MPS backend out of memory"),
        (_beyond_python, "MemoryError"),
    ),
)
def test_too_little_memory_without_a_gpu_is_said_in_a_line_too(work, reason, monkeypatch, capsys):
    monkeypatch.setattr("mmaccel.cli.env.run_env", work)
    assert cli.main(["env"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("mmaccel: there is not enough memory") and reason in said and said.count("\n") == 1


def test_other_errors_of_torch_keep_their_traceback(monkeypatch):
    monkeypatch.setattr("mmaccel.cli.env.run_env", _wrong_otherwise)
    with pytest.raises(RuntimeError, match="multiplied"):
        cli.main(["env"])


def test_errors_of_the_parser_name_the_option_first(capsys):
    for words, says in (
        (["env", "--nothing"], "mmaccel: unrecognized arguments: --nothing (`mmaccel env --help` has all options)"),
        (
            ["compare", "image", "red heart", "--seed", "7"],
            "mmaccel: unrecognized arguments: --seed 7 (`mmaccel compare image --help` has all options)",
        ),
        (["demo", "--port", "x" * 50], f"mmaccel: --port {'x' * 40}...: it must be a whole number of at least 0"),
        (["plan", "--dtype", "int8"], "mmaccel: --dtype: invalid choice"),
    ):
        assert cli.main(words) == 2
        assert capsys.readouterr().err.startswith(says)


def test_numbers_are_finite_and_within_their_bounds():
    assert arguments.positive("0.5") == 0.5 and arguments.number()("-1.5") == -1.5
    for read, text in ((arguments.positive, "0"), (arguments.number(), "inf"), (arguments.number(), "nan")):
        with pytest.raises(argparse.ArgumentTypeError, match="it must be a"):
            read(text)
    assert parsed("demo", "--port", "65535").port == 65_535 and parsed("demo", "--port", "0").port == 0
    with pytest.raises(SettingError, match="at most 65535"):
        parsed("demo", "--port", "65536")
    assert parsed("bench", "image", "--threads", "1024").threads == 1024
    for words in (("bench", "image", "--threads", "0"), ("compare", "image", "x", "--rounds", "1001")):
        with pytest.raises(SettingError, match="it must be a whole number"):
            parsed(*words)


# The model and the methods


def test_each_kind_has_a_model_and_defaults_of_its_own():
    assert parsed("plan").model == modalities()[0].model
    for modality in modalities():
        seeds = {"compare": 3, "tune": 1}
        for name, more in (("compare", []), ("tune", ["--method", "x"])):
            call = ["x", "y"] if modality.name == "vlm" else ["x"]
            found = parsed(name, modality.name, *call, *more)
            assert (found.model, found.device, found.dtype) == (modality.model, "cpu", None)
            assert found.rounds is None and not found.no_simple
            assert getattr(found, "seeds", None) == (seeds[name] if modality.command().seeded else None)
            assert hasattr(found, "guidance") is modality.command().seeded


@pytest.fixture
def own(monkeypatch):
    """Two modalities that open nothing; what they are asked for."""
    asked = []

    def made(name):
        def open_(*given):
            asked.append((name, *given))
            return f"{name} model"

        recognizes = lambda model: model == name  # noqa: E731
        return types.SimpleNamespace(
            name=name, model=name, recognizes=recognizes, open=open_, target=lambda opened: f"target of {opened}"
        )

    both = (made("one"), made("two"))
    monkeypatch.setattr(model_arguments, "modalities", lambda: both)
    monkeypatch.setattr(model_arguments, "get_modality", lambda kind: both[kind == "two"])
    return asked


@pytest.mark.parametrize(
    ("kind", "made"),
    (
        ("shipped", "LlavaOnevisionForConditionalGeneration"),
        ("pipeline", "TinyWanPipeline"),
        ("speech", "MoonshineForConditionalGeneration"),
    ),
)
def test_a_folder_is_opened_by_the_kind_of_model_that_is_in_it(tmp_path, kind, made):
    if kind == "speech":
        speech_examples.moonshine()[0].save_pretrained(tmp_path)
        speech_examples.moonshine_processor().save_pretrained(tmp_path)
    folders = {"shipped": zoo.path("tiny-onevision"), "pipeline": zoo.path("tiny-wan"), "speech": tmp_path}
    words = argparse.Namespace(model=str(folders[kind]), device="cpu", dtype=None)
    assert type(model_arguments.target_of(words)).__name__ == made


def test_a_model_of_no_kind_is_refused_in_one_sentence(tmp_path):
    examples.llama()[0].save_pretrained(tmp_path)
    words = argparse.Namespace(model=str(tmp_path), device="cpu", dtype=None)
    with pytest.raises(UnsupportedTargetError, match="is no model of image, video, vlm, .*mmaccel.plan"):
        model_arguments.target_of(words)


def test_models_are_opened_by_who_knows_them_on_the_device_that_was_named(own):
    words = {"device": "cpu", "dtype": "bfloat16"}
    assert model_arguments.target_of(argparse.Namespace(model="two", **words)) == "target of two model"
    assert model_arguments.target_of(argparse.Namespace(model="else", **words)) == "target of one model"
    assert model_arguments.opened(argparse.Namespace(model="x", kind="two", device="cpu", dtype=None)) == "two model"
    assert own == [
        ("two", "two", "cpu", torch.bfloat16),
        ("one", "else", "cpu", torch.bfloat16),
        ("two", "x", "cpu", None),
    ]
    with pytest.raises(SettingError, match="--device nowhere cannot be used here"):
        model_arguments.opened(argparse.Namespace(model="x", kind="two", device="nowhere", dtype=None))


def test_methods_stand_before_the_plan_and_the_default_after_all(tmp_path):
    def chosen(*words, default="exact"):
        parser = argparse.ArgumentParser()
        model_arguments.add_methods(parser, default)
        return model_arguments.chosen_methods(parser.parse_args(words))

    plan = types.SimpleNamespace(load=lambda path: f"plan of {path}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importlib.import_module("mmaccel.plan"), "Plan", plan)
        both = ["--method", "ZipAR:window=2", "--method", "EasyCache", "--plan", "p.json"]
        assert chosen(*both) == ([ZipAR(window=2), EasyCache(), "plan of p.json"], None)
        assert chosen("--plan", "p.json", default="image.ZipAR") == (["plan of p.json"], None)
    assert chosen() == ([], "exact") and chosen("--preset", "fast") == ([], "fast")
    assert chosen(default="image.ZipAR:window=3") == ([ZipAR(window=3)], None)
    assert chosen("--preset", "fast", default="image.ZipAR") == ([], "fast")


def test_settings_as_they_are_typed():
    assert model_arguments.parse_method("image.ZipAR: window =2,,verify=True,") == ZipAR(window=2, verify=True)
    for text in ("image.ZipAR:window", "image.ZipAR:window=2,verify"):
        with pytest.raises(SettingError, match="KEY=VALUE after the colon, such as image.ZipAR:window=4"):
            model_arguments.parse_method(text)
    with pytest.raises(SettingError, match="window twice"):
        model_arguments.parse_method("image.ZipAR:window=2,window=8")
    assert [model_arguments.value_of(text) for text in ("None", "true", "3", "[" * 10**5, "a=b")] == [
        *(None, True, 3),
        *("[" * 10**5, "a=b"),
    ]
    typed = [model_arguments.value_of(text) for text in ("none", "(none, 3)", "nonesuch")]
    assert typed == [None, [None, 3], "nonesuch"]


def test_numbers_are_read_as_shells_write_them():
    for text, value in {
        ".25": 0.25,
        "-.5": -0.5,
        "1.": 1.0,
        "+2": 2,
        "+1.5e-3": 0.0015,
        "(.5, 1.)": [0.5, 1.0],
    }.items():
        found = model_arguments.value_of(text)
        assert found == value and type(found) is type(value), text
    for word in ("v1.5", "/data/.5/x", "1.2.3", "a.b", ".", "2-3", '"a .5"'):
        assert model_arguments.value_of(word) == word.strip('"')


# tune


def test_without_values_tune_picks_them(monkeypatch):
    monkeypatch.setattr(importlib.import_module("mmaccel.tuning.tune"), "tune", lambda *_, grid, **more: grid)
    made = types.SimpleNamespace(measured_inputs=lambda _: ("target", {}))
    words = argparse.Namespace(setting=[], method="ZipAR", target_speedup=None, floor=None)
    assert tune._tune(made, words) is None


def test_values_of_settings_are_given_once():
    assert tune.grid_of([" a =1,,2,1", "b=x"]) == {"a": [1, 2], "b": ["x"]}
    nested = tune.grid_of(["a=(1,2),(2,1),none", "b=0.3,(0.2,0.1)"])
    assert nested == {"a": [[1, 2], [2, 1], None], "b": [0.3, [0.2, 0.1]]}
    for words in (["a=1", "a=2"], ["a=1", "a =2"], ["a"], ["a=,"]):
        with pytest.raises(SettingError, match="--setting a"):
            tune.grid_of(words)
    for value in ("1", "nan"):
        with pytest.raises(SettingError, match="above 1"):
            parsed("tune", "image", "x", "--method", "a", "--target-speedup", value)


def test_what_was_measured_is_written_where_its_reader_is_gone(tmp_path, monkeypatch):
    """As behind `| less` that was left meanwhile."""
    pytest.importorskip("matplotlib")

    class Left(io.StringIO):
        def write(self, _):
            raise BrokenPipeError

    made = types.SimpleNamespace(plan="a plan", save=lambda path: path.write_text("measured"))
    command = types.SimpleNamespace(compare=lambda _: made)
    monkeypatch.setattr(tune, "_tune", lambda *_: made)
    monkeypatch.setattr(sys, "stdout", Left())
    files = {"output": tmp_path / "plan.json", "plot": tmp_path / "curve.png"}
    for do, words in ((compare.run_compare, {"output": tmp_path / "page.html"}), (tune.run_tune, files)):
        with pytest.raises(BrokenPipeError):
            do(command, argparse.Namespace(**words))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["curve.png", "page.html", "plan.json"]


# run


def test_run_says_what_it_wrote(tmp_path, capsys):
    words = argparse.Namespace(output=tmp_path / "a.png", compare=False)
    assert run_command.side_by_side(words) is None
    both = run_command.side_by_side(argparse.Namespace(output=tmp_path / "a.png", compare=True))
    assert both == tmp_path / "a.compare.png"
    run_command.tell_written(words, None)
    run_command.tell_written(words, both)
    first, second = capsys.readouterr().out.splitlines()
    assert first == f"wrote {tmp_path / 'a.png'}" and second == f"{first}, and {both} with the plain one beside it"
    (tmp_path / "a.compare.png").mkdir()
    with pytest.raises((SettingError, OSError)):
        run_command.side_by_side(argparse.Namespace(output=tmp_path / "a.png", compare=True))
    with pytest.raises((SettingError, OSError)):
        run_command.side_by_side(argparse.Namespace(output=tmp_path / "none" / "a.png", compare=False))
    run_command.check_picture(None, "--picture")
    with pytest.raises((SettingError, OSError), match="--picture"):
        run_command.check_picture(tmp_path / "none" / "a.png", "--picture")
    with pytest.raises((SettingError, ValueError)):
        run_command.check_picture(tmp_path / "a.txt", "--picture")
    assert "say --compare" in run_command.told(Report(["a"], False, wall_seconds=1.0))


# bench


def test_a_benchmark_has_only_the_options_that_were_given():
    words = {"full": False, "threads": None, "page": None}
    assert list(bench._words("vlm", argparse.Namespace(**words))) == ["bench", "vlm", "--json"]
    found = parsed("bench", "image")
    assert (found.json, found.full, found.threads, found.page) == (False, False, None, None)
    assert parsed("bench", "index").folder == Path("docs/benchmarks")
    assert parsed("bench", "difference", "a", "b").fail_below is None
    with pytest.raises(SettingError):
        parsed("bench")


def test_a_process_that_prints_no_result_is_said(tmp_path, monkeypatch):
    python = tmp_path / "python"
    monkeypatch.setattr(bench.sys, "executable", str(python))
    for script, expected in (
        ("exit 0", (None, "it printed no result")),
        ("exit 3", (None, "exit code 3")),
        ('echo "{\\"words\\": \\"$*\\"}"', ({"words": "-P -m mmaccel bench x"}, "")),
    ):
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
        assert bench._in_a_process(["bench", "x"]) == expected


@pytest.fixture
def measured(monkeypatch):
    """Two benchmarks, of which those named here fail; folders whose index was written."""
    fails, written = set(), []
    result = results.result([])

    def one(words):
        return (None, "exit code 1") if words[1] in fails else (result, "")

    monkeypatch.setattr(bench, "benchmarks", lambda: {"image": "a", "video": "b"})
    monkeypatch.setattr(bench, "all_benchmarks", lambda: ["all"])
    monkeypatch.setattr(bench, "_in_a_process", one)
    monkeypatch.setattr("mmaccel.bench.pages.table", lambda result: "the table")
    monkeypatch.setattr(bench_index, "write", lambda folder, which: written.append((folder, which)) or [folder / "i"])
    return fails, written, result


def test_all_writes_an_index_only_of_what_was_measured(measured, tmp_path, capsys):
    fails, written, result = measured
    folder = tmp_path / "new" / "folder"
    assert cli.main(["bench", "all"]) == 0 and not written
    out = capsys.readouterr()
    assert out.out == "image\nthe table\n\nvideo\nthe table\n\n"
    assert out.err.splitlines() == ["1 of 2: image", "2 of 2: video"]
    fails.update(("image", "video"))
    assert cli.main(["bench", "all", "--page", str(folder)]) == 2 and not written
    err = capsys.readouterr().err
    assert "2 of 2 benchmarks failed" in err and "`mmaccel bench image` and `mmaccel bench video` again" in err
    fails.remove("image")
    assert cli.main(["bench", "all", "--page", str(folder), "--json"]) == 2 and written == [(folder, ["all"])]
    assert json.loads(capsys.readouterr().out) == result == json.loads((folder / "image.json").read_text())
    assert not (folder / "video.json").exists()


def test_the_index_says_what_it_wrote(measured, tmp_path, capsys):
    assert cli.main(["bench", "index", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"wrote {tmp_path / 'i'}\n"


# demo, env and the lists


def test_the_demo_gets_models_by_kind():
    assert demo._by_kind(["image=a=b", "image=c", "speech=d"]) == {"image": ["a=b", "c"], "speech": ["d"]}
    for text in ("image", "image=", "=x"):
        with pytest.raises((SettingError, UnknownNameError)):
            pytest.importorskip("mmaccel.demos.app").Models(demo._by_kind([text]))


def test_env_forgets_before_it_tells(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(kept_choices, "path", lambda: tmp_path / "choices.json")
    kept_choices.keep(kept_choices.place(1), "products", {"busy": 1})
    assert cli.main(["env"]) == 0
    assert "products: not measured yet (the machine was busy)" in capsys.readouterr().out
    assert cli.main(["env", "--forget"]) == 0 and "products" not in capsys.readouterr().out
    assert cli.main(["env"]) == 0 and "products" not in capsys.readouterr().out
    for accelerator in ("none", "H100"):
        monkeypatch.setattr("mmaccel.machine.machine", lambda name=accelerator: {"accelerator": name})
        env.run_env(argparse.Namespace(forget=False))
        assert capsys.readouterr().out.splitlines()[-1].split(maxsplit=1) == ["accelerator", accelerator]


def test_lists_are_as_wide_as_the_terminal(monkeypatch, capsys):
    for columns, widest in ((300, 100), (60, 60), (10, 40)):
        monkeypatch.setenv("COLUMNS", str(columns))
        lines = listing._wrapped("word " * 100)
        assert widest - 6 < max(map(len, lines)) <= widest
        assert lines[0].startswith("    word") and lines[1].startswith("    word")
    assert listing._wrapped("word " * 50, 8)[1].startswith(" " * 8 + "word")
    assert cli.main(["methods", "--modality", "imag"]) == 2 and "image" in capsys.readouterr().err


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_table_is_read_downwards_where_a_terminal_is_too_narrow(monkeypatch):
    lines = [["", "seconds", "speed-up"], ["plain", "2.1 (2 to 2.2)", ""], ["video.EasyCache()", "1.1", "1.91x"]]
    wide = results.aligned(lines)
    assert wide.splitlines()[1:] == ["plain              2.1 (2 to 2.2)", "video.EasyCache()  1.1             1.91x"]
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("COLUMNS", "80")
    assert results.aligned(lines) == wide
    monkeypatch.setenv("COLUMNS", "40")
    assert results.aligned(lines).splitlines() == [
        *("plain", "  seconds   2.1 (2 to 2.2)"),
        *("video.EasyCache()", "  seconds   1.1", "  speed-up  1.91x"),
    ]


@pytest.mark.parametrize("dtype", (None, "float16", "bfloat16"))
@pytest.mark.parametrize("inside", (False, True), ids=("model", "pipeline"))
def test_float16_weights_on_a_cpu_are_told(monkeypatch, capsys, dtype, inside):
    """A CPU computes in float16 slowly; who asked for it knows, and bfloat16 is another matter."""
    target = torch.nn.Linear(2, 2).to(getattr(torch, dtype or "float16"))
    if inside:
        target = types.SimpleNamespace(components={"vae": torch.nn.Linear(2, 2), "nothing": None, "unet": target})
    opening = types.SimpleNamespace(open=lambda *_: target, target=lambda found: found)
    monkeypatch.setattr(model_arguments, "get_modality", lambda kind: opening)
    words = argparse.Namespace(model="half", kind="x", device="cpu", dtype=dtype)
    assert model_arguments.opened(words) is target
    told = capsys.readouterr().err
    if dtype is None:
        assert told.startswith("note: half: its weights are float16, in which a CPU computes slowly: --dtype float32")
    else:
        assert told == ""
