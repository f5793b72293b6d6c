"""Compression policies: which tokens of a prompt stay."""

import itertools
import math

import pytest
import torch
from largest_tensor import Largest

from mmaccel.kernels import policies
from mmaccel.kernels.policies.compress import st_lite
from mmaccel.kernels.policies.scores import head_scores

NAMES = sorted(policies.COMPRESS)
KEYS, WINDOW = 100, 8


def draw(queries=WINDOW, keys=KEYS, width=16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, 4, queries, width, generator=generator), torch.randn(2, 2, keys, width, generator=generator)


def as_sets(token_idx):
    return [[{x for x in head if x >= 0} for head in row] for row in token_idx.tolist()]


@pytest.mark.parametrize(("name", "count"), itertools.product(NAMES, (2, 3, 17, 64, 100, 500)))
def test_form_and_window(name, count):
    token_idx = policies.COMPRESS[name](*draw(), count=count)
    assert token_idx.dtype == torch.int32 and token_idx.shape == (2, 2, min(count, KEYS))
    assert (token_idx.diff(dim=-1) > 0).all() and (token_idx >= 0).all()
    assert (token_idx[..., -1] == KEYS - 1).all()


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_independent(name):
    q, k = draw()
    policy = policies.COMPRESS[name]
    whole = policy(q, k, count=20)
    assert torch.equal(whole[1:], policy(q[1:], k[1:], count=20))


@pytest.mark.parametrize("name", ("snap_kv", "fast_kv"))
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
def test_planted_tokens_are_kept(name, dtype):
    q, k = draw()
    q[..., 0], k[..., 0] = 6, 0
    k[:, 0, 30, 0] = k[:, 1, 61, 0] = 6
    kept = as_sets(policies.COMPRESS[name](q.to(dtype), k.to(dtype), count=30))
    for heads in kept:
        assert 30 in heads[0] and 61 in heads[1]
        assert (61 in heads[0]) == (30 in heads[1]) == (name == "fast_kv")


def test_snap_kv_keeps_surroundings():
    q, k = draw()
    q.zero_(), k.zero_()
    q[..., 0], k[:, :, 40, 0] = 10, 10
    window = set(range(KEYS - WINDOW, KEYS))
    kept = policies.snap_kv(q, k, count=WINDOW + 7, window=WINDOW, kernel=7)
    assert as_sets(kept) == [[window | set(range(37, 44))] * 2] * 2
    assert as_sets(policies.snap_kv(q, k, count=WINDOW + 1, window=WINDOW, kernel=1)) == [[window | {40}] * 2] * 2


def test_snap_kv_window_lends_no_weight():
    q, k = draw()
    q.zero_(), k.zero_()
    q[..., 0], k[:, :, -WINDOW:, 0], k[:, :, 40, 0] = 10, 2, 1
    kept = policies.snap_kv(q, k, count=WINDOW + 1, window=WINDOW)
    assert all(37 <= min(head) <= 43 for row in as_sets(kept) for head in row)


