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
