"""What the source of a vision-language model does not tell, and why some cannot be served."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Row:
    """One class of transformers.

    Attributes
    ----------
    tiles
        Whether each picture, or each tile of one, takes the same number of tokens.
    cells
        The setting that tells this number; empty if it follows from the sizes of the tower.
    frames
        Whether the processor hands a video over as pictures: those of one prompt are frames then.
    order
        How patches follow each other in the tower where pictures have any size: see
        :func:`mmaccel.vlm.families.layout.lay_grids`.
    unplaced
        Why the tower's attention tells nothing about single tokens; empty if it does.
    video
        Whose placeholder stands for a video.
    projector
        The module that makes features of the tower's last states, where the call for them does not.
    skip_last
        Whether the class token of the tower comes after the patches.
    carried
        What else of the features' output the language model reads.
    """

    tiles: bool = False
    cells: str = ""
    frames: bool = False
    order: str = "merged"
    unplaced: str = ""
    video: str = "video"
    projector: str = ""
    skip_last: bool = False
    carried: str = ""


RESAMPLED = "tokens that a resampler makes of all patches"
TILES = Row(tiles=True)
GRID = Row()

GLM = Row(video="image")

ROWS: dict[str, Row] = {
    "Qwen2VLForConditionalGeneration": GRID,
    "Qwen2_5_VLForConditionalGeneration": GRID,
    "Qwen3VLForConditionalGeneration": GRID,
    "Qwen3VLMoeForConditionalGeneration": GRID,
    "Qwen3_5ForConditionalGeneration": GRID,
    "Qwen3_5MoeForConditionalGeneration": GRID,
    "Qwen2_5OmniThinkerForConditionalGeneration": GRID,
    "Qwen3OmniMoeThinkerForConditionalGeneration": GRID,
    "Glm4vForConditionalGeneration": GLM,
    "Glm4vMoeForConditionalGeneration": GLM,
    "Glm46VForConditionalGeneration": GLM,
    "Glm5NextForConditionalGeneration": GLM,
    "GlmOcrForConditionalGeneration": GLM,
    "Ernie4_5_VLMoeForConditionalGeneration": GRID,
    "Exaone4_5_ForConditionalGeneration": GRID,
    "CohereCompassForConditionalGeneration": GRID,
    "Cosmos3EdgeForConditionalGeneration": GRID,
    "Cosmos3OmniForConditionalGeneration": GRID,
    "Dots3NoteForConditionalGeneration": GRID,
    "HyperCLOVAXVisionV2ForConditionalGeneration": GRID,
    "Kimi_K25ForConditionalGeneration": Row(order="rows"),
    "Lfm3VlForConditionalGeneration": GRID,
    "MiniMaxM3SparseForConditionalGeneration": GRID,
    "MuseGlimmerForConditionalGeneration": GRID,
    "MuseSparkForConditionalGeneration": GRID,
    "VideoLlama3ForConditionalGeneration": GRID,
    "PaddleOCRVLForConditionalGeneration": GRID,
    "HunYuanVLForConditionalGeneration": Row(unplaced="ends of rows among its tokens"),
    "InternVLForConditionalGeneration": Row(tiles=True, cells="image_seq_length", frames=True),
    "QianfanOCRForConditionalGeneration": Row(tiles=True, cells="image_seq_length", frames=True),
    "SmolVLMForConditionalGeneration": Row(tiles=True, frames=True),
    "Idefics3ForConditionalGeneration": TILES,
    "LlavaForConditionalGeneration": TILES,
    "VipLlavaForConditionalGeneration": TILES,
    "AyaVisionForConditionalGeneration": TILES,
    "Cohere2VisionForConditionalGeneration": TILES,
    "DeepseekVLForConditionalGeneration": TILES,
    "GotOcr2ForConditionalGeneration": TILES,
    "AriaForConditionalGeneration": Row(tiles=True, unplaced=RESAMPLED),
    "Gemma3ForConditionalGeneration": Row(tiles=True, cells="mm_tokens_per_image"),
    "Ovis2ForConditionalGeneration": Row(tiles=True, carried="visual_indicator_features"),
    "Llama4ForConditionalGeneration": Row(tiles=True, projector="multi_modal_projector", skip_last=True),
    "DeepseekVLHybridForConditionalGeneration": TILES,
    "Mistral3ForConditionalGeneration": Row(order="rows"),
    "MistralLarge4ForConditionalGeneration": Row(order="rows"),
    "LightOnOcrForConditionalGeneration": Row(order="rows"),
    "Gemma4ForConditionalGeneration": Row(unplaced="patches that are padded and pooled by place"),
    "MiniCPMV4_6ForConditionalGeneration": Row(unplaced="patches that it merges on the way"),
    "Lfm2VlForConditionalGeneration": Row(unplaced="padding among its patches"),
    "Idefics2ForConditionalGeneration": Row(tiles=True, cells="perceiver_config.resampler_n_latents", unplaced=RESAMPLED),
    "VideoLlavaForConditionalGeneration": Row(tiles=True, unplaced="a class token among its tokens"),
    "Molmo2ForConditionalGeneration": Row(unplaced="overlapping crops, of which tokens are pooled"),
    "Qwen4ExpForConditionalGeneration": GRID,
    "Step3p7ForConditionalGeneration": Row(unplaced="views of two sizes"),
}

REFUSED: dict[str, str] = {}


def row_of(target: Any) -> Row:
    """The line of a model's class, or of the class that it is derived from."""
    return next(ROWS[cls.__name__] for cls in type(target).__mro__ if cls.__name__ in ROWS)
