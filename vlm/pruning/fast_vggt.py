"""FastVGGT: merge most tokens of many views for global attention, and unmerge them after it; lossy."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.functional import normalize, pad

from mmaccel.errors import SettingError
from mmaccel.kernels import segment_mean
from mmaccel.method import is_count, is_number
from mmaccel.patching import hook

CHUNK = 4096  # merged tokens to compare at once, which bounds the memory that similarities take


class Match(NamedTuple):
    """The tokens that go through attention, and the tokens that each represents.

    Attributes
    ----------
    kept : int64 `[B, K]`
        Tokens that stay, ascending.
    owner : int64 `[B, L]`
        The row of `kept` that represents each token; a kept token represents itself.
    """

    kept: torch.Tensor
    owner: torch.Tensor

    def merge(self, tokens: torch.Tensor) -> torch.Tensor:
        """The mean of the tokens that each kept one represents, itself included, `[B, L, D]` to `[B, K, D]`."""
        size = torch.zeros_like(self.kept).scatter_add_(1, self.owner, torch.ones_like(self.owner))
        starts = pad(size.cumsum(1), (1, 0))
        return segment_mean(tokens, None, self.owner.argsort(dim=1, stable=True), starts)

    def unmerge(self, tokens: torch.Tensor) -> torch.Tensor:
        """Give each token the value of its representative, `[B, K, D]` to `[B, L, D]`."""
        return tokens.gather(1, self.owner[..., None].expand(-1, -1, tokens.shape[2]))


@dataclass(frozen=True)
class FastVGGT:
    """Merge tokens for the global attention of an encoder of many views, and unmerge them after it; lossy.

    FastVGGT: Training-Free Acceleration of Visual Geometry Transformer (Shen et al., 2025). Merge targets are all
    tokens of the first view, the special tokens of every view, and the top left token of each cell of 2 x 2. All others
    may merge, each into the target with the highest cosine, the most similar first.

    Parameters
    ----------
    frames
        Views in the sequence, at least 1; its length is ``frames * (special + rows * columns)``.
    special
        Tokens without a position in the picture at the beginning of each view, such as camera and register tokens,
        default 0.
    merge
        Share of all tokens to merge, from 0 (plain) to 1, limited to those that may merge; default 0.9 as the paper.
    grid
        Rows and columns of a view; None (default) takes a square.

    Notes
    -----
    Lossy; at ``merge=0`` bit-identical. The reference code draws the token of a cell at random, keeps every tenth
    token from merging, and merges query, key and value after rotary positions; here tokens merge before these are made.

    Raises
    ------
    SettingError
        If a setting is out of range; by :meth:`match` if the sequence does not fit.

    Examples
    --------
    >>> attention = [layer.self_attn for layer in model.encoder.layers]  # doctest: +SKIP
    >>> with FastVGGT(frames=8).on(attention):  # doctest: +SKIP
    ...     hidden_states = model.encoder(inputs_embeds=views.reshape(1, 8 * 256, -1))

    >>> tokens = torch.randn(1, 3 * (1 + 16), 8)
    >>> match = FastVGGT(frames=3, special=1).match(tokens)
    >>> match.merge(tokens).shape  # 17 of the first view, 5 of each other one
    torch.Size([1, 27, 8])
    """

    frames: int
    special: int = 0
    merge: float = 0.9
    grid: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        grid = self.grid
        for name, valid, allowed in (
            ("frames", is_count(self.frames), "a whole number of at least 1"),
            ("special", is_count(self.special, 0), "a whole number of at least 0"),
            ("merge", is_number(self.merge, 0, 1), "from 0 to 1, a share of the tokens"),
            ("grid", grid is None or (len(grid) == 2 and all(map(is_count, grid))), "rows and columns, or None"),
        ):
            if not valid:
                raise SettingError(f"FastVGGT({name}={getattr(self, name)!r}): {name} must be {allowed}")

    @contextmanager
    def on(self, modules: Iterable[nn.Module], positions: tuple[str, ...] = ()) -> Iterator[None]:
        """Inside the block, these attention modules see merged tokens; everything else keeps all of them.

        Parameters
        ----------
        modules
            Attention modules of the blocks whose attention runs over all views in one sequence. Each takes
            `[B, L, D]`, first or as `hidden_states`, and returns as much, alone or first in a tuple, with no mask.
        positions
            Names of keyword arguments `[B, L, ...]`, such as ``("pos",)``, of which those of kept tokens are passed on.

        Raises
        ------
        SettingError
            Raised by the modules, if the sequence does not fit or has an attention mask.
        """
        with ExitStack() as stack:
            for module in modules if self.merge else ():
                before, after = _hooks(self, positions)
                hook(stack, module, before, after)
            yield

    def targets(self, length: int) -> torch.Tensor:
        """The tokens into which others may merge, bool `[L]`."""
        places = length // self.frames - self.special
        rows, columns = self.grid or (math.isqrt(max(0, places)),) * 2
        if self.frames * (self.special + rows * columns) != length or not rows:
            raise SettingError(
                f"{length} tokens are not {self.frames} views of {self.special} special tokens and a grid of"
                f" {rows} x {columns}: give FastVGGT(frames=, special=, grid=(rows, columns)) as the model has them"
            )
        cells = torch.zeros(rows, columns, dtype=torch.bool)
        cells[::2, ::2] = True
        view = torch.cat([torch.ones(self.special, dtype=torch.bool), cells.flatten()])
        return torch.cat([torch.ones(len(view), dtype=torch.bool), view.repeat(self.frames - 1)])

    def match(self, tokens: torch.Tensor) -> Match:
        """Match the tokens `[B, L, D]` by cosine."""
        batch, length, _ = tokens.shape
        into = self.targets(length).to(tokens.device)
        target, source = into.nonzero().flatten(), (~into).nonzero().flatten()
        likeness, nearest = _nearest(normalize(tokens.float(), dim=-1), source, target)
        count = min(len(source), int(length * self.merge))
        gone = likeness.sort(dim=1, descending=True, stable=True).indices[:, :count]
        stays = torch.ones(batch, length, dtype=torch.bool, device=tokens.device)
        stays.scatter_(1, source[gone], False)
        owner = stays.cumsum(1) - 1
        owner = owner.scatter(1, source[gone], owner.gather(1, target[nearest.gather(1, gone)]))
        return Match(stays.nonzero()[:, 1].view(batch, length - count), owner)


def _nearest(unit: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Highest cosine of each source with a target, and the index of that target, `[B, S]`."""
    into = unit[:, target].mT
    index = [(unit[:, chunk] @ into).argmax(2) for chunk in source.split(CHUNK)]
    likeness = [
        (unit[:, chunk] * unit.gather(1, target[i][..., None].expand(-1, -1, unit.shape[2]))).sum(2)
        for chunk, i in zip(source.split(CHUNK), index, strict=True)
    ]
    return torch.cat(likeness, 1), torch.cat(index, 1)


def _hooks(merger: FastVGGT, positions: tuple[str, ...]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Hooks before and after one module, which share the match of the call in progress."""
    now: list[Match] = []

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        if kwargs.get("attention_mask") is not None:
            raise SettingError(
                "FastVGGT merges tokens from any position, so a mask no longer fits: call without a mask"
            )
        tokens = args[0] if args else kwargs["hidden_states"]
        now[:] = [merger.match(tokens)]
        merged = now[0].merge(tokens)
        kwargs = {**kwargs, **{name: _take(kwargs[name], now[0].kept) for name in positions}}
        return ((merged, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": merged})

    def after(module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        match = now.pop()
        return (match.unmerge(output[0]), *output[1:]) if isinstance(output, tuple) else match.unmerge(output)

    return before, after


def _take(positions: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    """Entries `[B, K, ...]` of `[B, L, ...]`; a batch of 1 stands for all."""
    positions = positions.expand(len(kept), *positions.shape[1:])
    return positions[torch.arange(len(kept), device=kept.device)[:, None], kept]
