"""The site says what the registry says, and builds without a warning."""

import json
import re
import tomllib

import included
import pages as site
import pytest
from included import relinked
from measured import method_of
from reader import DOCS, ROOT, all_pages

from mmaccel import presets
from mmaccel.demos.pages import model_table
from mmaccel.modality import modalities
from mmaccel.registry import methods
from mmaccel.speech.families.rows import CHAT


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


def test_the_versions_that_the_page_of_comfyui_asks_for_are_those_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    page = (DOCS / "quickstart" / "comfyui.md").read_text()
    assert f"Python {project['requires-python'].removeprefix('>=')}" in page
    for name in ("torch", "transformers", "diffusers"):
        least = next(one for one in project["dependencies"] if one.startswith(f"{name}>="))
        assert least.replace(">=", " ") in page


def test_the_measured_rows_are_those_of_the_benchmarks():
    page = all_pages()[site.address(methods()["image.ZipAR"])]
    row = presets.presets_of("image", "janus")["fast"].row
    line = next(line for line in page.splitlines() if line.startswith("| `ZipAR(window=2)`"))
    assert f"{row['speedup']:.2f}x" in line and f"{row['quality']:.4g}" in line
    assert "No row of the committed benchmarks" in all_pages()["methods/video/faster_cache.md"]
    assert "| fewer steps(steps=25) |" in all_pages()["methods/video/encoder_reuse.md"]
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


def test_pages_whose_links_open_on_the_site_alone_say_so():
    """Pages of methods, and parts of pages, are made when the site is built; who reads the repository is told."""
    for path in DOCS.rglob("*.md"):
        text = path.read_text(encoding="utf-8")
        links = re.findall(r"\]\(([^):#]+\.md)", text)
        made = [link for link in links if not (path.parent / link).is_file()]
        made += site.INCLUDE.findall(text)
        assert not made or "`make docs`" in text, f"{path.name}: {made}"


def test_the_reference_has_what_pages_send_engines_to():
    page = all_pages()["reference/decoding.md"]
    assert all(f"::: mmaccel.decoding.{name}" in page for name in ("TextDrafter", "Draft", "Verdict"))
    assert "::: mmaccel.decoding.custom_generate.CustomGenerate" in all_pages()["reference/custom_generate.md"]
    assert "::: mmaccel.kernels.policies.sparge" in all_pages()["reference/policies.md"]


def test_exact_says_in_which_precision():
    limited = [name for name, method in methods().items() if "in float32" in (method.__doc__ or "")]
    assert limited and "float32" in included.section("README.md", "What exact means here")
    assert "float32" in (DOCS / "faq.md").read_text(encoding="utf-8")


def test_the_readme_names_every_method_where_it_works():
    rows = {line.split("**")[1]: line.split("|")[2:4] for line in _table_of_models() if line.startswith("| **")}
    assert list(rows) == [kind.title for kind in model_table.KINDS]
    for name, method in methods().items():
        cells = [rows[kind.title] for kind in model_table.KINDS if model_table.is_of(method, kind)]
        assert cells, f"{name} stands nowhere"
        for exact, lossy in cells:
            assert (f"`{method.__name__}`" in exact) == method.lossless != (f"`{method.__name__}`" in lossy), name


def test_the_readme_says_on_how_many_classes_a_method_works():
    ran = json.loads((DOCS / "families.json").read_text(encoding="utf-8"))
    apart = sum("TokenCache" in row["work"] for row in ran.values())
    (line,) = [line for line in _table_of_models() if line.startswith("| **diffusion**")]
    assert f"{len(ran)} classes" in line and f"`TokenCache` ({apart})" in line and "`HeterogeneousSteps`," in line
    (line,) = [line for line in _table_of_models() if line.startswith("| **recognisers")]
    assert "`SuffixDraft` (3)" in line, "those whose decoder is drafted for"
    (line,) = [line for line in _table_of_models() if line.startswith("| **language models")]
    assert f"inside {len(CHAT)} recognisers" in line, "those that are language models take the drafts of these"


