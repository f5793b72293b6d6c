"""Prefill policies: what they must find, must keep and must never read."""

import functools
import itertools

import pytest
import torch
from apple_gpu import MPS, AppleGpu, IntelGpu
from largest_tensor import Largest

from mmaccel import kernels
from mmaccel.kernels import BlockPlan, policies
from mmaccel.kernels.plan import block_coverage
from mmaccel.kernels.policies.prefill.blocks import BlockGrid, keep_first, pool_mean, share_of
from mmaccel.kernels.policies.prefill.flex_prefill import pattern_distance
from mmaccel.kernels.policies.prefill.vertical_slash import covering_lines, last_attention, line_mass, on_lines

BLOCK = 16
NAMES = sorted(policies.PREFILL)
SCORED = [name for name in NAMES if name != "a_shape"]
SHAPES = ((128, 128), (72, 150), (16, 100))  # square, ragged chunk, one row


def draw(batch=2, heads=4, key_heads=2, queries=128, keys=128, width=16, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(batch, heads, queries, width, generator=generator, dtype=torch.float64)
    k = torch.randn(batch, key_heads, keys, width, generator=generator, dtype=torch.float64)
    return q.to(dtype), k.to(dtype)


def table(q_len, kv_len, causal, window=None):
    return block_coverage(q_len, kv_len, BLOCK, BLOCK, causal, window, "cpu")[0]


def run(name, q, k, budget, causal=True):
    return policies.PREFILL[name](q, k, budget=budget, causal=causal, block_m=BLOCK, block_n=BLOCK)


def anchors(q_len, kv_len, causal):
    keep = torch.zeros_like(table(q_len, kv_len, causal))
    keep[:, 0] = True
    if causal:
        keep |= table(q_len, kv_len, False, (0, 0))
    return keep & table(q_len, kv_len, causal)


@pytest.mark.parametrize(("name", "causal"), itertools.product(NAMES, (True, False)))
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_budget_anchors_and_visibility(name, causal, shape):
    q, k = draw(queries=shape[0], keys=shape[1])
    visible, keep = table(*shape, causal), anchors(*shape, causal)
    before = torch.zeros(1, dtype=torch.bool)
    for budget in (0.01, 0.25, 0.4, 0.7, 1.0):
        mask = run(name, q, k, budget, causal).mask()
        assert not (mask & ~visible).any()
        assert (mask | ~keep).all()
        assert (mask | ~before).all(), "a larger budget lost blocks"
        before = mask
        count = mask.sum((-1, -2))
        if name == "pooled_top_k":  # by row
            wanted = torch.maximum((visible.sum(-1) * budget + 0.5).floor(), keep.sum(-1)).sum()
            assert (count == wanted).all()
        else:  # by head
            target = int(visible.sum() * budget + 0.5)
            # some always keep the diagonal, causal or not
            floor = int((keep | (table(*shape, False, (0, 0)) & visible)).sum())
            assert (count <= max(target, floor)).all()
            if name != "a_shape":
                assert (count >= target).all()
    assert (mask == visible).all()


@pytest.mark.parametrize(("name", "gpu"), itertools.product(NAMES, (AppleGpu, IntelGpu)))
def test_a_gpu_without_float64_reads_the_same_blocks(name, gpu):
    q, k = draw(queries=72, keys=150)
    expected = run(name, q, k, 0.4).mask()
    with gpu():
        found = run(name, q, k, 0.4).mask()
    assert torch.equal(found, expected)


@pytest.mark.parametrize(("name", "causal"), itertools.product(NAMES, (True, False)))
def test_whole_budget_is_dense(name, causal):
    q, k = draw(queries=72, keys=150)
    v = draw(keys=150, seed=1)[1]
    plan = run(name, q, k, 1.0, causal)
    with kernels.backend("reference"):
        output, lse = kernels.block_sparse_attention(q, k, v, plan, causal=causal)
        expected, expected_lse = kernels.block_sparse_attention(q, k, v, causal=causal)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(lse, expected_lse)


@pytest.mark.parametrize("name", NAMES)
def test_rows_and_heads_are_independent(name):
    q, k = draw(batch=3)
    whole = run(name, q, k, 0.4).mask().expand(3, 4, -1, -1)
    again = run(name, q, k, 0.4).mask().expand(3, 4, -1, -1)
    assert torch.equal(whole, again)
    for row in range(3):
        alone = run(name, q[row : row + 1], k[row : row + 1], 0.4).mask()
        assert (whole[row] == alone[0]).all()
    # query heads 2 and 3 belong to key head 1
    alone = run(name, q[:, 2:], k[:, 1:], 0.4).mask()
    assert (whole[:, 2:] == alone).all()


@pytest.mark.parametrize("name", SCORED)
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float64), ids=str)
def test_planted_block_is_found(name, dtype):
    """One block of keys, of key head 1 only, fits all queries of query heads 2 and 3."""
    q, k = draw(queries=64, keys=192)
    q[..., 0] = 8
    k[..., 0] = 0
    k[:, 1, 5 * BLOCK : 6 * BLOCK, 0] = 8
    mask = run(name, q.to(dtype), k.to(dtype), 0.3).mask()
    assert mask[:, 2:, :, 5].all()
    assert not mask[:, :2, :, 5].all()


