"""The transducer loss with FastEmit, in pure torch."""

from __future__ import annotations

from typing import Any

import torch

from mmaccel.errors import SettingError, unknown_name
from mmaccel.method import is_number

REDUCTIONS = ("mean", "sum", "none")


def transducer_loss(
    logits: torch.Tensor,
    targets: torch.Tensor,
    logit_lengths: torch.Tensor | None = None,
    target_lengths: torch.Tensor | None = None,
    blank: int = 0,
    fast_emit: float = 0.0,
    reduction: str = "mean",
) -> torch.Tensor:
    """Negative log-likelihood of texts, summed over all alignments, with gradients that make words come early.

    The loss of Sequence Transduction with Recurrent Neural Networks, 2012, with the regularisation of FastEmit:
    Low-latency Streaming ASR with Sequence-level Emission Regularization, 2021: the gradient of the log-probability
    of every label emission is scaled by `1 + fast_emit`, that of blanks is as it was. The value is that without the
    regularisation, so that runs of different settings compare. Forward and backward variables are computed in log
    space, one anti-diagonal at a time, in float32 or float64.

    Parameters
    ----------
    logits
        `[B, T, U + 1, V]`, unnormalised, of T frames after u = 0..U labels.
    targets
        `[B, U]` of labels, padded at the end with anything.
    logit_lengths, target_lengths
        `[B]`: how many frames, at least 1, and labels, at least 0, of each; default all.
    blank
        Index of the blank, default 0.
    fast_emit
        Strength of the regularisation, lambda in the paper; default 0 for none; 0.0001 to 0.01 is usual.
    reduction
        ``"mean"`` over the batch (default), ``"sum"`` or ``"none"``.

    Returns
    -------
    torch.Tensor
        A number, or `[B]` without reduction; infinite, with gradient 0, where no alignment is possible.

    Raises
    ------
    SettingError
        If shapes, lengths, labels or settings do not fit.
    UnknownNameError
        If there is no such reduction.

    Examples
    --------
    >>> logits = torch.zeros(1, 2, 2, 3)  # 2 frames, 1 label: 2 alignments of 3 steps, each of 1 in 3
    >>> transducer_loss(logits, torch.tensor([[1]]))
    tensor(2.6027)
    """
    batch, frames = _check(logits, targets, blank, fast_emit, reduction)
    logit_lengths = _lengths(logit_lengths, "logit_lengths", batch, frames, 1, targets)
    target_lengths = _lengths(target_lengths, "target_lengths", batch, targets.shape[1], 0, targets)
    labels = _labels(targets, target_lengths, blank, logits.shape[-1])
    log_probs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
    blanks = log_probs[..., blank]
    index = labels[:, None, :, None].expand(-1, frames, -1, 1)
    emissions = log_probs[:, :, :-1].gather(-1, index).squeeze(-1)
    loss = lattice_loss(blanks, emissions, logit_lengths, target_lengths, fast_emit)
    return loss if reduction == "none" else loss.mean() if reduction == "mean" else loss.sum()


def lattice_loss(
    blanks: torch.Tensor,
    emissions: torch.Tensor,
    logit_lengths: torch.Tensor,
    target_lengths: torch.Tensor,
    fast_emit: float = 0.0,
) -> torch.Tensor:
    """The same from the log-probabilities of both moves, for those who normalise in another way.

    Parameters
    ----------
    blanks
        `[B, T, U + 1]`: of no label at frame t after u labels.
    emissions
        `[B, T, U]`: of label u + 1 at frame t after u labels.
    logit_lengths, target_lengths
        `[B]`
    fast_emit
        As in :func:`transducer_loss`.

    Returns
    -------
    torch.Tensor
        `[B]`
    """
    loss: torch.Tensor = _Lattice.apply(blanks, emissions, logit_lengths, target_lengths, fast_emit)
    return loss


class _Lattice(torch.autograd.Function):
    """Forward variables one way, backward variables the other.

    Node (t, u) lies on anti-diagonal d = t + u; both its successors, (t + 1, u) by a blank and (t, u + 1) by a label,
    lie on the next. So tensors are skewed to `[B, d, u]`, and each step is one vector operation. A text of U labels
    over T frames ends at the virtual node (T, U), after the last blank.
    """

    @staticmethod
    def forward(
        ctx: Any, blanks: Any, emissions: Any, logit_lengths: Any, target_lengths: Any, fast_emit: float
    ) -> torch.Tensor:
        batch, frames, width = blanks.shape
        diagonal = torch.arange(frames + width, device=blanks.device)
        label = torch.arange(width, device=blanks.device)
        frame = diagonal[:, None] - label  # [d, u]
        alive = (frame >= 0) & (frame < logit_lengths[:, None, None])
        index = frame.clamp(0, frames - 1).expand(batch, -1, -1)
        emissions = torch.nn.functional.pad(emissions, (0, 1))
        blank_moves = _skew(blanks, index, alive & (label <= target_lengths[:, None, None]))
        label_moves = _skew(emissions, index, alive & (label < target_lengths[:, None, None]))
        alpha = _forward_variables(blank_moves, label_moves)
        end = logit_lengths + target_lengths
        log_likelihood = alpha[torch.arange(batch, device=end.device), end, target_lengths]
        ctx.save_for_backward(blank_moves, label_moves, alpha, log_likelihood, end, target_lengths)
        ctx.shape, ctx.fast_emit = blanks.shape, fast_emit
        return -log_likelihood

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        blank_moves, label_moves, alpha, log_likelihood, end, target_lengths = ctx.saved_tensors
        batch, frames, width = ctx.shape
        beta = _backward_variables(blank_moves, label_moves, end, target_lengths)
        possible = torch.isfinite(log_likelihood)
        scale = torch.where(possible, gradient, 0.0)[:, None, None]
        before = alpha - torch.where(possible, log_likelihood, 0.0)[:, None, None]
        blank_share = (before[:, :-1] + blank_moves[:, :-1] + beta[:, 1:]).exp()
        label_share = (before[:, :-1] + label_moves[:, :-1] + _left(beta[:, 1:])).exp()
        grid = torch.arange(frames, device=end.device)[:, None] + torch.arange(width, device=end.device)
        index = grid.expand(batch, -1, -1)
        blank_gradient = (-scale * blank_share).gather(1, index)
        label_gradient = (-scale * (1 + ctx.fast_emit) * label_share).gather(1, index)[..., :-1]
        return blank_gradient, label_gradient, None, None, None


