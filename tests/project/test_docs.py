"""The code of the README and of the site runs as it stands, and the site says what the registry says."""

import ast
import builtins
import importlib
import inspect
import re
import shlex
import shutil
import sys
from functools import cache
from pathlib import Path

import pytest
import torch
from PIL import Image

from mmaccel import cli, presets, session, zoo
from mmaccel.registry import MODALITIES, get_method, methods
from mmaccel.speech import weights

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS / "hooks"))
import pages as site  # noqa: E402  what the site's hook generates
from advice import ADVICE  # noqa: E402
from included import relinked  # noqa: E402
from measured import method_of  # noqa: E402

FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
HUB_ID = re.compile(r"""from_pretrained\(\s*["'][\w.-]+/""")
# The same code with less work.
SMALLER = {
    "num_inference_steps=20": "num_inference_steps=2",
    '"num_inference_steps": 20': '"num_inference_steps": 3',
    'prompt="rocket moves up"': 'prompt="rocket moves up", num_inference_steps=4, rounds=1',
    "seeds=range(4)": "seeds=range(1)",
    "seeds=range(2)": "seeds=range(1)",
    "frames=32": "frames=8",
    "in asked.frames:": "in asked.frames[:6]:",
}


def _read(name):
    return (ROOT / name).read_text(encoding="utf-8")


@cache
def all_pages():
    """Markdown by name: what is written, with what it includes, and what is generated."""
    written = {path.relative_to(DOCS).as_posix(): path.read_text(encoding="utf-8") for path in DOCS.rglob("*.md")}
    written = {name: site.written(text, name) for name, text in written.items() if not name.startswith("benchmarks")}
    return {"README.md": _read("README.md"), **written, **site.generated()}


def blocks(page, *languages):
    """Code blocks of a page: what follows the language, and the code."""
    found = FENCE.findall(all_pages()[page])
    return [(title, code) for language, title, code in found if language in languages]


PAGES = sorted(all_pages())
WITH_CODE = [page for page in PAGES if blocks(page, "python") and page != "index.md"]  # that is the README's


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the files that the pages speak of."""
    from mmaccel.video import clips

    here = tmp_path_factory.mktemp("docs")
    frames = [Image.fromarray(frame) for frame in zoo.questions("tiny-onevision", 1)[0].frames]
    for name in ("clip.mp4", "talk.mp4"):
        clips.save(frames, here / name)
    wheel = importlib.util.find_spec("moonshine_voice")
    if wheel is not None:
        shutil.copy(Path(wheel.submodule_search_locations[0]) / "assets" / "beckett.wav", here / "talk.wav")
    return here


@pytest.fixture
def workplace(folder, monkeypatch):
    """That folder, and models that are loaded once; no session is left on them."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(zoo, "load", _loaded)
    yield
    for holder in list(session._holders.values()):
        live = holder()
        if live is not None:
            live.remove()


@cache
def _loaded(name, load=zoo.load):
    return load(name)


def _beginning(page):
    """What a reader of a page has before its first line; only the README takes things for granted."""
    if page != "README.md":
        return {"__name__": "page"}
    given = {"camera": zoo.questions("tiny-onevision", 1)[0].frames[:8], "microphone": [torch.zeros(4800)] * 10}
    return {"__name__": "page", **given}


@pytest.mark.parametrize("page", WITH_CODE)
def test_the_code_of_a_page_runs(page, workplace, capsys):
    if "speech." in all_pages()[page] and not Path("talk.wav").exists():
        pytest.skip(f"needs {weights.WHEELS['moonshine-tiny'].requirement}")
    names = _beginning(page)
    for _, code in blocks(page, "python"):
        for long, short in SMALLER.items():
            code = code.replace(long, short)
        compiled = compile(code, page, "exec")
        if HUB_ID.search(code):
            resolve(code, names)
            continue
        torch.manual_seed(0)
        exec(compiled, names)
    if page.startswith("methods/") and "fast" in names:
        assert names["fast"].report.wall_seconds > 0 and not names["fast"].active


def resolve(code, names):
    """Raise unless every name, attribute of a module and keyword of a call in the code is there.

    Imports are made; nothing else runs.
    """
    tree, known = ast.parse(code), dict(names)
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            exec(compile(ast.Module([node], []), "page", "exec"), known)
    stored = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
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


