"""Visual tokens of a prompt: those of the vision tower, and those that a method kept."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..pruning.compressed import Compressed

# Why frames cannot be told apart: on MiniCPM-V, and on VideoLLaMA 3.
UNTOLD = "no frames were compared with each other, since the processor does not tell which are of one clip"
THINNED = "no frames were compared with each other, since the processor left tokens out: use_token_compression=False"


@dataclass
class Visual:
    """The tokens of one video, or of one picture, in one row of a prompt.

    Attributes
    ----------
    features : `[L, D]`
        Features for the language model, in the order of the placeholders.
    grid
        Frames, rows and columns of the tokens that show something.
    shows : bool `[L]`
        False for tokens that only end a line; the others are ``frames * rows * columns`` in number.
    scores : `[F, N]` or None
        Attention that each token received in the vision tower.
    key : `[F, N, E]` or None
        Its keys there.
    present : int64 `[F']` or None
        The frames that are present; features of others have no meaning. None for all.
    extra
        Further features of each token `[L, D]`, such as those that Qwen3-VL adds in its first layers.
    unframed
        Why the frames of this clip cannot be told apart; empty if they can.
    """

    features: torch.Tensor
    grid: tuple[int, int, int]
    shows: torch.Tensor
    scores: torch.Tensor | None = None
    key: torch.Tensor | None = None
    present: torch.Tensor | None = None
    extra: tuple[torch.Tensor, ...] = ()
    unframed: str = ""

    @classmethod
    def of_frames(cls, features: torch.Tensor, grid: tuple[int, int, int], ends: int = 0, unframed: str = "") -> Visual:
        """The visual of features `[F * N + ends, D]`, of which the last `ends` show nothing."""
        shows = torch.ones(len(features), dtype=torch.bool, device=features.device)
        shows[len(features) - ends :] = False
        return cls(features, grid, shows, unframed=unframed)

    def hear(self, told: torch.Tensor) -> None:
        """Note the score of each token that shows something and, if it is told, its key, `[F * N, 1 + E]`."""
        frames = told.unflatten(0, (self.grid[0], -1))
        self.scores, self.key = frames[..., 0], frames[..., 1:] if frames.shape[-1] > 1 else None

    def to(self, device: torch.device) -> Visual:
        """The same on another device, such as that of a prompt."""
        scores, key, present = (
            None if part is None else part.to(device) for part in (self.scores, self.key, self.present)
        )
        extra = tuple(part.to(device) for part in self.extra)
        features, shows = self.features.to(device), self.shows.to(device)
        return Visual(features, self.grid, shows, scores, key, present, extra, self.unframed)

    def only(self, stays: torch.Tensor) -> Visual:
        """Those of its tokens that stay, bool `[L]`, in one line since they fill no grid; all must show something."""
        scores, key = (None if part is None else part.flatten(0, 1)[stays][None] for part in (self.scores, self.key))
        unframed = THINNED if self.grid[0] > 1 else ""
        grid, extra = (1, 1, int(stays.sum())), tuple(part[stays] for part in self.extra)
        return Visual(self.features[stays], grid, self.shows[stays], scores, key, extra=extra, unframed=unframed)

    @property
    def frames(self) -> torch.Tensor:
        """The tokens that show something, `[F, N, D]`, of the frames that are present."""
        frames = self.features[self.shows].unflatten(0, (self.grid[0], -1))
        return frames if self.present is None else frames[self.present]

    @property
    def cells(self) -> int:
        """Tokens of a frame."""
        return self.grid[1] * self.grid[2]

    def shortened(self, left: Compressed) -> tuple[Visual, torch.Tensor]:
        """The visual with the tokens that a method kept, and the remaining placeholders, in its order."""
        anchor = left.anchor_index
        if self.present is not None:
            anchor = self.present[anchor // self.cells] * self.cells + anchor % self.cells
        tokens = self.shows.nonzero().squeeze(1)[anchor]
        stays = torch.zeros_like(self.shows)
        stays[tokens] = True
        stays |= self._line_ends(stays)
        features = self.features[stays]
        features[self.shows[stays]] = left.tokens.to(features)
        # where the method's order is another one than that of places: of everything else take the same order
        order = stays.nonzero().squeeze(1)
        order[self.shows[stays]] = tokens
        extra = tuple(part[order] for part in self.extra)
        return Visual(features, self.grid, self.shows[stays], extra=extra, unframed=self.unframed), order

    def _line_ends(self, stays: torch.Tensor) -> torch.Tensor:
        """Ends of lines that still have a token, bool `[L]`."""
        ends = ~self.shows
        line = ends.cumsum(0) - ends.long()  # an end belongs to the line before it
        kept = torch.zeros(int(line[-1]) + 1, dtype=torch.bool, device=line.device)
        kept[line[stays]] = True
        return ends & kept[line]
