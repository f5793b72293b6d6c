"""From a prompt to pictures, for every supported family: what the command line and the benchmarks call."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from transformers import AutoConfig, AutoProcessor, Emu3ForConditionalGeneration, JanusForConditionalGeneration

from mmaccel import zoo
from mmaccel.errors import PromptError, UnsupportedTargetError
from mmaccel.modality import get_modality
from mmaccel.zoo.weights import check_name, load_pretrained, no_foreign_code

from .decoding.task import language_model
from .painter import ImageSettings, Painted, Painter
from .pipeline_painter import draws_codes, index_of, load_pipeline

__all__ = [
    "ImageSettings",
    "Painted",
    "Painter",
    "check_prompts",
    "language_model",
    "load",
    "to_pictures",
]


class JanusPainter(Painter):
    def size(self) -> tuple[int, int]:
        codes = self.target.config.vq_config
        side = codes.num_patches * 2 ** (len(codes.channel_multiplier) - 1)  # levels of its decoder; all but one double
        return side, side

    def inputs(self, prompts: list[str], settings: ImageSettings) -> dict[str, Any]:
        if getattr(self.processor, "chat_template", None):  # checkpoints were trained on prompts within it
            chats = [[{"role": "user", "content": [{"type": "text", "text": prompt}]}] for prompt in prompts]
            prompts = self.processor.apply_chat_template(chats, add_generation_prompt=True)
        encoded = self.processor(
            text=prompts, generation_mode="image", return_tensors="pt", padding=True, return_token_type_ids=False
        )
        encoded = encoded.to(self.target.device)
        return {**encoded, "generation_mode": "image", "do_sample": True, **settings.arguments()}

    def pictures(self, tokens: Any, inputs: dict[str, Any]) -> list[Image.Image]:
        return to_pictures(self.target.decode_image_tokens(tokens))


class Emu3Painter(Painter):
    NEGATIVE = "lowres, bad anatomy, bad hands, text, error, worst quality, low quality, jpeg artifacts, blurry."
    GUIDANCE = 3.0

    def size(self) -> tuple[int, int]:
        height, width = (int(n) for n in self.inputs(["fox"], ImageSettings())["image_sizes"][0])
        scale = 2 ** (len(self.target.config.vq_config.channel_multiplier) - 1)
        return width * scale, height * scale

    def inputs(self, prompts: list[str], settings: ImageSettings) -> dict[str, Any]:
        def encode(text: list[str]) -> Any:
            encoded = self.processor(
                text=text, padding=True, padding_side="left", return_tensors="pt", return_for_image_generation=True
            )
            return encoded.to(self.target.device)

        encoded, negative = encode(prompts), encode([self.NEGATIVE] * len(prompts))
        arguments = {"guidance_scale": self.GUIDANCE, **settings.arguments()}
        return {
            **encoded,
            "do_sample": True,
            "negative_prompt_ids": negative["input_ids"],
            "negative_prompt_attention_mask": negative["attention_mask"],
            **arguments,
        }

    def pictures(self, tokens: Any, inputs: dict[str, Any]) -> list[Image.Image]:
        height, width = (int(n) for n in inputs["image_sizes"][0])
        codes = tokens[:, inputs["input_ids"].shape[1] :]
        return to_pictures(self.target.decode_image_tokens(image_tokens=codes, height=height, width=width), axis=1)


OWN_FORMAT = "multi_modality"  # what deepseek-ai/Janus-Pro-7B and its like call their kind
FAMILIES: dict[str, tuple[Any, Callable[[str, Any, Any], Painter]]] = {
    "janus": (JanusForConditionalGeneration, JanusPainter),
    "emu3": (Emu3ForConditionalGeneration, Emu3Painter),
}


def load(model: str, device: str = "cpu", dtype: torch.dtype | None = None) -> Painter:
    """A painter from a zoo name, a hub id or a folder, one of a recipe's too; no code of a checkpoint is ever run.

    Raises
    ------
    UnknownNameError
        If there is no model of this name.
    UnsupportedTargetError
        If the checkpoint is of another family, or needs code of its own.
    WeightsError
        If its weights are damaged or foreign.
    """
    own = zoo.like(model)
    kind = zoo.modality(own) if own else None
    if kind == "image":
        target, processor = zoo.load(model)
        return JanusPainter(Path(model).name, target.to(device=device, dtype=dtype), processor)
    if own == model:
        index = index_of(model)
        if draws_codes(index):
            return load_pipeline(model, device, dtype)
        if "unet" in (index or {}):  # those that make clips have a transformer
            raise _made_like_clips(model)
        raise UnsupportedTargetError(f"{model} draws no pictures: use `mmaccel run {kind}`")
    check_name("image model", model, shipped := get_modality("image").models())
    try:
        with no_foreign_code(model):
            family = AutoConfig.from_pretrained(model, trust_remote_code=False).model_type
    except (OSError, ValueError, KeyError) as error:
        index = index_of(model)
        if draws_codes(index):
            return load_pipeline(model, device, dtype)
        if index is not None:
            raise _made_like_clips(model) from error
        if f"`{OWN_FORMAT}`" in str(error):
            raise UnsupportedTargetError(
                f"{model} is in the format of Janus's own code: give the same weights in that of transformers, such as"
                " deepseek-community/Janus-Pro-7B"
            ) from error
        raise UnsupportedTargetError(
            f"{model!r} is not a model: give a zoo name ({', '.join(shipped)}), a hub id or a folder"
            f" with a config.json ({str(error).splitlines()[0]})"
        ) from error
    if family not in FAMILIES:
        raise UnsupportedTargetError(
            f"{model} is a {family} model; the command line draws with {', '.join(FAMILIES)}"
            " (GLM-Image works in Python, inside its pipeline)"
        )
    cls, painter = FAMILIES[family]
    target = load_pretrained(cls, model, dtype=dtype).to(device)
    with no_foreign_code(model):
        processor = AutoProcessor.from_pretrained(model, trust_remote_code=False)
    return painter(Path(model).name, target, processor)


def _made_like_clips(model: str) -> UnsupportedTargetError:
    return UnsupportedTargetError(
        f"{model} is a pipeline of diffusion, whose pictures are made like clips:"
        f" `mmaccel run video PROMPT -o picture.png --model {model}`"
    )


def check_prompts(painter: Painter, prompts: list[str]) -> None:
    """Raise a `PromptError` before any work is done."""
    if not prompts or any(not prompt.strip() for prompt in prompts):
        raise PromptError("the prompt is empty: say what to draw, such as 'red heart'")
    painter.inputs(prompts, ImageSettings())


def to_pictures(pixels: torch.Tensor, axis: int = -1) -> list[Image.Image]:
    """Pixels in [-1, 1] with channels on `axis` to pictures, cut off to whole levels as transformers' processors do."""
    last = pixels.movedim(axis, -1).float().clamp(-1, 1)
    return [Image.fromarray(array) for array in ((last + 1) * 127.5).byte().cpu().numpy()]
