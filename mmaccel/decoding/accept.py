"""Judge a draft by the target's logits: which nodes to keep, and which token comes next."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .chain import ChainJudgement
from .draft import Draft, SparseDistribution, raise_first
from .probability import residual, sample
from .rules import Block, ChainRule, Grouped, OneHot, Rule, TokenRatio, TreeRule, WithoutReplacement
from .tree import TreeJudgement

# In this order the first fitting rule is the default of a draft.
RULES: tuple[type[Rule], ...] = (OneHot, Block, TokenRatio, WithoutReplacement, Grouped)


@dataclass(frozen=True, eq=False)
class Verdict:
    """What was accepted of a draft.

    Attributes
    ----------
    path
        `[B, K]` indices of the accepted draft nodes from the root on, padded with -1.
    next_token
        `[B]` the token after the accepted path; -1 where an accepted child has no target row (`[B, 1, V]`
        logits), so that the child is the last token emitted.
    accepted
        `[B]` number of accepted nodes.
    """

    path: Tensor
    next_token: Tensor
    accepted: Tensor

    def tokens(self, draft: Draft) -> Tensor:
        """Return the emitted tokens `[B, K + 1]` padded with -1: the accepted path, then `next_token`."""
        batch = self.path.shape[0]
        padding = torch.full((batch, 1), -1, dtype=torch.long, device=self.path.device)
        if self.path.shape[1] == 0:
            return self.next_token.unsqueeze(1)
        along = draft.tokens.gather(1, self.path.clamp_min(0)).where(self.path >= 0, -1)
        return torch.cat([along, padding], 1).scatter(1, self.accepted.unsqueeze(1), self.next_token.unsqueeze(1))


def accept(
    target_logits: Tensor,
    draft: Draft,
    *,
    rule: Rule | None = None,
    generator: torch.Generator | None = None,
    allow_lossy: bool = False,
) -> Verdict:
    """Judge a batch of drafts with one of the acceptance rules.

    Pure, batched, and float32 inside whatever the input. The logits are those of the distribution to keep:
    after guidance, masking, temperature and top-k (`-inf` is allowed), and one-hot for greedy decoding.

    Parameters
    ----------
    target_logits
        `[B, K + 1, V]`: row 0 at the root, row 1 + i after draft node i. `[B, 1, V]` will do for drafts that
        have only children of the root.
    draft
        The draft; its `drawn` decides the default rule: deterministic -> `OneHot`, sampled -> `Block`,
        without_replacement -> `WithoutReplacement`. All three are exact.
    rule
        Another rule for the same kind of draft.
    generator
        Source of randomness on the same device; the global one by default.
    allow_lossy
        Must be True for a rule that changes the output distribution.

    Raises
    ------
    ValueError
        If the rule does not fit the draft, is lossy without consent, or an input is invalid.

    Examples
    --------
    >>> logits = torch.tensor([[[0.0, -torch.inf], [-torch.inf, 0.0]]])
    >>> accept(logits, Draft.deterministic(torch.tensor([[0]]))).next_token.tolist()
    [1]
    """
    chosen = _choose(draft, rule, allow_lossy)
    p = _target(target_logits, draft)
    q = draft.dense_q(p.shape[-1])
    shape = draft.tokens.shape
    uniform = torch.rand(shape, generator=generator, device=p.device, dtype=torch.float32)
    if isinstance(chosen, ChainRule):
        assert q is not None  # a sampled draft cannot be built without
        judgement = chosen.judge(p, q, draft.tokens)
        path, accepted = _walk_chain(judgement, uniform)
        return Verdict(path, sample(_after_chain(judgement, p, q, accepted), generator), accepted)
    assert isinstance(chosen, TreeRule)
    tree = chosen.judge(p, q, draft.tokens, draft.parents)
    path, accepted, node = _walk_tree(tree, draft.parents, uniform)
    rows = tree.residual.shape[1]
    token = sample(_row(tree.residual, node.clamp(max=rows - 1)), generator)
    return Verdict(path, token.where(node < rows, -1), accepted)


def _choose(draft: Draft, rule: Rule | None, allow_lossy: bool) -> Rule:
    fitting = [kind for kind in RULES if draft.drawn in kind.drawn]
    if rule is None:
        return fitting[0]()
    if not isinstance(rule, ChainRule | TreeRule):
        raise ValueError(f"rule must be a rule object such as Block(), got {rule!r}")
    if draft.drawn not in rule.drawn:
        names = ", ".join(f"{kind.__name__}()" for kind in fitting)
        raise ValueError(f"rule {rule.name!r} would bias a draft drawn {draft.drawn!r}; use one of {names}")
    if not rule.lossless and not allow_lossy:
        raise ValueError(f"rule {rule.name!r} changes the output distribution; pass allow_lossy=True to accept that")
    return rule


def _target(logits: Tensor, draft: Draft) -> Tensor:
    """Return the target distributions `[B, N, V]` in float32, checked against the draft."""
    batch, size = draft.tokens.shape
    flat = draft.drawn != "sampled" and all(node == -1 for node in draft.parents)
    rows = {size + 1, 1} if flat else {size + 1}
    if logits.dim() != 3 or logits.shape[0] != batch or logits.shape[1] not in rows:
        want = " or ".join(f"[{batch}, {n}, V]" for n in sorted(rows))
        raise ValueError(f"target_logits must be {want} for this draft, got {list(logits.shape)}")
    if logits.device != draft.tokens.device:
        raise ValueError(f"target_logits are on {logits.device} but the draft is on {draft.tokens.device}")
    vocabulary = logits.shape[-1]
    sparse = isinstance(draft.q, SparseDistribution)
    if isinstance(draft.q, Tensor) and draft.q.shape[-1] != vocabulary:
        raise ValueError(f"q has a vocabulary of {draft.q.shape[-1]} but target_logits have {vocabulary}")
    p = logits.float().softmax(-1)
    failures = [
        (p.isnan().any(), "target_logits hold NaN, +inf, or a row of only -inf"),
        ((draft.tokens >= vocabulary).any(), f"draft tokens must be below the vocabulary size {vocabulary}"),
    ]
    if sparse and isinstance(draft.q, SparseDistribution):
        outside = (draft.q.ids >= vocabulary).any()
        failures.append((outside, f"ids of q must be below the vocabulary size {vocabulary}"))
    raise_first(failures)
    return p


def _row(values: Tensor, index: Tensor) -> Tensor:
    """Read row `index[b]` of `values [B, N, ...]` for each b."""
    return values[torch.arange(values.shape[0], device=values.device), index]


def _walk_chain(judgement: ChainJudgement, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Return path `[B, K]` and accepted `[B]` of a chain for the given uniforms `[B, K]`."""
    success = (uniform < judgement.accept_probability).long()
    places = torch.arange(uniform.shape[1], device=uniform.device)
    if judgement.stop == "first_failure":
        accepted = success.cumprod(1).sum(1)
    else:
        ends = success * (places + 1)
        accepted = ends.amax(1) if ends.shape[1] else success.sum(1)
    return places.expand_as(success).where(places < accepted.unsqueeze(1), -1), accepted


