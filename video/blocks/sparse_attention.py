"""Block-sparse self-attention in diffusion transformers."""

from __future__ import annotations

import bisect
import functools
import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from mmaccel import kernels
from mmaccel.errors import UnsupportedTargetError
from mmaccel.kernels import BlockPlan, policies
from mmaccel.kernels.policies.prefill.pooled_top_k import blocks_of_row
from mmaccel.method import Advice, is_count, is_share
from mmaccel.patching import wrap_forward, wrap_method
from mmaccel.registry import register

from ..families.adapter import (
    GRIDS,
    TRANSFORMERS,
    DiffusionMethod,
    DiffusionTransformerAdapter,
    PipelineSession,
    token_grid,
)
from ..families.compiled import AGAIN, refuse_compiled
from ..families.families import FAMILIES, arguments
from ..private import masks_blocks
from .sdpa import AttentionMode

BLOCK = 64
BLOCK_POLICIES = ("pooled_top_k", "pooled_top_p", "sparge")
GRID_POLICIES = ("radial", "sliding_tile")
# Models of a known grid, without text among the tokens that attend to each other: it has no place.
PLACED = tuple(sorted(name for name in GRIDS if FAMILIES[name].text is None))
LARGEST_TILE = (4, 8, 8)  # tokens; smaller where the grid does not divide
UNSEEN = (
    "no self-attention went through torch's scaled_dot_product_attention: linear attention stays as it is, and where"
    ' another kernel attends, call pipe.transformer.set_attention_backend("native") first'
)
GRADIENTS = "attention stayed dense, since gradients are wanted: call it within torch.no_grad() where they are not"
CHANGED = f"its transformer was changed {AGAIN}"
UNPLACED = "a call did not tell where tokens lie, and its attention stayed dense: use policy='pooled_top_k'"
Grid = tuple[int, int, int]


@register("video")
@dataclass(frozen=True)
class SparseAttention(DiffusionMethod):
    """Self-attention of a diffusion transformer over chosen blocks of tokens, by a policy.

    Cross-attention, attention with a mask, as in HunyuanVideo, short sequences and calls that want gradients stay
    dense. Where the policy keeps so many blocks that dense attention is faster on this machine, dense attention runs.
    Lossy.

    Parameters
    ----------
    policy
        ``"pooled_top_k"`` (default), ``"pooled_top_p"`` and ``"sparge"`` choose by content, anew in every call;
        ``"radial"`` and ``"sliding_tile"`` by place in a video, for models whose token grid is known (Wan, LTX).
    budget
        Share of all blocks to attend to, above 0 and at most 1 (exact); default 0.3.
    min_length
        Shorter sequences stay dense; default 512 tokens.
    always
        Attend sparsely also where dense attention is measured to be faster (default False).

    Raises
    ------
    SettingError
        If a setting is outside its range.
    UnsupportedTargetError
        If a policy by place is used on a model with an unknown token grid, or the model attends by masks of blocks.

    Examples
    --------
    >>> str(SparseAttention(policy="radial", budget=0.2))
    "video.SparseAttention(policy='radial', budget=0.2)"
    """

    paper = "SpargeAttn, Sliding Tile Attention and Radial Attention, 2025"
    advice: ClassVar[Advice] = Advice(
        "Long clips and large pictures, where attention is most of the time.",
        "Below some thousand tokens dense attention is faster, and is taken unless always=True.",
    )
    families = TRANSFORMERS
    needs_all_tokens = True
    neutral = {"budget": 1.0}
    engaging = {"budget": 0.3, "min_length": 64, "always": True}

    policy: str = "pooled_top_k"
    budget: float = 0.3
    min_length: int = 512
    always: bool = False

    def __post_init__(self) -> None:
        names = (*BLOCK_POLICIES, *GRID_POLICIES)
        self._require(self.policy in names, "policy", "one of " + ", ".join(names))
        self._require(is_share(self.budget), "budget", "above 0 and at most 1")
        self._require(is_count(self.min_length), "min_length", "an integer of at least 1")
        self._require(isinstance(self.always, bool), "always", "True or False")

    @property
    def exact(self) -> bool:
        return self.budget == 1

    def check(self, adapter: DiffusionTransformerAdapter) -> None:
        denoisers = adapter.denoisers()
        if not denoisers:
            raise UnsupportedTargetError(f"{type(adapter.target).__name__} has no transformer to make sparse")
        for denoiser in denoisers:
            name = type(denoiser).__name__
            if self.policy in GRID_POLICIES and name not in PLACED:
                raise UnsupportedTargetError(
                    f"policy {self.policy!r} needs to know how tokens lie in a video, and {name} is not among"
                    f" {', '.join(PLACED)}: use policy='pooled_top_k'"
                )
            if masks_blocks(denoiser):
                raise UnsupportedTargetError(
                    f"{name} attends by masks of blocks, which flex attention alone reads: {self.name} would change"
                    " nothing. Use video.HeterogeneousSteps, which chooses steps"
                )
            if not self.exact:
                refuse_compiled(self.name, "use video.HeterogeneousSteps, which chooses steps", *denoiser.modules())

    def attach(self, session: PipelineSession, stack: ExitStack) -> None:
        if self.exact:
            return
        runs = _Runs(session)
        for denoiser in session.adapter.denoisers():
            attention = _Attention(self, session, runs)
            wrap_forward(stack, denoiser, functools.partial(attention.forward, denoiser))
        scheduler = getattr(session.target, "scheduler", None)
        if hasattr(scheduler, "set_timesteps"):
            wrap_method(stack, scheduler, "set_timesteps", runs.set_timesteps)
        session.around.append(runs.call)
        stack.callback(session.around.remove, runs.call)