TOP_P = ((policies.pooled_top_p, {}), (policies.sparge, {"similarity": -1}))


@pytest.mark.parametrize(
    ("p", "kept"), ((0.4, [0, 1]), (0.6, [0, 1, 2]), (0.8, [0, 1, 2]), (0.9, [0, 1, 2, 3]), (1.0, [0, 1, 2, 3]))
)
def test_top_p_counts_what_comes_before(p, kept):
    """Blocks of 1/8, 1/2, 1/4, 1/8; block 0 is always kept."""
    weight = torch.tensor([0.125, 0.5, 0.25, 0.125]).log().repeat_interleave(BLOCK)
    k = torch.zeros(1, 1, 4 * BLOCK, 16)
    k[..., 0] = weight
    q = torch.zeros(1, 2, BLOCK, 16)
    q[..., 0] = 1
    plan = policies.pooled_top_p(q, k, p=p, causal=False, scale=1.0, block_m=BLOCK, block_n=BLOCK)
    assert plan.col.tolist() == kept * 2


@pytest.mark.parametrize(("policy", "more"), TOP_P)
def test_top_p_keeps_all_at_one_despite_rounding(policy, more):
    q, k = draw()
    mask = policy(q * 100, k * 100, p=1.0, block_m=BLOCK, block_n=BLOCK, **more).mask()
    assert (mask == table(128, 128, True)).all()


@pytest.mark.parametrize(("policy", "more"), TOP_P)
def test_top_p_stops_where_it_is_reached(policy, more):
    """Four blocks of a quarter each: two are one half."""
    q, k = torch.zeros(1, 1, BLOCK, 16), torch.zeros(1, 1, 4 * BLOCK, 16)
    for p, kept in ((0.25, [0]), (0.5, [0, 1]), (0.51, [0, 1, 2])):
        assert policy(q, k, p=p, causal=False, block_m=BLOCK, block_n=BLOCK, **more).col.tolist() == kept


def test_lines_stop_where_their_mass_is_reached():
    assert covering_lines(torch.ones(1, 4), 0.5).tolist() == [[True, True, False, False]]
    assert covering_lines(torch.tensor([[1.0, 0.0, 3.0]]), 1.0).all()


def test_top_p_gives_flat_rows_more():
    """The budget is shared out by need: rows that spread get more blocks than rows that point at one."""
    q, k = draw(batch=1, heads=1, key_heads=1, queries=128, keys=256)
    q[:, :, :64] = 0
    q[:, :, 64:, 0], k[..., 0] = 10, 0
    k[:, :, 32:48, 0] = 10
    mask = policies.pooled_top_p(q, k, p=0.9, causal=False, block_m=BLOCK, block_n=BLOCK).mask()[0, 0]
    assert mask[:4].sum(-1).min() >= 14
    assert mask[4:].sum(-1).max() <= 2


@pytest.mark.parametrize(("causal", "shape"), itertools.product((True, False), SHAPES), ids=str)
def test_a_shape_is_its_definition(causal, shape):
    plan = policies.a_shape(*shape, sink=20, local=40, causal=causal, block_m=BLOCK, block_n=BLOCK)
    position = torch.arange(shape[0])[:, None] + shape[1] - shape[0]
    key = torch.arange(shape[1])
    seen = (key < 32) | ((position - key).abs() < 40)
    seen &= (key <= position) | (not causal)
    rows, columns = plan.rows, plan.columns
    padded = torch.zeros(rows * BLOCK, columns * BLOCK, dtype=torch.bool)
    padded[: shape[0], : shape[1]] = seen
    expected = padded.view(rows, BLOCK, columns, BLOCK).any(3).any(1)
    assert torch.equal(plan.mask()[0, 0], expected)


def test_short_blocks_have_whole_means():
    x = torch.randn(2, 3, 37, 4)
    expected = torch.stack([part.mean(2) for part in x.split(BLOCK, 2)], 2)
    torch.testing.assert_close(pool_mean(x, BLOCK), expected)
    torch.testing.assert_close(pool_mean(x[:, :, :5], BLOCK), x[:, :, :5].mean(2, keepdim=True))


