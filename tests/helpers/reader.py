"""A reader of the README and the site, who types every line of every page in one folder."""

import ast
import builtins
import contextlib
import importlib
import inspect
import io
import re
import shlex
import socket
import subprocess
import sys
import tomllib
import urllib.request
import wave
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pages as site
import torch
import yaml

from mmaccel import zoo
from mmaccel.cli import main as cli
from mmaccel.cli.model_arguments import chosen_methods
from mmaccel.demos.comfyui.__main__ import install
from mmaccel.modality import get_modality
from mmaccel.registry import get_method

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
_load = cache(zoo.load)  # commands share no model with Python, as processes of their own
FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LAUNCHERS = ("accelerate", "torchrun")
HUB_ID = re.compile(r"""(?:from_pretrained\(\s*["']|pipeline\("[\w-]+", "|--model )[\w.-]+/""")
SHELL = ("bash", "console")
# The same code, and the same command, with less work.
SMALLER = {
    "num_inference_steps=20": "num_inference_steps=2",
    '"num_inference_steps": 20': '"num_inference_steps": 3, "num_frames": 5',
    "num_frames=23, num_inference_steps=4": "num_frames=15, num_inference_steps=2",
    "num_frames=31, num_inference_steps=2": "num_frames=23, num_inference_steps=1",
    'grid={"window": [2, 8]}': 'grid={"window": [2]}',
    'prompt="rocket moves up"': 'prompt="rocket moves up", num_inference_steps=4, rounds=1',
    "seeds=range(4)": "seeds=range(1), rounds=1",
    "seeds=range(2)": "seeds=range(1), rounds=1",
    "seeds=[0]": "seeds=[0], rounds=1",
    "questions=[asked.question],": "questions=[asked.question], rounds=1,",
    "in asked.frames:": "in asked.frames[:6]:",
    '"clip.mp4", frames=16': '"clip.mp4", frames=5',  # which has as many, by FEWER
}
# Of the commands that measure and generate, by their options.
FEWER = {
    "--seeds": "1",
    "--rounds": "1",
    "--steps": "10",  # fewer are not forecast
    "--frames": "5",
    "--fail-below": "0.01",  # what one round on a busy machine measures may be anything
}
FEWER_OF = ("run", "compare", "tune", "bench")


@cache
def all_pages():
    """Markdown by name in a reader's order: README, the pages as the site's navigation has them, and what is left."""
    written = {path.relative_to(DOCS).as_posix(): path.read_text(encoding="utf-8") for path in DOCS.rglob("*.md")}
    written = {name: site.written(text, name) for name, text in written.items() if not name.startswith("benchmarks")}
    written |= site.generated()
    del written["index.md"]  # says what the README says
    order = [name for name in _navigation() if name in written]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    return {"README.md": readme, **{name: written[name] for name in dict.fromkeys([*order, *sorted(written)])}}


