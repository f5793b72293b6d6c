"""A modality is said once, in its descriptor: everything else finds it there."""

import ast
import importlib
import json
import pkgutil
import re
import shutil
import subprocess
import sys
from pathlib import Path

import family_page
import method_page
import pages
import preset_page
import pytest
import reference_page

import mmaccel
from mmaccel import adapter, lazy, modality, registry
from mmaccel.cli import main as cli
from mmaccel.errors import UnknownNameError, UnsupportedTargetError
from mmaccel.modality import get_modality, modalities
from mmaccel.presets import Preset
from mmaccel.testing import contract

ROOT = Path(__file__).parents[2]
NAMES = tuple(one.name for one in modalities())
QUOTED = re.compile(f"[\"'](?:{'|'.join(NAMES)})[\"']")  # what names none need not be parsed
# kinds of content of a chat, as processors and configurations name them
OTHER_TABLES = {"mmaccel/zoo/frames.py", "mmaccel/decoding/drafters/placeholders.py"}


@pytest.fixture
def toy(monkeypatch):
    """The modality of one file, as long as a test runs."""
    registry.load_modalities()
    monkeypatch.setattr(registry, "_methods", dict(registry._methods))
    monkeypatch.setattr(registry, "_loaded", set(registry._loaded))
    monkeypatch.setattr(adapter, "_adapters", list(adapter._adapters))
    monkeypatch.delitem(sys.modules, "toy_modality", raising=False)
    toy, installed = importlib.import_module("toy_modality"), modality._installed()
    monkeypatch.setattr(modality, "_installed", lambda: (*installed, toy.Toy))
    yield toy
    del sys.modules["toy_modality"]


def run(capsys, *words):
    code = cli.main(list(words))
    out = capsys.readouterr()
    assert code == 0, out.err
    return out.out


def test_packages_are_found_in_the_order_of_pages():
    assert NAMES[:4] == ("image", "video", "vlm", "speech")
    assert {"mmaccel", *NAMES} == {path.parent.name for path in ROOT.glob("*/modality.py")}
    with pytest.raises(UnknownNameError, match="'vidoe'.*'video'"):
        get_modality("vidoe")


# A new one, in one file


def test_the_command_line_lists_it(toy, capsys):
    assert "toy.Stride  [lossy]" in run(capsys, "methods") and "stride=2  Steps at once" in run(capsys, "methods")
    assert run(capsys, "methods", "--modality", "toy").startswith("toy.Stride")
    assert "nobody walked far enough" in run(capsys, "presets", "--modality", "toy")


def test_settings_that_are_not_described_are_listed(toy, capsys, monkeypatch):
    monkeypatch.setattr(toy.Stride, "__doc__", "Take several steps at once; lossy.")
    for words in (("methods",), ("methods", "--modality", "toy")):
        assert "toy.Stride  [lossy]\n    Take several steps at once.\n    stride=2\n    paper:" in run(capsys, *words)


def test_it_may_have_presets(toy, capsys, monkeypatch):
    model = get_modality("toy").open("tiny-toy")
    found = {"fast": Preset((toy.Stride(stride=4),)), "balanced": Preset((toy.Stride(),), note="twice as fast here")}
    monkeypatch.setattr(toy.Toy, "presets", lambda self: {"walker": found})
    monkeypatch.setattr(toy.Toy, "absent_presets", lambda self: {"walker": {"exact": "no stride is"}})
    assert "    fast: not measured" in str(mmaccel.plan(model, preset="fast"))
    assert "    balanced: twice as fast here" in str(mmaccel.plan(model, preset="balanced"))
    assert "toy.Stride(stride=4)\n            not measured" in run(capsys, "presets")


def test_it_may_have_none(toy, monkeypatch):
    monkeypatch.setattr(toy.Toy, "absent_presets", lambda self: {})
    with pytest.raises(UnsupportedTargetError, match="walker models have no presets: name methods"):
        mmaccel.plan(get_modality("toy").open("tiny-toy"), preset="fast")


