"""The transducer loss against all alignments, one by one, and FastEmit's gradient against its definition."""

from __future__ import annotations

import itertools

import pytest
import torch

from mmaccel.demos.training.fast_emit import lattice_loss, transducer_loss
from mmaccel.errors import SettingError, UnknownNameError


def by_enumeration(logits, targets, blank=0):
    """Loss of one text: every order of T - 1 blanks and U labels, then the last blank."""
    log_probs, frames = logits.log_softmax(-1), logits.shape[0]
    total = []
    for at in itertools.combinations(range(frames - 1 + len(targets)), len(targets)):
        t = u = 0
        score = torch.zeros((), dtype=logits.dtype)
        for step in range(frames - 1 + len(targets)):
            if step in at:
                score = score + log_probs[t, u, targets[u]]
                u += 1
            else:
                score = score + log_probs[t, u, blank]
                t += 1
        total.append(score + log_probs[t, u, blank])
    return -torch.stack(total).logsumexp(0)


def problem(batch=3, frames=5, labels=3, vocabulary=4, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(batch, frames, labels + 1, vocabulary, generator=generator, dtype=dtype)
    targets = torch.randint(1, vocabulary, (batch, labels), generator=generator)
    return logits.requires_grad_(), targets


RAGGED = torch.tensor([5, 3, 1]), torch.tensor([3, 1, 2])


def test_loss_and_gradient_equal_those_of_all_alignments():
    logits, targets = problem()
    loss = transducer_loss(logits, targets, *RAGGED, reduction="none")
    expected = torch.stack(
        [by_enumeration(logits[i, :t, : u + 1], targets[i, :u]) for i, (t, u) in enumerate(zip(*RAGGED, strict=True))]
    )
    assert torch.allclose(loss, expected, atol=1e-10)
    weights = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    (gradient,) = torch.autograd.grad((loss * weights).sum(), logits)
    (slow,) = torch.autograd.grad((expected * weights).sum(), logits)
    assert torch.allclose(gradient, slow, atol=1e-10) and gradient.abs().max() > 0.1


def test_integers_of_any_kind():
    """Also where frames and labels together are more than a byte holds."""
    logits, targets = problem(batch=1, frames=200, labels=100, dtype=torch.float32)
    expected = transducer_loss(logits, targets)
    frames, labels = torch.tensor([200], dtype=torch.uint8), torch.tensor([100], dtype=torch.uint8)
    assert torch.equal(transducer_loss(logits, targets.int(), frames, labels), expected)


def test_a_batch_of_nobody():
    none = torch.zeros(0, dtype=torch.long)
    assert transducer_loss(torch.zeros(0, 5, 4, 6), torch.zeros(0, 3).long(), none, none, reduction="none").shape == (
        0,
    )


def test_no_second_derivative():
    """Of FastEmit's gradient there is no loss whose second derivative it would be."""
    logits, targets = problem()
    weights = torch.ones(3, dtype=torch.float64, requires_grad=True)
    loss = transducer_loss(logits, targets, reduction="none") @ weights
    (gradient,) = torch.autograd.grad(loss, logits, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.abs().sum().backward()


def test_another_blank():
    logits, _ = problem(batch=1)
    targets = torch.tensor([[0, 2, 0]])
    assert torch.allclose(
        transducer_loss(logits, targets, blank=3), by_enumeration(logits[0], targets[0], blank=3), atol=1e-10
    )


def test_gradcheck():
    logits, targets = problem(frames=4, labels=2)
    lengths = torch.tensor([4, 2, 1]), torch.tensor([2, 0, 1])
    assert torch.autograd.gradcheck(lambda x: transducer_loss(x, targets, *lengths, reduction="none"), logits)


def test_fast_emit_scales_the_gradient_of_labels_and_leaves_blanks_alone():
    logits, targets = problem()
    log_probs = logits.detach().log_softmax(-1)
    blanks = log_probs[..., 0].clone().requires_grad_()
    index = targets[:, None, :, None].expand(-1, 5, -1, 1)
    emissions = log_probs[:, :, :-1].gather(-1, index).squeeze(-1).requires_grad_()
    found = {}
    for strength in (0.0, 0.25):
        loss = lattice_loss(blanks, emissions, *RAGGED, fast_emit=strength)
        found[strength] = (loss.detach(), *torch.autograd.grad(loss.sum(), (blanks, emissions)))
    plain, fast = found[0.0], found[0.25]
    assert torch.equal(fast[0], plain[0])
    assert torch.equal(fast[1], plain[1])
    assert torch.allclose(fast[2], 1.25 * plain[2], rtol=1e-12) and plain[2].abs().max() > 0.1


def test_fast_emit_is_the_loss_plus_its_share_with_blanks_held_fast():
    logits, targets = problem(batch=1)
    (gradient,) = torch.autograd.grad(transducer_loss(logits, targets, fast_emit=0.5), logits)
    log_probs = logits.log_softmax(-1)
    index = targets[:, None, :, None].expand(-1, 5, -1, 1)
    emissions = log_probs[:, :, :-1].gather(-1, index).squeeze(-1)
    whole = torch.tensor([5]), torch.tensor([3])
    both = lattice_loss(log_probs[..., 0], emissions, *whole) + 0.5 * lattice_loss(
        log_probs[..., 0].detach(), emissions, *whole
    )
    (expected,) = torch.autograd.grad(both.sum(), logits)
    assert torch.allclose(gradient, expected, atol=1e-12)


def test_padding_is_not_seen():
    logits, targets = problem()
    loss = transducer_loss(logits, targets, *RAGGED, reduction="none")
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    changed, labels = logits.detach().clone(), targets.clone()
    changed[1, 3:], changed[1, :, 2:], labels[1, 1:] = 7.0, -3.0, -100
    assert torch.equal(transducer_loss(changed, labels, *RAGGED, reduction="none"), loss)
    assert not gradient[1, 3:].any() and not gradient[1, :, 2:].any() and not gradient[2, 1:].any()


def test_reductions_and_no_labels():
    logits, targets = problem()
    each = transducer_loss(logits, targets, reduction="none")
    assert torch.allclose(transducer_loss(logits, targets), each.mean())
    assert torch.allclose(transducer_loss(logits, targets, reduction="sum"), each.sum())
    silent = transducer_loss(logits[:, :, :1], targets[:, :0], reduction="none")
    assert torch.allclose(silent, -logits.log_softmax(-1)[:, :, 0, 0].sum(1))


def test_long_and_in_half_precision():
    logits, targets = problem(batch=2, frames=200, labels=40, vocabulary=8, dtype=torch.float32)
    loss = transducer_loss(logits, targets)
    loss.backward()
    assert torch.isfinite(loss) and torch.isfinite(logits.grad).all()
    double = transducer_loss(logits.detach().double(), targets)
    assert torch.allclose(loss.double(), double, rtol=1e-5)
    half = logits.detach().bfloat16().requires_grad_()
    low = transducer_loss(half, targets)
    low.backward()
    assert low.dtype == torch.float32 and half.grad.dtype == torch.bfloat16
    assert torch.allclose(low.double(), double, rtol=0.01)


def test_an_impossible_text_is_infinite_without_gradient():
    logits, targets = problem(batch=2)
    banned = logits.detach().clone()
    banned[0, :, 1, targets[0, 1]] = -torch.inf
    banned.requires_grad_()
    loss = transducer_loss(banned, targets, reduction="none")
    assert loss[0] == torch.inf and torch.isfinite(loss[1])
    gradient = torch.autograd.grad(loss.sum(), banned)[0]
    assert not gradient[0].any() and torch.isfinite(gradient[1]).all() and gradient[1].any()


@pytest.mark.parametrize(
    "more, says",
    (
        ({"blank": 4}, "blank=4"),
        ({"blank": -1}, "blank=-1"),
        ({"targets": torch.full((3, 3), -1)}, "hold -1"),
        ({"fast_emit": -0.1}, "fast_emit=-0.1"),
        ({"fast_emit": float("nan")}, "fast_emit=nan"),
        ({"logit_lengths": torch.tensor([0, 1, 5])}, r"logit_lengths=\[0, 1, 5\]"),
        ({"target_lengths": torch.tensor([1, 4, 1])}, r"target_lengths=\[1, 4, 1\]"),
        ({"target_lengths": torch.tensor([1])}, r"target_lengths \(1,\)"),
        ({"targets": torch.zeros(3, 3, dtype=torch.long)}, "not the blank 0"),
        ({"targets": torch.full((3, 3), 9)}, "hold 9"),
        ({"targets": torch.ones(3, 4, dtype=torch.long)}, r"targets \(3, 4\)"),
        ({"logits": torch.zeros(3, 5, 4)}, r"logits \(3, 5, 4\)"),
    ),
)
def test_bad_input(more, says):
    logits, targets = problem()
    with pytest.raises(SettingError, match=says):
        transducer_loss(**{"logits": logits, "targets": targets, **more})


def test_an_unknown_reduction():
    with pytest.raises(UnknownNameError, match="did you mean 'mean'"):
        transducer_loss(*problem(), reduction="meen")
