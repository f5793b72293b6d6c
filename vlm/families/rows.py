"""What the source of a vision-language model does not tell, and why some cannot be served."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class VisualClass:
    """One class of transformers.

    Attributes
    ----------
    tiles
        Whether each picture, or each tile of one, takes the same number of tokens.
    cells
        The setting that tells this number; empty if it follows from the sizes of the tower.
    frames
        Whether the processor hands a video over as pictures: those that follow each other in a prompt are frames then,
        where about as many words stand between them, except tiles with nothing between them, which are of one picture.
        SmolVLM has text between all its tiles.
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
    counted
        Whether the model takes a count of the tokens before the axes of their positions.
    own
        Whether features are not simply put in the place of embeddings, so that only its own `forward` can do it.
    reads
        Whether it is made to read pages, where every token counts.
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
    counted: bool = True
    own: bool = False
    reads: bool = False


RESAMPLED = "tokens that a resampler makes of all patches"
TILES = VisualClass(tiles=True)
GRID = VisualClass()

GLM = VisualClass(video="image")

ROWS: dict[str, VisualClass] = {
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
    "GlmOcrForConditionalGeneration": VisualClass(video="image", reads=True),
    "Ernie4_5_VLMoeForConditionalGeneration": GRID,
    "Exaone4_5_ForConditionalGeneration": GRID,
    "CohereCompassForConditionalGeneration": GRID,
    "Cosmos3EdgeForConditionalGeneration": GRID,
    "Cosmos3OmniForConditionalGeneration": GRID,
    "Dots3NoteForConditionalGeneration": GRID,
    "HyperCLOVAXVisionV2ForConditionalGeneration": GRID,
    "Kimi_K25ForConditionalGeneration": VisualClass(order="rows"),
    "Lfm3VlForConditionalGeneration": GRID,
    "MiniMaxM3SparseForConditionalGeneration": GRID,
    "MuseGlimmerForConditionalGeneration": VisualClass(order="rows"),
    "MuseSparkForConditionalGeneration": VisualClass(order="rows"),
    "VideoLlama3ForConditionalGeneration": GRID,
    "PaddleOCRVLForConditionalGeneration": VisualClass(order="rows", reads=True),
    "HunYuanVLForConditionalGeneration": VisualClass(unplaced="ends of rows among its tokens", counted=False),
    "InternVLForConditionalGeneration": VisualClass(tiles=True, cells="image_seq_length", frames=True),
    "QianfanOCRForConditionalGeneration": VisualClass(tiles=True, cells="image_seq_length", reads=True),
    "SmolVLMForConditionalGeneration": VisualClass(tiles=True, frames=True),
    "Idefics3ForConditionalGeneration": TILES,
    "LlavaForConditionalGeneration": VisualClass(tiles=True, order="rows"),
    "VipLlavaForConditionalGeneration": TILES,
    "AyaVisionForConditionalGeneration": TILES,
    "Cohere2VisionForConditionalGeneration": TILES,
    "DeepseekVLForConditionalGeneration": TILES,
    "GotOcr2ForConditionalGeneration": VisualClass(tiles=True, reads=True),
    "AriaForConditionalGeneration": VisualClass(tiles=True, unplaced=RESAMPLED),
    "Gemma3ForConditionalGeneration": VisualClass(tiles=True, cells="mm_tokens_per_image"),
    "Ovis2ForConditionalGeneration": VisualClass(tiles=True, own=True, carried="visual_indicator_features"),
    "Llama4ForConditionalGeneration": VisualClass(tiles=True, projector="multi_modal_projector", skip_last=True),
    "DeepseekVLHybridForConditionalGeneration": TILES,
    "Mistral3ForConditionalGeneration": VisualClass(order="rows"),
    "MistralLarge4ForConditionalGeneration": VisualClass(order="rows"),
    "LightOnOcrForConditionalGeneration": VisualClass(order="rows", reads=True),
    "Gemma4ForConditionalGeneration": VisualClass(order="rows"),
    "MiniCPMV4_6ForConditionalGeneration": VisualClass(unplaced="patches that it merges on the way"),
    "Lfm2VlForConditionalGeneration": VisualClass(order="rows"),
    "Idefics2ForConditionalGeneration": VisualClass(
        tiles=True, cells="perceiver_config.resampler_n_latents", unplaced=RESAMPLED
    ),
    "VideoLlavaForConditionalGeneration": VisualClass(tiles=True, unplaced="a class token among its tokens"),
    "Molmo2ForConditionalGeneration": VisualClass(own=True, unplaced="overlapping crops, of which tokens are pooled"),
    "Step3p7ForConditionalGeneration": VisualClass(unplaced="views of two sizes"),
}