def test_the_command_line_runs_and_measures_it(toy, capsys, tmp_path):
    assert "4 instead of 8" in run(capsys, "run", "toy", "1.5")
    assert "toy.Stride()" in run(capsys, "compare", "toy", "1.5")
    plan = tmp_path / "plan.json"
    words = ["--method", "toy.Stride", "--setting", "stride=2,4", "--floor", "1e9", "--rounds", "1", "-o", str(plan)]
    assert "toy.Stride" in run(capsys, "tune", "toy", "1.5", *words)
    assert json.loads(plan.read_text())["methods"][0]["name"] == "toy.Stride"
    assert "plan for walker" in run(capsys, "plan", "--model", "tiny-toy", "--method", "Stride")


def test_it_is_benchmarked(toy, capsys, tmp_path):
    (row,) = json.loads(run(capsys, "bench", "toy", "--json", "--page", str(tmp_path / "toy.md")))["rows"]
    assert row["method"] == "toy.Stride" and "How far they came." in (tmp_path / "toy.md").read_text()


def test_python_finds_it(toy):
    model = get_modality("toy").open("tiny-toy")
    found = mmaccel.compare(model, toy.Stride(stride=4), place=toy.torch.ones(1, 4), simple=False)
    assert [row["label"] for row in found.rows] == ["plain", "toy.Stride(stride=4)"]
    assert mmaccel.get_method("Stride") is toy.Stride and toy.Stride in mmaccel.methods().values()


def test_the_contract_runs_on_it(toy, monkeypatch):
    contract.check_method(toy.Stride)
    monkeypatch.setattr(toy.Stride, "neutral", {"stride": 2})
    with pytest.raises(AssertionError, match="toy.Stride on walker, neutral"):
        contract.check_method(toy.Stride)


def test_the_documentation_has_pages_of_it(toy):
    page = method_page.method_page(toy.Stride)
    assert "Walkers that are late." in page and "toy.Stride(stride=4)" in page and "No row of the committed" in page
    assert "**Costs**: Where they arrive." in page and "## Toys" in method_page.index_page()
    assert "nobody walked far enough" in preset_page.preset_page() and {"Toys": ["methods/toy/toy_modality.md"]} in (
        pages._methods()
    )
    assert reference_page.reference_pages()


def test_the_page_of_families_shows_what_its_section_yields(toy, monkeypatch):
    planned = list(family_page._section(get_modality("toy")))
    assert planned[0] == "## Toys" and "| walker |" in planned[1]
    toy.section = lambda planned: ["What ran.", *planned]
    monkeypatch.setattr(toy.Toy, "families_section", "toy_modality")
    assert list(family_page._section(get_modality("toy"))) == ["## Toys", "What ran.", *planned[1:]]


def test_the_demo_has_a_tab_of_it(toy):
    pytest.importorskip("gradio")
    from mmaccel.demos import app

    config = app.build().get_config_file()
    labels = [part["props"]["label"] for part in config["components"] if part["type"] == "tabitem"]
    assert labels[:4] == ["Image", "Video", "Video chat", "Speech"] and labels[-1] == "Toy walk"
    assert any(part["props"].get("value") == "Where to?" for part in config["components"])
    assert app.Models().names("toy") == ["tiny-toy"]


