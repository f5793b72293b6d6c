"""What `accelerate(target, preset=...)` stands for on autoregressive image models."""

from __future__ import annotations

from mmaccel.presets import Preset

from .speculative_jacobi import SpeculativeJacobi
from .zipar import MEASURED_ROW, ZipAR

MEASURED = {"model": "tiny-janus", "batch": 1, "guidance": 2.0}
ROWS = f"a row of this model has {MEASURED_ROW} tokens: on wider ones raise window= in proportion"

# The exact setting keeps the noise too, so that a seed gives the picture of the model's own generate; drafts that need
# not are up to a tenth faster. What is lossy and slower, such as ZipAR(window=8), is no choice.
_FAMILY = {
    "exact": Preset((SpeculativeJacobi(window=16, coupling="gumbel_exact"),), "image", MEASURED),
    "balanced": Preset((ZipAR(window=4),), "image", MEASURED, ROWS),
    "fast": Preset((ZipAR(window=2),), "image", MEASURED, ROWS),
}
PRESETS: dict[str, dict[str, Preset]] = dict.fromkeys(("janus", "emu3", "glm_image"), _FAMILY)
