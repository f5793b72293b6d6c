"""What `accelerate(target, preset=...)` stands for on autoregressive image models."""

from __future__ import annotations

from mmaccel.method import Method

from .speculative_jacobi import SpeculativeJacobi
from .zipar import ZipAR

# The rows of docs/benchmarks/image.md that justify them have the same settings.
PRESETS: dict[str, tuple[Method, ...]] = {
    "exact": (SpeculativeJacobi(),),
    "balanced": (ZipAR(window=8),),
    "fast": (ZipAR(window=4),),
}
