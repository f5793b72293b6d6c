"""Masked image pipelines, such as aMUSEd: from a prompt to codes to pictures."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from mmaccel import zoo
from mmaccel.errors import SettingError
from mmaccel.zoo import weights

from .painter import ImageSettings, Painter, progress_bar

INDEX = "model_index.json"
PRESET = "balanced"  # no method that draws codes together is exact


class PipelinePainter(Painter):
    """A pipeline with an `AmusedScheduler`; its codes are the tokens."""

    def size(self) -> tuple[int, int]:
        side = self.target.transformer.config.sample_size * self.target.vae_scale_factor
        return side, side

    def inputs(self, prompts: list[str], settings: ImageSettings) -> dict[str, Any]:
        given = [name for name in ("temperature", "top_k", "top_p") if getattr(settings, name) is not None]
        if given:
            raise SettingError(f"{self.name} draws from all codes as likely as they are: leave out {', '.join(given)}")
        if hasattr(self.target, "vocabulary"):
            for prompt in prompts:
                self.target.vocabulary.check(prompt)
        guided = {} if settings.guidance is None else {"guidance_scale": settings.guidance}
        # `num_images_per_prompt` would have the pictures of several prompts take turns
        repeated = [prompt for prompt in prompts for _ in range(settings.count)]
        return {"prompt": repeated, "output_type": "latent", **guided}

    def generate(
        self,
        target: Any,
        prompts: list[str],
        settings: ImageSettings,
        label: str | None = None,
        progress: Callable[[int, int], Any] | None = None,
    ) -> Any:
        """Codes `[B, H, W]`; session and plain pipeline take a generator alike."""
        inputs = self.inputs(prompts, settings)
        generator = torch.Generator().manual_seed(settings.seed)
        mask = self.target.scheduler.config.mask_token_id
        with progress_bar(label) as bar:
            told = progress or bar

            def tell(step: int, timestep: Any, codes: torch.Tensor) -> None:
                if told is not None:
                    told(int((codes != mask).sum()), codes.numel())

            return target(**inputs, generator=generator, callback=tell).images

    def pictures(self, tokens: Any, inputs: dict[str, Any]) -> list[Image.Image]:
        vq = self.target.vqvae
        shape = (*tokens.shape, vq.config.latent_channels)
        with ExitStack() as stack:
            if vq.dtype == torch.float16 and vq.config.force_upcast:  # as the pipeline does: the pictures would be NaN
                vq.float()
                stack.callback(vq.half)
            pixels = vq.decode(tokens, force_not_quantize=True, shape=shape).sample.clip(0, 1)
        return self.target.image_processor.postprocess(pixels, "pil")


def index_of(model: str) -> dict[str, Any] | None:
    """The index of a pipeline: a zoo name, a folder or a hub id, which is asked for it; None where it is none."""
    folder = zoo.path(model) if model in zoo.names() else Path(model)
    if folder.is_dir() and not (folder / INDEX).is_file():
        return None
    from diffusers import DiffusionPipeline

    try:
        return dict(DiffusionPipeline.load_config(folder if folder.is_dir() else model))
    except (OSError, ValueError):
        return None


def draws_codes(index: dict[str, Any] | None) -> bool:
    """Whether an index is that of a pipeline of masked pictures."""
    return index is not None and "AmusedScheduler" in (index.get("scheduler") or ())


def load_pipeline(model: str, device: str = "cpu", dtype: torch.dtype | None = None) -> PipelinePainter:
    """The painter of a pipeline that draws codes; none of the checkpoint's own code is run."""
    pipe = zoo.load(model).to("cpu", dtype) if zoo.like(model) else weights.load_pipeline(model, dtype)
    pipe.set_progress_bar_config(disable=True)
    return PipelinePainter(Path(model).name, pipe.to(device), None)
