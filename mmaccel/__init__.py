"""mmaccel makes existing multimodal models faster, without retraining or forking them.

Example
-------
>>> import mmaccel
>>> from mmaccel import image, zoo
>>> model, processor = zoo.load("tiny-janus")
>>> inputs = processor(text="red heart", generation_mode="image", return_tensors="pt")
>>> with mmaccel.accelerate(model, image.SpeculativeJacobi()) as fast:
...     tokens = fast.generate(**inputs, generation_mode="image")
...     print(fast.report)  # doctest: +SKIP
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .comparison.compare import compare
from .comparison.comparison import Comparison
from .errors import (
    ActiveSessionError,
    ConflictError,
    MemoryLimitError,
    MmaccelError,
    SettingError,
    UnknownNameError,
    UnsupportedTargetError,
)
from .method import Method
from .modality import own_packages
from .plan import Plan, plan
from .registry import get_method, methods
from .report import Report
from .session import Session, accelerate
from .tuning.tune import Tuning, tune
from .version import __version__

__all__ = [
    "ActiveSessionError",
    "Comparison",
    "ConflictError",
    "MemoryLimitError",
    "Method",
    "MmaccelError",
    "Plan",
    "Report",
    "Session",
    "SettingError",
    "Tuning",
    "UnknownNameError",
    "UnsupportedTargetError",
    "__version__",
    "accelerate",
    "compare",
    "get_method",
    "methods",
    "plan",
    "tune",
]

if not TYPE_CHECKING:  # type checkers would take every name for a package

    def __getattr__(name: str) -> Any:
        if name in _packages():
            return import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *_packages()})

    def _packages() -> set[str]:
        """The packages that users import, which `import mmaccel` leaves for their first use."""
        return {"decoding", "kernels", "zoo", *own_packages()}