def _after_chain(judgement: ChainJudgement, p: Tensor, q: Tensor, accepted: Tensor) -> Tensor:
    """Return the distribution `[B, V]` of the token after `accepted` draft tokens."""
    count = q.shape[1]
    if count == 0:
        return p[:, 0]
    # After the last draft token nothing was drafted, so nothing is subtracted.
    drafted = _row(q, accepted.clamp(max=count - 1)) * (accepted < count).unsqueeze(1)
    return residual(_row(p, accepted), drafted, _row(judgement.scale, accepted))


def _walk_tree(tree: TreeJudgement, parents: tuple[int, ...], uniform: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return path `[B, K]`, accepted `[B]` and the row `[B]` where each sequence stopped (0 = root)."""
    batch, size = uniform.shape
    success = uniform < tree.accept_probability
    places = torch.arange(size, device=uniform.device)
    node = torch.zeros(batch, dtype=torch.long, device=uniform.device)
    accepted = node.clone()
    path = torch.full((batch, size), -1, dtype=torch.long, device=uniform.device)
    for i, parent in enumerate(parents):
        # Siblings come in order, and a node that was moved to leaves its remaining siblings untested.
        here = (node == parent + 1) & success[:, i]
        path = path.where(~(here.unsqueeze(1) & (places == accepted.unsqueeze(1))), i)
        accepted = accepted + here
        node = node.where(~here, i + 1)
    return path, accepted, node
