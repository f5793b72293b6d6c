"""What `accelerate(model, preset=...)` stands for on language and vision-language models."""

from __future__ import annotations

from mmaccel.presets import Preset

from .decoder.sparse_prefill import SparsePrefill
from .drafts.fused_draft import FusedDraft
from .pruning.compressor import VISUAL_FAMILIES
from .pruning.early_tom import EarlyTom
from .pruning.vidcom2 import VidCom2

MEASURED = {"model": "tiny-onevision", "table": "brief"}  # where no frame can be left out
LONG = {"model": "SmolLM2-135M-Instruct, prompts of 8000 tokens"}
FRAMES = (
    "of clips that change slowly, reading fewer frames is faster still; measured on clips alone: of a single picture,"
    " most of all of one with text, keep more, or take vlm.FusedDraft(), which leaves nothing out"
)
CAREFUL = (
    "every 2nd frame alone is faster, and nearly as often right; where the tower's attention can be read,"
    " vlm.HoliTom(keep=0.1, tau=0.9) answered more of them right in the same time, by a tau that was chosen on this"
    f" model, while this asks nothing of the tower; {FRAMES}"
)
FAST = f"every 2nd frame alone is faster, and more often right; {FRAMES}"

_BALANCED = Preset((VidCom2(keep=0.15),), "vlm", MEASURED, CAREFUL)
# On LLaVA's towers, where merged frames were measured; elsewhere only the language model gets less.
_EARLY = {"balanced": _BALANCED, "fast": Preset((EarlyTom(keep=0.1),), "vlm", MEASURED, FAST)}
_LATE = {"balanced": _BALANCED, "fast": Preset((VidCom2(keep=0.1),), "vlm", MEASURED, FAST)}

_WATCHING = sorted(VISUAL_FAMILIES - {"page_reader"})

PRESETS: dict[str, dict[str, Preset]] = {
    family: _EARLY if family.startswith("llava") else _LATE for family in _WATCHING
}
PRESETS["decoder"] = {
    "exact": Preset(
        (FusedDraft(),),
        "text",
        {"model": "SmolLM2-135M-Instruct", "mode": "greedy"},
        "the mean of seven kinds of text, most where a text repeats its prompt, least in free chat",
    ),
    "balanced": Preset(
        (SparsePrefill(),),
        "language",
        LONG,
        f"to the end of a short answer; prompts of fewer than {SparsePrefill().min_keys:,} tokens gain nothing, and"
        " 'exact' is for those",
    ),
}

_EXACT = "what leaves out visual tokens is not exact; vlm.FusedDraft() is, and pays in answers of sentences or longer"
_UNTRAINED = "no trained encoder of many views was here to measure quality on; vlm.FastVGGT() is what there is"
_SMALL = "vlm.TCA is lossy, and was measured on a small CLIP only"
_NONE = (
    "vlm.PrefillDrop() beside vlm.SparsePrefill(), which is faster on long prompts and loses more, was measured apart"
    " (docs/benchmarks/long/long_prompts.md)"
)
_PAGES = (
    "vlm.FusedDraft() takes longer on pages (docs/benchmarks/pages.md): name vlm.DocumentDraft(), which is exact, and"
    " faster with what a light pipeline read"
)
_MISREAD = (
    "a page of which tokens are left out is misread, and nothing else was measured on pages: name vlm.DocumentDraft(),"
    " which is exact"
)
ABSENT: dict[str, dict[str, str]] = {
    **{family: {"exact": _EXACT} for family in _WATCHING},
    "clip": {"exact": _SMALL, "balanced": _SMALL, "fast": _SMALL},
    "decoder": {"fast": _NONE},
    "page_reader": {"exact": _PAGES, "balanced": _MISREAD, "fast": _MISREAD},
    "multi_view": dict.fromkeys(("exact", "balanced", "fast"), _UNTRAINED),
}