def _navigation():
    """Names of pages in the order of `mkdocs.yml`; `METHODS` and its like stand for pages that sort by themselves."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")

    def names(entry):
        if isinstance(entry, str):
            yield entry
        for below in entry.values() if isinstance(entry, dict) else entry if isinstance(entry, list) else ():
            yield from names(below)

    return list(names(yaml.safe_load(text[text.index("\nnav:") :])["nav"]))


@dataclass(frozen=True)
class Block:
    """Code of a page: its language, what follows that in the same line, and the text."""

    language: str
    title: str
    code: str

    @property
    def downloads(self):
        """Whether it names a model of the hub."""
        return bool(HUB_ID.search(self.code))


def blocks(markdown, *languages):
    """Code blocks of a page in their order, only those of some languages where these are named."""
    found = [Block(*match) for match in FENCE.findall(markdown)]
    return [block for block in found if not languages or block.language in languages]


def lines(block):
    """Commands of a block, those that end in a backslash joined with what follows."""
    for line in block.code.replace("\\\n", " ").splitlines():
        words = shlex.split(line.removeprefix("$ "), comments=True)
        if words:
            yield words


def type_block(block, names):
    """Do what a block says, in the current folder; what needs a download is only read."""
    if block.language == "python":
        run_python(block, names)
    elif block.language in SHELL:
        for words in lines(block):
            run_words(words)


def run_python(block, names):
    code = block.code
    for long, short in SMALLER.items():
        code = code.replace(long, short)
    if block.downloads:
        resolve(code, names)
    else:
        torch.manual_seed(0)
        exec(compile(code, "page", "exec"), names)


def run_words(words):
    """One line of a shell."""
    if "|" in words:
        _pipe(words[words.index("|") + 1 :])
    elif words[0] == "mmaccel":
        _mmaccel(words[1:])
    elif words[:3] == ["python", "-m", "mmaccel.demos.comfyui"]:
        _comfyui()
    elif words[0] in LAUNCHERS:  # on several GPUs, which are not at hand
        understood(words[words.index("mmaccel") + 1 :])
    elif words[0] == "make":
        _make(words[1])
    elif words[:2] == ["pip", "install"]:
        _installs(words[2:])
    else:
        raise AssertionError(f"nobody tries {shlex.join(words)}")


def understood(words):
    """The parsed arguments of a call of mmaccel, whose methods are known."""
    arguments = cli.build_parser().parse_args(words)
    named = getattr(arguments, "method", [])
    if isinstance(named, str):  # `tune` takes one
        assert get_method(named), words
    elif named:
        assert chosen_methods(arguments), words
    return arguments


def _mmaccel(words):
    words, target = (words[: words.index(">")], words[words.index(">") + 1]) if ">" in words else (words, None)
    understood(words)
    if HUB_ID.search(shlex.join(words)):
        return
    if words[0] == "demo":
        _demo()
        return
    if words[0] == "serve":
        _served(words[1])
        return
    printed = _printed(*words)
    if target:
        Path(target).write_text(printed, encoding="utf-8")
    for option in ("-o", "--trace", "--picture", "--plot"):
        if option in words:
            assert Path(words[words.index(option) + 1]).stat().st_size, f"{shlex.join(words)} writes nothing"


@cache
def _printed(*words):
    """What a command prints; one that is typed again has left its files in the folder."""
    printed = io.StringIO()
    one_thread = mock.patch.object(torch, "set_num_threads")  # other tests run beside this one
    with contextlib.redirect_stdout(printed), mock.patch.object(zoo, "load", _load), one_thread:
        code = cli.main([*words, *_fewer(words)])
    assert code == 0, f"{shlex.join(words)} ends with {code}"
    assert printed.getvalue().strip(), f"{shlex.join(words)} says nothing"
    return printed.getvalue()


def _fewer(words):
    """Options that a command takes and that make it do less; they count instead of those that its words say."""
    known = vars(cli.build_parser().parse_args(words)) if words[0] in FEWER_OF else {}
    options = {name: value for name, value in FEWER.items() if name[2:].replace("-", "_") in known}
    return [word for option in options.items() for word in option]


def _pipe(words):
    """What records from a sound card is not at hand: the samples of talk.wav take its place."""
    from mmaccel import speech

    samples = (speech.read_audio("talk.wav") * 32767).to(torch.int16).numpy().tobytes()
    given = SimpleNamespace(buffer=io.BufferedReader(io.BytesIO(samples)), isatty=lambda: False)
    with mock.patch.object(sys, "stdin", given):
        _printed(*words[1:])


def _comfyui():
    """The nodes are installed into a folder that stands for a ComfyUI."""
    Path("ComfyUI", "custom_nodes").mkdir(parents=True, exist_ok=True)
    assert list(install(Path("ComfyUI")).glob("*.py"))


@cache
def _served(kind):
    """A server answers; that it ends when it is told to, another test sees."""
    from listening import listening

    answers = []

    def ask(endpoint, limits, *_):
        with listening(endpoint, limits) as (_, address), urllib.request.urlopen(f"{address}/health") as page:
            answers.append(page.read().decode())

    with mock.patch("mmaccel.serve.run.serve", ask), mock.patch.object(zoo, "load", _load):
        assert cli.main(["serve", kind, "--port", "0"]) == 0
    assert len(answers) == 1 and get_modality(kind).model in answers[0]


@cache
def _demo():
    """The demo starts, answers, and ends when it is told to."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    call = [sys.executable, "-P", "-m", "mmaccel", "demo", "--port", str(port)]
    with subprocess.Popen(call, stdout=subprocess.PIPE, text=True) as server:
        try:
            line = next(line for line in server.stdout if "http" in line)
            with urllib.request.urlopen(re.search(r"http://[\w.:]+", line)[0]) as page:
                assert "mmaccel" in page.read().decode()
        finally:
            server.terminate()


def _make(target):
    """The Makefile has the target; what `make run` draws is drawn."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    recipe = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", text, re.MULTILINE)
    assert recipe, f"the Makefile has no {target}"
    if target == "run":
        run_words(shlex.split(recipe[1].replace("$(BIN)/", "")))


def _installs(words):
    """What is installed is this project, with extras that it has, or torch."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = next(word for word in words if not word.startswith("-"))
    if wanted == "torch":
        return
    assert re.match(r"(\.|mmaccel(?=.*git\+))(\[|$)", wanted), f"{wanted} is in no registry"
    named = re.search(r"\[(.*)\]", wanted)
    assert set(named[1].split(",") if named else ()) <= set(project["optional-dependencies"]), wanted


def resolve(code, names):
    """Raise unless every name, attribute of a module and keyword of a call in the code is there.

    Imports are made; nothing else runs.
    """
    tree, known = ast.parse(code), dict(names)
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            exec(compile(ast.Module([node], []), "page", "exec"), known)
    stored = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    stored |= {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
    stored |= {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id not in stored:
            assert node.id in known or hasattr(builtins, node.id), f"{node.id} comes from nowhere"
        if isinstance(node, ast.Attribute | ast.Name):
            value(node, known, stored)
        if isinstance(node, ast.Call):
            check_call(node, value(node.func, known, stored))


def value(node, known, stored):
    """What an expression of names and attributes stands for; None where only a run can say."""
    if isinstance(node, ast.Name):
        return None if node.id in stored else known.get(node.id)
    if not isinstance(node, ast.Attribute):
        return None
    owner = value(node.value, known, stored)
    return None if owner is None else getattr(owner, node.attr)


def check_call(node, function):
    """Raise if a function of ours would not take these keywords."""
    if getattr(function, "__module__", "").startswith("mmaccel"):
        given = {keyword.arg: None for keyword in node.keywords if keyword.arg}
        inspect.signature(function).bind(*[None] * len(node.args), **given)


def recording(folder):
    """talk.wav, which the reader has, a few seconds of a recording of the speech extra; whether it could be made."""
    wheel = importlib.util.find_spec("moonshine_voice")
    if wheel is None:
        return False
    source = Path(wheel.submodule_search_locations[0]) / "assets" / "beckett.wav"
    with wave.open(str(source)) as whole, wave.open(str(folder / "talk.wav"), "wb") as few:
        few.setparams(whole.getparams())
        few.writeframes(whole.readframes(4 * whole.getframerate()))
    return True