def test_snap_kv_is_causal_and_sums_its_window():
    """Only the last queries vote; what they cannot see yet gets no vote."""
    q, k = draw(queries=40)
    expected = policies.snap_kv(q[:, :, -WINDOW:], k, count=24, window=WINDOW)
    assert torch.equal(policies.snap_kv(q, k, count=24, window=WINDOW), expected)
    weights = torch.zeros(2, 2, KEYS - WINDOW)
    for row, head, query in itertools.product(range(2), range(4), range(WINDOW)):
        seen = KEYS - WINDOW + query + 1
        scores = k[row, head // 2, :seen] @ q[row, head, 40 - WINDOW + query] / 4
        weights[row, head // 2] += scores.softmax(-1)[: KEYS - WINDOW]
    top = weights.topk(16, -1).indices.tolist()
    kept = as_sets(policies.snap_kv(q, k, count=24, window=WINDOW, kernel=1))
    assert kept == [[set(head) | set(range(KEYS - WINDOW, KEYS)) for head in row] for row in top]


def test_fast_kv_is_one_set_for_all_heads():
    q, k = draw()
    tokens = policies.fast_kv(q, k, count=25)
    assert tokens.shape == (2, 25) and tokens.dtype == torch.int32 and (tokens.diff(dim=1) > 0).all()
    assert (tokens[:, -WINDOW:] == torch.arange(KEYS - WINDOW, KEYS)).all()
    assert policies.fast_kv(q, k, count=KEYS).tolist() == [list(range(KEYS))] * 2
    assert policies.fast_kv(q, k, count=3).shape == (2, WINDOW)  # the window stays
    nested = [set(policies.fast_kv(q, k, count=count)[0].tolist()) for count in (10, 20, 60)]
    assert nested[0] < nested[1] < nested[2]


@pytest.mark.parametrize("kernel", (1, 5))
def test_fast_kv_is_the_vote_of_all_heads(kernel):
    """Queries of the window over what they see, summed over them and all heads, then pooled by `kernel` neighbours."""
    q, k = draw(queries=12)
    window, count, scale = 4, 24, 0.5
    votes = torch.zeros(2, 4, KEYS)
    for row, head, query in itertools.product(range(2), range(4), range(window)):
        seen = KEYS - window + query + 1
        scores = k[row, head // 2, :seen] @ q[row, head, 12 - window + query] * scale
        votes[row, head, :seen] += scores.softmax(-1)
    votes[..., KEYS - window :] = 0  # they are kept anyway, and lend nothing to their neighbours
    beside = torch.nn.functional.pad(votes, (kernel // 2, kernel // 2)).unfold(-1, kernel, 1)
    votes = beside.mean(-1).sum(1)
    top = votes[:, : KEYS - window].topk(count - window, -1).indices.tolist()
    options = {"count": count, "window": window, "scale": scale}
    kept = policies.fast_kv(q, k, kernel=kernel, **options)
    assert [set(row) for row in kept.tolist()] == [set(row) | set(range(KEYS - window, KEYS)) for row in top]


def test_streaming_is_its_definition():
    _, k = draw()
    assert policies.streaming(k, count=10, sink=3).tolist() == [[[0, 1, 2, *range(93, 100)]] * 2] * 2


# ST-Lite: a plain reading, and screens with known buttons.


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True)) / (
        math.sqrt(sum(x * x for x in a)) * math.sqrt(sum(y * y for y in b))
    )


def naive_st_lite(attention, key, spans, count, window):
    """The slots kept of one head: `attention [N]` and `key [N, D]` are lists."""
    score, slots = list(attention), []
    for first, frames, rows, columns in spans:
        for frame, y, x in itertools.product(range(frames), range(rows), range(columns)):

            def place(y, x, first=first + frame * rows * columns, columns=columns):
                return first + y * columns + x

            near = [
                place(v, u)
                for v, u in itertools.product((y - 1, y, y + 1), (x - 1, x, x + 1))
                if (v, u) != (y, x) and 0 <= v < rows and 0 <= u < columns
            ]
            uniform = sum(cosine(key[place(y, x)], key[other]) for other in near) / len(near) if near else 1.0
            score[place(y, x)] += 1 - uniform
            slots.append(place(y, x))
    screen = spans[-1][2] * spans[-1][3]
    history, current = slots[:-screen], slots[-screen:]
    repeated = {i: max(cosine(key[i], key[j]) for j in current) for i in history}
    if len(history) > count:
        limit = sorted(repeated.values())[count - 1]
        for slot, value in repeated.items():
            score[slot] = 0.0 if value > limit else score[slot]
    order = sorted(range(len(score) - window), key=lambda slot: -score[slot])
    return set(order[: count - window]) | set(range(len(score) - window, len(score)))


SPANS = (
    [[(3, 1, 4, 5), (30, 1, 4, 5), (60, 1, 5, 4)], [(10, 3, 3, 4), (60, 2, 1, 6)]],
    [[(0, 1, 1, 1), (2, 2, 2, 20)], [(50, 1, 6, 6)]],
    [[], [(5, 4, 4, 4)]],
)


@pytest.mark.parametrize(("spans", "count"), itertools.product(SPANS, (12, 24, 60)))
def test_st_lite_is_a_plain_reading_of_it(spans, count):
    q, k = draw()
    attention = torch.zeros(2, 2, KEYS - WINDOW)
    for row, head, query in itertools.product(range(2), range(4), range(WINDOW)):
        seen = KEYS - WINDOW + query + 1
        scores = k[row, head // 2, :seen] @ q[row, head, query] / 4
        attention[row, head // 2] += scores.softmax(-1)[: KEYS - WINDOW] / 2
    visual = [[policies.Span(*span) for span in row] for row in spans]
    kept = as_sets(policies.st_lite(q, k, count=count, visual=visual, window=WINDOW, kernel=1))
    for row, head in itertools.product(range(2), range(2)):
        weights = [*attention[row, head].tolist(), *[0.0] * WINDOW]
        keys = k[row, head].tolist()
        if spans[row]:
            assert kept[row][head] == naive_st_lite(weights, keys, spans[row], count, WINDOW)
    assert torch.equal(
        policies.st_lite(q, k, count=count, visual=[[], []], window=WINDOW),
        policies.snap_kv(q, k, count=count, window=WINDOW),
    )


def screens(number, rows=6, columns=8):
    """Screens of one colour with a button each, and the slots of the buttons; then text. Nobody attends to them."""
    generator = torch.Generator().manual_seed(0)
    background, *buttons = torch.randn(number + 1, 16, generator=generator)
    k = torch.zeros(1, 1, number * rows * columns + 40, 16)
    k[..., : number * rows * columns, :] = background
    places = [screen * rows * columns + 2 * columns + 3 + screen for screen in range(number)]
    for place, button in zip(places, buttons, strict=True):
        k[..., place, :] = button
    spans = [policies.Span(screen * rows * columns, 1, rows, columns) for screen in range(number)]
    return torch.zeros(1, 1, 8, 16), k, [spans], places


def test_st_lite_keeps_buttons():
    q, k, visual, places = screens(3)
    kept = as_sets(policies.COMPRESS["st_lite"](q, k, count=32, visual=visual))[0][0]
    assert set(places) <= kept and not set(places) <= as_sets(policies.COMPRESS["snap_kv"](q, k, count=32))[0][0]


def test_st_lite_drops_what_a_later_screen_repeats():
    q, k, visual, places = screens(3)
    k[:, :, 48:96] = torch.arange(16.0)  # a screen of another colour, so that there is something not repeated
    k[:, :, 96:144] = k[:, :, :48]  # then the first screen again: there it is stale
    kept = as_sets(policies.COMPRESS["st_lite"](q, k, count=32, visual=visual))[0][0]
    around = {y * 8 + x for y in range(1, 4) for x in range(2, 5)}
    assert places[0] in around and {96 + slot for slot in around} <= kept and not set(range(48)) & kept


@pytest.mark.parametrize("tokens", (0, 1, 30, 33))
def test_tokens_of_earlier_screens_are_compared_some_at_a_time(monkeypatch, tokens):
    """A history of 50,000 tokens beside a screen of 2,500 has half a billion cosines for four heads."""
    monkeypatch.setattr(st_lite, "AT_ONCE", 2 * 10 * 4)
    history, current = torch.randn(2, tokens, 4), torch.randn(2, 10, 4)
    with Largest() as largest:
        found = st_lite.redundancy(history, current)
    torch.testing.assert_close(found, torch.einsum("htd,hsd->hts", history, current).amax(-1))
    assert largest.made <= max(2 * 10 * 4 * 4, found.nbytes)


def test_st_lite_takes_any_order_of_spans_and_any_type():
    q, k, visual, _ = screens(3)
    policy = policies.COMPRESS["st_lite"]
    expected = policy(q, k, count=32, visual=visual)
    assert torch.equal(policy(q, k, count=32, visual=[visual[0][::-1]]), expected)
    assert policy(q.bfloat16(), k.bfloat16(), count=32, visual=visual).shape == expected.shape
    k[:, :, 48:96] = torch.arange(16.0)  # the last screen is that of the newest tokens, not of the last span given
    expected = policy(q, k, count=32, visual=visual)
    assert torch.equal(policy(q, k, count=32, visual=[visual[0][::-1]]), expected)
    assert policy(q, k, count=32, visual=[visual[0][:1]]).tolist() != expected.tolist()


@pytest.mark.parametrize("policy", (policies.snap_kv, policies.fast_kv, policies.st_lite))
def test_scale_is_that_of_the_votes(policy):
    """Of heads with 16 channels the usual one is a quarter."""
    q, k = draw()
    settings = {"count": 20, "window": WINDOW}
    sharp = policy(q, k, **settings, scale=3.0)
    assert torch.equal(sharp, policy(12 * q, k, **settings)) and not torch.equal(sharp, policy(q, k, **settings))


@pytest.mark.parametrize("name", ("snap_kv", "fast_kv", "st_lite"))
def test_settings_of_a_vote_pass_through_the_table(name):
    """And the window is at most half of what is kept."""
    q, k = draw(queries=20)
    chosen = getattr(policies, name)
    for given in ({"kernel": 3}, {"scale": 3.0}, {"window": 5}, {"window": 12}):
        found = policies.COMPRESS[name](q, k, count=20, **{"window": 8, **given})
        expected = chosen(
            q, k, count=20, **{"window": 8, **given, **({"window": 10} if given == {"window": 12} else {})}
        )
        assert torch.equal(found, expected[:, None].expand_as(found) if name == "fast_kv" else expected), given
    assert len({str(policies.COMPRESS[name](q, k, count=20, window=w).tolist()) for w in (2, 5, 8)}) == 3


@pytest.mark.parametrize(("name", "window"), (("snap_kv", 32), ("fast_kv", 8), ("st_lite", 32)))
def test_windows_of_the_table_are_those_of_the_policies(name, window):
    q, k = draw(queries=40)
    found = policies.COMPRESS[name](q, k, count=80)
    assert torch.equal(found, policies.COMPRESS[name](q, k, count=80, window=window))
    expected = getattr(policies, name)(q, k, count=80)
    assert torch.equal(found, expected[:, None].expand_as(found) if name == "fast_kv" else expected)


def test_votes_of_st_lite_are_pooled_as_those_of_snap_kv():
    q, k = draw()
    settings = {"count": 20, "window": 5, "kernel": 5}
    assert torch.equal(policies.st_lite(q, k, **settings), policies.snap_kv(q, k, **settings))


def test_a_head_keeps_a_fifth_of_its_part():
    q, k = draw()
    q[:, :2] *= 20
    q[:, 2:] *= 0.01  # a head that attends to all alike takes most
    kept = policies.snap_kv(q, k, count=60, window=2, kernel=1, head_budgets=True)
    assert (kept[:, 0] >= 0).sum(-1).tolist() == [20, 20]


@pytest.mark.parametrize(("count", "sinks"), ((6, 3), (8, 4), (20, 4)))
def test_sinks_of_streaming_in_the_table(count, sinks):
    q, k = draw()
    kept = policies.COMPRESS["streaming"](q, k, count=count)
    assert kept.tolist() == [[[*range(sinks), *range(KEYS - count + sinks, KEYS)]] * 2] * 2


@pytest.mark.parametrize("name", [name for name in NAMES if name != "st_lite"])
def test_other_policies_ignore_pictures(name):
    q, k, visual, _ = screens(2)
    policy = policies.COMPRESS[name]
    assert torch.equal(policy(q, k, count=32, visual=visual), policy(q, k, count=32))


Q, K = torch.zeros(2, 4, 8, 16), torch.zeros(2, 2, 100, 16)
QK = {"q_window": Q, "k": K}
BEYOND, EMPTY = [policies.Span(90, 1, 3, 4)], [policies.Span(9, 1, 0, 4)]
BAD = (
    (policies.snap_kv, QK | {"count": 32}, "count", "above window, which is 32", "32"),
    (policies.snap_kv, QK | {"count": 0}, "count", "at least 1", "0"),
    (policies.snap_kv, QK | {"count": 64, "window": 0}, "window", "at least 1", "0"),
    (policies.snap_kv, QK | {"count": 64, "kernel": 4}, "kernel", "odd", "4"),
    (policies.st_lite, QK | {"count": 32}, "count", "above window, which is 32", "32"),
    (policies.st_lite, QK | {"count": 0}, "count", "at least 1", "0"),
    (policies.st_lite, QK | {"count": 64, "visual": [[], [policies.Span(-3, 1, 3, 4)]]}, "visual", "within", "(-3, 1"),
    (policies.st_lite, QK | {"count": 64, "visual": [[]]}, "visual", "spans for each of 2 rows", "1"),
    (policies.st_lite, QK | {"count": 64, "visual": [[], BEYOND]}, "visual", "within 100 keys", "(90, 1, 3, 4)"),
    (policies.st_lite, QK | {"count": 64, "visual": [[], EMPTY]}, "visual", "at least one token", "(9, 1, 0, 4)"),
    (policies.fast_kv, QK | {"count": 0}, "count", "at least 1", "0"),
    (policies.streaming, {"k": K, "count": 4}, "count", "above sink, which is 4", "4"),
    (policies.streaming, {"k": K, "count": 8, "sink": -1}, "sink", "at least 0", "-1"),
    (policies.streaming, {"k": K[0], "count": 8}, "k", "[B, Hkv, N, D]", "[2, 100, 16]"),
)


@pytest.mark.parametrize(("policy", "settings", "name", "allowed", "value"), BAD)
def test_bad_settings(policy, settings, name, allowed, value):
    with pytest.raises(ValueError, match=rf"^{name} must be ") as error:
        policy(**settings)
    assert allowed in str(error.value) and value in str(error.value)


@pytest.mark.parametrize("name", NAMES)
def test_bad_count_in_the_table(name):
    with pytest.raises(ValueError, match=r"^count must be a whole number of at least 2, got 1"):
        policies.COMPRESS[name](Q, K, count=1)


def test_scores_are_no_coarser_under_autocast():
    q, k = draw()
    history, current = torch.randn(2, 30, 4), torch.randn(2, 10, 4)
    expected = head_scores(q, k), st_lite.redundancy(history, current)
    with torch.autocast("cpu", torch.bfloat16):
        found = head_scores(q, k), st_lite.redundancy(history, current)
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