_ENCODED = "an encoder reads its pictures and its text: methods work on what a decoder reads"
_TIMM = "its vision tower is a model of timm, of which none was tried"
_FEW = "a Q-Former makes so few tokens of a picture that none can be left out"
_CROSSED = "its layers look at pictures by cross-attention, and no tokens of the prompt stand for them"
_ELSEWHERE = "its pictures do not stand at placeholders of the prompt"
UNTRIED = "nothing was tried on this class yet: it has no line in mmaccel.vlm.families.rows"

# Classes that are shown pictures, of which no tokens can be left out, and why.
REFUSED: dict[str, str] = {
    "Blip2ForConditionalGeneration": _FEW,
    "BlipForConditionalGeneration": _CROSSED,
    "ChameleonForConditionalGeneration": "its pictures are codes, which it reads like words",
    "FastVlmForConditionalGeneration": _TIMM,
    "Florence2ForConditionalGeneration": _ENCODED,
    "FuyuForCausalLM": "patches go into its decoder as they are: it has no vision tower",
    "Gemma3nForConditionalGeneration": _TIMM,
    "GitForCausalLM": _ELSEWHERE,
    "IdeficsForVisionText2Text": _CROSSED,
    "InstructBlipForConditionalGeneration": _FEW,
    "InstructBlipVideoForConditionalGeneration": _FEW,
    "Kosmos2ForConditionalGeneration": _ELSEWHERE,
    "Kosmos2_5ForConditionalGeneration": _ELSEWHERE,
    "MllamaForConditionalGeneration": _CROSSED,
    "PI0ForConditionalGeneration": "it answers with movements of a robot",
    "PPFormulaNetForConditionalGeneration": _ENCODED,
    "PaliGemmaForConditionalGeneration": "all tokens of its prompt attend to each other, in both directions",
    "PerceptionLMForConditionalGeneration": _TIMM,
    "Phi4MultimodalForCausalLM": "a module of its embedding encodes and places pictures",
    "Pix2StructForConditionalGeneration": _ENCODED,
    "Qwen2_5OmniForConditionalGeneration": "its parts speak one after the other: accelerate model.thinker",
    "Qwen3OmniMoeForConditionalGeneration": "its parts speak one after the other: accelerate model.thinker",
    "Qwen4ExpForConditionalGeneration": "its attention chooses keys by an index, which nothing was tried with",
    "T5Gemma2ForConditionalGeneration": _ENCODED,
    "UdopForConditionalGeneration": _ENCODED,
    "VisionEncoderDecoderModel": _ENCODED,
}


def row_of(target: Any) -> VisualClass:
    """The line of a model's class, or of the class that it is derived from."""
    return next(ROWS[cls.__name__] for cls in type(target).__mro__ if cls.__name__ in ROWS)


def why_refused(target: Any) -> str | None:
    """Why no visual tokens of a model can be left out; None if it is shown no pictures."""
    known = next((REFUSED[cls.__name__] for cls in type(target).__mro__ if cls.__name__ in REFUSED), None)
    shown = any(kind in getattr(target, "input_modalities", ()) for kind in ("image", "video"))
    return known or (UNTRIED if shown else None)
