"""A processor for LLaVA-OneVision that needs no torchvision: frames go through the PIL image processors."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
import torch
from PIL import Image
from transformers import BatchFeature, LlavaOnevisionConfig
from transformers.models.llava_onevision.image_processing_pil_llava_onevision import LlavaOnevisionImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from ..errors import PromptError
from ..files.pictures import on_white


class OnevisionProcessor:
    """Text, pictures and videos to what `LlavaOnevisionForConditionalGeneration.generate` takes.

    As transformers' `LlavaOnevisionProcessor`, whose video part does not load without torchvision. A placeholder
    `<video>` or `<image>` in a text stands for the next of the videos or pictures. A text without placeholders beside
    videos or pictures is a question: it is put into the chat template behind them, and there is one text for each.

    Parameters
    ----------
    tokenizer
        With a chat template, `<image>` and `<video>`.
    config
        The model's, for sizes.

    Example
    -------
    >>> inputs = processor(videos=[frames], text="what moves up?", return_tensors="pt")  # doctest: +SKIP
    >>> tokens = model.generate(**inputs)[:, inputs["input_ids"].shape[1] :]  # doctest: +SKIP
    >>> processor.batch_decode(tokens, skip_special_tokens=True)  # doctest: +SKIP
    ['rocket']
    """

    image_token, video_token = "<image>", "<video>"

    def __init__(self, tokenizer: Any, config: LlavaOnevisionConfig) -> None:
        vision: Any = config.vision_config
        pinpoints: Any = config.image_grid_pinpoints
        self.tokenizer, self.config = tokenizer, config
        self.side = vision.image_size // vision.patch_size
        common: dict[str, Any] = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
        common["size"] = {"height": vision.image_size, "width": vision.image_size}
        common["resample"] = Image.Resampling.BICUBIC
        self.image_processor: Any = LlavaOnevisionImageProcessorPil(image_grid_pinpoints=pinpoints, **common)
        self.frame_processor: Any = SiglipImageProcessorPil(**common)
        self.decode, self.batch_decode = tokenizer.decode, tokenizer.batch_decode

    def __call__(
        self,
        images: Any = None,
        text: str | list[str] | None = None,
        videos: Any = None,
        return_tensors: str | None = "pt",
        padding: bool = True,
    ) -> BatchFeature:
        """Prepare a batch.

        Parameters
        ----------
        images
            A picture or a list of them, for the placeholders in the order of the texts: PIL, or arrays and tensors
            `[H, W, 3]` or `[3, H, W]`.
        text
            One or several.
        videos
            A video or a list of them, each a list of pictures or an array or tensor `[T, H, W, 3]` or `[T, 3, H, W]`,
            uint8 or float in [0, 1]. All of one length.
        return_tensors
            `"pt"`, or None for lists.
        padding
            Pad on the left to the longest text.

        Raises
        ------
        PromptError
            If placeholders and pictures or videos are not equally many, videos differ in length, or values that are no
            uint8 go far above 1.
        """
        if text is None:
            raise PromptError("say what to ask: processor(videos=[frames], text='what moves up?')")
        pictures = _listed(images, 3)
        clips = [_listed(video, 3) for video in _listed(videos, 4)]
        texts = self._with_placeholders([text] if isinstance(text, str) else list(text), len(pictures), len(clips))
        inputs: dict[str, Any] = {}
        lengths: dict[str, list[int]] = {self.image_token: [], self.video_token: []}
        if pictures:
            inputs, lengths[self.image_token] = self._pictures(pictures, texts)
        if clips:
            inputs["pixel_values_videos"] = self._videos(clips)
            lengths[self.video_token] = [len(clip) * math.ceil(self.side / 2) ** 2 + 1 for clip in clips]
        expanded = self._expanded(texts, lengths)
        return BatchFeature({**self.tokenizer(expanded, padding=padding, return_tensors=return_tensors), **inputs})

    def apply_chat_template(
        self,
        conversation: list[Any],
        tokenize: bool = False,
        add_generation_prompt: bool = False,
        return_dict: bool = True,
        return_tensors: str | None = "pt",
    ) -> Any:
        """A conversation (or several) as text, or with `tokenize` as inputs of the model.

        Videos and pictures stand in the parts, as in ``{"type": "video", "video": frames}``. Without `return_dict`,
        the token ids alone.
        """
        several = conversation and isinstance(conversation[0], list)
        texts = self.tokenizer.apply_chat_template(
            conversation, tokenize=False, add_generation_prompt=add_generation_prompt
        )
        if not tokenize:
            return texts
        messages = [m for one in (conversation if several else [conversation]) for m in one]
        parts = [part for m in messages if not isinstance(m["content"], str) for part in m["content"]]
        found = {kind: [part[kind] for part in parts if kind in part and part["type"] == kind] for kind in _KINDS}
        inputs = self(found["image"] or None, texts, found["video"] or None, return_tensors)
        return inputs if return_dict else inputs["input_ids"]

    def _with_placeholders(self, texts: list[str], images: int, videos: int) -> list[str]:
        told = any(token in text for text in texts for token in (self.image_token, self.video_token))
        for kind, count in zip(_KINDS, (images, videos), strict=True):
            if told and count != (written := sum(text.count(f"<{kind}>") for text in texts)):
                raise PromptError(
                    f"the text has {written} placeholders <{kind}> for {count} {kind}s: give one for each"
                )
        if told or not images + videos:
            return texts
        if len(texts) not in (images, videos) or (images and videos):
            raise PromptError(
                f"{len(texts)} texts without placeholders for {images} images and {videos} videos: write <image> and"
                " <video> where they belong, or one question for each"
            )
        kind = "image" if images else "video"
        content = [[{"type": kind}, {"type": "text", "text": text}] for text in texts]
        conversations = [[{"role": "user", "content": parts}] for parts in content]
        return list(self.apply_chat_template(conversations, add_generation_prompt=True))

    def _pictures(self, pictures: list[Any], texts: list[str]) -> tuple[dict[str, Any], list[int]]:
        """Tensors, and how many tokens each picture takes: one that is alone in its text comes in tiles too."""
        queue, nested = iter(map(_pil, pictures)), []
        for text in texts:
            nested.append([next(queue) for _ in range(text.count(self.image_token))])
        inputs = dict(self.image_processor(nested, return_tensors="pt"))
        inputs["batch_num_images"] = torch.as_tensor(inputs["batch_num_images"])
        alone = [len(row) == 1 for row in nested for _ in row]
        base = self.side**2
        sizes = [(p.height, p.width) for row in nested for p in row]
        return inputs, [
            base + self._tile_tokens(*size) if one else base + 1 for size, one in zip(sizes, alone, strict=True)
        ]

    def _tile_tokens(self, height: int, width: int) -> int:
        """Tokens of the tiles of a picture without its padding, with one for the end of each row."""
        from transformers.image_processing_utils import select_best_resolution
        from transformers.models.llava_onevision.processing_llava_onevision import LlavaOnevisionProcessor

        size, stub = self.image_processor.size["height"], cast(Any, self.config)
        rows, columns = (x // size for x in select_best_resolution((height, width), stub.image_grid_pinpoints))
        inside, ends = LlavaOnevisionProcessor._get_unpadded_features(
            stub, height, width, self.side, self.side, rows, columns
        )
        return int(inside + ends)

    def _videos(self, clips: list[list[Any]]) -> torch.Tensor:
        if len({len(clip) for clip in clips}) > 1:
            raise PromptError(f"videos of {sorted({len(c) for c in clips})} frames in one call: sample equally many")
        return torch.stack(
            [self.frame_processor([_pil(f) for f in c], return_tensors="pt")["pixel_values"] for c in clips]
        )

    def _expanded(self, texts: list[str], lengths: dict[str, list[int]]) -> list[str]:
        for token, counts in lengths.items():
            queue = iter(counts)
            pieces = [text.split(token) for text in texts]
            texts = ["".join(p + token * next(queue) for p in row[:-1]) + row[-1] for row in pieces]
        return texts


_KINDS = ("image", "video")
BRIGHTEST = 2.0  # of floats: resizing leaves some a little above 1


def _listed(given: Any, single: int) -> list[Any]:
    """One picture (or video) or several as a list; `single` is the number of axes of one."""
    if given is None:
        return []
    if isinstance(given, (np.ndarray, torch.Tensor)):
        return [given] if given.ndim == single else list(given)
    if isinstance(given, Image.Image):
        return [given]
    first = given[0]
    if single == 4 and _axes(first) == 3:  # one video as a list of frames
        return [given]
    return list(given)


def _axes(given: Any) -> int:
    return 3 if isinstance(given, Image.Image) else getattr(given, "ndim", 0)


def _pil(picture: Any) -> Image.Image:
    """A picture in RGB."""
    if isinstance(picture, Image.Image):
        return on_white(picture)
    pixels = picture.detach().cpu().numpy() if isinstance(picture, torch.Tensor) else np.asarray(picture)
    if pixels.shape[-1] != 3 and pixels.shape[0] == 3:
        pixels = pixels.transpose(1, 2, 0)
    if pixels.dtype != np.uint8:
        if pixels.max(initial=0) > BRIGHTEST:
            raise PromptError(
                f"a picture of {pixels.dtype} goes up to {pixels.max():g}: give uint8, or floats in [0, 1]"
            )
        pixels = (pixels.astype(np.float32).clip(0, 1) * 255).round().astype(np.uint8)
    return Image.fromarray(pixels)
