"""Hook of mkdocs: pages that are made from the registry, the docstrings, the command line and the repository's files.

They are made when the site is built and are not in the repository. `generated` makes them without mkdocs too, so that
the tests run their code.
"""

from __future__ import annotations

import re
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
if str(HERE) not in sys.path:  # mkdocs takes it out again after loading this file
    sys.path.insert(0, str(HERE))

from command_page import command_page  # noqa: E402
from family_page import family_page  # noqa: E402
from included import ROOT, lead, relinked, section, text  # noqa: E402
from method_page import address, index_page, method_page, plain  # noqa: E402
from preset_page import preset_page  # noqa: E402
from reference_page import reference_pages  # noqa: E402

from mmaccel import zoo  # noqa: E402
from mmaccel.cli.bench import benchmarks  # noqa: E402
from mmaccel.modality import modalities  # noqa: E402
from mmaccel.registry import methods  # noqa: E402

SOURCE = ROOT / "build" / "docs-source"  # as in mkdocs.yml
SHIPPED = (*zoo.names(), *zoo.heads())
NO_SOURCE = ("__pycache__", *SHIPPED)

# A line of a page that stands for a part of another file: `<!-- from README.md: Kernels -->`, or without the heading
# for what comes before the first one.
INCLUDE = re.compile(r"^<!-- from ([\w./-]+)(?:: (.+?))? -->$", re.MULTILINE)

# What people look for, and the page that tells of it; the search puts these before titles.
SOUGHT = {
    "quickstart/image.md": ["Flux", "SDXL", "Stable Diffusion", "Qwen-Image", "Janus"],
    "quickstart/video.md": ["Wan 2.2", "LTX", "HunyuanVideo", "diffusers"],
    "quickstart/vlm.md": ["Qwen-VL", "LLaVA", "InternVL", "long video"],
    "quickstart/text.md": ["Llama", "Qwen3", "speculative decoding", "EAGLE-3", "DFlash", "long prompts"],
    "quickstart/speech.md": ["Whisper", "Moonshine", "transcription", "streaming"],
    "quickstart/canvas.md": ["LLaDA", "Dream", "diffusion language model", "aMUSEd"],
    "quickstart/serve.md": ["OpenAI API", "streaming server", "Whisper server", "realtime"],
    "quickstart/batch.md": ["batch", "many prompts", "Ray"],
    "quickstart/engines.md": ["vLLM", "SGLang", "Triton"],
    "faq.md": ["laptop", "low VRAM", "quantization", "bitsandbytes", "multi GPU", "Mac", "AMD", "exact"],
}


def generated() -> dict[str, str]:
    """Markdown of all generated pages by their place in the site."""
    pages = {address(method): method_page(method) for method in methods().values()}
    pages |= {"methods/index.md": index_page(), "commands.md": command_page(), "presets.md": preset_page()}
    pages["families.md"] = family_page()
    pages |= reference_pages()
    for name, title in (("CONTRIBUTING.md", "contributing.md"), ("CHANGELOG.md", "changelog.md")):
        pages[title] = relinked(text(name), title, name)
    for name in SHIPPED:
        page = f"models/{name}/index.md"
        pages[page] = relinked(text(f"mmaccel/zoo/{name}/README.md"), page, f"docs/models/{name}/README.md")
    return pages


def written(markdown: str, page: str) -> str:
    """A page of the folder with the parts of other files that it asks for."""

    def one(match: re.Match[str]) -> str:
        name, heading = match.groups()
        return relinked(section(name, heading) if heading else lead(name), page, name)

    return INCLUDE.sub(one, markdown)


def on_startup(**_: Any) -> None:
    """Lay the packages out as they are imported, for mkdocstrings, which reads files and knows no mapped folders."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    shutil.rmtree(SOURCE, ignore_errors=True)
    for name, folder in project["tool"]["setuptools"]["package-dir"].items():
        target = SOURCE / name.replace(".", "/")
        shutil.copytree(ROOT / folder, target, ignore=_no_source, dirs_exist_ok=True)
    for path in SOURCE.rglob("*.py"):
        path.write_text(plain(path.read_text(encoding="utf-8")), encoding="utf-8")


def on_config(config: Any) -> Any:
    """Fill in the navigation: what is generated stands there as one word."""
    full = {"METHODS": _methods(), "REFERENCE": list(reference_pages()), "CARDS": _cards(), "BENCHMARKS": _benchmarks()}
    config.nav = [_filled(entry, full) for entry in config.nav]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages, and the pictures of the model cards."""
    from mkdocs.structure.files import File

    for place, markdown in generated().items():
        files.append(File.generated(config, place, content=markdown))
    for name in SHIPPED:
        for picture in zoo.path(name).glob("samples.png"):
            files.append(File.generated(config, f"models/{name}/{picture.name}", abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Take in what a page asks for, and say by which words it is to be found."""
    page.meta["tags"] = SOUGHT.get(page.file.src_uri, [])
    return written(markdown, page.file.src_uri)


def _filled(entry: Any, full: dict[str, Any]) -> Any:
    if isinstance(entry, dict):
        return {title: _filled(value, full) for title, value in entry.items()}
    if isinstance(entry, list):
        flat = [_filled(value, full) for value in entry]
        return [item for value in flat for item in (value if isinstance(value, list) else [value])]
    return full.get(entry, entry)


def _methods() -> list[Any]:
    by_modality: dict[str, list[str]] = {}
    for name, method in methods().items():
        by_modality.setdefault(name.split(".")[0], []).append(address(method))
    return ["methods/index.md", *({one.title: by_modality.get(one.name, [])} for one in modalities())]


def _no_source(_: str, names: list[str]) -> list[str]:
    return [name for name in names if name in NO_SOURCE]


def _benchmarks() -> list[Any]:
    """The committed pages: the overview, those that it tells of in their order, and apart those of other scripts."""
    measured = [f"benchmarks/{name}.md" for name in benchmarks()]
    longer = sorted(f"benchmarks/long/{path.name}" for path in (HERE.parent / "benchmarks" / "long").glob("*.md"))
    return ["benchmarks/index.md", *measured, {"By scripts of their own": longer}]


def _cards() -> list[str]:
    return [f"models/{name}/index.md" for name in SHIPPED]
