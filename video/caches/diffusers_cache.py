"""Base of the methods that run diffusers' own caches safely.

The hooks are attached only while steps may be reused: they are attached, without state, in the last step of the warm-up
and removed before the cool-down, after the last step and after an exception. So no state is ever stale, whatever the
size of the next run. Guidance branches are kept apart, also where the cache itself does not know of them, and in
pipelines that never say which branch they run.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, ClassVar

import torch

from mmaccel.errors import UnsupportedTargetError
from mmaccel.method import is_number
from mmaccel.patching import wrap_forward
from mmaccel.stepping.run import SamplerRun
from mmaccel.stepping.tensors import tensors

from ..families.adapter import DiffusionTransformerAdapter, PipelineSession
from ..families.compiled import BLOCKS, refuse_compiled
from ..families.families import begins_again, family_of, is_controlled
from ..private import Hooks, forget_registry, has_registry, knows_blocks
from ..samplers import timestep_of
from ..steps import Forward
from .step_cache import CacheStepper, StepCache

UNREGISTERED = "diffusers does not list its blocks"
BEGINS_AGAIN = "its last blocks begin again at the first tokens, where the hooks lose what was reused"
UNFOUND = "diffusers finds no attention in its blocks"


class DiffusersCache(StepCache):
    """A cache of diffusers', applied by :meth:`put_on`.

    Class attributes
    ----------------
    unfit
        Families that it does not work with, by transformer name, with the reason.
    skips_blocks
        Whether it skips whole blocks; otherwise the report gives the share of attention that was computed.
    advised
        What to use where it does not work.
    """

    unfit: ClassVar[dict[str, str]] = {}
    skips_blocks: ClassVar[bool] = False
    advised: ClassVar[str] = "video.TaylorSeer"

    @property
    def lead(self) -> int:
        """Computed steps that the cache has to see before it can reuse."""
        return 1

    def lacks(self, denoiser: torch.nn.Module) -> str:
        """Why diffusers' hooks do not work on a denoiser; empty if they do."""
        if not self.skips_blocks:
            return ""
        if begins_again(denoiser):
            return BEGINS_AGAIN
        return "" if knows_blocks(denoiser) else UNREGISTERED

    def put_on(self, denoiser: torch.nn.Module, stepper: HookStepper) -> None:
        """Put the hooks on a denoiser."""
        raise NotImplementedError  # pragma: no cover

    def at_step(self, hooks: Hooks, step: int) -> None:
        """Tell the hooks the step of the forward pass that follows, where they count steps."""

    def check(self, adapter: DiffusionTransformerAdapter) -> None:
        super().check(adapter)
        for denoiser in adapter.denoisers():
            self._check(denoiser)

    def check_pass(self, denoiser: torch.nn.Module, args: Any, kwargs: Any) -> None:
        """Refuse a ControlNet where blocks are skipped: the residual has its part, and the transformer adds it again.

        Raises
        ------
        UnsupportedTargetError
            In the first forward pass that is given one's output.
        """
        if self.skips_blocks and is_controlled(denoiser, args, kwargs):
            raise UnsupportedTargetError(
                f"{self.name} would add what a ControlNet adds between the blocks of {type(denoiser).__name__} twice:"
                f" use {self.advised}"
            )

    def attach(self, session: PipelineSession, stack: ExitStack) -> None:
        for denoiser in session.adapter.denoisers():
            if not has_registry(denoiser):
                stack.callback(forget_registry, denoiser)
        super().attach(session, stack)

    def stepper(self, session: PipelineSession, run: SamplerRun) -> CacheStepper:
        return HookStepper(session, run, self)

    def _check(self, denoiser: torch.nn.Module) -> None:
        family_of(denoiser, self.name)
        names = [cls.__name__ for cls in type(denoiser).__mro__]
        reason = next((self.unfit[name] for name in names if name in self.unfit), "") or self.lacks(denoiser)
        if reason:
            raise UnsupportedTargetError(f"{self.name} does not work on {names[0]}: {reason}. Use {self.advised}")
        refuse_compiled(self.name, BLOCKS, denoiser)


