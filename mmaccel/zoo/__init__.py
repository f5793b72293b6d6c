"""Small checkpoints of the real architectures, trained by recipes in `demos/` and shipped in the package.

They make everything run, and every quality figure measurable, with no download and no GPU.

Example
-------
>>> from mmaccel import zoo
>>> zoo.names()
('tiny-janus', 'tiny-wan', 'tiny-onevision', 'tiny-canvas', 'tiny-reader', 'tiny-amused', 'tiny-far', 'tiny-unet')
>>> model, processor = zoo.load("tiny-janus")
>>> inputs = processor(text="red heart", generation_mode="image", return_tensors="pt")
>>> tokens = model.generate(**inputs, generation_mode="image")  # doctest: +SKIP
>>> pipe = zoo.load("tiny-wan")
>>> frames = pipe("rocket moves up, pizza stays, blue background").frames[0]  # doctest: +SKIP
"""

from __future__ import annotations

import importlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from ..errors import SettingError, UnknownNameError, WeightsError, unknown_name
from ..modality import Modality, modalities
from .vocabulary import facts_of
from .weights import no_foreign_code

# Each has a module of this package with `load(folder)` and `prompts(folder, count, seed, **choice)`.
_MODELS = (
    "tiny-janus",
    "tiny-wan",
    "tiny-onevision",
    "tiny-canvas",
    "tiny-reader",
    "tiny-amused",
    "tiny-far",
    "tiny-unet",
)
_HEADS = ("smollm2-eagle",)  # of models that are not shipped: a folder alone
_EVERY = {"minutes", "seed", "steps"}  # what recipes tell of a model without names of things
_TOLD = ("model_index.json", "config.json", "draft/config.json")  # the first that is there tells what a folder holds


def names() -> tuple[str, ...]:
    """Names of all models whose weights are here."""
    return tuple(name for name in _MODELS if _folder(name).is_dir())


def heads() -> tuple[str, ...]:
    """Names of the heads that are here, which draft for models of others."""
    return _HEADS


def is_known(name: str) -> bool:
    """Whether this is the name of a model, also of one that is not trained yet."""
    return name in _MODELS


def like(model: str | Path) -> str | None:
    """Which of the models here this is: one of their names, or a folder that a recipe in `demos/` wrote; else None."""
    if isinstance(model, str) and is_known(model):
        return model
    found = _form(Path(model))
    return None if found is None else next((name for name in names() if _form(_folder(name)) == found), None)


def _form(folder: Path) -> tuple[Any, ...] | None:
    """What tells the models of recipes apart; None for a folder that no recipe wrote."""
    there = next((folder / name for name in _TOLD if (folder / name).is_file()), None)
    if there is None or not (folder / "training.json").is_file():
        return None
    with suppress(ValueError, AttributeError):  # files of that name that tell something else
        told: dict[str, Any] = json.loads(there.read_text(encoding="utf-8"))
        known = facts_of(folder).keys()
        if "names" in known or known >= _EVERY:
            return told.get("_class_name"), told.get("model_type"), "block_length" in told, "names" in known
    return None


def modality(name: str) -> str:
    """What a model is for: ``"image"`` and ``"video"`` make these, ``"vlm"`` reads them, ``"canvas"`` fills gaps."""
    _check_model(name)
    return next(modality.name for modality in modalities() if name in _runs(modality))


def _runs(modality: Modality) -> set[str]:
    return {*modality.models(), *(command.model for command in modality.more_commands().values())}


def path(name: str) -> Path:
    """Folder of a model: weights, configuration, model card.

    That of ``"smollm2-eagle"`` holds a head for SmolLM2-135M-Instruct, see :class:`mmaccel.vlm.EagleDraft`.
    """
    if name not in (*_MODELS, *_HEADS):
        raise unknown_name("zoo model", name, names())
    if not _folder(name).is_dir():
        raise WeightsError(
            f"{name} is not trained yet: python -m mmaccel.demos.training.{name.removeprefix('tiny-')}.train"
            " --output FOLDER trains it, and FOLDER/model can stand for its name"
        )
    return _folder(name)


def _folder(name: str) -> Path:
    return Path(__file__).parent / name


