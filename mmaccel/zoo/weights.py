"""Loading of safetensors checkpoints with checks that transformers leaves to the reader of its warnings."""

from __future__ import annotations

import io
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from ..errors import MissingExtraError, UnsupportedTargetError, WeightsError, unknown_name

# How transformers and diffusers, which raise nothing of their own here, begin to say that a file is damaged or foreign.
_DAMAGED = "Unable to load weights"
_FOREIGN = "Cannot load", "Error(s) in loading", "You set `ignore_mismatched_sizes`", "We encountered some issues"
# How both begin to say that quantized weights need a GPU.
_NO_GPU = "No GPU", "GPU is required", "HIGGS quantization is only", "FPQuant quantization is only"
_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}  # by their names in safetensors

_ONE_AT_A_TIME = threading.RLock()


def check_name(kind: str, name: str, known: Iterable[str]) -> None:
    """Raise an `UnknownNameError` for the name of a model that is neither known, nor a hub id, nor a folder."""
    if "/" not in name and not Path(name).is_dir():
        raise unknown_name(f"{kind} (hub ids are owner/name, and there is no such folder)", name, known)


@contextmanager
def no_foreign_code(source: str | Path) -> Iterator[None]:
    """Load a checkpoint in this block, and never run Python code that it brings.

    Loaders inside pass ``trust_remote_code=False`` wherever they can. Some paths of transformers drop it again (a
    processor of a known model, or one inside a pipeline) and then ask on the terminal: they are given no terminal.

    Raises
    ------
    UnsupportedTargetError
        If the checkpoint cannot be loaded without its code.
    """
    with _ONE_AT_A_TIME:
        terminal, sys.stdin = sys.stdin, io.StringIO()
        try:
            yield
        except (ValueError, OSError) as error:
            if "trust_remote_code" not in str(error):
                raise
            raise UnsupportedTargetError(
                f"{source} needs Python code of its own, which mmaccel does not run: read that code, load the model"
                " yourself with trust_remote_code=True, and pass it to mmaccel.accelerate(model, ...)"
            ) from error
        finally:
            sys.stdin = terminal


@contextmanager
def _on_this_machine(source: str | Path) -> Iterator[None]:
    """Load weights in this block, and say in a line what quantized ones lack here."""
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(f"the weights in {source} need a package that is not here ({error})") from error
    except RuntimeError as error:
        if not str(error).startswith(_NO_GPU):
            raise
        raise UnsupportedTargetError(f"the weights in {source} cannot be loaded on this machine: {error}") from error


def load_pretrained(
    cls: Any, source: str | Path, dtype: torch.dtype | None = None, unread: tuple[str, ...] = (), **options: Any
) -> Any:
    """`cls.from_pretrained(source)` from safetensors only, refusing weights that do not belong to the class.

    Weights whose names end in one of `unread` may be missing.

    Raises
    ------
    WeightsError
        If the file is truncated, or tensors are missing or of the wrong shape.
    MissingExtraError, UnsupportedTargetError
        If they are quantized, and need a package or a GPU that is not here.
    """
    try:
        with _on_this_machine(source):
            model, info = cls.from_pretrained(
                source, dtype=dtype or "auto", use_safetensors=True, output_loading_info=True, **options
            )
    except (SafetensorError, EOFError) as error:
        raise _damaged(source, error) from error
    except OSError as error:
        if not str(error).startswith(_DAMAGED):
            raise
        raise WeightsError(f"the weights in {source} are damaged: fetch or install them again") from error
    except (RuntimeError, ValueError) as error:
        if not str(error).startswith(_FOREIGN):  # a download that failed, or too little memory
            raise
        reason = str(error).splitlines()[0]
        raise WeightsError(f"the weights in {source} are not those of a {cls.__name__} ({reason})") from error
    missing = [name for name in info["missing_keys"] if not name.endswith(unread)]
    wrong = [*missing, *info["mismatched_keys"]]
    if wrong:
        raise WeightsError(
            f"the weights in {source} are not those of a {type(model).__name__}: {len(wrong)} tensors are missing"
            f" or of another shape, such as {wrong[0]}"
        )
    return model.eval()


def _damaged(source: str | Path, error: Exception) -> WeightsError:
    return WeightsError(f"the weights in {source} are damaged ({error}): fetch or install them again")


def load_pipeline(source: str, dtype: torch.dtype | None = None) -> Any:
    """A diffusers pipeline from a hub id or a folder, all of it in one precision, by default that of its denoiser.

    Without a name for it, diffusers loads its own parts in float32 and transformers' parts as they are stored, and
    most pipelines cannot run in two precisions.

    Raises
    ------
    UnsupportedTargetError
        If it needs Python code of its own, or a GPU for quantized weights.
    MissingExtraError
        If quantized weights need a package that is not here.
    WeightsError
        If the weights of a part are damaged, or those of a text encoder are missing.
    """
    from diffusers import DiffusionPipeline

    safe = {"use_safetensors": True, "trust_remote_code": False}
    with no_foreign_code(source):
        folder = Path(source if Path(source).is_dir() else DiffusionPipeline.download(source, **safe))
        dtype = dtype or stored_dtype(folder)
        try:
            # where diffusers does not know the pipeline, it says so before anything is loaded
            loaded = _of_transformers(folder, dtype) if pipeline_class(str(folder)) else {}
            with _on_this_machine(source):
                return DiffusionPipeline.from_pretrained(source, dtype=dtype, **safe, **loaded)
        except SafetensorError as error:
            raise _damaged(source, error) from error


def pipeline_class(source: str) -> type | None:
    """The class of diffusers that the index of a pipeline names; None where there is no such index or class."""
    import diffusers

    try:
        name = diffusers.DiffusionPipeline.load_config(source).get("_class_name")
    except (OSError, ValueError):  # whoever loads it says what is wrong
        return None
    found = getattr(diffusers, str(name), None)
    return found if isinstance(found, type) and issubclass(found, diffusers.DiffusionPipeline) else None


def _of_transformers(folder: Path, dtype: torch.dtype) -> dict[str, Any]:
    """The models of transformers' in a pipeline, whose missing tensors diffusers would leave drawn at random."""
    import transformers
    from diffusers import DiffusionPipeline

    found = {}
    for name, entry in DiffusionPipeline.load_config(folder).items():
        library, kind = entry if isinstance(entry, list | tuple) and len(entry) == 2 else ("", "")
        cls = getattr(transformers, kind, None) if library == "transformers" else None
        if isinstance(cls, type) and issubclass(cls, transformers.PreTrainedModel):
            part = folder / name
            found[name] = load_pretrained(cls, part if part.is_dir() else folder, dtype)  # as diffusers finds it
    return found


def stored_dtype(folder: Path) -> torch.dtype:
    """The dtype of most parameters of the denoiser in a pipeline's folder; float32 where it is not to be seen.

    Scales and tables beside quantized ones, which most often are float32, do not count.
    """
    found = [
        file
        for part in ("transformer", "unet", "prior")
        for file in sorted((folder / part).glob("diffusion_pytorch_model[.-]*safetensors"))
        if "." not in file.stem  # behind which a variant has its name
    ]
    stored: Counter[str] = Counter()
    with suppress(SafetensorError):  # whoever loads a damaged file says so
        for file in found[:1]:
            with safe_open(file, "pt") as weights:
                named = [name for name in weights.offset_keys() if name.endswith((".weight", ".bias"))]
                stored.update(weights.get_slice(name).get_dtype() for name in named)
    return _DTYPES[max(_DTYPES, key=lambda name: stored[name])]
