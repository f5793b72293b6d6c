"""The call that the entries of the video benchmark make, and how their clips are judged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar, NamedTuple

import torch

from mmaccel import zoo
from mmaccel.comparison.trial import Workload
from mmaccel.files.clips import Clip

from .. import quality
from .cases import MODEL
from .sampling import Clips, Sampling, converged


class FilmedLatents(NamedTuple):
    """What a run gave, the seed that it began with, and how many blocks of the transformer it computed."""

    seed: int
    latents: torch.Tensor
    blocks: int = 1


class Filming(Workload):
    """Latents of each prompt; a seed is the number of a prompt, and of its noise.

    Parameters
    ----------
    prompts
        A prompt for each seed.
    pipe
        None (default) for the shipped pipeline.
    sampling
        Sampler, steps, guidance and shift; None (default) for the pipeline's own.
    reference
        Sampling of the converged clips; None (default) for four times the steps.
    clips
        Converged clips of these prompts that are known, to which others are added; None (default) for none.
    """

    unit: ClassVar[str] = "steps"

    def __init__(
        self,
        prompts: Sequence[str],
        pipe: Any = None,
        sampling: Sampling | None = None,
        reference: Sampling | None = None,
        clips: Clips | None = None,
    ) -> None:
        self.sampling = sampling or Sampling()
        self.target: Any = self.sampling.on(zoo.load(MODEL) if pipe is None else pipe)
        self.reference = reference or converged(self.sampling)
        self.prompts, self.steps = prompts, self.sampling.steps
        self.clips: Clips = {} if clips is None else clips

    def run(self, target: Any, seed: int, fewer: int | None = None) -> FilmedLatents:
        call = {"num_inference_steps": fewer or self.steps, "output_type": "latent", "return_dict": False}
        call["guidance_scale"] = self.sampling.guidance
        with self._counted() as passes:
            latents: torch.Tensor = target(self.prompts[seed], **call, generator=torch.Generator().manual_seed(seed))[0]
        return FilmedLatents(seed, latents, len(passes))

    @contextmanager
    def _counted(self) -> Iterator[list[None]]:
        """One thing for each block that is computed, by whatever package: whole or for some of the tokens."""
        passes: list[None] = []
        attention = [module for name, module in self.target.transformer.named_modules() if name.endswith("attn1")]
        with ExitStack() as stack:
            for module in attention:
                stack.callback(module.register_forward_hook(lambda *_: passes.append(None)).remove)
            yield passes

    def judge(self, plain: FilmedLatents, other: FilmedLatents) -> dict[str, Any]:
        reference, frames = self.frames(plain.latents), self.frames(other.latents)
        return {
            "psnr": quality.psnr(reference, frames),
            "ssim": quality.ssim(reference, frames),
            "psnr_converged": quality.psnr(self.converged_clip(plain.seed), frames),
            "blocks": other.blocks / plain.blocks,
        }

    def converged_clip(self, seed: int) -> Clip:
        """The clip of a seed with so many steps that more change little."""
        key = self.reference, seed
        if key not in self.clips:
            self.clips[key] = self.frames(self.run(self.target, seed, self.reference.steps).latents)
        return self.clips[key]

    @torch.no_grad()
    def frames(self, latents: torch.Tensor) -> Clip:
        """The decoded clip."""
        video = quality.decoded(self.target.vae, latents)
        return self.target.video_processor.postprocess_video(video, output_type="pil")[0]