@pytest.mark.parametrize("tokens", (8 * BLOCK, 8 * BLOCK + 5))
def test_means_are_made_without_a_copy_of_the_tokens(tokens):
    """Those of a prompt of 128,000 tokens, in float32 and padded, would be many times what is computed."""
    x = torch.randn(1, 2, tokens, 4).bfloat16()
    with Largest() as largest:
        means = pool_mean(x, BLOCK)
    assert means.dtype == torch.float32 and largest.made <= x.nbytes // 4
    torch.testing.assert_close(means[:, :, 0], x[:, :, :BLOCK].float().mean(2))


def test_line_mass_is_its_definition():
    attention = torch.rand(2, 3, 5, 11, dtype=torch.float64)
    columns, diagonals = line_mass(attention)
    expected = torch.zeros_like(diagonals)
    for row, key in itertools.product(range(5), range(11)):
        distance = 11 - 5 + row - key
        if distance >= 0:
            expected[..., distance] += attention[..., row, key]
    torch.testing.assert_close(diagonals, expected)
    torch.testing.assert_close(columns, attention.sum(-2))


@pytest.mark.parametrize("causal", (True, False))
def test_vertical_slash_finds_one_column_and_one_diagonal(causal):
    length, back = 160, 53
    code = torch.nn.functional.normalize(torch.randn(length, 64, generator=torch.Generator().manual_seed(3)), dim=-1)
    k, q = code.clone(), code.roll(back, 0) * 60
    k[70] = 0
    k[70, 0], q[:, 0] = 30, 10
    sizes = {"causal": causal, "block_m": BLOCK, "block_n": BLOCK}
    mask = policies.vertical_slash(q[None, None], k[None, None], vertical=1, slash=1, last=32, **sizes).mask()[0, 0]
    visible = table(length, length, causal)
    expected = anchors(length, length, causal) | (table(length, length, False, (0, 0)) & visible)
    expected[:, 70 // BLOCK] = True
    for position in range(length):
        for other in (position - back, position + back):
            if 0 <= other < length:
                expected[position // BLOCK, other // BLOCK] = True
    assert torch.equal(mask, expected & visible)
    only = policies.vertical_slash(q[None, None], k[None, None], vertical=1, slash=0, last=32, **sizes).mask()[0, 0]
    assert only.sum() < mask.sum() and (only[:, 70 // BLOCK] == visible[:, 70 // BLOCK]).all()


def flex_heads():
    """Head 0: constant blocks, which means describe. Head 1: a block of opposed pairs, whose mean says nothing."""
    q = torch.zeros(1, 2, 128, 16)
    k = torch.zeros(1, 2, 128, 16)
    q[..., 0] = 10
    k[:, 0, 32:48, 0] = 4
    k[:, 1, 48:64, 0] = torch.tensor([8.0, -8.0]).repeat(8)
    return q, k


def test_flex_prefill_tells_heads_apart():
    q, k = flex_heads()
    sizes = {"block_m": BLOCK, "block_n": BLOCK}
    attention = last_attention(q, k, BLOCK, True)
    distance = pattern_distance(q, k, attention, BLOCK)[0]
    assert distance[0] < 0.01 and distance[1] > 0.5
    masks = [policies.flex_prefill(q, k, gamma=0.9, min_budget=0, tau=tau, **sizes).mask()[0] for tau in (0.1, 0, 1)]
    # query-aware misses the opposed pairs, columns do not
    assert not masks[2][1, 4:, 3].all() and masks[0][1, 4:, 3].all() and masks[1][1, 4:, 3].all()
    assert torch.equal(masks[0][0], masks[2][0]) and masks[0][0, 3:, 2].all()
    assert torch.equal(masks[0][1], masks[1][1])
    # the rest is not read
    assert masks[0][0].sum() < 30 and masks[0][1].sum() < 36


def test_flex_prefill_least_budget_and_all():
    q, k = flex_heads()
    sizes = {"block_m": BLOCK, "block_n": BLOCK}
    rows = policies.flex_prefill(q, k, gamma=0.1, min_budget=50, **sizes).mask().sum(-1)
    assert (rows >= torch.arange(1, 9).clamp(max=4)).all()
    whole = policies.flex_prefill(q, k, gamma=1.0, min_budget=0, **sizes).mask()
    assert (whole == table(128, 128, True)).all()


def test_flex_prefill_gamma_is_monotone():
    q, k = draw()
    counts = [
        policies.flex_prefill(q, k, gamma=g, min_budget=0, block_m=BLOCK, block_n=BLOCK).mask().sum()
        for g in (0.1, 0.5, 0.9, 1.0)
    ]
    assert counts == sorted(counts) and counts[0] < counts[-1]


def test_sparge_guard():
    """All blocks alike except one of the keys and one of the queries."""
    q, k = torch.zeros(1, 2, 128, 16), torch.zeros(1, 1, 128, 16)
    q[..., 0], k[..., 0] = 10, -1
    k[:, :, 16:32, 0] = 5
    mixed = torch.randn(BLOCK, 16, generator=torch.Generator().manual_seed(1))
    # its mean says that it is the heaviest, which must not use up p
    k[:, :, 80:96] = mixed * 5 * torch.tensor([1.0, -1.0]).repeat(8)[:, None]
    k[:, :, 80:96, 0] = 12
    q[:, 1, 96:112] = torch.randn(BLOCK, 16, generator=torch.Generator().manual_seed(2))
    sizes = {"p": 0.5, "block_m": BLOCK, "block_n": BLOCK}
    visible = table(128, 128, True)
    guarded = policies.sparge(q, k, similarity=0.6, **sizes).mask()[0]
    expected = anchors(128, 128, True)
    expected[:, 1] = expected[:, 5] = True
    assert torch.equal(guarded[0], expected & visible)
    expected[6] = True
    assert torch.equal(guarded[1], expected & visible)
    bare = policies.sparge(q, k, similarity=-1, **sizes).mask()[0]
    assert bare[0, 6:, 5].all() and not bare[0, 6:, 1].any() and not bare[1, 6, :7].all()


def test_sparge_takes_what_is_as_alike_as_asked():
    """Blocks of equal tokens at a similarity of 1: the guard lets them all through."""
    q, k = (torch.eye(16).repeat_interleave(BLOCK, 0)[None, None] for _ in range(2))
    plans = [policies.sparge(q, k, p=0.2, similarity=x, block_m=BLOCK, block_n=BLOCK) for x in (1.0, -1)]
    assert torch.equal(plans[0].mask(), plans[1].mask()) and plans[0].density < 0.3


def test_sparge_guards_each_head_by_itself():
    q, k = draw(batch=1)
    k[:, 0], q[:] = 1, 1  # of key head 0 and all queries every block is alike
    mask = policies.sparge(q, k, p=0.01, similarity=0.6, causal=False, block_m=BLOCK, block_n=2 * BLOCK).mask()[0]
    assert mask.shape == (4, 8, 4)
    assert mask[2:].all() and not mask[:2, :, 1:].any()


LIGHT, HEAVY = [0.1, 0.5, 0.25, 0.15], [0.1, 0.3, 0.25, 0.35]


@pytest.mark.parametrize(
    ("mass", "budget", "kept"),
    ((LIGHT, 0.5, [0, 1]), (LIGHT, 0.75, [0, 1, 3]), (HEAVY, 0.5, [0, 3]), (HEAVY, 0.75, [0, 1, 3])),
)
def test_sparge_within_a_budget_favours_what_is_guarded(mass, budget, kept):
    """The tokens of the last block are not alike: its mass counts among all, and half of what is before it."""
    q, k = torch.zeros(1, 1, BLOCK, 16), torch.zeros(1, 1, 4 * BLOCK, 16)
    q[..., 0] = 1
    k[..., 0] = torch.tensor(mass).log().repeat_interleave(BLOCK)
    k[:, :, 3 * BLOCK :, 1] = torch.tensor([90.0, -90.0]).repeat(BLOCK // 2)
    sizes = {"block_m": BLOCK, "block_n": BLOCK, "causal": False}
    plan = policies.sparge(q, k, p=1.0, similarity=0.6, budget=budget, scale=1.0, **sizes)
    assert plan.col.tolist() == kept


def test_the_estimate_of_vertical_slash_is_attention():
    q, k = draw(queries=40, keys=72)
    for causal, last in ((True, 5), (False, 5), (True, 64)):
        count = min(last, 40)
        expected = torch.zeros(2, 4, count, 72)
        for row, head, query in itertools.product(range(2), range(4), range(count)):
            seen = 72 - count + query + 1 if causal else 72
            scores = k[row, head // 2, :seen] @ q[row, head, 40 - count + query] / 4
            expected[row, head, query, :seen] = scores.softmax(-1)
        torch.testing.assert_close(last_attention(q, k, last, causal), expected)


@pytest.mark.parametrize("causal", (True, False))
def test_lines_through_blocks_are_their_definition(causal):
    """The mass of the columns of a block, or of the distances in it, whichever is more; the last blocks are short."""
    generator = torch.Generator().manual_seed(0)
    columns, diagonals = (torch.rand(1, 1, 72, generator=generator, dtype=torch.float64) for _ in range(2))
    found = on_lines(columns, diagonals, BlockGrid(40, 72, 32, BLOCK, causal))[0, 0]
    for row, column in itertools.product(range(2), range(5)):
        queries, keys = range(row * 32, min(row * 32 + 32, 40)), range(column * BLOCK, min(column * BLOCK + BLOCK, 72))
        distances = {query + 32 - key for query, key in itertools.product(queries, keys)}
        sides = [{x for x in distances if x >= 0}, {-x for x in distances if x <= 0}][: 1 if causal else 2]
        crossed = max(sum(diagonals[0, 0, x].item() for x in side) for side in sides)
        assert found[row, column].item() == pytest.approx(max(crossed, columns[0, 0, list(keys)].sum().item()))


def test_lines_that_are_not_kept_lend_no_weight():
    """Within a budget a block counts by the lines that were chosen: here by one column, and all its rows alike."""
    length = 8 * BLOCK
    code = torch.nn.functional.normalize(torch.randn(length, 64, generator=torch.Generator().manual_seed(3)), dim=-1)
    k, q = code.clone(), code.roll(3 * BLOCK, 0) * 40  # a diagonal, which is heavier than the column
    k[2 * BLOCK, 0], q[:, 0] = 30, 1
    sizes = {"last": 32, "causal": False, "block_m": BLOCK, "block_n": BLOCK}
    plan = policies.vertical_slash(q[None, None], k[None, None], vertical=1, slash=0, budget=0.3, **sizes)
    beside = plan.mask()[0, 0] & ~torch.eye(8, dtype=torch.bool)
    assert beside[:, 2].tolist() == [x in (0, 1, 3, 4) for x in range(8)], "ties in the order of rows"


@pytest.mark.parametrize("name", ("pooled_top_p", "flex_prefill", "sparge", "vertical_slash"))
def test_scale_is_that_of_the_scores(name):
    q, k = draw(batch=1)
    settings = {
        "pooled_top_p": {"p": 0.6},
        "flex_prefill": {"gamma": 0.5, "min_budget": 0},
        "sparge": {"p": 0.6, "similarity": -1},
        "vertical_slash": {"vertical": 1, "slash": 1},
    }[name]
    run = functools.partial(getattr(policies, name), block_m=BLOCK, block_n=BLOCK, **settings)
    scaled, plain = run(q, k, scale=8 / 4), run(q, k)
    assert torch.equal(scaled.mask(), run(q * 8, k).mask()) and not torch.equal(scaled.mask(), plain.mask())


GRIDS = (
    ((4, 8, 8), (2, 2, 4), (3, 3, 1)),
    ((6, 4, 12), (2, 4, 4), (1, 3, 5)),
    ((3, 6, 6), (1, 3, 3), (5, 1, 3)),  # tiles of 9 tokens: blocks see more
)


@pytest.mark.parametrize(("grid", "tile", "window"), GRIDS, ids=str)
def test_sliding_tile_is_its_definition(grid, tile, window):
    order = policies.tile_order(grid, tile)
    assert torch.equal(order.sort().values, torch.arange(len(order)))
    place = torch.stack(torch.unravel_index(order, grid), -1) // torch.tensor(tile)
    counts = torch.tensor(grid) // torch.tensor(tile)
    reach = torch.tensor(window).clamp(max=counts + 1 - counts % 2) // 2
    centre = torch.minimum(torch.maximum(place, reach), torch.maximum(counts - 1 - reach, reach * 0))
    near = ((centre[:, None] - place).abs() <= reach) | (torch.tensor(window) >= counts)
    near = near.all(-1)
    plan = policies.sliding_tile(grid, tile, window, block_m=BLOCK, block_n=BLOCK)
    blocks = plan.rows
    padded = torch.zeros(blocks * BLOCK, blocks * BLOCK, dtype=torch.bool)
    padded[: len(order), : len(order)] = near
    assert torch.equal(plan.mask()[0, 0], padded.view(blocks, BLOCK, blocks, BLOCK).any(3).any(1))
    if tile[0] * tile[1] * tile[2] % BLOCK == 0:  # nothing but whole tiles, of the same number everywhere
        sizes = plan.mask()[0, 0].sum(-1)
        assert sizes.min() == sizes.max()


def test_tile_order_puts_tiles_in_a_row():
    order = policies.tile_order((2, 2, 4), (2, 1, 2))
    assert order[:4].tolist() == [0, 1, 8, 9]
    assert order.argsort()[order].tolist() == list(range(16))


def test_sliding_tile_with_text():
    plan = policies.sliding_tile((4, 4, 4), (2, 2, 4), (1, 1, 1), extra=20, block_m=BLOCK, block_n=BLOCK)
    mask = plan.mask()[0, 0]
    assert plan.q_len == 84 and mask[4:].all() and mask[:, 4:].all()
    assert torch.equal(mask[:4, :4], torch.eye(4, dtype=torch.bool))


@pytest.mark.parametrize(("frames", "size", "decay"), ((9, 48, 1.0), (17, 20, 1.0), (6, 64, 0.5), (12, 16, 2.0)))
def test_radial_is_its_definition(frames, size, decay):
    extra = 10
    plan = policies.radial(frames, size, decay=decay, extra=extra, block_m=BLOCK, block_n=BLOCK)
    tokens = frames * size + extra
    blocks = plan.rows
    frame, place = torch.arange(tokens) // size, torch.arange(tokens) % size
    text = torch.arange(tokens) >= frames * size
    distance = (frame[:, None] - frame).abs()
    width = torch.tensor([size * decay / 2 ** (max(d, 1).bit_length() - 1) for d in range(frames + 1)])
    width = width[distance.clamp(max=frames)]
    narrowest = min(BLOCK, size)
    gap = (place[:, None] - place).abs()
    wide = (gap < width) & (width >= narrowest)
    narrow = (gap == 0) & (width < narrowest) & (distance % (narrowest / width).ceil() == 0)
    seen = wide | narrow | (distance <= 1) | (frame == 0) | text | text[:, None]
    padded = torch.zeros(blocks * BLOCK, blocks * BLOCK, dtype=torch.bool)
    padded[:tokens, :tokens] = seen
    assert torch.equal(plan.mask()[0, 0], padded.view(blocks, BLOCK, blocks, BLOCK).any(3).any(1))


def test_radial_needs_no_float64():
    expected = policies.radial(33, 40, decay=0.7).mask()
    with AppleGpu():
        found = policies.radial(33, 40, decay=0.7, device=MPS)
    assert torch.equal(found.mask(), expected)


def test_radial_thins_out_with_length():
    densities = [policies.radial(frames, 128, block_m=BLOCK, block_n=BLOCK).density for frames in (4, 16, 64)]
    assert densities == sorted(densities, reverse=True) and densities[-1] < 0.3
    wide, narrow = (policies.radial(16, 128, decay=decay, block_m=BLOCK, block_n=BLOCK).mask() for decay in (1.0, 0.5))
    assert narrow.sum() < wide.sum() and (wide | ~narrow).all()


@pytest.mark.parametrize("causal", (True, False))
@pytest.mark.parametrize("local", (1, 2, 16, 17, 18, 20, 33))
def test_local_is_its_definition(local, causal):
    """Blocks with a key less than `local` tokens away, one token more or less at the edge of a block."""
    sizes = {"causal": causal, "block_m": BLOCK, "block_n": BLOCK}
    mask = policies.a_shape(64, 128, sink=0, local=local, **sizes).mask()[0, 0]
    distance = torch.arange(64)[:, None] + 64 - torch.arange(128)
    near = (distance.abs() < local) & ((distance >= 0) | (not causal))
    assert torch.equal(mask, near.view(4, BLOCK, 8, BLOCK).any(3).any(1))


@pytest.mark.parametrize("name", NAMES)
def test_blocks_of_queries_and_of_keys_may_differ(name):
    """Rows of 16 queries and columns of 32 keys, of which the third holds what all look for."""
    q, k = draw()
    q[..., 0], k[..., 0], k[:, :, 64:96, 0] = 8, 0, 8
    plan = policies.PREFILL[name](q, k, budget=0.5, causal=False, block_m=16, block_n=32)
    assert (plan.block_m, plan.block_n, plan.mask().shape[-2:]) == (16, 32, (8, 4))
    assert plan.mask()[..., 2].all() or name in ("a_shape", "vertical_slash", "flex_prefill"), "by place and by lines"


@pytest.mark.parametrize(
    "policy",
    (
        functools.partial(policies.radial, 12, 16, extra=20),
        functools.partial(policies.sliding_tile, (4, 4, 12), (2, 2, 4), (1, 1, 1)),
        functools.partial(policies.a_shape, 150, 192, sink=20, local=30),
        functools.partial(policies.a_shape, 150, 192, sink=20, local=40, causal=False),
    ),
    ids=("radial", "sliding_tile", "a_shape", "a_shape of both sides"),
)
def test_wider_blocks_are_several_narrow_ones(policy):
    fine = policy(block_m=16, block_n=16).mask()[0, 0]
    rows, columns = -(-fine.shape[0] // 2) * 2, -(-fine.shape[1] // 2) * 2
    fine = torch.nn.functional.pad(fine, (0, columns - fine.shape[1], 0, rows - fine.shape[0]))
    for block_m, block_n in ((32, 16), (16, 32)):
        plan, joined = (
            policy(block_m=block_m, block_n=block_n),
            fine.view(rows * 16 // block_m, block_m // 16, columns * 16 // block_n, block_n // 16),
        )
        seen = plan.mask()[0, 0]
        assert torch.equal(seen, joined.any(3).any(1)[: seen.shape[0], : seen.shape[1]]) and seen.any()


@pytest.mark.parametrize("name", NAMES)
def test_blocks_of_64_and_causal_unless_told_otherwise(name):
    q, k = draw(queries=130, keys=200)
    plans = [policies.PREFILL[name](q, k, budget=1.0, causal=True)]
    if name != "a_shape":
        plans.append(getattr(policies, name)(q, k))
    for plan in plans:
        assert (plan.block_m, plan.block_n) == (64, 64)
        assert not (plan.mask() & ~block_coverage(130, 200, 64, 64, True, None, "cpu")[0]).any()


def test_frames_that_all_read():
    """By default the first one; the others only where the window reaches, which is thin that far away."""
    options = {"decay": 0.1, "block_m": BLOCK, "block_n": BLOCK}
    for given, sinks in (({}, 1), ({"sink_frames": 0}, 0), ({"sink_frames": 3}, 3)):
        mask = policies.radial(16, BLOCK * 4, **options, **given).mask()[0, 0]
        assert [bool(mask[-4:, 4 * frame : 4 * frame + 4].all()) for frame in range(5)] == [x < sinks for x in range(5)]


@pytest.mark.parametrize("causal", (True, False))
def test_flex_prefill_of_heads_that_are_not_trusted_goes_by_lines(causal):
    q, k = draw()
    q[..., 0], k[:, :, -1, 0] = 8, 8  # all look for the last key, which is ahead of all but one
    sizes = {"causal": causal, "block_m": BLOCK, "block_n": BLOCK}
    plan = policies.flex_prefill(q, k, gamma=0.3, tau=0, min_budget=0, **sizes)
    grid = BlockGrid.of(q, k, BLOCK, BLOCK, causal)
    columns, diagonals = line_mass(last_attention(q, k, BLOCK, causal))
    lines = on_lines(covering_lines(columns, 0.3), covering_lines(diagonals, 0.3), grid) > 0
    assert torch.equal(plan.mask(), (lines | grid.anchors | grid.diagonal) & grid.visible)


def test_flex_prefill_trusts_by_the_scale_of_the_call():
    q, k = draw()
    far = [
        pattern_distance(q, k, last_attention(q, k, BLOCK, True, 1.0), BLOCK, scale)[0, 0].item()
        for scale in (1.0, None)
    ]
    settings = {"gamma": 0.5, "min_budget": 0, "tau": sum(far) / 2, "block_m": BLOCK, "block_n": BLOCK}
    found = policies.flex_prefill(q, k, scale=1.0, **settings).mask()
    assert torch.equal(found, policies.flex_prefill(4 * q, k, **settings).mask())


def test_the_last_64_queries_tell_the_lines_unless_told_otherwise():
    q, k = draw()
    sizes = {"block_m": BLOCK, "block_n": BLOCK}
    lines = [
        policies.vertical_slash(q, k, vertical=3, slash=3, **more, **sizes) for more in ({}, {"last": 64}, {"last": 32})
    ]
    usual, same, other = (plan.mask() for plan in lines)
    assert torch.equal(usual, same) and not torch.equal(usual, other)


QK = {"q": torch.zeros(1, 2, 64, 16), "k": torch.zeros(1, 1, 64, 16)}
BAD = (
    (policies.pooled_top_k, QK | {"density": 0.0}, "density", "at most 1", "0.0"),
    (policies.pooled_top_k, QK | {"density": True}, "density", "at most 1", "True"),
    (policies.pooled_top_k, QK | {"block_n": 24}, "block_n", "power of two", "24"),
    (policies.pooled_top_k, QK | {"block_m": 0}, "block_m", "at least 16", "0"),
    (policies.pooled_top_k, QK | {"k": torch.zeros(1, 3, 64, 16)}, "q", "multiple of 3", "[1, 2, 64, 16]"),
    (policies.pooled_top_p, QK | {"p": 1.5}, "p", "at most 1", "1.5"),
    (policies.pooled_top_p, QK | {"p": float("nan")}, "p", "at most 1", "nan"),
    (policies.pooled_top_p, QK | {"budget": -0.5}, "budget", "above 0", "-0.5"),
    (policies.flex_prefill, QK | {"gamma": 0}, "gamma", "above 0", "0"),
    (policies.flex_prefill, QK | {"tau": -1}, "tau", "at least 0", "-1"),
    (policies.flex_prefill, QK | {"min_budget": -1}, "min_budget", "at least 0", "-1"),
    (policies.sparge, QK | {"similarity": 2}, "similarity", "between -1 and 1", "2"),
    (policies.vertical_slash, QK | {"vertical": -1}, "vertical", "at least 0", "-1"),
    (policies.vertical_slash, QK | {"slash": 2.5}, "slash", "whole number", "2.5"),
    (policies.vertical_slash, QK | {"last": 0}, "last", "at least 1", "0"),
    (policies.a_shape, {"q_len": 8, "kv_len": 8, "sink": -1}, "sink", "at least 0", "-1"),
    (policies.a_shape, {"q_len": 8, "kv_len": 8, "local": 0}, "local", "at least 1", "0"),
    (policies.a_shape, {"q_len": 0, "kv_len": 8}, "q_len", "at least 1", "0"),
    (
        policies.sliding_tile,
        {"grid": (4, 4, 4), "tile": (2, 2, 3), "window": (1, 1, 1)},
        "tile",
        "divisor",
        "(2, 2, 3)",
    ),
    (policies.sliding_tile, {"grid": (4, 4, 4), "tile": (2, 2, 2), "window": (1, 2, 1)}, "window", "odd", "(1, 2, 1)"),
    (policies.sliding_tile, {"grid": (4, 4), "tile": (2, 2, 2), "window": (1, 1, 1)}, "grid", "three", "(4, 4)"),
    (policies.tile_order, {"grid": (4, 4, 4), "tile": (0, 2, 2)}, "tile", "at least 1", "(0, 2, 2)"),
    (policies.radial, {"frames": 0, "tokens_per_frame": 4}, "frames", "at least 1", "0"),
    (policies.radial, {"frames": 2, "tokens_per_frame": 4, "sink_frames": -1}, "sink_frames", "at least 0", "-1"),
    (policies.radial, {"frames": 2, "tokens_per_frame": 4, "extra": -1}, "extra", "at least 0", "-1"),
    (
        policies.sliding_tile,
        {"grid": (4, 4, 4), "tile": (2, 2, 2), "window": (1, 1, 1), "extra": -1},
        "extra",
        "at least 0",
        "-1",
    ),
    (policies.radial, {"frames": 2, "tokens_per_frame": 4, "decay": 0}, "decay", "above 0", "0"),
)


@pytest.mark.parametrize(("policy", "settings", "name", "allowed", "value"), BAD)
def test_bad_settings(policy, settings, name, allowed, value):
    with pytest.raises(ValueError, match=rf"^{name} must be ") as error:
        policy(**settings)
    assert allowed in str(error.value) and value in str(error.value)


@pytest.mark.parametrize(("name", "budget"), itertools.product(NAMES, (0, -0.1, 1.01, None, "half")))
def test_bad_budgets(name, budget):
    with pytest.raises(ValueError, match=r"^budget must be above 0 and at most 1, got "):
        run(name, **QK, budget=budget)


@pytest.mark.parametrize("q_len, kv_len", ((64, 64), (130, 200), (256, 256), (100, 1000), (1, 65)))
@pytest.mark.parametrize("density", (0.01, 0.2, 0.5, 1.0))
def test_top_k_without_a_mask_is_the_plan_of_its_table(q_len, kv_len, density):
    """It writes the numbers of the blocks at once; the same blocks as a table say the same."""
    generator = torch.Generator().manual_seed(q_len + kv_len)
    q, k = (torch.randn(2, 3, n, 16, generator=generator) for n in (q_len, kv_len))
    plan = policies.pooled_top_k(q, k, density=density, causal=False)
    again = BlockPlan.from_mask(plan.mask(), q_len=q_len, kv_len=kv_len)
    for name in ("row_ptr", "col", "n_full"):
        assert torch.equal(getattr(plan, name), getattr(again, name))
    assert plan.mask()[..., 0].all()
    grid = BlockGrid.of(q, k, 64, 64, False)
    key = -grid.pooled_scores(q, k, None)
    table = keep_first(key, grid.anchors, grid.visible, share_of(grid.visible, density))
    assert torch.equal(plan.mask(), table)


def test_columns_of_another_number_of_rows_are_refused():
    with pytest.raises(ValueError, match=r"columns must be \[B, H, 3, K\]"):
        BlockPlan.from_columns(torch.zeros(1, 1, 2, 1, dtype=torch.long), q_len=130, kv_len=64)
