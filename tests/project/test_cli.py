"""The command line as a user types it."""

import argparse
import io
import json
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from PIL import Image, ImageFont
from tqdm import tqdm

import mmaccel
from mmaccel import machine, progress
from mmaccel.cli import arguments, listing
from mmaccel.cli import main as cli
from mmaccel.comparison import results
from mmaccel.demos.pages import method_listing
from mmaccel.files import kept_choices, pictures
from mmaccel.files.output import check_writable, replacing
from mmaccel.modality import modalities
from mmaccel.vlm.arguments import frames_of


def run(capsys, *words):
    code = cli.main(words)
    return code, capsys.readouterr()


def test_env_and_methods(capsys):
    code, out = run(capsys, "env")
    assert code == 0 and "torch" in out.out and "cores" in out.out
    code, out = run(capsys, "methods", "--modality", "image")
    assert code == 0 and "image.ZipAR" in out.out and "lossy" in out.out


def test_python_runs_the_package():
    done = subprocess.run([sys.executable, "-m", "mmaccel", "--version"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.strip() == mmaccel.__version__


@pytest.mark.parametrize("kind", ["image", "video", "vlm", "speech"])
def test_help_has_examples_of_its_own(capsys, kind):
    with pytest.raises(SystemExit) as stop:
        cli.main(["run", kind, "--help"])
    examples = [line.split("mmaccel ")[1] for line in capsys.readouterr().out.splitlines() if "  mmaccel " in line]
    assert stop.value.code == 0 and any(line.startswith(f"run {kind}") for line in examples)
    own = (
        (f"run {kind}", "run video") if kind == "vlm" else (f"run {kind}",)
    )  # which makes the clip that is asked about
    assert all(line.startswith(own) for line in examples)


@pytest.mark.parametrize("command", ("compare", "tune", "batch", "bench", "serve"))
def test_help_of_a_kind_has_examples_of_that_kind_alone(command):
    kinds = cli.build_parser()._subparsers._group_actions[0].choices[command]._subparsers._group_actions[0].choices
    assert len(kinds) >= 4
    for kind, parser in kinds.items():
        of = re.findall(r"^ +mmaccel \w+ (\w+)", parser.format_help(), re.MULTILINE)
        assert of and set(of) == {kind}, f"{command} {kind}"


@pytest.mark.parametrize(
    ("words", "without"),
    (
        (["compare", "canvas"], "seed"),
        (["tune", "speech"], "seed"),
        (["batch", "speech"], "options of its own"),
    ),
)
def test_help_tells_of_nothing_that_a_kind_does_not_have(capsys, words, without):
    with pytest.raises(SystemExit):
        cli.main([*words, "--help"])
    shown = capsys.readouterr().out.split("examples:")[0]
    assert "options:" in shown and without not in " ".join(shown.split())


def test_picture_and_plan(tmp_path, capsys):
    plan = tmp_path / "plan.json"
    code, out = run(capsys, "plan", "--method", "ZipAR:window=2", "-o", str(plan))
    assert code == 0 and json.loads(plan.read_text())["methods"][0]["settings"]["window"] == 2
    assert "image.ZipAR(window=2)" in out.out and f"saved to {plan}" in out.out
    target = tmp_path / "heart.png"
    code, out = run(capsys, "run", "image", "red heart", "-o", str(target), "--plan", str(plan), "--seed", "3")
    assert code == 0 and "fewer" in out.out
    first = Image.open(target)
    assert first.size == (256, 256)
    again = tmp_path / "again.png"
    run(capsys, "run", "image", "red heart", "-o", str(again), "--plan", str(plan), "--seed", "3")
    assert again.read_bytes() == target.read_bytes(), "the seed does not repeat the picture"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["again.png", "heart.png", "plan.json"]


def test_compare_puts_two_side_by_side(tmp_path, capsys):
    """The picture itself goes to -o, as without --compare, and a second file has both."""
    target, both = tmp_path / "one.webp", tmp_path / "one.compare.webp"
    code, out = run(capsys, "run", "image", "pizza", "-o", str(target), "--compare", "--preset", "fast")
    assert code == 0 and "speed-up" in out.out and "both measured" in out.out
    assert f"wrote {target}, and {both} " in out.out
    width, height = Image.open(both).size
    assert width > 2 * 256 and height > 256 and Image.open(target).size == (256, 256)
    assert sorted(tmp_path.iterdir()) == [both, target]


def test_without_compare_the_advice_is_an_option(tmp_path, capsys):
    code, out = run(capsys, "run", "image", "pizza", "-o", str(tmp_path / "a.png"), "--preset", "fast", "--count", "3")
    assert code == 0 and "not measured: say --compare" in out.out and "baseline" not in out.out
    assert Image.open(tmp_path / "a.png").size == (520, 520), "three pictures in about a square"


def test_a_clip_is_filmed_and_asked_about(tmp_path, capsys, monkeypatch):
    """What the README types, one after the other: the clip has 17 frames, and nobody asked for 32."""
    pytest.importorskip("av")
    monkeypatch.chdir(tmp_path)
    film = ["run", "video", "rocket moves up, blue background", "-o", "clip.mp4", "--compare", "--steps", "4"]
    code, out = run(capsys, *film, "--trace", "trace.png")
    assert code == 0 and out.out.endswith("beside it\nwrote trace.png\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clip.compare.mp4", "clip.mp4", "trace.png"]
    from mmaccel import vlm

    clips = [vlm.read_video(name, frames=1) for name in ("clip.mp4", "clip.compare.mp4")]
    assert [clip.total_frames for clip in clips] == [17, 17]
    assert clips[0].frames.shape[2] == 64 and clips[1].frames.shape[2] > 512
    code, out = run(capsys, "run", "vlm", "clip.mp4", "what moves up?", "--compare", "--picture", "kept.png")
    assert code == 0 and "both measured" in out.out, out.err
    words = cli.build_parser().parse_args(["compare", "vlm", "clip.mp4", "what moves up?"])
    assert len(frames_of(words)) == 17, "compare and tune take what there is as well"
    words.frames = 5
    assert len(frames_of(words)) == 5
    assert Path("kept.png").is_file()


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["spaceship", "-o", "{}/x.png"], "near words"),
        (["", "-o", "{}/x.png"], "empty"),
        (["pizza", "-o", "{}/x.gif"], ".png"),
        (["pizza", "-o", "{}/no/x.png"], "no folder"),
        (["pizza", "-o", "{}"], "end the name"),
        (["pizza", "-o", "{}/x.png", "--method", "ZipAR:window=0"], "window"),
        (["pizza", "-o", "{}/x.png", "--method", "ZipAR:window=99"], "16 columns"),
        (["pizza", "-o", "{}/x.png", "--method", "SpeculativeJacobi:window=999"], "256 tokens"),
        (["pizza", "-o", "{}/x.png", "--method", "ZipAR:widow=4"], "did you mean 'window'"),
        (["pizza", "-o", "{}/x.png", "--method", "ZipAR:window"], "KEY=VALUE"),
        (["pizza", "-o", "{}/x.png", "--method", "ZipRA"], "ZipAR"),
        (["pizza", "-o", "{}/x.png", "--method", "ZipAR()"], "--method ZipAR(): write ZipAR"),
        (["pizza", "-o", "{}/x.png", "--method", "ZipAR(window=2, verify=True)"], "write ZipAR:window=2,verify=True"),
        (["pizza", "-o", "{}/x.png", "--method", "SpeculativeJacobi(init='uniform')"], "Jacobi:init=uniform"),
        (["pizza", "-o", "{}/x.png", "--method", "fast"], "'fast' is a preset and no method, for --preset where"),
        (["pizza", "-o", "{}/x.png", "--preset", "fest"], "fast"),
        (["pizza", "-o", "{}/x.png", "--model", "/nowhere"], "is not a model"),
        (["pizza", "-o", "{}/x.png", "--plan", "{}/none.json"], "none.json"),
        (["pizza", "-o", "{}/x.png", "--count", "0"], "at least 1"),
        (["pizza", "-o", "{}/x.png", "--temperature", "0"], "temperature"),
        (["pizza", "-o", "{}/x.png", "--count", "100000"], "--count 100000: it must be"),
        (["pizza", "-o", "{}/x.png", "--seed", "99999999999999999999"], "--seed 99999999999999999999: it must be"),
        (["pizza", "-o", "{}/x.png", "--seed", "-1"], "--seed -1"),
        (["pizza", "-o", "{}/x.png", "--seed", "one"], "whole number"),
        (["pizza", "-o", "{}/x.png", "--guidance", "nan"], "--guidance nan: it must be a finite number"),
        (["pizza", "-o", "{}/x.png", "--top-p", "1.5"], "--top-p 1.5"),
        (["pizza", "-o", "{}/x.png", "--device", "nowhere"], "--device nowhere"),
        (["pizza", "-o", "{}/x.png", "--device", "meta"], "--device meta"),
        (["pizza"], "-o/--output"),
        (["heart", "-o", "{}/x.png"], "'heart' is not enough for tiny-janus: say which thing, such as 'red heart', "),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(tmp_path, capsys, words, hint):
    code, out = run(capsys, "run", "image", *(word.format(tmp_path) for word in words))
    assert code == 2
    assert hint in out.err and len(out.err.strip().splitlines()) == 1, out.err
    assert list(tmp_path.iterdir()) == [], "a file was left behind"


def test_truncated_weights_from_a_folder(tmp_path, capsys):
    import shutil

    from mmaccel import zoo

    folder = tmp_path / "model"
    shutil.copytree(zoo.path("tiny-janus"), folder)
    (folder / "model.safetensors").write_bytes(b"\0" * 100)
    code, out = run(capsys, "run", "image", "pizza", "-o", str(tmp_path / "x.png"), "--model", str(folder))
    assert code == 2 and "damaged" in out.err


def test_bench_is_json_in_the_one_format(capsys, monkeypatch):
    from mmaccel.bench import pages
    from mmaccel.comparison.runner import Runner
    from mmaccel.image import SpeculativeJacobi, ZipAR
    from mmaccel.image.bench import benchmark

    methods = (SpeculativeJacobi(window=8), ZipAR(window=4))
    monkeypatch.setattr(benchmark, "cases", lambda full: [benchmark.ImageCase(1, 3.0, 1, methods)])
    monkeypatch.setattr(Runner, "warm_up", lambda *_: None)
    code, out = run(capsys, "bench", "image", "--json", "--threads", "1")
    assert code == 0
    result = json.loads(out.out)
    assert set(result) == {"header", "rows"} and {"versions", "machine", "threads", "date"} <= set(result["header"])
    assert len(result["rows"]) == 2
    for row in result["rows"]:
        assert set(results.COLUMNS) <= set(row) and row["wall_seconds"] > 0 and 0 < row["work_ratio"] <= 1
    assert "ZipAR" in pages.table(result)


def test_a_device_that_is_not_there(tmp_path, capsys):
    import torch

    if torch.cuda.is_available():
        pytest.skip("it is there")
    for words in (["image", "pizza"], ["video", "rocket"]):
        code, out = run(capsys, "run", *words, "-o", str(tmp_path / "x.png"), "--device", "cuda")
        assert code == 2 and "--device cuda cannot be used here" in out.err, out.err
        assert len(out.err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["video", "rocket", "-o", "{}/x.mp4", "--trace", "{}/o.txt"], "cannot write a picture as 'o.txt'"),
        (["video", "rocket", "-o", "{}/x.mp4", "--trace", "{}/no/o.png"], "write elsewhere with --trace"),
        (["video", "rocket", "-o", "{}/x.mp4", "--steps", "1000000"], "--steps 1000000: it must be"),
        (["video", "rocket", "-o", "{}/x.mp4", "--frames", "0"], "--frames 0: it must be"),
        (["video", "rocket", "-o", "{}/x.mp4", "--width", "99999999"], "--width 99999999: it must be"),
        (["video", "r", "-o", "{}/x.mp4", "--frames", "768", "--height", "8192", "--width", "8192"], "GiB are free"),
        (["video", "rocket", "-o", "{}/x.gif", "--rate", "0.001"], "--rate 0.001: it must be from 0.01 to 1000"),
        (["video", "rocket", "-o", "{}/x.mp4", "--rate", "1e300"], "--rate 1e300: it must be from 0.01 to 1000"),
        (["vlm", "{}/x.mp4", "what?", "--picture", "{}/o.txt"], "cannot write a picture as 'o.txt'"),
        (["vlm", "{}/x.mp4", "what?", "--picture", "{}/no/o.png"], "write elsewhere with --picture"),
        (["vlm", "{}/x.mp4", "what?", "--frames", "-3"], "--frames -3: it must be"),
        (["vlm", "{}/x.mp4", "what?", "--max-new-tokens", "1e9"], "--max-new-tokens 1e9: it must be"),
        (["speech", "{}/x.wav", "--rate", "0"], "--rate 0: it must be"),
        (["document", "{}/x.png", "--wrong", "0.2"], "--wrong is for the regions of --example"),
    ],
)
def test_messages_name_options_before_anything_is_loaded(tmp_path, capsys, monkeypatch, words, hint):
    monkeypatch.setattr("mmaccel.zoo.load", lambda name: pytest.fail("a model was loaded"))
    code, out = run(capsys, "run", *(word.format(tmp_path) for word in words))
    assert code == 2 and hint in out.err and len(out.err.strip().splitlines()) == 1, out.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (
            ["run", "vlm", "{}/in.png", "what?", "--picture", "{}/in.png"],
            "--picture {}/in.png is an input, which would",
        ),
        (["run", "vlm", "{}/link.png", "what?", "--picture", "{}/in.png"], "--picture {}/in.png is an input"),
        (["run", "document", "{}/in.png", "--picture", "{}/../{}/in.png"], "--picture {}/../{}/in.png is an input"),
        (["run", "document", "{}/a.png", "--regions", "{}/in.json", "-o", "{}/in.json"], "-o {}/in.json is an input"),
        (["run", "document", "{}/a.png", "--plan", "{}/in.json", "-o", "{}/in.json"], "-o {}/in.json is an input"),
        (["run", "canvas", "{}/in.png", "--trace", "{}/in.png"], "--trace {}/in.png is an input"),
        (["run", "video", "rocket", "-o", "{}/new.png", "--trace", "{}/new.png"], "-o {}/new.png is written twice"),
        (
            ["run", "video", "rocket", "-o", "{}/new.png", "--compare", "--trace", "{}/new.compare.png"],
            "--trace {}/new.compare.png is written twice",
        ),
        (["compare", "canvas", "{}/in.png", "-o", "{}/in.png"], "-o {}/in.png is an input"),
        (["compare", "speech", "{}/a.wav", "{}/in.json", "-o", "{}/in.json"], "-o {}/in.json is an input"),
        (["tune", "canvas", "{}/in.png", "--method", "FactorCommit", "--plot", "{}/in.png"], "--plot {}/in.png is an"),
    ],
)
def test_an_input_is_not_written_over(tmp_path, capsys, words, hint):
    for name in ("in.png", "in.json"):
        (tmp_path / name).write_text("kept")
    (tmp_path / "link.png").symlink_to(tmp_path / "in.png")
    here = str(tmp_path).lstrip("/")  # below the root, so that one path can be written in two ways
    names = [word.replace("{}/../{}", f"{tmp_path}/{'../' * len(tmp_path.parts)}{here}") for word in (*words, hint)]
    *words, hint = [name.replace("{}", str(tmp_path)) for name in names]
    code, out = run(capsys, *words)
    assert code == 2 and hint in out.err and len(out.err.strip().splitlines()) == 1, out.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.json", "in.png", "link.png"]
    assert (tmp_path / "in.png").read_text() == (tmp_path / "in.json").read_text() == "kept"


