"""The drafts of one call: what the small model draws, remembers, and whether it is good enough."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from mmaccel.errors import SettingError
from mmaccel.stepping.tensors import count_bytes

from ..families.adapter import PipelineSession
from ..families.context_parallel import agreed
from ..private import execution_device
from ..quality import decoded

if TYPE_CHECKING:
    from .block_router import BlockRouter

Score = Callable[[torch.Tensor], torch.Tensor]
# What latents and text must have in common, by the names that both configurations give it.
SHARED = ("in_channels", "out_channels", "text_dim", "patch_size", "compressed_patch_size", "full_chunk_limit")


class Routing:
    """One call of a pipeline with a small model beside it.

    Attributes
    ----------
    cache
        Keys and values of the small model, of the shape that its pipeline would give them.
    last
        Latents `[batch, 1, channels, height, width]` of the last frame before the block, for the decoder.
    """

    def __init__(self, session: PipelineSession, method: BlockRouter, small: Any, score: Score | None) -> None:
        self.session, self.method, self.small, self.score = session, method, small, score
        self.cache: dict[int, dict[str, torch.Tensor]] = {}
        self.last: torch.Tensor | None = None
        if small is not None:
            self._check()

    @property
    def pipe(self) -> Any:
        return self.session.target

    def draft(self, given: dict[str, Any]) -> torch.Tensor | None:
        """The small model's block `[batch, frames, channels, height, width]`, if its worst frame is good enough.

        `given` are the arguments of the large model's first pass over the block.
        """
        if self.small is None or not given.get("kv_cache"):
            what = "keys and values" if self.small is not None else "draft= and score="
            self.session.report.warn(f"BlockRouter drafted nothing: the call was made without {what}")
            return None
        if given["kv_cache_flag"]["num_cached_chunks"] == 0:
            return None
        block = self._draw(given)
        worst = float(self._scored(block).min())
        redraws = agreed(self.pipe.transformer, worst < self.method.tau)  # with those that share the weights
        self._note(worst, not redraws)
        return None if redraws else block

    def remember(self, given: dict[str, Any]) -> None:
        """Fill the small model's keys and values with a finished block, as `given` does for the large one."""
        if self.small is None or not given.get("kv_cache"):
            return
        if _rooms(self.cache) != _rooms(given["kv_cache"]):
            # nothing is lost: this pass fills all keys and values anew
            self.cache = self._empty(given["kv_cache"])
            report = self.session.report
            report.peak_extra_bytes = max(report.peak_extra_bytes, count_bytes(self.cache))
        self.small(**given | {"kv_cache": self.cache, "kv_cache_flag": copy.deepcopy(given["kv_cache_flag"])})
        self.last = given["hidden_states"][: self._rows(given), -1:]

    def _draw(self, given: dict[str, Any]) -> torch.Tensor:
        """The block by the small model, step by step as the pipeline does it."""
        sample = given["hidden_states"][: self._rows(given)]
        scheduler = self._sampler(sample.device)
        mean = not torch.equal(given["timestep"], given["r_timestep"])  # velocities from one time to the next
        ends = scheduler.sigmas[1:] * scheduler.config.num_train_timesteps
        for t, r in zip(scheduler.timesteps, ends, strict=True):
            if t != r:
                times = {"timestep": t, "r_timestep": r if mean else t}
                velocity = self._velocity(given, sample, {k: v.expand_as(given[k]) for k, v in times.items()})
                sample = scheduler.step(velocity, t, sample, return_dict=False)[0]
        return sample

    def _sampler(self, device: torch.device) -> Any:
        """A sampler like the pipeline's, with the small model's steps."""
        own = self.pipe.scheduler
        made = type(own).from_config(own.config)
        if self.method.steps is None:
            made.timesteps, made.sigmas = own.timesteps, own.sigmas
        else:
            made.set_timesteps(self.method.steps, device=device)
        return made

    def _velocity(self, given: dict[str, Any], sample: torch.Tensor, times: dict[str, torch.Tensor]) -> torch.Tensor:
        guided = self.pipe.do_classifier_free_guidance
        kept = {"kv_cache": self.cache, "kv_cache_flag": copy.deepcopy(given["kv_cache_flag"])}
        whole = torch.cat([sample] * 2) if guided else sample
        velocity: torch.Tensor = self.small(**given | times | kept | {"hidden_states": whole})[0]
        if not guided:
            return velocity
        other, prompt = velocity.chunk(2)
        return other + self.pipe.guidance_scale * (prompt - other)

    def _scored(self, block: torch.Tensor) -> torch.Tensor:
        """A score for each frame, `[batch, frames]`."""
        frames = block if self.method.latents else self._decoded(block)
        assert self.score is not None
        scores = torch.as_tensor(self.score(frames))
        if scores.shape != frames.shape[:2] or not bool(torch.isfinite(scores).all()):
            raise SettingError(
                f"score= gave {list(scores.shape)} numbers for frames of {list(frames.shape)}, or some that are not"
                f" finite: return a finite number for each frame, {list(frames.shape[:2])}"
            )
        return scores

    def _decoded(self, block: torch.Tensor) -> torch.Tensor:
        """Frames `[batch, frames, 3, height, width]` between 0 and 1, decoded behind the frame before them."""
        assert self.last is not None
        frames = decoded(self.pipe.vae, torch.cat([self.last, block], 1).transpose(1, 2))
        return (frames[:, :, 1:] / 2 + 0.5).clamp(0, 1).transpose(1, 2)

    def _rows(self, given: dict[str, Any]) -> int:
        """Clips of the batch, which guidance doubles."""
        return len(given["hidden_states"]) // (2 if self.pipe.do_classifier_free_guidance else 1)

    def _empty(self, large: dict[int, dict[str, torch.Tensor]]) -> dict[int, dict[str, torch.Tensor]]:
        config = self.small.config

        def like(kept: torch.Tensor) -> torch.Tensor:
            pair, rows, _, tokens, _ = kept.shape
            return kept.new_zeros(pair, rows, config.num_attention_heads, tokens, config.attention_head_dim)

        return {i: {name: like(kept) for name, kept in large[0].items()} for i in range(config.num_layers)}

    def _note(self, worst: float, is_kept: bool) -> None:
        details = self.session.report.details
        details.setdefault("scores", []).append(round(worst, 4))
        details["drafts"] = details.get("drafts", 0) + 1
        details["kept"] = details.get("kept", 0) + is_kept

    def _check(self) -> None:
        """Raise a `SettingError` if the small model cannot stand in for the large one."""
        large, name = self.pipe.transformer, f"draft={type(self.small).__name__}"
        if self.small is large:
            raise SettingError("draft is the pipeline's own transformer: give a smaller one of the same latents")
        if type(self.small) is not type(large):
            raise SettingError(f"{name}: give a {type(large).__name__}, such as small_pipe.transformer")
        if self.score is None or not callable(self.score):
            raise SettingError("draft= needs score=, a function of frames that gives a number for each")
        for key in SHARED:
            mine, own = getattr(self.small.config, key), getattr(large.config, key)
            if mine != own:
                raise SettingError(f"{name} has {key}={mine}, and the pipeline's transformer {own}: they must be equal")
        # where a draft on "cuda:0" is on "cuda" too
        wanted, device = execution_device(self.pipe), self.small.device
        if wanted not in (device, torch.device(device.type)) or self.small.dtype != large.dtype:
            raise SettingError(
                f"{name} is {self.small.dtype} on {device}, and the pipeline's transformer {large.dtype} on"
                f" {wanted}: draft.to({str(wanted)!r}, {large.dtype})"
            )


def _rooms(cache: dict[int, dict[str, torch.Tensor]]) -> dict[str, int]:
    """For how many tokens a layer of a cache has room."""
    return {name: kept.shape[3] for name, kept in cache[0].items()} if cache else {}
