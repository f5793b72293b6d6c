"""Which implementation of an op runs: one rule, to read with :func:`choose` and to override with :class:`backend`."""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import warnings
from contextvars import ContextVar, Token
from functools import cache
from types import ModuleType, TracebackType

import torch

from mmaccel.errors import unknown_name

BACKENDS = ("auto", "reference", "native", "triton")
_MODULES = {
    "reference": "mmaccel.kernels.reference",
    "native": "mmaccel.kernels.native",
    "triton": "mmaccel.kernels.gpu",
}
OLDEST = 8, 0  # compute capability that Triton supports: Ampere's
_current: ContextVar[str] = ContextVar("mmaccel.kernels.backend", default="auto")


class backend:  # noqa: N801  reads as a phrase: `with backend("reference"):`
    """Context manager: run the ops of :mod:`mmaccel.kernels` with one implementation.

    Parameters
    ----------
    name
        ``"auto"`` (default rule: Triton for CUDA tensors where it runs, else native),
        ``"reference"`` (naive, for tests), ``"native"`` (torch ops, fast on a CPU, runs on every device) or
        ``"triton"`` (CUDA tensors; CPU tensors only in Triton's interpreter).

    Raises
    ------
    UnknownNameError
        If there is no such backend.

    Examples
    --------
    >>> with backend("reference"):
    ...     choose(torch.device("cpu"))
    'reference'
    >>> choose(torch.device("cpu"))
    'native'
    """

    def __init__(self, name: str) -> None:
        if name not in BACKENDS:
            raise unknown_name("kernel backend", name, BACKENDS)
        self.name = name
        self._tokens: list[Token[str]] = []

    def __enter__(self) -> str:
        self._tokens.append(_current.set(self.name))
        return self.name

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _current.reset(self._tokens.pop())


def choose(device: torch.device) -> str:
    """The implementation that runs for tensors on `device` now: ``"reference"``, ``"native"`` or ``"triton"``."""
    name = _current.get()
    if name != "auto":
        return name
    return "triton" if device.type == "cuda" and runs_triton(device) else "native"


@cache
def has_triton() -> bool:
    """Whether Triton is installed; it is not imported for this."""
    return importlib.util.find_spec("triton") is not None


@cache
def runs_triton(device: torch.device) -> bool:
    """Whether Triton is installed and can compile for this GPU; where it cannot, a warning says why, once."""
    if not has_triton():
        return False
    reason = _obstacle(device)
    if reason is not None:
        warnings.warn(f"kernels run in torch's own ops on {device}, since Triton cannot run: {reason}", stacklevel=2)
    return reason is None


def _obstacle(device: torch.device) -> str | None:
    """What keeps Triton from compiling for this GPU, or None."""
    capability = torch.cuda.get_device_capability(device)
    if torch.version.hip is None and capability < OLDEST:
        return "its compute capability is {}.{}, and Triton supports {}.{} and up".format(*capability, *OLDEST)
    try:
        from triton.runtime import driver

        driver.active.get_current_target()  # compiles a C extension, with the machine's compiler and Python's headers
    except (RuntimeError, OSError, ImportError, AssertionError, subprocess.CalledProcessError) as error:
        return str(error).partition("\n")[0] or type(error).__name__
    return None


def implementation(device: torch.device) -> ModuleType:
    """The module that holds the chosen implementation of every op.

    Raises
    ------
    ValueError
        If Triton was asked for and cannot run here.
    """
    name = choose(device)
    if name == "triton":
        if not has_triton():
            raise ValueError('backend "triton": Triton is not installed; pip install triton, or use backend("auto")')
        if device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
            raise ValueError(f'backend "triton" needs CUDA tensors, got {device}: use backend("auto")')
    return importlib.import_module(_MODULES[name])
