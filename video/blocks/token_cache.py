"""In most steps every layer of a transformer recomputes only the tokens that changed most."""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from mmaccel.errors import SettingError
from mmaccel.method import Advice, is_count, is_number, is_share
from mmaccel.patching import wrap_forward
from mmaccel.registry import register
from mmaccel.stepping.reuse import BranchState
from mmaccel.stepping.run import SamplerRun
from mmaccel.stepping.tensors import plus

from ..caches.step_cache import CacheStepper, StepCache
from ..families.adapter import DiffusionTransformerAdapter, PipelineSession, refuse_frame_samplers
from ..families.families import Family, bound
from ..steps import Forward
from .reuse import Streams, added, added_again, refuse_grouped
from .token_subset import KeysValues, TokenSubset, refuse_perturbed, require_divisible

ADVICE = "use video.BlockCache, which chooses among blocks and steps"


@register("video")
@dataclass(frozen=True)
class TokenCache(StepCache):
    """Between full steps, every layer recomputes only the share of its tokens whose input changed most.

    The other tokens reuse the layer's residual from when they were last computed. The chosen tokens attend to the
    kept keys and values of all; text in joint attention is always computed. A layer whose share is 0 is skipped, and
    one whose share is 1 keeps nothing. All layers have the same share, or those that
    are given. The paper learns them; how learned ones do is measured (docs/benchmarks/long/learned_shares.md). Works on
    every family whose tokens can be computed apart, which LTX-2's and Z-Image's cannot. The report counts work in
    tokens times layers. Lossy.

    Parameters
    ----------
    budget
        Share of the computation to spend, above 0 and at most 1 (exact); default 0.5.
    interval
        Distance between full steps; 1 is exact. Default 4.
    fractions
        Share of the tokens that each layer recomputes in the other steps, 0 to 1, in the order of the layers. None
        (default) gives all layers the share that the budget leaves.
    warmup
        First steps that are full, at least 1; default 2, because velocities change most there.
    cooldown
        Last steps that are full; default 2, for the same reason.

    Raises
    ------
    SettingError
        If a setting is outside its range, or there are not as many fractions as layers.
    UnsupportedTargetError
        If the tokens of the transformer cannot be computed apart; lists the families that allow it.

    Examples
    --------
    >>> method = TokenCache(budget=0.5)
    >>> sum(method.is_full(step, 40) for step in range(40))
    13
    >>> round(method.share(40), 2)
    0.26
    """

    paper = "DiffSparse: Accelerating Diffusion Transformers with Learned Token Sparsity, 2026"
    advice: ClassVar[Advice] = Advice(
        "Clips of which large parts stand still.",
        "Every layer's last output is kept in memory; on a CPU small passes cost more than their share.",
    )
    needs_all_tokens = True
    neutral = {"budget": 1.0}
    engaging = {"budget": 0.5, "warmup": 1, "cooldown": 0}

    budget: float = 0.5
    interval: int = 4
    fractions: tuple[float, ...] | None = None
    warmup: int = 2
    cooldown: int = 2

    def __post_init__(self) -> None:
        self._check_steps()
        self._require(is_share(self.budget), "budget", "above 0 and at most 1")
        self._require(is_count(self.interval), "interval", "an integer of at least 1")
        allowed = "None or a number from 0 to 1 for each layer"
        self._check_list("fractions", allowed, lambda share: is_number(share, 0, 1), least=1)

    @property
    def exact(self) -> bool:
        return self.budget == 1 or self.interval == 1 or self.fractions is not None and set(self.fractions) == {1.0}

    def is_full(self, step: int, steps: int) -> bool:
        """Whether a step of a run of `steps` is computed for all tokens in all layers."""
        since = step - (self.warmup - 1)
        return since <= 0 or step >= steps - self.cooldown or since % self.interval == 0

    def share(self, steps: int) -> float:
        """Mean share of the tokens that the budget leaves for the other steps of a run of `steps`, 0 to 1."""
        full = sum(self.is_full(step, steps) for step in range(steps))
        return 1.0 if full == steps else min(1.0, max(0.0, (self.budget * steps - full) / (steps - full)))

    def cost(self, steps: int) -> float:
        """Share of the computation in a run of `steps`; above the budget if the full steps alone exceed it."""
        full = sum(self.is_full(step, steps) for step in range(steps))
        share = self.share(steps) if self.fractions is None else sum(self.fractions) / len(self.fractions)
        return (full + (steps - full) * share) / steps

    def check(self, adapter: DiffusionTransformerAdapter) -> None:
        super().check(adapter)
        refuse_frame_samplers(adapter.target, self.name)
        for family, denoiser in divisible_families(adapter):
            blocks, fractions = family.block_list(denoiser), self.fractions
            if fractions is None:
                continue
            if len(fractions) != len(blocks):
                raise SettingError(
                    f"TokenCache has fractions for {len(fractions)} layers, and {type(denoiser).__name__} has"
                    f" {len(blocks)}: give one for each, or none for equal shares"
                )
            refuse_grouped(self.name, blocks, (share == 0 for share in fractions))

    def stepper(self, session: PipelineSession, run: SamplerRun) -> CacheStepper:
        return _Stepper(session, run, self)


