"""SnapKV with one budget for all heads of a layer (Ada-KV): against a sort of all tokens of all heads."""

import importlib

import pytest
import torch

from mmaccel.kernels import policies

snap_kv = importlib.import_module("mmaccel.kernels.policies.compress.snap_kv")

KEYS, WINDOW, HEADS = 60, 4, 3


def draw(seed=0):
    """Queries and keys `[2, heads, ...]`: the first head looks at few tokens, the last at many."""
    generator = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(2, HEADS, n, 8, generator=generator) for n in (WINDOW, KEYS))
    return q * torch.tensor([8.0, 3.0, 0.3])[:, None, None], k


def weights(q, k):
    """Attention that each token before the window gets, summed over its queries; without pooling."""
    scores = q @ k.transpose(2, 3) / 8**0.5
    scores = scores + torch.full((WINDOW, KEYS), -torch.inf).triu(KEYS - WINDOW + 1)
    return scores.softmax(-1).sum(2)[..., : KEYS - WINDOW]


def kept_sets(token_idx):
    return [[{x for x in head if x >= 0} for head in row] for row in token_idx.tolist()]


def expected(q, k, count, safe):
    """Token sets by hand: the window, the best of each head up to `safe`, and then the best of all heads."""
    result = []
    for row in weights(q, k).tolist():
        kept = [set(range(KEYS - WINDOW, KEYS)) for _ in row]
        order = [sorted(range(KEYS - WINDOW), key=lambda i, head=head: -head[i]) for head in row]
        for head, best in zip(kept, order, strict=True):
            head.update(best[: max(0, safe - WINDOW)])
        everything = sorted(((w, h, i) for h, head in enumerate(row) for i, w in enumerate(head)), reverse=True)
        for _, head, token in everything:
            if sum(map(len, kept)) < count * HEADS:
                kept[head].add(token)
        result.append(kept)
    return result


@pytest.mark.parametrize("safeguard", (0.05, 0.2, 0.5, 0.75))
@pytest.mark.parametrize("count", (8, 20))
def test_heads_share_a_budget_and_have_their_own_part(monkeypatch, count, safeguard):
    monkeypatch.setattr(snap_kv, "SAFEGUARD", safeguard)
    q, k = draw()
    settings = {"count": count, "window": WINDOW, "kernel": 1}
    token_idx = policies.snap_kv(q, k, **settings, head_budgets=True)
    assert token_idx.dtype == torch.int32
    found = kept_sets(token_idx)
    assert found == expected(q, k, count, int(safeguard * count))
    sizes = [[len(head) for head in row] for row in found]
    assert all(sum(row) == count * HEADS for row in sizes) and max(map(max, sizes)) == token_idx.shape[2]
    assert all(min(row) >= max(WINDOW, int(safeguard * count)) for row in sizes)
    assert any(len(set(row)) > 1 for row in sizes), "the heads would be alike"
    ahead, behind = token_idx[..., 1:], token_idx[..., :-1]
    assert ((ahead > behind) | (ahead == -1)).all()


def test_equal_budgets_at_a_safeguard_of_one(monkeypatch):
    monkeypatch.setattr(snap_kv, "SAFEGUARD", 1.0)
    q, k = draw()
    settings = {"count": 20, "window": WINDOW, "kernel": 3}
    assert torch.equal(policies.snap_kv(q, k, **settings, head_budgets=True), policies.snap_kv(q, k, **settings))


def test_rows_are_independent():
    q, k = draw()
    settings = {"count": 12, "window": WINDOW, "kernel": 3, "head_budgets": True}
    assert kept_sets(policies.snap_kv(q[1:], k[1:], **settings)) == kept_sets(policies.snap_kv(q, k, **settings))[1:]


def test_more_than_there_is():
    q, k = draw()
    everything = set(range(KEYS))
    kept = policies.snap_kv(q, k, count=KEYS + 9, window=WINDOW, head_budgets=True)
    assert kept_sets(kept) == [[everything] * HEADS] * 2
