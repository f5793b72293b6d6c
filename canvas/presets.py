"""What `accelerate(pipe, preset=...)` stands for in pipelines that fill canvases."""

from __future__ import annotations

from mmaccel.presets import Preset

from .method import MASKS, NOISE, PICTURES
from .rules.entropy_bound import EntropyBound
from .rules.factor_commit import FactorCommit
from .rules.halton_order import HaltonOrder

MEASURED = {"model": "tiny-canvas", "cache": False, "beside": ""}
DRAWN = {"model": "tiny-amused"}
OWN = (
    "against one token a step, and called with threshold=2: by its own threshold of 0.7 the pipeline is about as fast"
    " and loses more lists"
)
CACHE = "canvas.PrefixCache() beside it saves more, and is exact on block-causal models"

PRESETS = {
    MASKS: {
        "balanced": Preset((FactorCommit(),), "canvas", MEASURED, f"{OWN}, leaving the rule nothing to add; {CACHE}"),
        "fast": Preset((EntropyBound(0.3),), "canvas", MEASURED, f"{OWN}; {CACHE}"),
    },
    PICTURES: {
        "balanced": Preset((HaltonOrder(),), "pictures", DRAWN, "against the pipeline's 12 steps"),
        "fast": Preset((HaltonOrder(4),), "pictures", DRAWN, "against the pipeline's 12 steps"),
    },
}

_UNMEASURED = "no trained model of this kind is small enough to be measured here"
_EXACT = (
    "what is exact on every pipeline, canvas.FreeDave(), takes fewer passes and no less time on a CPU; on block-causal"
    " models canvas.FreeDave(2) with canvas.PrefixCache() is exact, and faster"
)
ABSENT: dict[str, dict[str, str]] = {
    MASKS: {"exact": _EXACT},
    NOISE: dict.fromkeys(("exact", "balanced", "fast"), _UNMEASURED),
    PICTURES: {"exact": "codes that are drawn together do not know of each other"},
}