def divisible_families(adapter: DiffusionTransformerAdapter) -> list[tuple[Family, torch.nn.Module]]:
    """The families of all denoisers, or an `UnsupportedTargetError` where tokens cannot be computed apart."""
    return [(require_divisible(denoiser, ADVICE), denoiser) for denoiser in adapter.denoisers()]


@dataclass
class _Branch(BranchState):
    """What one guidance branch remembers of the layers, by their index, from the last full step on."""

    residuals: dict[int, Streams] = field(default_factory=dict)  # what each layer added to each stream
    inputs: dict[int, torch.Tensor] = field(default_factory=dict)  # from which each token was last computed


class _Stepper(CacheStepper):
    branch_state = _Branch

    def __init__(self, session: PipelineSession, run: SamplerRun, method: TokenCache) -> None:
        super().__init__(session, run, method)
        self.uniform = 1.0
        self.tokens: dict[int, torch.Tensor] = {}  # of each layer, in this step
        self.is_partial = False  # this forward pass
        self.subset: TokenSubset | None = None  # within a layer that computes some tokens
        self.done: list[float] = []  # shares of the layers of this forward pass
        self.keys: list[KeysValues] = []  # of each expert
        for family, denoiser in [] if method.exact else divisible_families(session.adapter):
            self.watch(family, denoiser)

    def watch(self, family: Family, denoiser: torch.nn.Module) -> None:
        """Route the blocks of a denoiser, and their self-attention, through this run."""
        blocks = family.block_list(denoiser)
        keys = KeysValues(len(blocks))
        self.keys.append(keys)
        for layer, block in enumerate(blocks):
            wrap_forward(self.stack, block, functools.partial(self.block, family, block, layer))
            attention = getattr(block, family.attention)
            wrap_forward(self.stack, attention, functools.partial(self.attention, keys, layer, attention))

    def answer(self, denoiser: torch.nn.Module, forward: Forward, args: Any, kwargs: Any) -> tuple[Any, float]:
        if self.cache.leads:
            self.begin_step()
        self.is_partial = self.cache.skips
        self.done = []
        output = forward(*args, **kwargs)
        if not self.is_partial:
            self.cache.computed()
        return output, sum(self.done) / len(self.done)

    def begin_step(self) -> None:
        """Decide for all branches whether this step is full."""
        run, cache = self.run, self.cache
        if run.step == cache.first_step:
            self.begin()
        for expert, branch in list(cache.states):
            if expert != run.expert:  # its part of the run is over
                del cache.states[expert, branch]
                self.keys[expert].reset()
        cache.reuse = cache.may_reuse and run.step - cache.state.step < self.method.interval

    def begin(self) -> None:
        """Solve the shares of all layers, and warn if the budget cannot be kept."""
        method, steps = self.method, self.run.steps - self.run.step
        self.uniform = method.share(steps)
        cost = method.cost(steps)
        if cost > method.budget + 0.5 / steps:
            self.warn(
                f"{cost:.0%} of the work is computed instead of {method.budget:.0%}: take a longer interval, more"
                " steps, or a smaller warmup or cooldown" + (", or smaller fractions" if method.fractions else "")
            )

    def share(self, layer: int) -> float:
        """Share of its tokens that a layer computes in a partial step."""
        given = self.method.fractions
        return self.uniform if given is None else given[layer]

    def count(self, layer: int, total: int) -> int:
        """The number of tokens for a share of `total`: 0 only for a share of 0."""
        share = self.share(layer)
        return min(total, max(round(share * total), share > 0))

    def block(
        self, family: Family, block: torch.nn.Module, layer: int, forward: Forward, *args: Any, **kwargs: Any
    ) -> Any:
        """The forward of one block."""
        call = bound(block, args, kwargs)
        streams = {name: call.arguments[name] for name in family.outputs}
        total = streams[family.hidden].shape[1]
        count = self.count(layer, total)
        if self.is_partial and count == 0:
            self.done.append(0.0)
            return family.as_output(added_again(self.cache.state.residuals[layer], streams))
        if self.is_partial and count < total:
            return self.renewed(family, layer, count, call, forward)
        self.done.append(1.0)
        output = forward(*args, **kwargs)
        if count < total:
            self.remember(family, layer, count, streams, family.returned(output))
        return output

    def remember(self, family: Family, layer: int, count: int, before: Streams, after: Streams) -> None:
        """Keep the residual of a full layer; the leading branch also keeps the input, if tokens will be ranked."""
        self.cache.state.residuals[layer] = added(before, after)
        if self.cache.leads and count:
            self.cache.state.inputs[layer] = before[family.hidden].clone()

    def renewed(self, family: Family, layer: int, count: int, call: inspect.BoundArguments, forward: Forward) -> Any:
        """The output of a layer that computes some tokens and all text; their residual is kept."""
        given, name = call.arguments, family.hidden
        hidden = given[name]
        tokens = self.chosen(layer, count, hidden)
        text = given["encoder_hidden_states"].shape[1] if family.text else 0
        self.done.append((count + text) / (hidden.shape[1] + text))
        self.subset = TokenSubset(tokens, hidden.shape[1], text, family.text)
        given[name] = hidden[:, tokens]
        self.subset.choose(given)
        before = {stream: given[stream] for stream in family.outputs}
        try:
            after = family.returned(forward(*call.args, **call.kwargs))
        finally:
            self.subset = None
        residuals, new = self.cache.state.residuals, added(before, after)
        kept = residuals[layer][name]
        whole = plus(kept, hidden).index_copy_(1, tokens, after[name])
        residuals[layer] = {**new, name: kept.index_copy_(1, tokens, new[name])}
        return family.as_output({**after, name: whole})

    def chosen(self, layer: int, count: int, hidden: torch.Tensor) -> torch.Tensor:
        """The tokens of this step, for all rows of the batch and all branches: those whose input changed most."""
        if self.cache.leads:
            inputs = self.cache.state.inputs[layer]
            tokens = token_change(hidden, inputs).argsort(descending=True, stable=True)[:count].sort().values
            inputs.index_copy_(1, tokens, hidden[:, tokens])
            self.tokens[layer] = tokens
        return self.tokens[layer]

    def attention(
        self, keys: KeysValues, layer: int, module: torch.nn.Module, forward: Forward, *args: Any, **kwargs: Any
    ) -> Any:
        """The self-attention of one block; its keys and values are kept where some tokens will need those of all."""
        if not 0 < self.share(layer) < 1:
            return forward(*args, **kwargs)
        refuse_perturbed(module)
        return keys.attend(layer, self.run.branch, self.subset, forward, args, kwargs)

    def held_bytes(self) -> int:
        return super().held_bytes() + sum(keys.cache.nbytes() for keys in self.keys)

    def advice(self) -> str:
        return "no step lies between the full ones: take a longer interval or more steps"

    def close(self) -> None:
        for keys in self.keys:
            keys.reset()
        self.tokens.clear()
        super().close()


def token_change(new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    """Squared difference of each token `[S]`, summed over batch and channels of `[B, S, C]`."""
    return (new.float() - old.float()).square().sum((0, 2))
