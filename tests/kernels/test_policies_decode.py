"""Decode policies: which tokens they must choose, and what they must not read."""

import itertools

import pytest
import torch

from mmaccel import kernels
from mmaccel.kernels import policies
from mmaccel.kernels.policies import tables, tokens

NAMES = sorted(policies.DECODE)
SLOTS, COUNT = 96, 24
LENGTHS = torch.tensor([96, 70], dtype=torch.int32)


def draw(queries=1, heads=4, key_heads=2, slots=SLOTS, width=16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(2, heads, queries, width, generator=generator)
    k = torch.randn(2, key_heads, slots, width, generator=generator)
    return q, k


def run(name, q, k, lengths=LENGTHS, count=COUNT, state=None):
    """One sparse step: recycled attention begins with a full one."""
    state = {} if state is None else state
    if name == "recycled_attention" and not state:
        policies.DECODE[name](q, k, lengths, count=count, state=state)
    return policies.DECODE[name](q, k, lengths, count=count, state=state)


def as_sets(token_idx):
    return [[{x for x in head if x >= 0} for head in row] for row in token_idx.tolist()]


def assert_well_formed(token_idx, k, lengths):
    assert token_idx.dtype == torch.int32 and token_idx.shape[:2] == k.shape[:2]
    ahead, behind = token_idx[..., 1:], token_idx[..., :-1]
    assert ((ahead > behind) | (ahead == -1)).all(), "not ascending, or repeated, or a gap"
    assert (token_idx < lengths[:, None, None]).all()


@pytest.mark.parametrize(("name", "queries"), itertools.product(NAMES, (1, 5)))
def test_form_ends_and_acceptance(name, queries):
    q, k = draw(queries)
    token_idx = run(name, q, k)
    assert_well_formed(token_idx, k, LENGTHS)
    assert token_idx.shape[2] == COUNT and (token_idx >= 0).all()
    for row, heads in enumerate(as_sets(token_idx)):
        last = int(LENGTHS[row])
        recent = max(queries, COUNT // 4)
        for chosen in heads:
            assert chosen >= set(range(COUNT // 8)), "sinks are missing"
            assert chosen >= set(range(last - recent, last)), "new or recent tokens are missing"
    with kernels.backend("reference"):
        kernels.verify_attention(q, k, k, LENGTHS, token_idx)


@pytest.mark.parametrize(("name", "queries"), itertools.product(NAMES, (1, 3)))
def test_all_tokens_are_dense(name, queries):
    q, k = draw(queries)
    token_idx = run(name, q, k, count=SLOTS)
    with kernels.backend("reference"):
        output, lse = kernels.verify_attention(q, k, k, LENGTHS, token_idx)
        expected, expected_lse = kernels.verify_attention(q, k, k, LENGTHS)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(lse, expected_lse)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
def test_planted_tokens_are_found(name, dtype):
    """Query heads 2 and 3 are those of key head 1: their token is its own."""
    q, k = draw()
    # channels 3 and 11 are one rotary pair
    q[..., [3, 11]], k[..., [3, 11]] = 6, 0
    k[:, 0, 30, [3, 11]] = k[:, 1, 41, [3, 11]] = torch.tensor(6.0)
    k[:, 1, 30, [3, 11]] = k[:, 0, 41, [3, 11]] = torch.tensor(-6.0)
    calibrated = {"channels": torch.full((2, 1), 3), "pairs": torch.full((2, 1), 3)}
    state = {key: calibrated[key] for key in {"double_sparsity": ["channels"], "fasa": ["pairs"]}.get(name, [])}
    chosen = as_sets(run(name, q.to(dtype), k.to(dtype), state=dict(state)))
    for heads in chosen:
        assert 30 in heads[0] and 41 in heads[1]
        assert (30 in heads[1]) == (41 in heads[0]) == (name == "token_select")
    if name != "token_select":
        q[:, 2:, :, [3, 11]] = -6  # key head 1 alone turns away
        heads = as_sets(run(name, q.to(dtype), k.to(dtype), state=state))[0]
        assert 30 in heads[0] and 41 not in heads[1]


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_independent_and_rest_of_cache_unread(name):
    q, k = draw(2)
    whole = run(name, q, k)
    for row in range(2):
        part = slice(row, row + 1)
        assert torch.equal(whole[part], run(name, q[part], k[part], LENGTHS[part]))
    k[1, :, 70:] = float("nan")
    assert torch.equal(whole, run(name, q, k))


@pytest.mark.parametrize("name", NAMES)
def test_short_rows_and_small_counts(name):
    q, k = draw()
    lengths = torch.tensor([3, 96], dtype=torch.int32)
    token_idx = run(name, q, k, lengths)
    assert_well_formed(token_idx, k, lengths)
    assert as_sets(token_idx)[0] == [{0, 1, 2}, {0, 1, 2}]
    assert (token_idx[0, :, 3:] == -1).all()
    for count in (1, 2, 7):
        token_idx = run(name, q, k, count=count)
        assert token_idx.shape[2] == count and (token_idx[..., -1] == LENGTHS[:, None] - 1).all()


def test_token_select_is_a_soft_vote():
    q, k = draw(queries=2)
    weights = torch.zeros(2, SLOTS)
    for row, head, query in itertools.product(range(2), range(4), range(2)):
        seen = int(LENGTHS[row]) - 1 + query
        weights[row, :seen] += (k[row, head // 2, :seen] @ q[row, head, query] / 4).softmax(-1)
    token_idx = policies.token_select(q, k, LENGTHS, count=10, sink=0, recent=0)
    for row in range(2):
        length = int(LENGTHS[row])
        top = weights[row, : length - 2].argsort(descending=True)[:8].tolist()
        assert as_sets(token_idx)[row] == [set(top) | {length - 2, length - 1}] * 2


def test_one_loud_head_does_not_outvote_the_others():
    """Scores of head 0 are huge, but so is its softmax no larger than 1: three heads agree on another token."""
    q, k = draw()
    q.zero_(), k.zero_()
    q[:, 0, :, 0], k[:, 0, 20, 0] = 100, 100
    q[:, 1:, :, 1], k[:, :, 50, 1] = 6, 6
    assert as_sets(policies.token_select(q, k, LENGTHS, count=2, sink=0, recent=1))[0][0] == {50, 95}


def test_selection_cache():
    q, k = draw()
    options = {"count": COUNT, "sink": 2, "recent": 6}
    state = {}
    first = policies.token_select(q, k, LENGTHS - 4, state=state, **options)
    assert torch.equal(first, policies.token_select(q, k, LENGTHS - 4, **options))
    # alike: no key is read, and tokens of the meantime are there
    again = policies.token_select(q * 1.01, torch.full_like(k, float("nan")), LENGTHS, state=state, **options)
    assert_well_formed(again, k, LENGTHS)
    for row, (old, new) in enumerate(zip(as_sets(first), as_sets(again), strict=True)):
        length = int(LENGTHS[row])
        assert all(x >= set(range(length - 6, length)) for x in new)
        assert len(old[0] & new[0]) >= COUNT - 8
    # a row whose query turns votes anew, the other keeps its vote
    turned, changed = q.clone(), k.flip(1)
    turned[1] = -turned[1]
    mixed = policies.token_select(turned, changed, LENGTHS, state=state, **options)
    assert torch.equal(mixed[0], again[0])
    assert torch.equal(mixed[1], policies.token_select(turned, changed, LENGTHS, **options)[1])
    # the turned query is what the next one is compared with
    assert torch.equal(policies.token_select(turned, k * 0, LENGTHS, state=state, **options), mixed)
    never = policies.token_select(turned, k, LENGTHS, state=state, threshold=1.1, **options)
    assert torch.equal(never, policies.token_select(turned, k, LENGTHS, **options))


def test_selection_cache_keeps_its_own_query_and_follows_growth():
    q, k = draw()
    state = {}
    options = {"state": state, "count": COUNT, "sink": 2, "recent": 6}
    first = policies.token_select(q, k, LENGTHS, **options)
    longer = torch.cat([k, k[:, :, :8]], 2)
    grown = policies.token_select(q, longer, LENGTHS + 8, **options)
    assert (grown[:, :, -6:] == LENGTHS[:, None, None] + torch.arange(2, 8)).all()
    every = policies.token_select(q, k[:, :, :10], LENGTHS * 0 + 10, state=(fresh := {}), count=40)
    assert every.shape[2] == 10
    every = policies.token_select(q, k[:, :, :40], LENGTHS * 0 + 40, state=fresh, count=40, sink=2, recent=6)
    assert (every == torch.arange(40)).all(), "tokens that no vote was held on fill what is left"
    q.neg_()  # the caller reuses its buffer
    turned = policies.token_select(q, k, LENGTHS, **options)
    assert not torch.equal(turned, first)


VOTING = {
    "token_select": {"state": {}},
    "recycled_attention": {"state": {}},
    "double_sparsity": {"channels": torch.tensor([[1, 3, 5, 7]] * 2)},
    "fasa": {"pairs": torch.tensor([[1, 3]] * 2)},
}


@pytest.mark.parametrize("name", VOTING)
def test_scale_is_that_of_the_votes(name):
    """Of heads with 16 channels the usual one is a quarter."""

    def chosen(query, **more):
        settings = {key: dict(value) if key == "state" else value for key, value in VOTING[name].items()}
        for _ in range(2):  # recycled attention begins with a full step
            found = getattr(policies, name)(query, k, LENGTHS, count=COUNT, sink=1, recent=1, **settings, **more)
        return found

    q, k = draw()
    sharp = chosen(q, scale=3.0)
    assert torch.equal(sharp, chosen(12 * q)) and not torch.equal(sharp, chosen(q))


def test_label_channels_are_the_loud_ones():
    q, k = draw(queries=20)
    q[:, :2, :, 5] *= 30  # key head 0
    k[:, 1, :, 9] *= 30
    k[:, 1, :, 2], q[:, 2:, :, 2] = 100, 0  # loud keys that no query asks for
    found = policies.label_channels(q, k)
    assert found.shape == (2, 2, 1) and found[:, 0, 0].tolist() == [5, 5] and found[:, 1, 0].tolist() == [9, 9]
    assert policies.label_channels(q, k, channels=16).tolist() == [[list(range(16))] * 2] * 2
    # unused slots do not count
    k[1, :, 70:, 4] = 1e6
    assert policies.label_channels(q, k, lengths=LENGTHS)[1, :, 0].tolist() == [5, 9]


def test_double_sparsity_reads_its_channels_only():
    q, k = draw()
    channels = torch.tensor([[0, 3], [7, 9]])
    expected = policies.double_sparsity(q, k, LENGTHS, channels=channels, count=COUNT, recent=4)
    noise = torch.full_like(k, float("nan"))
    for head in range(2):
        noise[:, head, :, channels[head]] = k[:, head, :, channels[head]]
    options = {"channels": channels, "count": COUNT, "recent": 4}
    assert torch.equal(expected, policies.double_sparsity(q, noise, LENGTHS, **options))
    whole = policies.double_sparsity(q, k, LENGTHS, channels=torch.arange(16).expand(2, 2, 16), count=COUNT, recent=4)
    assert not torch.equal(whole, expected)


def test_dominant_pairs():
    q, k = draw(queries=30)
    for head, pair in enumerate((2, 6)):
        parts = [pair, pair + 8]
        q[:, 2 * head : 2 * head + 2, :, parts] *= 5
        k[:, head, :, parts] *= 5
    pairs = policies.dominant_pairs(q, k, pairs=1, count=10)
    assert pairs.tolist() == [[[2], [6]]] * 2
    # more tokens to agree on than there are would make all pairs alike
    assert torch.equal(policies.dominant_pairs(q, k, pairs=1), pairs)
    # two pairs stand for the whole
    found = as_sets(policies.fasa(q[:, :, -1:], k, LENGTHS, pairs=pairs, count=20, recent=1))
    whole = as_sets(policies.fasa(q[:, :, -1:], k, LENGTHS, pairs=torch.arange(8).expand(2, 2, 8), count=20, recent=1))
    assert all(len(a & b) >= 14 for x, y in zip(found, whole, strict=True) for a, b in zip(x, y, strict=True))


def test_dominant_pairs_of_a_shorter_row_are_those_it_has_alone():
    q, k = draw(queries=30, seed=3)
    lengths = torch.tensor([k.shape[2], k.shape[2] - 25])
    settings = {"pairs": 2, "count": 6}
    together = policies.dominant_pairs(q, k, lengths=lengths, **settings)
    alone = [policies.dominant_pairs(q[i : i + 1], k[i : i + 1, :, :n], **settings) for i, n in enumerate(lengths)]
    assert torch.equal(together, torch.cat(alone))


def test_recycled_attention_takes_turns():
    q, k = draw()
    unread = torch.full_like(k, float("nan"))
    options = {"state": {}, "count": COUNT, "stride": 3, "sink": 2, "recent": 6}
    full = []
    for step in range(7):
        token_idx = policies.recycled_attention(q, k if step % 3 == 0 else unread, LENGTHS - 6 + step, **options)
        assert_well_formed(token_idx, k, LENGTHS - 6 + step)
        full.append(token_idx.shape[2] == SLOTS)
        if full[-1]:
            assert ((token_idx >= 0).sum(-1) == (LENGTHS - 6 + step)[:, None]).all()
        else:
            assert token_idx.shape[2] == COUNT
    assert full == [True, False, False] * 2 + [True]


def dense(q, k, v, lengths):
    with kernels.backend("reference"):
        return kernels.verify_attention(q, k, v, lengths)


def test_selection_cache_goes_on_with_other_numbers_of_queries_and_rows():
    """A draft or a turn of several tokens votes anew, and so does the single token after it, which is then reused."""
    state, options = {}, {"count": COUNT, "sink": 2, "recent": 6}
    for queries, rows in ((5, 2), (3, 2), (1, 2), (1, 1)):
        q, k = (x[:rows] for x in draw(queries, seed=queries))
        lengths = LENGTHS[:rows]
        expected = policies.token_select(q, k, lengths, **options)
        for keys in (k, torch.full_like(k, float("nan"))):
            assert torch.equal(policies.token_select(q, keys, lengths, state=state, **options), expected)


def test_channels_of_a_row_are_those_of_its_own_queries():
    """A row of 20 tokens has 20 queries, the last ones of 30."""
    q, k = draw(queries=30)
    q[1, :, :10, 3], q[1, :, 10:, 7] = 1e6, 50
    assert policies.label_channels(q, k, lengths=torch.tensor([96, 20]))[1].tolist() == [[7], [7]]


def test_pairs_agree_on_as_many_tokens_as_are_asked_for():
    q, k = draw(queries=30)
    few, more, all_of_them = (policies.dominant_pairs(q, k, pairs=3, count=count) for count in (1, 40, 500))
    assert not torch.equal(few, more) and torch.equal(all_of_them, policies.dominant_pairs(q, k, pairs=3, count=48))


def test_new_tokens_are_among_the_recent_ones():
    score, real = torch.tensor([[[1.0, 9.0, 2.0, 3.0, 4.0, 5.0]]]), torch.ones(1, 6, dtype=torch.bool)
    assert tokens.choose(score, real, 3, 0, 2, 1).tolist() == [[[1, 4, 5]]]
    assert tokens.choose(score, real, 3, 0, 1, 2).tolist() == [[[1, 4, 5]]]
    assert tokens.choose(score, real, 1, 1, 2, 2).tolist() == [[[0, 4, 5]]]


def test_defaults_of_what_is_learnt():
    """An eighth of the pairs and a sixteenth of the channels, from the last 16 queries."""
    q, k = draw(queries=30, width=32)
    assert policies.label_channels(q, k).shape == (2, 2, 2) == policies.dominant_pairs(q, k).shape
    last = policies.dominant_pairs(q[:, :, -16:], k, pairs=3)
    assert torch.equal(policies.dominant_pairs(q, k, pairs=3), last)
    assert not torch.equal(policies.dominant_pairs(q, k, pairs=3, window=30), last)


Q, K = torch.zeros(2, 4, 1, 16), torch.zeros(2, 2, 96, 16)
QKL = {"q": Q, "k": K, "lengths": LENGTHS}
PAIRS = torch.zeros(2, 1, dtype=torch.long)
BAD = (
    (policies.token_select, QKL | {"count": 0}, "count", "at least 1", "0"),
    (policies.token_select, QKL | {"sink": -1}, "sink", "at least 0", "-1"),
    (policies.token_select, QKL | {"recent": 1.5}, "recent", "whole number", "1.5"),
    (policies.token_select, QKL | {"lengths": LENGTHS[:1]}, "lengths", "[2]", "[1]"),
    (policies.token_select, QKL | {"lengths": LENGTHS.float()}, "lengths", "int32", "float32"),
    (policies.token_select, QKL | {"state": {}, "threshold": -2}, "threshold", "at least -1", "-2"),
    (policies.double_sparsity, QKL | {"channels": torch.zeros(3, 1).long()}, "channels", "[2, R]", "[3, 1]"),
    (policies.label_channels, {"q": Q, "k": K, "channels": 17}, "channels", "at most 16", "17"),
    (policies.label_channels, {"q": Q, "k": K, "channels": 0}, "channels", "at least 1", "0"),
    (policies.fasa, QKL | {"pairs": torch.zeros(3, 1).long()}, "pairs", "[2, P]", "[3, 1]"),
    (policies.fasa, {"q": Q[..., :15], "k": K[..., :15], "lengths": LENGTHS, "pairs": PAIRS}, "q", "even", "15"),
    (policies.dominant_pairs, {"q": Q, "k": K, "pairs": 9}, "pairs", "at most 8", "9"),
    (policies.dominant_pairs, {"q": Q, "k": K, "window": 0}, "window", "at least 1", "0"),
    (policies.recycled_attention, QKL | {"state": {}, "stride": 0}, "stride", "at least 1", "0"),
    (policies.recycled_attention, QKL | {"state": {}, "recent": -1}, "recent", "at least 0", "-1"),
    (policies.recycled_attention, QKL | {"state": {}, "sink": -1}, "sink", "at least 0", "-1"),
    (policies.double_sparsity, QKL | {"channels": PAIRS, "recent": -1}, "recent", "at least 0", "-1"),
    (policies.fasa, QKL | {"pairs": PAIRS, "sink": -1}, "sink", "at least 0", "-1"),
    (policies.fasa, QKL | {"pairs": torch.zeros(3, 2, 1).long()}, "pairs", "[2, 2, P] or [2, P]", "[3, 2, 1]"),
    (policies.dominant_pairs, {"q": Q, "k": K, "count": 0}, "count", "at least 1", "0"),
)


@pytest.mark.parametrize(("policy", "settings", "name", "allowed", "value"), BAD)
def test_bad_settings(policy, settings, name, allowed, value):
    with pytest.raises(ValueError, match=rf"^{name} must be ") as error:
        policy(**settings)
    assert allowed in str(error.value) and value in str(error.value)


@pytest.mark.parametrize("name", NAMES)
def test_bad_count_in_the_table(name):
    with pytest.raises(ValueError, match=r"^count must be a whole number of at least 1, got 0"):
        run(name, Q, K, count=0)


def test_ends_leave_most_to_the_policy():
    assert tables._ends(24) == {"sink": 3, "recent": 6} and tables._ends(1000) == {"sink": 4, "recent": 64}


def test_the_newest_queries_stand_at_the_end():
    q, k = draw(queries=3)
    assert tokens.query_positions(q, k, LENGTHS).tolist() == [[93, 94, 95], [67, 68, 69]]
    assert tokens.query_positions(q, k, None).tolist() == [[93, 94, 95]] * 2


def test_there_is_room_for_what_must_be_chosen():
    """Forced tokens come first and all of them, whatever the count; unused places are last."""
    score, real = torch.tensor([[[5.0, 4.0, 3.0, 2.0, 1.0]]]), torch.tensor([[True, True, True, True, False]])
    assert tokens.choose(score, real, 1, 0, 2, 1).tolist() == [[[2, 3]]]
    assert tokens.choose(score, real, 3, 0, 2, 1).tolist() == [[[0, 2, 3]]]
    assert tokens.choose(score, real, 9, 0, 2, 1).tolist() == [[[0, 1, 2, 3, -1]]]
    assert tokens.all_tokens(real, 2).tolist() == [[[0, 1, 2, 3, -1]] * 2]


def test_votes_of_an_earlier_step_keep_their_places():
    """Of a cache that grew the new tokens come last, of one that shrank the first votes stay."""
    votes = torch.tensor([[0.0, 0.5, 0.25]])
    assert tokens.to_length(votes, 5).tolist() == [[0.0, 0.5, 0.25, -1.0, -1.0]]
    assert tokens.to_length(votes, 2).tolist() == [[0.0, 0.5]]


def test_what_is_learnt_of_the_first_step_leaves_unused_slots_out():
    """The pairs and channels of a row that fills a part of the cache are those of that part."""
    q, k = draw(queries=6)
    k[..., 56:, :] = 30 * q[:, ::2, :1]  # all that the queries look for, were it read
    for name, key in (("fasa", "pairs"), ("double_sparsity", "channels")):
        longer, alone = {}, {}
        run(name, q, k, torch.tensor([56, 56]), state=longer)
        run(name, q, k[:, :, :56], torch.tensor([56, 56]), state=alone)
        assert torch.equal(longer[key], alone[key])
