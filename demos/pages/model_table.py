"""The table of README.md that says what works on what, from the registry and the models that were run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmaccel.adapter import adapters
from mmaccel.bench.pages import markdown
from mmaccel.method import Method
from mmaccel.registry import methods
from mmaccel.speech.families.rows import CHAT

DOCS = Path(__file__).resolve().parents[2] / "docs"
ANY = ""  # stands for methods that name no family


@dataclass(frozen=True)
class Kind:
    """A line: models of a kind, and where the methods that name these families stand.

    Attributes
    ----------
    shown
        Classes that stand for the others; all of the adapters' where it is empty.
    models
        What stands for the list of the adapters' classes.
    runs, column
        The file of `docs` that says which classes were run, and where it says what worked on each.
    """

    title: str
    modality: str
    families: tuple[str, ...]
    shown: tuple[str, ...] = ()
    runs: str = ""
    column: str = ""
    models: str = ""


DIFFUSION = ("diffusion transformer", "diffusion unet", "diffusion in blocks")
WAN, FLUX = "WanTransformer3DModel", "FluxTransformer2DModel"
QWEN, GEMMA = "Qwen2_5_VLForConditionalGeneration", "Gemma3ForConditionalGeneration"
RECOGNISERS = ("whisper", "moonshine", "moonshine_streaming")
INSIDE = f"inside models that see, and inside {len(CHAT)} recognisers, such as `Qwen3ASR`"
HEARD = ("WhisperForConditionalGeneration", "Qwen3ASRForConditionalGeneration", "Wav2Vec2ForCTC")
KINDS = (
    Kind("diffusion", "video", DIFFUSION, (WAN, FLUX, "UNet2DConditionModel"), "families.json", "work"),
    Kind("models that see", "vlm", ("vision_language",), (QWEN, GEMMA), "visual_families.json", "kept"),
    Kind("language models", "vlm", ("decoder", ANY), models=f"most of transformers, alone, {INSIDE}"),
    Kind("CLIP", "vlm", ("clip",)),
    Kind("many views of a scene", "vlm", ("multi_view",)),
    Kind("images token by token", "image", ("emu3", "glm_image", "janus", ANY)),
    Kind("text in blocks", "canvas", ("block diffusion",)),
    Kind("text that begins at random", "canvas", ("uniform block diffusion",)),
    Kind("masked pictures", "canvas", ("masked pictures",)),
    Kind("recognisers of speech", "speech", RECOGNISERS, HEARD, "speech_families.json"),
)


def table() -> str:
    """A line for each kind of models: which they are, and the methods that work on them, exact and lossy."""
    lines = []
    for kind in KINDS:
        found = dict(_methods(kind))
        cells = (", ".join(text for cls, text in found.items() if cls.lossless is exact) for exact in (True, False))
        lines.append([f"**{kind.title}**: {_models(kind)}", *cells])
    return markdown(("models", "the same output", "lossy"), lines)


def _methods(kind: Kind) -> Iterator[tuple[type[Method], str]]:
    """The methods of a kind, those of most classes first, with where they work if it is not on all."""
    runs = list(_runs(kind).values())
    found = {cls: _count(cls, runs, kind.column) for cls in methods().values() if is_of(cls, kind)}
    for cls in sorted(found, key=lambda cls: -(found[cls] or 0)):
        count = found[cls]
        where = _only(cls, kind, bool(runs)) if count is None else "" if count == len(runs) else str(count)
        yield cls, f"`{cls.__name__}`" + (f" ({where})" if where else "")


def _count(cls: type[Method], runs: list[dict[str, Any]], column: str) -> int | None:
    """On how many classes a method worked; None where it was not run, and the files say nothing of it."""
    families = cls.families or ()
    if not column and families:  # of these runs each class has a family, and all methods of that work
        return sum(row["family"] in families for row in runs) if runs else None
    ran = [row[column] for row in runs if cls.__name__ in row.get(column, ())]
    return sum(found[cls.__name__] is not None for found in ran) if ran else None


def _only(cls: type[Method], kind: Kind, is_counted: bool) -> str:
    """The families of a method that is not for all of a kind; else whether others were run on each of its classes."""
    everywhere = cls.families is None or {*kind.families} <= cls.families
    if everywhere:
        return "not run on each" if is_counted else ""
    return ", ".join(sorted(cls.families or ()))


def is_of(cls: type[Method], kind: Kind) -> bool:
    return cls.name.startswith(f"{kind.modality}.") and bool({*(cls.families or (ANY,))} & {*kind.families})


def _models(kind: Kind) -> str:
    """How many classes were run and a few of them, or all that there are."""
    runs = _runs(kind)
    if runs:
        shown = ", ".join(_short(name, runs[name].get("name", name)) for name in kind.shown)
        return f"{len(runs)} classes, such as {shown}"
    fitting = [cls for cls in adapters() if cls.modality == kind.modality and cls.family in kind.families]
    return kind.models or ", ".join(_short(name, name) for cls in fitting for name in cls.classes)


def _short(name: str, known: str) -> str:
    """A class without what all of its kind end in, or the name that its models are known by."""
    return known if known != name else f"`{name.removesuffix('ForConditionalGeneration')}`"


def _runs(kind: Kind) -> dict[str, Any]:
    return dict(json.loads((DOCS / kind.runs).read_text(encoding="utf-8"))) if kind.runs else {}
