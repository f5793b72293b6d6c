"""How far accelerated pictures are from real ones: distances on tokens, without any pretrained network."""

from __future__ import annotations

import torch

COMPONENTS = 32  # of the features of real pictures; a few hundred samples give a covariance of that size
CELLS = 4


def features(tokens: torch.Tensor, codebook: torch.Tensor) -> torch.Tensor:
    """Where which codes are, and how they meet their neighbours.

    `tokens [n, N]` of square grids and `codebook [V, D]` to `[n, 16 D + 2 D]`: code vectors averaged over
    4 x 4 cells, and mean absolute differences to the right and lower neighbour.
    """
    side = int(tokens.shape[1] ** 0.5)
    vectors = codebook[tokens].view(len(tokens), side, side, -1).permute(0, 3, 1, 2).float()
    cells = torch.nn.functional.adaptive_avg_pool2d(vectors, CELLS).flatten(1)
    steps = [vectors.diff(dim=axis).abs().mean((2, 3)) for axis in (3, 2)]
    return torch.cat([cells, *steps], 1).double()


class FrechetDistance:
    """Fréchet distance between Gaussians (Dowson and Landau, 1982), on principal components of real features.

    Parameters
    ----------
    real
        Features `[n, D]` of real pictures, which fix the components.

    Examples
    --------
    >>> x = torch.randn(100, 40, dtype=torch.double)
    >>> abs(FrechetDistance(x)(x)) < 1e-6
    True
    """

    def __init__(self, real: torch.Tensor) -> None:
        self.mean = real.mean(0)
        self.scale = real.std(0).clamp_min(1e-6)
        _, _, vectors = torch.linalg.svd(self._standard(real), full_matrices=False)
        self.components = vectors[:COMPONENTS].T
        self.real = self._moments(real)

    def _standard(self, x: torch.Tensor) -> torch.Tensor:
        return (x - self.mean) / self.scale

    def _moments(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        reduced = self._standard(x) @ self.components
        return reduced.mean(0), torch.cov(reduced.T)

    def __call__(self, x: torch.Tensor) -> float:
        mean, covariance = self._moments(x)
        real_mean, real_covariance = self.real
        # trace of sqrt(A B) from the eigenvalues of A B, which are real and not negative
        roots = torch.linalg.eigvals(real_covariance @ covariance).real.clamp_min(0).sqrt()
        spread = real_covariance.trace() + covariance.trace() - 2 * roots.sum()
        return float((mean - real_mean).square().sum() + spread)