class HookStepper(CacheStepper):
    """One run with a cache of diffusers'."""

    method: DiffusersCache

    def __init__(self, session: PipelineSession, run: SamplerRun, method: DiffusersCache) -> None:
        super().__init__(session, run, method)
        self.hooks: dict[int, Hooks] = {}  # by expert
        self.is_first = False  # whether the cache has seen nothing of this branch yet
        self.seen: dict[tuple[int, int], tuple[int, int]] = {}  # last step of a branch, and how often it paused
        self.watched: set[int] = set()
        self.calls = 0  # of attention in this forward pass, times their batch
        self.all_calls: dict[tuple[int, int], int] = {}  # the same in the first pass of each branch

    @property
    def timestep(self) -> float:
        """That of this step, for ranges of them."""
        return timestep_of(self.session.target.scheduler, self.run)

    def answer(self, denoiser: torch.nn.Module, forward: Forward, args: Any, kwargs: Any) -> tuple[Any, float]:
        self.method.check_pass(denoiser, args, kwargs)
        self.watch(denoiser)
        self.calls = 0
        hooks = self.active(denoiser)
        if hooks is None:
            output = forward(*args, **kwargs)
        else:
            self.select(hooks)
            output = hooks.call(forward, args, kwargs)
        full = self.all_calls.setdefault((self.run.expert, self.run.branch), self.calls)
        return output, min(1.0, self.calls / full) if full else 1.0

    def active(self, denoiser: torch.nn.Module) -> Hooks | None:
        """The hooks, if this step is within the window; they are taken off at its end."""
        run, method = self.run, self.method
        if run.step >= run.steps - method.cooldown:
            self.take_off()
        elif run.expert not in self.hooks and self.cache.steps_since >= method.warmup - method.lead:
            self.hooks[run.expert] = Hooks(denoiser, lambda denoiser: method.put_on(denoiser, self))
        return self.hooks.get(run.expert)

    def select(self, hooks: Hooks) -> None:
        """One state per branch; a branch that comes back after a pause starts anew."""
        key = self.run.expert, self.run.branch
        last, pauses = self.seen.get(key, (self.run.step, 0))
        pauses += last < self.run.step - 1
        self.seen[key] = self.run.step, pauses
        self.is_first = hooks.select(f"expert {key[0]} branch {key[1]} pauses {pauses}")
        self.method.at_step(hooks, self.run.step)

    def watch(self, denoiser: torch.nn.Module) -> None:
        """Count the attention calls that really run, below the hooks of the cache."""
        if self.run.expert not in self.watched:
            self.watched.add(self.run.expert)
            for block in family_of(denoiser, self.method.name).block_list(denoiser):
                for module in block.modules():
                    if hasattr(module, "processor"):
                        wrap_forward(self.stack, module, self.count)

    def count(self, forward: Forward, *args: Any, **kwargs: Any) -> Any:
        """One call of an attention module."""
        self.calls += next(tensors([*args, *kwargs.values()])).shape[0]
        return forward(*args, **kwargs)

    def note(self, done: float) -> None:
        if self.method.skips_blocks:
            return super().note(done)
        self.report.details.setdefault("attention", []).append(round(done, 4))
        self.report.engaged = self.report.engaged or done < 1
        return None

    def held(self) -> list[Any]:
        return [state for hooks in self.hooks.values() for state in hooks.states()]

    def advice(self) -> str:
        return "raise its threshold or interval (`mmaccel methods` lists the settings)"

    def take_off(self) -> None:
        """Remove the hooks and what they hold."""
        for hooks in self.hooks.values():
            hooks.remove()
        self.hooks.clear()

    def close(self) -> None:
        self.take_off()
        super().close()


def check_range(method: DiffusersCache, name: str) -> None:
    """Check a setting that is two rising numbers, and make a tuple of it."""
    value = getattr(method, name)
    fits = isinstance(value, tuple | list) and len(value) == 2 and all(is_number(x, -1e9) for x in value)
    method._require(fits and value[0] < value[1], name, "two rising numbers")
    object.__setattr__(method, name, tuple(value))