@pytest.mark.parametrize(
    ("python", "option"),
    [
        ("take preset='balanced' or preset='fast', or", "take --preset balanced or --preset fast, or"),
        ('or use endpoint="energy"', "or use --endpoint energy"),
        ("pass policy=speech.LocalAgreement(2)", "say --policy local-agreement"),
        ("pass endpoint=speech.EnergyEndpoint(longest=29.56)", "say --longest 29.56"),
        ("widen grid=, or ask for less", "widen --setting, or ask for less"),
        ("see grid=\npicked", "see --setting\npicked"),
        ("a milder one may do, see grid=", "a milder one may do, see --setting"),
        ("give more rounds= or", "give more --rounds or"),
        ("its values, grid={'steps': (...)}, or leave", "its values, --setting steps=V1,V2, or leave"),
        ("guidance_scale=1.0: the plain", "--guidance 1.0: the plain"),
        ("set a goal: target_speedup=1.8, or floor= with", "set a goal: --target-speedup 1.8, or --floor with"),
        (
            "copy it again, or read what is there with skip_damaged=True, or repair it",
            "copy it again, or repair it",
        ),
        ("video.HeterogeneousSteps(0.5, policy='refresh')", "video.HeterogeneousSteps(0.5, policy='refresh')"),
    ],
)
def test_advice_names_options(python, option):
    assert arguments.in_options(python) == option


