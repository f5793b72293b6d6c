"""The package list, the import names and what ships in the wheel."""

import ast
import importlib.machinery
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import mmaccel
from mmaccel import zoo

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
TOOL = PROJECT["tool"]["setuptools"]


def _folder(package: str) -> Path:
    mapped = TOOL["package-dir"]
    for prefix in sorted(mapped, key=len, reverse=True):
        if package == prefix or package.startswith(prefix + "."):
            return ROOT / mapped[prefix] / package[len(prefix) :].lstrip(".").replace(".", "/")
    raise AssertionError(package)


def test_every_package_of_the_tree_is_listed():
    listed = {_folder(package).resolve() for package in TOOL["packages"]}
    code = [ROOT / name for name in set(TOOL["package-dir"].values())]
    in_tree = {path.parent.resolve() for folder in code for path in folder.rglob("*.py")}
    assert in_tree - {ROOT / "demos" / "comfyui" / "pack"} == listed  # that is copied into ComfyUI, and imported there


def test_every_package_has_an_init():
    missing = [package for package in TOOL["packages"] if not (_folder(package) / "__init__.py").is_file()]
    assert missing == []


def test_no_module_begins_with_what_windows_lacks():
    lacked = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "termios", "tty"}
    for path in (path for name in set(TOOL["package-dir"].values()) for path in (ROOT / name).rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            names = [part.name for part in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            assert lacked.isdisjoint(names), path


def test_version_is_said_once():
    assert PROJECT["project"]["version"] == mmaccel.__version__


def test_the_nodes_have_the_version_of_the_package_that_they_need():
    """As ComfyUI's registry has versions: three numbers."""
    pack = tomllib.loads((ROOT / "demos" / "comfyui" / "pack" / "pyproject.toml").read_text())["project"]
    assert pack["version"] == mmaccel.__version__.partition(".dev")[0]
    assert pack["dependencies"] == [f"mmaccel>={mmaccel.__version__}"]


def test_weights_are_small_safetensors_only():
    for name in zoo.names():
        files = list(zoo.path(name).rglob("*"))
        assert 0 < sum(f.stat().st_size for f in files if f.suffix == ".safetensors") <= 25e6
        assert not [f for f in files if f.suffix in (".bin", ".pt", ".pth", ".pkl", ".ckpt")]


def test_every_file_of_a_shipped_model_is_in_the_wheel():
    patterns = TOOL["package-data"]["mmaccel.zoo"]
    shipped = {file for pattern in patterns for file in (ROOT / "mmaccel" / "zoo").glob(pattern)}
    for name in zoo.names():
        assert {file for file in zoo.path(name).rglob("*") if file.is_file()} <= shipped


def test_every_file_beside_code_is_in_the_wheel():
    for package in TOOL["packages"]:
        shipped = {file for pattern in TOOL["package-data"].get(package, []) for file in _folder(package).glob(pattern)}
        beside = {file for file in _folder(package).iterdir() if file.suffix in (".json", ".css", ".js", ".html")}
        assert beside <= shipped, package


def _in_a_new_process(*lines):
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, cwd=ROOT / "tests")
    assert done.returncode == 0, done.stderr


def test_packages_are_there_after_importing_mmaccel_alone_and_load_what_they_need():
    _in_a_new_process(
        "import sys, mmaccel",
        "assert {'canvas', 'decoding', 'image', 'kernels', 'speech', 'video', 'vlm', 'zoo'} <= set(dir(mmaccel))",
        "mmaccel.compare, mmaccel.Comparison",
        "assert not hasattr(mmaccel, 'nothing') and 'torch' not in sys.modules",
        "import mmaccel.stepping",
        "assert not {'diffusers', 'transformers'} & set(sys.modules)",
        "import mmaccel.kernels, mmaccel.kernels.policies, mmaccel.video, mmaccel.vlm",
        "assert 'triton' not in sys.modules and 'mmaccel.kernels.gpu' not in sys.modules",
        "assert mmaccel.video.EasyCache().name == 'video.EasyCache' and 'tiny-wan' in mmaccel.zoo.names()",
        "assert callable(mmaccel.kernels.block_sparse_attention)",
        "import torch, transformers",
        "sizes = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, vocab_size=9)",
        "model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))",
        "with mmaccel.accelerate(model, mmaccel.vlm.SuffixDecoding()) as fast:",
        "    model.generate(torch.ones(1, 3, dtype=torch.long), max_new_tokens=4)",
        "assert fast.report.forwards and 'diffusers' not in sys.modules",
        "from mmaccel.cli import main as cli",
        "cli._quiet_libraries()",
        "assert 'diffusers' not in sys.modules",
        "from diffusers.utils import logging",
        "assert logging.get_verbosity() == logging.ERROR",
    )


def test_all_methods_patch_nothing_and_load_no_kernel_of_a_gpu():
    """Triton itself may be there: parts of transformers import it where it is installed."""
    _in_a_new_process(
        "import sys",
        "import torch.nn.functional as F",
        "from transformers import GenerationMixin, PreTrainedModel",
        "from diffusers import DiffusionPipeline, ModelMixin",
        "classes = (GenerationMixin, PreTrainedModel, DiffusionPipeline, ModelMixin)",
        "before = [dict(vars(cls)) for cls in classes] + [F.scaled_dot_product_attention]",
        "import mmaccel",
        "mmaccel.methods()",
        "assert [dict(vars(cls)) for cls in classes] + [F.scaled_dot_product_attention] == before",
        "assert 'mmaccel.kernels.gpu' not in sys.modules",
    )


@pytest.mark.skipif(not (ROOT / "mmaccel" / "image").is_symlink(), reason="git made no links here")
def test_tools_find_every_package_in_a_plain_clone():
    """As an editor or mypy does: by folders alone, without what pip has installed."""
    for package in TOOL["packages"]:
        search, name = [str(ROOT)], ""
        for part in package.split("."):
            name = f"{name}.{part}".lstrip(".")
            found = importlib.machinery.PathFinder.find_spec(name, search)
            assert found is not None and found.origin, f"{package}: no link leads to it"
            search = found.submodule_search_locations
        assert Path(found.origin).resolve() == (_folder(package) / "__init__.py").resolve(), package


@pytest.mark.parametrize(
    "name", sorted(set(TOOL["package-dir"].values()) - {"mmaccel", "kernels/ops", "kernels/policies"})
)
def test_a_root_folder_imported_by_its_bare_name_says_what_to_do(name):
    done = subprocess.run([sys.executable, "-c", f"import {name}"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 1 and f"write `from mmaccel import {name}`" in done.stderr


def test_links_lead_into_the_tree_only():
    """A new file is found without another install, and nothing of the tree is in the wheel twice."""
    for link in (path for folder in ("mmaccel", "kernels") for path in (ROOT / folder).rglob("*") if path.is_symlink()):
        assert not Path(os.readlink(link)).is_absolute() and link.resolve().is_relative_to(ROOT), link


@pytest.mark.parametrize(
    "name",
    [
        "_prepare_attention_mask_for_generation",
        "_prepare_generation_config",
        "_prepare_special_tokens",
        "_validate_model_kwargs",
    ],
)
def test_private_names_of_transformers_are_still_there(name):
    from transformers import GenerationMixin

    assert callable(getattr(GenerationMixin, name))
