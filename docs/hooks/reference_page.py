"""The reference: everything public that is no method, from its docstring."""

from __future__ import annotations

import importlib

from mmaccel.modality import modalities
from mmaccel.registry import methods

CORE = {"mmaccel": "The core"}
SHARED = {
    "mmaccel.decoding": "Drafts",
    "mmaccel.decoding.custom_generate": "Drafts without a session",
    "mmaccel.kernels": "Kernels",
    "mmaccel.kernels.policies": "Policies of attention",
    "mmaccel.zoo": "The shipped models",
}


def reference_pages() -> dict[str, str]:
    """A page for each module that has something public beside its methods."""
    modules = CORE | {modality.package: modality.title for modality in modalities()} | SHARED
    pages = {f"reference/{name.split('.')[-1]}.md": _page(name, title) for name, title in modules.items()}
    return {place: text for place, text in pages.items() if text}


def _page(name: str, title: str) -> str:
    module = importlib.import_module(name)
    public = getattr(module, "__all__", None) or [n for n in vars(module) if _is_own(module, n)]
    classes = methods().values()
    shown = [n for n in public if not n.startswith("_") and getattr(module, n) not in classes]
    blocks = [f"::: {name}.{n}" for n in shown if callable(getattr(module, n))]
    folder, _, last = name.rpartition(".")
    intro = f"`from {folder} import {last}`" if folder else f"`import {name}`"
    return "\n\n".join([f"# {title}", intro, *blocks]) + "\n" if blocks else ""


def _is_own(module: object, name: str) -> bool:
    """Whether a module without `__all__` defines this function itself."""
    return not name.startswith("_") and getattr(getattr(module, name), "__module__", "") == module.__name__