def test_an_error_of_a_preset_names_the_option(tmp_path, capsys):
    code, out = run(capsys, "run", "video", "rocket", "--preset", "exact", "-o", str(tmp_path / "x.mp4"))
    assert code == 2 and "take --preset balanced or --preset fast" in out.err and "preset=" not in out.err


def test_a_name_that_is_none_is_told_in_one_line(tmp_path, capsys, recwarn):
    code, out = run(capsys, "run", "image", "red heart", "--model", "tiny-januss", "-o", str(tmp_path / "x.png"))
    assert code == 2 and "did you mean 'tiny-janus'?" in out.err and len(out.err.splitlines()) == 1
    assert not [str(one.message) for one in recwarn if "local_dir" in str(one.message)], "of diffusers and the hub"


def test_numbers_up_to_their_bounds_are_taken():
    assert arguments.seed(str(2**64 - 1)) == 2**64 - 1 and arguments.seed("0") == 0
    assert arguments.whole(1, 64)("64") == 64 and arguments.whole(1, 64)("1") == 1
    for text in ("65", "0", "1.5", "", "9" * 6000):
        with pytest.raises(argparse.ArgumentTypeError, match="at least 1 and at most 64") as error:
            arguments.whole(1, 64)(text)
        assert len(str(error.value)) < 120


