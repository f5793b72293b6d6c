"""The site says what the registry says, and builds without a warning."""

import re

import pages as site
import pytest
from included import relinked
from measured import method_of
from reader import DOCS, ROOT, all_pages

from mmaccel import presets
from mmaccel.modality import modalities
from mmaccel.registry import methods


def test_every_method_has_a_page_with_what_it_must_say():
    for name, method in methods().items():
        assert method.advice.helps and method.advice.costs, f"{name} does not say when it helps and what it costs"
        page = all_pages()[site.address(method)]
        for setting, default in method().settings().items():
            assert f"`{setting}`" in page and f"`{getattr(method(), setting)!r}`" in page, (
                f"{name}: {setting}={default}"
            )
        assert method.paper in page and method.summary().split(";")[0].rstrip(".")[:40] in page
        assert ("**exact**" in page) == method.lossless and f"{name}(" in page
        assert f"**Helps**: {method.advice.helps}" in page and f"**Costs**: {method.advice.costs}" in page
        for other in methods().values():
            together = page.rpartition("## Together with others")[2]
            assert (f"[{other.__name__}](" in together) == (method.conflicts(other) and other is not method)


def test_the_measured_rows_are_those_of_the_benchmarks():
    page = all_pages()[site.address(methods()["image.ZipAR"])]
    row = presets.presets_of("image", "janus")["fast"].row
    line = next(line for line in page.splitlines() if line.startswith("| `ZipAR(window=2)`"))
    assert f"{row['speedup']:.2f}x" in line and f"{row['quality']:.4g}" in line
    assert "No row of the committed benchmarks" in all_pages()["methods/video/encoder_reuse.md"]
    assert method_of({"modality": "video", "method": "fewer steps", "settings": {}}) is None


def test_every_preset_is_on_its_page():
    page = all_pages()["presets.md"]
    for modality in (modality.name for modality in modalities()):
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
    text = (
        "[a](docs/benchmarks/image.md) ![b](docs/comparison.png) [c](CONTRIBUTING.md#x) [d](demos/training/tiny_wan.py)"
    )
    assert relinked(text, "models/index.md") == (
        "[a](../benchmarks/image.md) ![b](../comparison.png) [c](../contributing.md#x) `demos/training/tiny_wan.py`"
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