@pytest.mark.parametrize(
    "code",
    (
        "from mmaccel import video\nvideo.EasyCash()",
        "from mmaccel import video\nvideo.EasyCache(thresh=1)",
        "import mmaccel\nmmaccel.accelerate(pipe)",
    ),
)
def test_code_that_does_not_run_is_still_read(code):
    with pytest.raises((AttributeError, TypeError, AssertionError)):
        resolve(code, {})


def test_what_needs_a_download_says_so():
    for page in PAGES:
        for title, code in blocks(page, "python"):
            if page not in ("README.md", "index.md"):
                assert bool(HUB_ID.search(code)) == ("downloads" in title), f"{page}: {code}"


def commands(page):
    """Lines that call mmaccel, without what the shell does with them."""
    for _, code in blocks(page, "bash", "console"):
        for line in code.splitlines():
            words = shlex.split(line.removeprefix("$ "), comments=True)
            words = words[words.index("|") + 1 :] if "|" in words else words
            if words[:1] == ["mmaccel"]:
                yield words[1 : words.index(">") if ">" in words else None]


@pytest.mark.parametrize("page", [page for page in PAGES if any(commands(page))])
def test_the_commands_of_a_page_are_understood(page):
    for words in commands(page):
        arguments = cli.build_parser().parse_args(words)
        named = getattr(arguments, "method", [])
        if isinstance(named, str):  # `tune` takes one
            assert get_method(named), words
        elif named:
            assert cli.chosen_methods(arguments), words


def test_every_method_has_a_page_with_what_it_must_say():
    assert set(ADVICE) == set(methods()), "docs/hooks/advice.py and the registry differ"
    for name, method in methods().items():
        page = all_pages()[site.address(method)]
        for setting, default in method().settings().items():
            assert f"`{setting}`" in page and f"`{getattr(method(), setting)!r}`" in page, (
                f"{name}: {setting}={default}"
            )
        assert method.paper in page and method.summary().split(";")[0].rstrip(".")[:40] in page
        assert ("**exact**" in page) == method.lossless and f"{name}(" in page
        for other in method.excludes - {name}:
            assert f"[{other.split('.')[1]}](" in page


def test_the_measured_rows_are_those_of_the_benchmarks():
    page = all_pages()[site.address(methods()["image.ZipAR"])]
    row = presets.presets_of("image", "janus")["fast"].row
    line = next(line for line in page.splitlines() if line.startswith("| `ZipAR(window=2)`"))
    assert f"{row['speedup']:.2f}x" in line and f"{row['quality']:.4g}" in line
    assert "No row of the committed benchmarks" in all_pages()["methods/video/encoder_reuse.md"]
    assert method_of({"modality": "video", "method": "fewer steps", "settings": {}}) is None


def test_every_preset_is_on_its_page():
    page = all_pages()["presets.md"]
    for modality in MODALITIES:
        for family in presets.families(modality):
            assert family in page
            for preset in presets.presets_of(modality, family).values():
                assert f"{preset.row['speedup']:.2f}x" in page and f"`{preset.methods[0]}`" in page


def test_every_picture_is_small_has_a_caption_and_is_on_a_page():
    found = sorted((DOCS / "pictures").glob("*.png"))
    assert found
    for path in found:
        assert path.stat().st_size < 100_000 and path.with_suffix(".txt").is_file()
        assert any(f"pictures/{path.name}" in text for text in all_pages().values()), path.name


def test_links_of_other_files_fit_the_page():
    text = "[a](docs/benchmarks/image.md) ![b](docs/comparison.png) [c](CONTRIBUTING.md#x) [d](demos/tiny_wan.py)"
    assert relinked(text, "models/index.md") == (
        "[a](../benchmarks/image.md) ![b](../comparison.png) [c](../contributing.md#x) `demos/tiny_wan.py`"
    )
    with pytest.raises(KeyError, match="no section 'Nowhere'"):
        site.written("<!-- from README.md: Nowhere -->", "index.md")


def test_the_site_builds_without_a_warning_and_asks_for_nothing(tmp_path):
    pytest.importorskip("mkdocs")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path), strict=True)
    config.plugins.on_startup(command="build", dirty=False)
    build(config)
    for page in ("index", "methods/image/zipar/index", "reference/speech/index", "commands/index", "presets/index"):
        html = (tmp_path / f"{page}.html").read_text(encoding="utf-8")
        loaded = re.findall(r'<(?:script|link|img|iframe)[^>]+(?:src|href)="(https?:[^"]+)"', html)
        assert [url for url in loaded if "canonical" not in url] == [], page
    assert "StreamingRecognizer" in (tmp_path / "reference/speech/index.html").read_text(encoding="utf-8")