# Files: noticed before the work, and nothing left behind


def python(*lines, **more):
    return subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, **more)


@pytest.fixture
def full():
    """Files of more than half a MiB are refused, as on a disk that is full."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**19, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    "words",
    [
        ["run", "image", "pizza", "-o", "{}/x.png"],
        ["run", "image", "pizza", "-o", "{}/x.png", "--compare"],
        ["run", "video", "rocket", "-o", "{}/x.gif"],
        ["run", "vlm", "{}/none.mp4", "what?", "--picture", "{}/x.png"],
        ["run", "speech", "{}/none.wav", "-o", "{}/x.srt"],
        ["compare", "image", "pizza", "-o", "{}/x.html"],
        ["tune", "image", "pizza", "--method", "ZipAR", "-o", "{}/x.json"],
        ["plan", "-o", "{}/x.json"],
    ],
)
def test_a_full_disk_is_noticed_before_the_work(tmp_path, capsys, monkeypatch, full, words):
    for name in ("mmaccel.zoo.load", "mmaccel.speech.families.weights.load"):
        monkeypatch.setattr(name, lambda *_: pytest.fail("a model was loaded"))
    code, out = run(capsys, *(word.format(tmp_path) for word in words))
    assert code == 2 and "no room for" in out.err and len(out.err.strip().splitlines()) == 1, out.err
    assert list(tmp_path.iterdir()) == []


def test_a_device_file_is_not_replaced():
    with pytest.raises(OSError, match="not a regular file"):
        check_writable(Path("/dev/null"))


def test_what_is_checked_leaves_nothing_and_spares_what_is_there(tmp_path):
    (tmp_path / "a.png").write_text("kept")
    check_writable(tmp_path / "a.png")
    check_writable(None)
    with pytest.raises(ZeroDivisionError), replacing(tmp_path / "a.png"):
        1 / 0  # noqa: B018
    assert [path.read_text() for path in tmp_path.iterdir()] == ["kept"]


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_sigterm_leaves_no_files(tmp_path):
    lines = (
        "import os, signal, sys, time",
        "from pathlib import Path",
        "from mmaccel import machine",
        "from mmaccel.cli import main as cli",
        "from mmaccel.files.output import replacing",
        "def run():",
        f"    with replacing(Path({str(tmp_path / 'x.png')!r})):",
        "        os.kill(os.getpid(), signal.SIGTERM)",
        "        time.sleep(60)",
        "machine.machine = run",
        "cli.main(['env'])",
    )
    done = python(*lines, timeout=50)
    assert done.returncode == 143 and list(tmp_path.iterdir()) == [], done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="pipes of POSIX")
def test_signal_handlers_are_put_back(capsys):
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)]
    assert run(capsys, "env")[0] == 0
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)] == before


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_what_nohup_lets_ignore_stays_ignored(capsys, monkeypatch):
    seen = []
    monkeypatch.setattr(machine, "machine", lambda: seen.append(signal.getsignal(signal.SIGHUP)) or {})
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        run(capsys, "env")
        assert seen == [signal.getsignal(signal.SIGHUP)] == [signal.SIG_IGN]
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_text_in_another_encoding_is_one_line(capsys):
    assert cli.main(["run", "image", "red h\udce9art", "-o", "heart.png"]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("mmaccel: 'red h\\udce9art' is not in UTF-8")


def test_an_interruption_is_one_line(capsys, monkeypatch):
    def stop():
        raise KeyboardInterrupt

    monkeypatch.setattr(machine, "machine", stop)
    code, out = run(capsys, "env")
    assert code == 130 and out.err == "mmaccel: stopped\n"


def test_it_runs_in_a_thread_too():
    """Python lets only the main thread handle signals."""
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(cli.main, ["env"]).result() == 0


@pytest.mark.parametrize(("words", "loads"), ((["env"], False), (["plan", "-o", "{}/none/x.json"], True)))
def test_libraries_are_silenced_where_models_are_loaded(tmp_path, monkeypatch, words, loads):
    asked = []
    monkeypatch.setattr(cli, "_quiet_libraries", lambda: asked.append("silence"))
    cli.main([word.format(tmp_path) for word in words])
    assert asked == ["silence"] * loads


def test_env_says_what_was_measured_here_and_not_elsewhere(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(kept_choices, "path", lambda: tmp_path / "choices.json")
    for threads, choice in ((1, "packed"), (2, ["groups", 0.5])):
        kept_choices.keep(kept_choices.place(threads), "products", choice)
    this = kept_choices.place(1)
    for elsewhere in (this.replace(machine.processor(), "Another processor"), f"{this}.another"):
        kept_choices.keep(elsewhere, "products", "theirs")
    code, out = run(capsys, "env")
    assert code == 0 and "theirs" not in out.out
    assert f"products: packed ({kept_choices.place(1)})".replace("1 threads", "1 thread") in out.out
    assert f"products: groups, 0.5 ({kept_choices.place(2)})" in out.out


def test_lines_of_env_are_not_wider_than_a_terminal(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(kept_choices, "path", lambda: tmp_path / "choices.json")
    for rows, way in ((1, "plain"), (2, "turned"), (4, "onednn"), (8, "plain"), (16, "turned"), (32, {"tried": 1})):
        kept_choices.keep(kept_choices.place(2), f"linear layers of {rows} rows, 576 columns", way)
    code, out = run(capsys, "env")
    assert code == 0 and max(map(len, out.out.splitlines())) <= 120
    told = "plain for 1, turned for 2, onednn for 4, plain for 8, turned for 16, not measured yet"
    assert f"linear layers of 576 columns: {told}" in " ".join(out.out.split())


def test_a_reader_that_has_seen_enough():
    command = [sys.executable, "-m", "mmaccel", "methods"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline().startswith("image.")
        process.stdout.close()
        errors = process.stderr.read()
    assert errors == "" and process.returncode in (0, 141)  # 0: all of it was in the pipe already


def test_a_broken_pipe_is_no_error_message():
    lines = (
        "import os, sys",
        "read, write = os.pipe()",
        "os.close(read)",
        "os.dup2(write, 1)",
        "from mmaccel.cli import main as cli",
    )
    done = python(*lines, "sys.exit(cli.main(['presets']))")
    assert done.returncode == 141 and done.stderr == ""


def test_closed_streams_are_written_to_by_nobody(monkeypatch):
    """As `>&- 2>&-` closes them; Python then has none."""
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    assert cli.main(["presets", "--modality", "canvas"]) == 0
    assert cli.main(["presets", "--modality", "nothing"]) == 2
    assert sys.stdin.read() == ""


# Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_bars_on_a_terminal_and_lines_in_a_file(monkeypatch):
    monkeypatch.setattr(progress, "EVERY", 0.02)
    for stream in (io.StringIO(), Terminal()):
        monkeypatch.setattr(sys, "stderr", stream)
        with tqdm(range(5), desc="compare", unit="runs", **progress.looks()) as bar:
            for _ in bar:
                time.sleep(0.03)
        text = stream.getvalue()
        assert ("\r" in text and "%|" in text) == stream.isatty()
    lines = io.StringIO()
    monkeypatch.setattr(sys, "stderr", lines)
    with tqdm(range(5), desc="compare", unit="runs", **progress.looks()) as bar:
        for _ in bar:
            time.sleep(0.03)
    told = lines.getvalue().splitlines()
    assert told[-1].startswith("compare: 5 of 5 runs, ") and len(set(told)) == len(told) > 1
    assert "\r" not in lines.getvalue() and "%|" not in lines.getvalue()


def test_what_is_quick_tells_nothing_in_a_file(monkeypatch):
    lines = io.StringIO()
    monkeypatch.setattr(sys, "stderr", lines)
    for _ in tqdm(range(5), **progress.looks()):
        pass
    assert lines.getvalue() == ""


def test_programs_without_a_console_show_no_progress_and_have_their_tables(monkeypatch):
    monkeypatch.setattr(progress, "EVERY", 0.0)
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    assert list(tqdm(range(5), desc="compare", unit="runs", **progress.looks())) == list(range(5))
    assert results.aligned([["", "seconds"], ["plain", "1"]]) == "       seconds\nplain  1"


# What is only read


def test_the_list_of_methods_is_that_of_the_registry():
    kept = (Path(listing.__file__).with_name(listing.FILE)).read_text(encoding="utf-8")
    assert kept == method_listing.collect(), "take it over: python -m mmaccel.demos.pages.method_listing"


def test_methods_say_exact_and_what_settings_mean(capsys):
    from mmaccel.registry import methods

    code, out = run(capsys, "methods")
    assert code == 0 and "lossless" not in "".join(line for line in out.out.splitlines() if "[" in line[:60])
    text = " ".join(out.out.split())
    for name, method in methods().items():
        assert f"{name} [{'exact' if method().exact else 'lossy'}]" in text
        for setting, default in ((key, getattr(method(), key)) for key in method().settings()):
            after = text.split(f"{name} [", 1)[1].split(f" {setting}={default!r} ", 1)[1]
            assert after[0].isalnum() or after[0] in "\"'[(", f"{name}: {setting} has no meaning"
    assert "window=4 Tokens that a row must be ahead" in text


def test_every_setting_has_a_meaning_of_its_own():
    for name, told in listing.described_methods().items():
        meanings = [setting["meaning"] for setting in told["settings"]]
        assert len(meanings) == len(set(meanings)), name
        assert not any(meaning.startswith("Default") for meaning in meanings), name


def test_one_modality_of_the_lists(capsys):
    for command in ("methods", "presets"):
        names = [modality.name for modality in modalities()]
        for modality in names:
            code, out = run(capsys, command, "--modality", modality)
            others = [f"\n{other}" for other in names if other != modality]
            assert code == 0 and out.out.startswith(modality) and not any(other in out.out for other in others)


@pytest.mark.parametrize("command", ["methods", "presets", "env"])
def test_lists_load_no_model_library(command):
    """Torch alone takes longer to import than they may take; where there is a GPU only torch knows its name."""
    if command == "env" and any(Path(path).exists() for path in machine.DEVICES):
        pytest.skip("torch is asked for the name of the GPU")
    done = python(
        "import sys",
        "from mmaccel.cli import main as cli",
        f"assert cli.main([{command!r}]) == 0",
        "heavy = {'torch', 'transformers', 'diffusers', 'numpy', 'PIL'} & set(sys.modules)",
        "assert not heavy, heavy",
    )
    assert done.returncode == 0, done.stderr


def test_env_says_what_torch_says(capsys):
    import torch

    code, out = run(capsys, "env")
    found = dict(line.split(None, 1) for line in out.out.splitlines() if not line.startswith(" "))
    assert code == 0 and found["torch"] == torch.__version__ and found["mmaccel"] == mmaccel.__version__
    assert (found["accelerator"].strip() == "none") == (not torch.cuda.is_available())


# Captions


def test_captions_are_whole_and_pictures_stay_in_line():
    long = "image.SpeculativeJacobi(window=16, init='repeat_left'): 0.74 s"
    lines = pictures.wrapped(long, 256)
    font = ImageFont.load_default(pictures.SIZE)
    assert "".join("".join(lines).split()) == "".join(long.split()) and len(lines) > 1
    assert all(font.getlength(line) <= 256 - 2 * pictures.MARGIN for line in lines)
    assert "".join(pictures.wrapped("x" * 200, 100)) == "x" * 200
    red, blue = (Image.new("RGB", (256, 64), color) for color in ("red", "blue"))
    both = pictures.side_by_side([red, blue], ["plain: 3.48 s", long])
    for left, color in ((0, (255, 0, 0)), (256 + pictures.GAP, (0, 0, 255))):
        assert both.crop((left, both.height - 64, left + 256, both.height)).getcolors() == [(256 * 64, color)]
        above = both.crop((left, 0, left + 256, both.height - 64)).getcolors(10_000)
        assert color not in [found for _, found in above] and len(above) > 1, "a caption, and no picture under it"


def test_a_caption_of_one_line_is_as_high_as_in_the_shipped_sheets():
    """The gallery of the demo cuts its pictures out of them by this height."""
    assert pictures.headed(Image.new("RGB", (256, 64)), "plain").height == 64 + pictures.BAR == 64 + 30
