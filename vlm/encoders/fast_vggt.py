"""FastVGGT: merge most tokens of many views for the attention over all of them, and unmerge them after it; lossy."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn
from torch.nn.functional import normalize, pad

from mmaccel.errors import SettingError
from mmaccel.kernels import segment_mean
from mmaccel.machine import unrounded
from mmaccel.method import Advice, Method, is_count, is_number
from mmaccel.patching import hook, wrap_forward, wrap_method
from mmaccel.registry import register
from mmaccel.session import Session

from ..families.multi_view import MultiViewAdapter, Views

AT_ONCE = 1 << 26  # similarities to compute at once, which bounds the memory that they take
POSITIONS, MASKS = ("pos", "xpos"), ("attn_mask", "attn_bias")  # what attention modules call them

EXAMPLE = """import mmaccel
import torch
from mmaccel import vlm
from mmaccel.vlm.multi_view_example import VGGT

model = VGGT().eval()  # yours: the VGGT of vggt.models.vggt with its weights, or a model of Depth Anything 3 or Pi3
pictures = torch.rand(1, 8, 3, 24, 32)  # [1, views, 3, height, width]
with mmaccel.accelerate(model, {method}) as fast:
    scene = fast(pictures)
    print(fast.report)"""


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


@register("vlm")
@dataclass(frozen=True)
class FastVGGT(Method[Session[MultiViewAdapter]]):
    """Merge tokens for the attention over all views of a scene, and unmerge them after it; lossy.

    FastVGGT: Training-Free Acceleration of Visual Geometry Transformer (Shen et al., 2025). All tokens of the first
    view, the special tokens of every view, and a random token of each cell of 2 x 2 stay, and so do salient ones, which
    are like none of these. All others merge, each into that of those tokens with the highest cosine.

    Parameters
    ----------
    merge
        Share of all tokens to merge, from 0 (plain) to 1, limited to those that may merge; default 0.9 as the paper.
    salient
        Share of all tokens that stay because they are least like any that they could merge into, from 0 to 1; default
        0.1, as many as the reference code keeps.
    least
        Tokens of all views of a scene from which on they merge, at least 0; default 256, about where merging begins to
        save more time than it takes on a CPU.

    Notes
    -----
    Lossy; at ``merge=0`` bit-identical. One view alone has nothing to merge into. Each call draws the same tokens. The
    reference code takes the salient ones by a fixed stride, and merges queries, keys and values after rotary positions;
    here tokens merge before these are made. What attention needs falls with the square of what is left, so that it
    pays the more, the more views there are; everything else of the model stays as it is.

    Raises
    ------
    SettingError
        If a setting is out of range, or if attention is called with a mask.
    MemoryLimitError
        If the views take more memory than is free, before the model runs.

    Examples
    --------
    >>> tokens = torch.randn(1, 3 * (1 + 16), 8)
    >>> match = FastVGGT(salient=0.0).match(tokens, Views(3, 1, 4, 4))
    >>> match.merge(tokens).shape  # 17 of the first view, 5 of each other one
    torch.Size([1, 27, 8])
    """

    merge: float = 0.9
    salient: float = 0.1
    least: int = 256

    paper: ClassVar[str] = "FastVGGT: Training-Free Acceleration of Visual Geometry Transformer, 2025"
    advice: ClassVar[Advice] = Advice(
        "VGGT, Depth Anything 3 and Pi3 on tens to thousands of views: attention over all of them is most of the time.",
        "Details that one view alone shows blur a little. Few views gain little.",
        example=EXAMPLE,
    )
    families: ClassVar[frozenset[str] | None] = frozenset({"multi_view"})
    neutral: ClassVar[dict[str, Any]] = {"merge": 0.0}
    engaging: ClassVar[dict[str, Any]] = {"least": 0}

    def __post_init__(self) -> None:
        self._require(is_number(self.merge, 0, 1), "merge", "from 0 to 1, a share of the tokens")
        self._require(is_number(self.salient, 0, 1), "salient", "from 0 to 1, a share of the tokens")
        self._require(is_count(self.least, 0), "least", "a whole number of at least 0")

    def attach(self, session: Session[MultiViewAdapter], stack: ExitStack) -> None:
        if not self.merge:
            return
        merging = _Merging(self, session)
        for name in session.adapter.runs:
            wrap_method(stack, session.target, name, merging.run)
        wrap_forward(stack, session.adapter.encoder.module, merging.encode)
        for module in session.adapter.encoder.attention:
            hook(stack, module, merging.before, merging.after)

    def match(self, tokens: torch.Tensor, views: Views) -> Match:
        """Match the tokens `[B, L, D]` by cosine."""
        batch, length, _ = tokens.shape
        into = targets(views).to(tokens.device)
        target, source = into.nonzero().flatten(), (~into).nonzero().flatten()
        likeness, nearest = _nearest(normalize(tokens.float(), dim=-1), source, target)
        count = max(0, min(len(source) - round(length * self.salient), int(length * self.merge)))
        gone = likeness.sort(dim=1, descending=True, stable=True).indices[:, :count]
        stays = torch.ones(batch, length, dtype=torch.bool, device=tokens.device)
        stays.scatter_(1, source[gone], False)
        owner = stays.cumsum(1) - 1
        owner = owner.scatter(1, source[gone], owner.gather(1, target[nearest.gather(1, gone)]))
        return Match(stays.nonzero()[:, 1].view(batch, length - count), owner)


@functools.lru_cache(maxsize=1)  # every block asks
def targets(views: Views) -> torch.Tensor:
    """The tokens of all views into which others may merge, bool `[L]`; always the same of equal views.

    Drawn at random, they show each place of a cell in some view: always the same one would leave out the others.
    """
    draw = torch.Generator().manual_seed(0)
    cells = views.count - 1, -(-views.rows // 2), -(-views.columns // 2)
    down, right = torch.randint(2, (2, *cells), generator=draw)
    row = (2 * torch.arange(cells[1])[:, None] + down).clamp(max=views.rows - 1)
    column = (2 * torch.arange(cells[2]) + right).clamp(max=views.columns - 1)
    patches = torch.zeros(views.count - 1, views.rows * views.columns, dtype=torch.bool)
    patches.scatter_(1, (row * views.columns + column).flatten(1), True)
    others = pad(patches, (views.special, 0), value=True)
    return torch.cat([torch.ones(views.tokens // views.count, dtype=torch.bool), others.flatten()])


def _nearest(unit: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Highest cosine of each source with a target, and the index of that target, `[B, S]`."""
    into = unit[:, target].mT
    parts = source.split(max(1, AT_ONCE // (len(unit) * len(target))))
    with unrounded(unit.device.type):
        found = [(unit[:, part] @ into).max(2) for part in parts]
    if not found:
        return unit.new_zeros(len(unit), 0), source.new_zeros(len(unit), 0)
    return torch.cat([part.values for part in found], 1), torch.cat([part.indices for part in found], 1)


class _Merging:
    """What the hooks of one session share: the views of the call, and the match of the block in progress."""

    def __init__(self, method: FastVGGT, session: Session[MultiViewAdapter]) -> None:
        self.method, self.session = method, session
        self.views = Views(1, 0, 0, 0)
        self.merges = False
        self.match: Match | None = None

    def run(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with self.session.run():
            return original(*args, **kwargs)

    def encode(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A run of its own, where the encoder is called by itself."""
        with self.session.run():
            self._begin(*args, **kwargs)
            return original(*args, **kwargs)

    def _begin(self, *args: Any, **kwargs: Any) -> None:
        adapter = self.session.adapter
        names = inspect.signature(adapter.encoder.module.forward).parameters
        pictures = args[0] if args else kwargs[next(iter(names))]
        self.views, self.match = adapter.views(pictures), None
        adapter.check_memory(self.views, pictures)
        why = self._why_plain()
        self.merges = not why
        if why:
            self.session.report.warnings.append(why)

    def _why_plain(self) -> str:
        """Why nothing merges in this call; empty where tokens do."""
        tokens, least = self.views.tokens, self.method.least
        if self.views.count == 1:
            return "one view alone: there is no other to merge it with"
        return f"{tokens} tokens: merging so few does not pay, and least={least}" if tokens < least else ""

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tokens = args[0]
        for name in MASKS:
            if kwargs.get(name) is not None:
                raise SettingError(
                    f"FastVGGT merges tokens from any place, so a mask no longer fits: call without {name}"
                )
        if not self.merges:
            return None
        if tokens.shape[1] != self.views.tokens:
            raise SettingError(f"FastVGGT got {tokens.shape[1]} tokens, and {self.views} make {self.views.tokens}")
        self.match = match = self.method.match(tokens, self.views)
        self._count(module, match)
        taken = {name: _taken(kwargs[name], match.kept) for name in POSITIONS if kwargs.get(name) is not None}
        return (match.merge(tokens), *args[1:]), {**kwargs, **taken}

    def after(self, module: nn.Module, args: Any, kwargs: Any, output: torch.Tensor) -> torch.Tensor | None:
        match, self.match = self.match, None
        return None if match is None else match.unmerge(output)

    def _count(self, module: nn.Module, match: Match) -> None:
        report, (batch, kept), length = self.session.report, match.kept.shape, match.owner.shape[1]
        heads = batch * int(getattr(module, "num_heads", 1))
        report.engaged |= kept < length
        report.keys += heads * kept**2
        report.plain_keys += heads * length**2
        report.details["views"] = {"views": self.views.count, "tokens": length, "merged into": kept}


def _taken(positions: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    """Entries `[B, K, ...]` of `[B, L, ...]`; a batch of 1 stands for all."""
    positions = positions.expand(len(kept), *positions.shape[1:])
    return positions[torch.arange(len(kept), device=kept.device)[:, None], kept]