def _skew(moves: torch.Tensor, index: torch.Tensor, alive: torch.Tensor) -> torch.Tensor:
    """`[B, T, U + 1]` to `[B, d, U + 1]`, minus infinity where there is no such move."""
    return moves.gather(1, index).masked_fill(~alive, -torch.inf)


def _left(values: torch.Tensor) -> torch.Tensor:
    """Value u + 1 at place u."""
    return torch.nn.functional.pad(values[..., 1:], (0, 1), value=-torch.inf)


def _forward_variables(blank_moves: torch.Tensor, label_moves: torch.Tensor) -> torch.Tensor:
    """Log-probability of reaching each node from (0, 0), `[B, d, U + 1]`."""
    batch, diagonals, width = blank_moves.shape
    alpha = blank_moves.new_full((batch, diagonals, width), -torch.inf)
    alpha[:, 0, 0] = 0
    for d in range(1, diagonals):
        by_label = torch.nn.functional.pad((alpha[:, d - 1] + label_moves[:, d - 1])[:, :-1], (1, 0), value=-torch.inf)
        alpha[:, d] = torch.logaddexp(alpha[:, d - 1] + blank_moves[:, d - 1], by_label)
    return alpha


def _backward_variables(
    blank_moves: torch.Tensor, label_moves: torch.Tensor, end: torch.Tensor, target_lengths: torch.Tensor
) -> torch.Tensor:
    """Log-probability of reaching the end from each node, `[B, d, U + 1]`."""
    beta = torch.full_like(blank_moves, -torch.inf)
    beta[torch.arange(len(end), device=end.device), end, target_lengths] = 0
    for d in range(blank_moves.shape[1] - 2, -1, -1):
        onward = torch.logaddexp(blank_moves[:, d] + beta[:, d + 1], label_moves[:, d] + _left(beta[:, d + 1]))
        beta[:, d] = torch.maximum(beta[:, d], onward)  # the end has no way onward
    return beta


def _check(logits: torch.Tensor, targets: torch.Tensor, blank: int, fast_emit: float, reduction: str) -> Any:
    """Batch size and number of frames, if all fits."""
    if logits.ndim != 4 or not logits.is_floating_point():
        raise SettingError(f"logits {tuple(logits.shape)} of {logits.dtype}: they must be floats [B, T, U + 1, V]")
    batch, frames, width, vocabulary = logits.shape
    if targets.shape != (batch, width - 1) or targets.is_floating_point():
        raise SettingError(
            f"targets {tuple(targets.shape)} of {targets.dtype}: beside logits {tuple(logits.shape)} they must be"
            f" integers [{batch}, {width - 1}]"
        )
    if not 0 <= blank < vocabulary:
        raise SettingError(f"blank={blank}: it must be from 0 to {vocabulary - 1}")
    if not is_number(fast_emit, 0):
        raise SettingError(f"fast_emit={fast_emit!r}: it must be a number of at least 0, such as 0.005")
    if reduction not in REDUCTIONS:
        raise unknown_name("reduction", reduction, REDUCTIONS)
    return batch, frames


def _lengths(
    lengths: torch.Tensor | None, name: str, batch: int, longest: int, shortest: int, targets: torch.Tensor
) -> torch.Tensor:
    if lengths is None:
        return torch.full((batch,), longest, device=targets.device)
    if lengths.shape != (batch,) or lengths.is_floating_point():
        raise SettingError(f"{name} {tuple(lengths.shape)} of {lengths.dtype}: they must be integers [{batch}]")
    if batch and not shortest <= int(lengths.min()) <= int(lengths.max()) <= longest:
        raise SettingError(f"{name}={lengths.tolist()}: they must be from {shortest} to {longest}")
    return lengths.to(targets.device, torch.long)


def _labels(targets: torch.Tensor, target_lengths: torch.Tensor, blank: int, vocabulary: int) -> torch.Tensor:
    """Targets with 0 in the padding."""
    inside = torch.arange(targets.shape[1], device=targets.device) < target_lengths[:, None]
    labels = targets.long().masked_fill(~inside, 0)
    wrong = inside & ((labels < 0) | (labels >= vocabulary) | (labels == blank))
    if wrong.any():
        raise SettingError(
            f"targets hold {int(labels[wrong][0])}: labels must be from 0 to {vocabulary - 1} and not the"
            f" blank {blank}; give target_lengths where they are padded"
        )
    return labels