def load(name: str | Path, folder: Path | str | None = None) -> Any:
    """Load a model with what is needed to call it, as transformers or diffusers would return it.

    Parameters
    ----------
    name
        One of :func:`names`, or a folder that a recipe in `demos/` wrote, `FOLDER/model`.
    folder
        Of other weights of the same form; None (default) for those of this name.

    Returns
    -------
    ``(model, processor)`` for transformers models, the pipeline for diffusers', in float32 on the CPU; of `tiny-canvas`
    the pipeline and the processor of its pictures.

    Raises
    ------
    UnknownNameError
        If there is no such model.
    WeightsError
        If the files are truncated or not those of the model.
    UnsupportedTargetError
        If they ask for Python code of their own.
    """
    if not isinstance(name, str | os.PathLike):
        raise unknown_name("zoo model", name, names())
    own = like(name) or (name if isinstance(name, str) else None)
    if own is None:
        raise UnknownNameError(
            f"{name} is no folder of a zoo model that a recipe wrote; those of mmaccel are given as text: zoo.load("
            f"{names()[0]!r})"
        )
    module, here = _module(own), path(own) if own == name else Path(name)
    with no_foreign_code(here if folder is None else folder):
        return module.load(here if folder is None else Path(folder))


def prompts(name: str, count: int, seed: int = 0, **choice: Any) -> list[str]:
    """`count` different prompts that the model understands, a pure function of the seed.

    `choice` narrows them down, where a model offers it: `zoo.prompts("tiny-wan", 8, things=2, moving=1)`.

    Raises
    ------
    SettingError
        If it understands fewer.
    """
    found = list(_module(name).prompts(path(name), count, seed, **choice))
    if len(found) < count:
        raise SettingError(f"count={count}: {name} understands no more prompts than {len(found)}, ask for fewer")
    return found


def questions(name: str, count: int, seed: int = 0, **choice: Any) -> list[Any]:
    """`count` questions about clips that the model was not trained on, with their answers; four questions a clip.

    A pure function of the seed. Each is a named tuple ``(frames, question, answer, kind)``. `choice` says which clips,
    where a model offers it: `zoo.questions("tiny-onevision", 8, brief=True)` are about things seen for a moment.

    Raises
    ------
    SettingError
        If the model answers no questions.
    """
    ask = getattr(_module(name), "questions", None)
    if ask is None:
        answering = [other for other in names() if hasattr(_module(other), "questions")]
        raise SettingError(f"{name} answers no questions, unlike {', '.join(answering)}")
    return list(ask(path(name), count, seed, **choice))


def pages(name: str, count: int, seed: int = 0) -> list[Any]:
    """`count` printed pages that a reader was not trained on, with what they say; a pure function of the seed.

    Each is a named tuple ``(picture, text, regions)``: uint8 `[H, W, 3]`, all of it as Markdown, and its parts in
    reading order, a box ``(left, top, right, bottom)`` in pixels and the Markdown of each.

    Raises
    ------
    SettingError
        If the model reads no pages.
    """
    draw = getattr(_module(name), "pages", None)
    if draw is None:
        raise SettingError(f"{name} reads no pages, unlike tiny-reader")
    return list(draw(path(name), count, seed))


def reference(name: str) -> tuple[list[str], torch.Tensor]:
    """Captions and image tokens `[n, N]` of real pictures that the model was not trained on.

    Quality is measured against them.

    Raises
    ------
    SettingError
        If the model has none.
    """
    pictures = path(name) / "reference.safetensors"
    if not pictures.is_file():
        raise SettingError(f"{name} has no reference pictures, unlike tiny-janus")
    with safe_open(pictures, framework="pt") as file:
        return json.loads(file.metadata()["captions"]), file.get_tensor("tokens").long()


def _module(name: str) -> Any:
    _check_model(name)
    return importlib.import_module(f".{name.replace('-', '_')}", __name__)


def _check_model(name: str) -> None:
    path(name)  # which checks that it is known
    if name in _HEADS:
        raise SettingError(f"{name} is a head and no model: vlm.EagleDraft(head=zoo.path({name!r})) drafts with it")
