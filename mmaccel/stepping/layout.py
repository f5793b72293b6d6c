"""How the tokens of a transformer lie in the latents of its pipeline."""

from __future__ import annotations

import torch


class LatentLayout:
    """How the tokens of a transformer lie in the latents of its pipeline.

    Parameters
    ----------
    patch
        Size of a token along each dimension of the grid; None where tokens are not known, and all is one token.
    frames_first
        Whether latents are `[B, F, C, H, W]` instead of `[B, C, F, H, W]`.

    Examples
    --------
    >>> LatentLayout((1, 2, 2)).tokens(torch.zeros(1, 4, 3, 8, 8)).shape
    torch.Size([1, 48, 16])
    """

    def __init__(self, patch: tuple[int, ...] | None = None, frames_first: bool = False) -> None:
        self.patch, self.frames_first = patch, frames_first

    def tokens(self, latents: torch.Tensor) -> torch.Tensor:
        """Latents as tokens `[B, S, C * patch]` in the transformer's order; packed ones `[B, S, C]` stay."""
        if self.patch is None:
            return latents.flatten(1)[:, None]
        if latents.ndim == 3:
            return latents
        x = latents.transpose(1, 2) if self.frames_first else latents
        batch, channels, *sizes = x.shape
        split = [part for size, p in zip(sizes, self.patch, strict=True) for part in (size // p, p)]
        x = x.reshape(batch, channels, *split)
        grid, inner = range(2, x.ndim, 2), range(3, x.ndim, 2)
        return x.permute(0, *grid, 1, *inner).flatten(1, len(sizes)).flatten(2)

    def latents(self, tokens: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """The inverse of :meth:`tokens`, in the shape of `like`."""
        if self.patch is None or like.ndim == 3:
            return tokens.reshape(like.shape)
        target = like.transpose(1, 2) if self.frames_first else like
        batch, channels, *sizes = target.shape
        dims = len(sizes)
        grid = [size // p for size, p in zip(sizes, self.patch, strict=True)]
        x = tokens.reshape(batch, *grid, channels, *self.patch)
        order = [part for i in range(dims) for part in (1 + i, 2 + dims + i)]
        x = x.permute(0, 1 + dims, *order).reshape(target.shape)
        return x.transpose(1, 2) if self.frames_first else x