class _Runs:
    """Knows where a run begins: with a call of the session, or with the steps of a call of the pipeline itself."""

    def __init__(self, session: PipelineSession) -> None:
        self.session = session
        self.is_called = False  # within a call of the session
        self.is_begun = False  # whether the run has called a denoiser

    @contextmanager
    def call(self) -> Iterator[None]:
        """Around a call of the session."""
        self.is_called, self.is_begun = True, False
        try:
            yield
        finally:
            self.is_called = False
        if not self.session.report.plain_keys:
            self.session.report.warn(UNSEEN if self.is_begun else CHANGED)

    def set_timesteps(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.is_begun = self.is_called and self.is_begun
        return original(*args, **kwargs)

    def begin(self) -> None:
        """A forward pass begins: the first one of the pipeline's own call does not add to the run before."""
        if not self.is_called and not self.is_begun and self.session.report.plain_keys:
            self.session.report.start()
        self.is_begun = True


class _Attention:
    """Replaces `scaled_dot_product_attention` within one denoiser."""

    def __init__(self, method: SparseAttention, session: PipelineSession, runs: _Runs) -> None:
        self.method, self.session, self.runs = method, session, runs
        self.grid: Grid | None = None
        self.text = 0  # its length

    def forward(self, denoiser: torch.nn.Module, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call the denoiser with its attention replaced."""
        self.runs.begin()
        self.grid = token_grid(denoiser, args, kwargs)
        text = arguments(denoiser, args, kwargs).get("encoder_hidden_states")
        self.text = text.shape[1] if isinstance(text, torch.Tensor) else 0
        with AttentionMode(self):
            return original(*args, **kwargs)

    def __call__(
        self,
        original: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        length = query.shape[2] if query.ndim == 4 else 0
        # as many keys as the text has may be the text's, to which all tokens attend
        alike = query.ndim == 4 and key.shape == value.shape and key.shape[2] == length != self.text
        fits = alike and attn_mask is None and not dropout_p and not is_causal and length >= self.method.min_length
        if alike and attn_mask is not None and length >= self.method.min_length:
            self.session.report.warn(f"attention with a mask stayed dense, over {length} tokens")
        if fits and torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value)):
            self.session.report.warn(GRADIENTS)  # the kernel has none
            fits = False
        if fits and torch.is_autocast_enabled(query.device.type):  # which comes below, and casts for torch's own alone
            dtype = torch.get_autocast_dtype(query.device.type)
            query, key, value = (x.to(dtype) for x in (query, key, value))
        order, plan = self._chosen(query, key, scale) if fits else (None, None)
        if plan is None:
            if alike:
                self._count(query, length * length)
            more = {"attn_mask": attn_mask, "dropout_p": dropout_p, "is_causal": is_causal, "scale": scale}
            return original(query, key, value, **more, enable_gqa=enable_gqa)
        if order is not None:
            query, key, value = (x[:, :, order[0]] for x in (query, key, value))
        output, _ = kernels.block_sparse_attention(query, key, value, plan, scale=scale)
        self._count(query, round(plan.density * length * length))
        return output if order is None else output[:, :, order[1]]

    def _chosen(
        self, query: torch.Tensor, key: torch.Tensor, scale: float | None
    ) -> tuple[torch.Tensor | None, BlockPlan | None]:
        """Blocks that pay; a policy that keeps the same share of every row is only asked where that share does."""
        if self.method.policy == "pooled_top_k":
            blocks = -(-query.shape[2] // BLOCK)
            share = blocks_of_row(blocks, self.method.budget) / blocks
            return self._plan(query, key, scale) if self._pays(share, query) else (None, None)
        order, plan = self._plan(query, key, scale)
        return (order, plan) if plan is not None and self._pays(plan.density, query) else (None, None)

    def _pays(self, density: float, query: torch.Tensor) -> bool:
        length = query.shape[2]
        if self.method.always or kernels.should_use_sparse(density, length, query.device, dtype=query.dtype):
            return True
        kept = f"{density:.0%} of the blocks of {length} tokens"
        self.session.report.warn(f"dense attention ran where it is faster on this machine: the policy kept {kept}")
        return False

    def _plan(
        self, query: torch.Tensor, key: torch.Tensor, scale: float | None
    ) -> tuple[torch.Tensor | None, BlockPlan | None]:
        method = self.method
        if method.policy in BLOCK_POLICIES:
            choose = policies.PREFILL[method.policy]
            size = {"block_m": BLOCK, "block_n": BLOCK}
            return None, choose(query, key, budget=method.budget, causal=False, scale=scale, **size)
        if self.grid is None or self.grid[0] * self.grid[1] * self.grid[2] != query.shape[2]:
            self.session.report.warn(UNPLACED)
            return None, None
        choose_place = _radial if method.policy == "radial" else _sliding_tile
        return choose_place(self.grid, method.budget, str(query.device))

    def _count(self, query: torch.Tensor, pairs: int) -> None:
        report, length = self.session.report, query.shape[2]
        report.keys += pairs * query.shape[0] * query.shape[1]
        report.plain_keys += length * length * query.shape[0] * query.shape[1]
        report.engaged = report.engaged or report.keys < report.plain_keys
        report.tokens = max(report.tokens, length * query.shape[0])


@functools.lru_cache(maxsize=8)
def _radial(grid: Grid, budget: float, device: str) -> tuple[None, BlockPlan]:
    """The widest windows that the budget allows; halving them twelve times is as narrow as they get."""
    for halvings in range(25):
        plan = policies.radial(grid[0], grid[1] * grid[2], decay=2.0 ** (4 - halvings / 2), device=device)
        if plan.density <= budget:
            break
    return None, plan


@functools.lru_cache(maxsize=8)
def _sliding_tile(grid: Grid, budget: float, device: str) -> tuple[torch.Tensor, BlockPlan]:
    """The order of tokens `[2, L]`, to the largest tiles that divide the grid and back; the largest odd windows."""
    frames, height, width = (
        max(d for d in range(1, most + 1) if n % d == 0) for n, most in zip(grid, LARGEST_TILE, strict=True)
    )
    tile = (frames, height, width)
    sizes = [range(1, n // t + 2, 2) for n, t in zip(grid, tile, strict=True)]
    long = max(range(3), key=lambda axis: (len(sizes[axis]), axis))

    def plan_of(one: int, two: int, last: int) -> BlockPlan:
        frames, height, width = itertools.chain((one, two)[:long], [last], (one, two)[long:])
        return policies.sliding_tile(grid, tile, (frames, height, width), device=device)

    best = plan_of(1, 1, 1)
    for one, two in itertools.product(*sizes[:long], *sizes[long + 1 :]):  # wider reads no less: few of the longest
        fitting = bisect.bisect_right(sizes[long], budget, key=lambda last: plan_of(one, two, last).density)
        if fitting and (plan := plan_of(one, two, sizes[long][fitting - 1])).density > best.density:
            best = plan
    order = policies.tile_order(grid, tile, device=device)
    return torch.stack([order, order.argsort()]), best