def _table_of_models():
    return included.section("README.md", "What works on what").splitlines()


def test_unets_are_promised_the_presets_that_were_measured():
    found = presets.presets_of("video", "diffusion unet")
    assert {"balanced", "fast"} == found.keys() and all(preset.row["speedup"] > 1 for preset in found.values())
    text = (DOCS / "quickstart" / "video.md").read_text(encoding="utf-8")
    (told,) = [part for part in re.split(r"\n\n", text) if "UNet" in part and "preset" in part]
    assert "[measured](../benchmarks/unet.md)" in told


def test_links_of_other_files_fit_the_page():
    text = (
        "[a](docs/benchmarks/image.md) ![b](docs/comparison.png) [c](CONTRIBUTING.md#x) [d](demos/training/tiny_wan.py)"
    )
    assert relinked(text, "models/index.md") == (
        "[a](../benchmarks/image.md) ![b](../comparison.png) [c](../contributing.md#x) `demos/training/tiny_wan.py`"
    )
    with pytest.raises(KeyError, match="no section 'Nowhere'"):
        site.written("<!-- from README.md: Nowhere -->", "index.md")


SEARCHES = {
    "SuffixDecoding": "suffix_decoding.html",
    "use with diffusers Wan 2.2": "quickstart/video.html",
    "Flux": "quickstart/image.html",
    "low VRAM": "faq.html",
    "Qwen-VL long video": "quickstart/vlm.html",
    "Whisper streaming server": "quickstart/serve.html",
    "ComfyUI": "quickstart/comfyui.html",
    "vLLM": "quickstart/engines.html",
}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The site, built without a warning."""
    pytest.importorskip("mkdocs")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    folder = tmp_path_factory.mktemp("site")
    config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True)
    config.plugins.on_startup(command="build", dirty=False)
    build(config)
    return folder


def test_the_site_asks_for_nothing(built):
    for page in ("index", "methods/image/zipar", "reference/speech", "commands", "presets"):
        html = (built / f"{page}.html").read_text(encoding="utf-8")
        loaded = re.findall(r'<(?:script|link|img|iframe)[^>]+(?:src|href)="(https?:[^"]+)"', html)
        assert [url for url in loaded if "canonical" not in url] == [], page
        links = re.findall(r'<a[^>]+href="([^"#:]+)"', html)
        assert links and not [link for link in links if link.endswith(("/", "."))], f"{page}: a folder opens as a list"


def test_the_reference_has_what_it_is_of(built):
    assert "StreamingRecognizer" in (built / "reference/speech.html").read_text(encoding="utf-8")
    policies = (built / "reference/policies.html").read_text(encoding="utf-8")
    assert all(f'id="mmaccel.kernels.policies.{name}"' in policies for name in ("sparge", "fasa", "st_lite"))


def test_the_benchmarks_stand_in_the_order_of_the_overview():
    order = site._benchmarks()
    told = re.findall(r"All rows are in \[(\w+)\.md\]", (DOCS / "benchmarks" / "index.md").read_text(encoding="utf-8"))
    assert order[:-1] == [f"benchmarks/{name}.md" for name in ("index", *told)]
    written = {path.relative_to(DOCS).as_posix() for path in (DOCS / "benchmarks").rglob("*.md")}
    assert {*order[:-1], *order[-1]["By scripts of their own"]} == written, "a page has no place"


def test_a_site_that_is_opened_from_a_folder_can_be_searched_and_its_tables_fit(built, launched):
    browser = launched()
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto((built / "benchmarks" / "image.html").as_uri())
    for sought, where in SEARCHES.items():
        page.get_by_role("textbox", name="Search").fill("")
        page.get_by_role("textbox", name="Search").press_sequentially(sought)  # it follows the keys
        page.locator(f'.md-search-result__item:first-child > a[href*="{where}"]').wait_for()
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 900})
        page.reload()  # without the search, whose field moves while it changes its width
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    browser.close()