def test_a_package_of_others_brings_one_by_an_entry_point(tmp_path):
    info = tmp_path / "toy_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[mmaccel.modalities]\ntoy = toy_modality:Toy\n")
    lines = (
        f"import sys; sys.path += [{str(tmp_path)!r}, {str(ROOT / 'tests' / 'helpers')!r}]",
        "from mmaccel.modality import modalities",
        "print([modality.name for modality in modalities()])",
    )
    done = subprocess.run([sys.executable, "-c", "; ".join(lines)], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.strip() == str([*NAMES, "toy"]), done.stderr


def test_a_clone_without_links_has_them_too(tmp_path):
    """Git writes a file where it can make no link; the package that it stands for is mapped by pip."""
    core = tmp_path / "mmaccel"
    shutil.copytree(ROOT / "mmaccel", core, symlinks=True, ignore=shutil.ignore_patterns("zoo", "__pycache__"))
    links = {path.name: path.resolve() for path in (ROOT / "mmaccel").iterdir() if path.is_symlink()}
    for name in links:
        (core / name).unlink()
        (core / name).write_text(f"../{name}")
    mapped = {f"mmaccel.{name}": str(folder) for name, folder in links.items()}
    lines = (
        "import sys",
        "from importlib.util import spec_from_file_location",
        f"mapped = {mapped!r}",
        "class Finder:",
        "    def find_spec(name, path=None, target=None):",
        "        if name in mapped:",
        "            return spec_from_file_location(name, mapped[name] + '/__init__.py')",
        "sys.meta_path.append(Finder)",
        f"sys.path.insert(0, {str(tmp_path)!r})",
        "import mmaccel",
        f"assert mmaccel.__file__.startswith({str(tmp_path)!r})",
        "from mmaccel.modality import modalities",
        "print([modality.name for modality in modalities()])",
    )
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.strip() == str(list(NAMES)), done.stderr


# Nothing else names them


def test_no_table_of_modalities_is_left():
    """No collection in the core, the documentation or the demo has two of their names."""
    nodes = nodes_below("mmaccel", "docs/hooks", "demos/app", "tests/helpers")
    found = [f"{file}:{node.lineno}" for file, node in nodes if len(_names(node)) > 1]
    assert {place.partition(":")[0] for place in found} <= OTHER_TABLES, found


def test_no_branch_asks_which_modality_it_is():
    """A modality may know its own name; everything else asks its descriptor what it needs to know."""
    found = [
        f"{file}:{node.lineno}"
        for file, node in nodes_below("mmaccel", "docs/hooks", "kernels", "demos", *NAMES)
        if isinstance(node, ast.Compare) and compared_modalities(node) - {file.partition("/")[0]}
    ]
    assert found == []


@pytest.mark.parametrize("code", ("modality.name == 'video'", "'vlm' != adapter.modality", "name in ('speech',)"))
def test_such_a_branch_is_seen(code):
    assert compared_modalities(ast.parse(code, mode="eval").body)
    of_a_file = code.replace("modality.name", "kind").replace("modality", "kind").replace("name", "kind")
    assert not compared_modalities(ast.parse(of_a_file, mode="eval").body)


def nodes_below(*folders):
    """Every node of the code of these folders that names a modality, with its file; not through links."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path.parent.resolve().is_relative_to(ROOT / folder):
                text = path.read_text(encoding="utf-8")
                for node in ast.walk(ast.parse(text)) if QUOTED.search(text) else ():
                    yield path.relative_to(ROOT).as_posix(), node


def _names(node):
    """Names of modalities among the keys or members of a collection."""
    members = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", [])
    texts = [part.value for key in members if key for part in ast.walk(key) if isinstance(part, ast.Constant)]
    return {text for text in texts if text in NAMES}


def compared_modalities(node):
    """Names of modalities with which something named `name` or `modality` is compared."""
    parts = [part for side in (node.left, *node.comparators) for part in ast.walk(side)]
    named = {getattr(part, "attr", getattr(part, "id", None)) for part in parts}
    texts = {part.value for part in parts if isinstance(part, ast.Constant)}
    return texts & set(NAMES) if named & {"name", "modality"} else set()


# Packages that import on demand


@pytest.mark.parametrize("name", NAMES)
def test_a_package_has_all_that_it_lists(name):
    package = importlib.import_module(f"mmaccel.{name}")
    assert set(package.__all__) <= set(dir(package)) and len(set(package.__all__)) == len(package.__all__)
    assert all(hasattr(package, each) for each in package.__all__)
    modules = {found.name for found in pkgutil.iter_modules(package.__path__)}
    assert not modules & set(package.__all__), "a module of that name would hide what the package exports"
    with pytest.raises(AttributeError, match=f"module 'mmaccel.{name}' has no attribute 'Nothing'"):
        _ = package.Nothing


def test_methods_of_diffusion_have_a_second_name_where_pictures_are_made(capsys):
    from mmaccel import image, video

    assert image.HeterogeneousSteps is video.HeterogeneousSteps and "EasyCache" in dir(image)
    assert mmaccel.get_method("image.HeterogeneousSteps") is video.HeterogeneousSteps
    assert mmaccel.get_method("image.HeterogeneousSteps").name == "video.HeterogeneousSteps"
    assert "image.HeterogeneousSteps" in run(capsys, "methods", "--modality", "image")
    with pytest.raises(UnknownNameError):
        mmaccel.get_method("image.HoliTom")


def test_only_plain_imports_are_read(tmp_path):
    file = tmp_path / "__init__.py"
    file.write_text("if TYPE_CHECKING:\n    import os\n")
    with pytest.raises(AssertionError, match="write `from MODULE import NAME`"):
        lazy.on_demand("nothing", str(file))
