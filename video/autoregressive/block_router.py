"""BlockRouter: a small model drafts the blocks of a video, and the large one redraws those that score low."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from mmaccel.errors import SettingError
from mmaccel.method import Advice, is_count, is_number
from mmaccel.patching import wrap_forward
from mmaccel.registry import register
from mmaccel.stepping.run import SamplerRun

from ..families.adapter import IN_BLOCKS, DiffusionMethod, DiffusionTransformerAdapter, PipelineSession
from ..following import follow
from ..steps import Forward, Stepper, count_forwards
from .routing import Routing

GIVEN = "block router"  # of a session's memory: the routing of the call that runs
ARGUMENTS = ("draft", "score")  # of a call: those that the method takes

EXAMPLE = """import mmaccel
from diffusers import AnyFlowFARPipeline, AnyFlowFARTransformer3DModel
from mmaccel import video

pipe = AnyFlowFARPipeline.from_pretrained("nvidia/AnyFlow-FAR-Wan2.1-14B-Diffusers")
small = AnyFlowFARTransformer3DModel.from_pretrained(
    "nvidia/AnyFlow-FAR-Wan2.1-1.3B-Diffusers", subfolder="transformer"
)


def sharpness(frames):
    return (frames[..., 1:] - frames[..., :-1]).abs().mean((2, 3, 4))


with mmaccel.accelerate(pipe, video.BlockRouter(tau=0.02)) as fast:
    frames = fast("a cat walks", draft=small, score=sharpness).frames[0]
    print(fast.report)"""


@register("video")
@dataclass(frozen=True)
class BlockRouter(DiffusionMethod):
    """Draft each block of a video with a small model, and redraw with the large one what scores low (SDVG, 2026).

    The small transformer and the score are given with the call: ``fast(prompt, draft=small, score=score)``. The small
    one draws each block from the block's own noise; ``score(frames)`` takes the frames of the block, float
    ``[batch, frames, 3, height, width]`` between 0 and 1, and gives ``[batch, frames]`` numbers. If the worst frame of
    the batch is at or above `tau`, the draft enters the large model's keys and values as if that model had drawn it;
    otherwise the large model draws the block anew from the same noise, as it would have without the method. The first
    block is always the large model's, since it sets the scene. Lossy; where all blocks are redrawn, bit-identical.

    Parameters
    ----------
    tau
        Lowest score of a frame that is kept; default 0.5, for scores that are probabilities.
    steps
        Steps of the small model in a block; default 4, as in the paper. None takes those of the call.
    latents
        Score the latents ``[batch, frames, channels, height, width]`` instead of decoded frames; default False.

    Raises
    ------
    SettingError
        If a setting is out of range; from the call, if the small model does not fit the large one, or the score gives
        anything but a finite number for each frame.
    UnsupportedTargetError
        If the pipeline does not draw videos in blocks.

    Examples
    --------
    >>> with mmaccel.accelerate(pipe, BlockRouter(tau=0.7)) as fast:  # doctest: +SKIP
    ...     frames = fast(prompt, draft=small.transformer, score=score, num_frames=81).frames
    ...     print(fast.report)
    """

    paper: ClassVar[str] = "Speculative Decoding for Autoregressive Video Generation (SDVG), 2026"
    role: ClassVar[str] = "step cache"
    families: ClassVar[frozenset[str] | None] = IN_BLOCKS
    call_arguments: ClassVar[frozenset[str]] = frozenset(ARGUMENTS)
    advice: ClassVar[Advice] = Advice(
        "Pipelines that draw videos in blocks, with a small sister of the same latents and text encoder.",
        "What the score does not see; the memory of the small model and of its keys and values.",
        example=EXAMPLE,
    )
    neutral = {"tau": 1e9, "latents": True}
    engaging = {"tau": -1e9, "latents": True}

    tau: float = 0.5
    steps: int | None = 4
    latents: bool = False

    def __post_init__(self) -> None:
        self._require(is_number(self.tau, -math.inf), "tau", "a finite number")
        self._require(self.steps is None or is_count(self.steps), "steps", "an integer of at least 1, or None")
        self._require(isinstance(self.latents, bool), "latents", "True or False")

    def check(self, adapter: DiffusionTransformerAdapter) -> None:
        if not self.latents and getattr(adapter.target, "vae", None) is None:
            raise SettingError("BlockRouter scores frames, and this pipeline has no vae: BlockRouter(latents=True)")

    def prepare(self, session: PipelineSession, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take the small model and the score out of the arguments of a call."""
        draft, score = (kwargs.pop(name, None) for name in ARGUMENTS)
        session.memory[GIVEN] = Routing(session, self, draft, score)

    def attach(self, session: PipelineSession, stack: ExitStack) -> None:
        follow(session, stack, functools.partial(_Block, session))
        for denoiser in session.adapter.denoisers():
            wrap_forward(stack, denoiser, functools.partial(_remember, session))
        around = functools.partial(_until_the_end, session)
        session.around.append(around)
        stack.callback(session.around.remove, around)


@contextmanager
def _until_the_end(session: PipelineSession) -> Iterator[None]:
    """Around a call: what the small model remembers of a video goes with the call, however it ends."""
    try:
        yield
    finally:
        session.memory.pop(GIVEN, None)


def _remember(session: PipelineSession, original: Forward, *args: Any, **kwargs: Any) -> Any:
    """A forward pass: one that fills the keys and values of a finished block fills those of the small model too."""
    routing: Routing | None = session.memory.get(GIVEN)
    if routing is not None and (kwargs.get("kv_cache_flag") or {}).get("is_cache_step"):
        routing.remember(kwargs)
    return original(*args, **kwargs)


class _Block(Stepper):
    """The steps of one block: those of the large model, or none where a draft stands in their place."""

    def __init__(self, session: PipelineSession, run: SamplerRun) -> None:
        super().__init__(session, run)
        self.begun = False
        self.draft: torch.Tensor | None = None

    def forward(self, denoiser: torch.nn.Module, forward: Forward, args: Any, kwargs: Any) -> Any:
        routing: Routing | None = self.session.memory.get(GIVEN)
        if not self.begun and routing is not None:
            self.begun, self.draft = True, routing.draft(kwargs)
        if self.draft is None:
            count_forwards(self, 1.0)
            return forward(*args, **kwargs)
        count_forwards(self, 0.0)
        return torch.zeros_like(kwargs["hidden_states"]), kwargs["kv_cache"]

    def step(self, make: Forward, output: torch.Tensor, sample: torch.Tensor) -> Any:
        made = make(output, sample)  # also where it is not used: the sampler counts its steps
        return made if self.draft is None else (self.draft.clone(),)
