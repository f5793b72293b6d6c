"""HoliTom's outer stage against a plain reading of its description that tries every segmentation."""

import math

import pytest
import torch
from tensor_calls import TensorCalls

from mmaccel.vlm import HoliTom
from mmaccel.vlm.pruning.clustering import distances, peak_scores
from mmaccel.vlm.pruning.holitom import merge_still
from mmaccel.vlm.pruning.segments import best_segments, static_gains


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def cosine(a, b):
    return dot(a, b) / math.sqrt(dot(a, a) * dot(b, b))


def mean(rows):
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


def segmentations(frames):
    """All of them, as lists of lengths; of those that gain alike, short last segments come first."""
    if not frames:
        return [[]]
    return [[*rest, last] for last in range(1, frames + 1) for rest in segmentations(frames - last)]


def still_places(similar, first, last):
    return [p for p in range(len(similar[0])) if all(similar[f][p] for f in range(first, last))] if last > first else []


def spans(lengths):
    start = 0
    for length in lengths:
        yield start, start + length - 1
        start += length


def gain(similar, lengths):
    return sum(len(still_places(similar, a, b)) * (b - a) for a, b in spans(lengths))


def cluster(rows, count):
    """Density peaks over 7 neighbours at most: merged tokens, centres, how many each is of."""
    if count == 0:
        return [], [], []
    every = range(len(rows))
    d = [[math.dist(a, b) / math.sqrt(len(a)) for b in rows] for a in rows]
    k = min(7, count)
    rho = [math.exp(-sum(v * v for v in sorted(line)[:k]) / k) for line in d]
    far = max(map(max, d))
    delta = [min([d[i][j] for j in every if rho[j] > rho[i] or (rho[j] == rho[i] and j < i)] or [far]) for i in every]
    centres = sorted(sorted(every, key=lambda i: -rho[i] * delta[i])[:count])
    members = {c: [] for c in centres}
    for i in every:
        if i not in centres:
            members[min(centres, key=lambda c: d[i][c])].append(rows[i])
    merged = [
        [0.6 * a + 0.4 * b for a, b in zip(rows[c], mean(members[c]), strict=True)] if members[c] else rows[c]
        for c in centres
    ]
    return merged, centres, [1 + len(members[c]) for c in centres]


def holitom(x, scores, keep, tau):
    rows, attention = x.double().tolist(), scores.double().tolist()
    frames, length = len(rows), len(rows[0])
    similar = [[cosine(rows[f][p], rows[f + 1][p]) > tau for p in range(length)] for f in range(frames - 1)]
    lengths = max(segmentations(frames), key=lambda lengths: gain(similar, lengths))
    saved = gain(similar, lengths)
    share = min(1.0, keep * frames * length / (frames * length - saved))
    tokens, anchors, sizes = [], [], []
    for a, b in spans(lengths):
        still = still_places(similar, a, b)
        moving = [p for p in range(length) if p not in still]
        average = [mean([rows[f][p] for f in range(a, b + 1)]) for p in still]
        merged, centres, joined = cluster(average, max(round(len(still) * share), 0 if moving else 1))
        tokens += merged
        anchors += [a * length + still[c] for c in centres]
        sizes += [n * (b - a + 1) for n in joined]
        for f in range(a, b + 1):
            count = math.ceil(len(moving) * share)
            for p in sorted(sorted(moving, key=lambda p: -attention[f][p])[:count]):
                tokens.append(rows[f][p])
                anchors.append(f * length + p)
                sizes.append(1)
    return tokens, anchors, sizes, lengths


def scenes(seed, frames, length, width=6):
    """Scenes of random lengths in which some places stand still, but for noise, and others move."""
    draw = torch.Generator().manual_seed(seed)
    change = torch.rand(frames, generator=draw) < 0.3
    scene = torch.randn(frames, length, width, generator=draw)[change.cumsum(0)]
    moving = (torch.rand(1, length, 1, generator=draw) < 0.4).float()
    noise = torch.randn(frames, length, width, generator=draw)
    return scene + noise * (0.05 + moving), torch.rand(frames, length, generator=draw)


def compare(x, scores, keep, tau=None, used=None):
    tokens, anchors, sizes, lengths = holitom(x, scores, keep, used if tau is None else tau)
    kept = HoliTom(keep=keep, tau=tau).compress(x, scores)
    assert kept.anchor_index.tolist() == anchors and kept.size.tolist() == sizes
    torch.testing.assert_close(kept.tokens, torch.tensor(tokens), rtol=1e-4, atol=1e-5)
    return lengths


@pytest.mark.parametrize("seed", range(12))
def test_random(seed):
    draw = torch.Generator().manual_seed(seed)
    x, scores = torch.randn(6, 8, 4, generator=draw), torch.rand(6, 8, generator=draw)
    for keep, tau in ((0.15, 0.2), (0.4, 0.0), (0.7, 0.5)):
        compare(x, scores, keep, tau)


@pytest.mark.parametrize("seed", range(24))
def test_scenes(seed):
    x, scores = scenes(seed, 2 + seed % 8, 10 + seed)
    compare(x, scores, 0.15, used=0.80)
    compare(x, scores, 0.10, used=0.65)
    compare(x, scores, 0.11, used=0.80)
    compare(x, scores, 0.50, used=0.80)


def test_scenes_are_found():
    lengths = [compare(*scenes(seed, 9, 16), 0.25, used=0.80) for seed in range(12)]
    assert sum(max(each) > 2 and len(each) > 1 for each in lengths) > 4


@pytest.mark.parametrize("keep", (0.2, 0.05))
def test_a_still_video_is_one_segment(keep):
    x, scores = scenes(0, 1, 20)
    kept = HoliTom(keep=keep).compress(x.expand(5, -1, -1), scores.expand(5, -1))
    assert len(kept.size) == round(100 * keep) and kept.size.sum() == 100 and kept.anchor_index.max() < 20
    one = HoliTom(keep=0.001).compress(x.expand(5, -1, -1), scores.expand(5, -1))
    assert one.size.tolist() == [100]


def test_the_threshold_is_not_enough():
    """A cosine of just `tau` moves: 1 and 0.5, exactly."""
    x = torch.tensor([[1.0, 0, 0, 0], [0.5, 0.5, 0.5, 0.5]])[:, None].repeat(1, 4, 1)
    scores = torch.tensor([[4.0, 3, 2, 1]] * 2)
    assert HoliTom(keep=0.5, tau=0.5).compress(x, scores).anchor_index.tolist() == [0, 1, 4, 5]
    assert HoliTom(keep=0.5, tau=0.4999).compress(x, scores).anchor_index.tolist() == [0, 1, 2, 3]
    same = x[:1].expand(2, -1, -1)
    assert HoliTom(keep=0.5, tau=1.0).compress(same, scores).size.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(("tokens", "tau"), ((4, 0.65), (5, 0.80)))
def test_a_number_of_tokens(tokens, tau):
    """4 of 40 are a tenth; the share decides on the threshold as `keep` would."""
    x, scores = scenes(5, 4, 10)
    kept, same = HoliTom(keep=None, tokens=tokens), HoliTom(keep=tokens / 40, tau=tau)
    for a, b in zip(kept.compress(x, scores), same.compress(x, scores), strict=True):
        assert torch.equal(a, b)


def test_moving_tokens_round_up_and_still_ones_to_the_nearest():
    """2 frames, 7 still and 5 moving places, a quarter of 24 over 17: 0.353 of 7 is 2.47, of 5 it is 1.76."""
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(2, 12, 16, generator=draw)
    x[1, :7] = x[0, :7]
    kept = HoliTom(keep=0.25).compress(x, torch.rand(2, 12, generator=draw))
    assert (kept.anchor_index < 7).sum() == 2 and len(kept.size) == 2 + 2 * 2


def test_a_centre_weighs_more_than_those_that_join_it():
    rows = torch.tensor([[0.0], [0.5], [2.0]])  # the first and the last are centres
    tokens, centre, size = merge_still(rows, 2)
    assert centre.tolist() == [0, 2] and size.tolist() == [2, 1]
    torch.testing.assert_close(tokens, torch.tensor([[0.6 * 0.0 + 0.4 * 0.5], [2.0]]))


def test_equally_dense_tokens_go_by_index():
    score = peak_scores(distances(torch.tensor([[0.0], [1.0], [2.0], [3.0]])), 1)
    assert score.tolist() == [3.0, 1.0, 1.0, 1.0]  # all densities 1: the first is the peak
    assert merge_still(torch.ones(4, 3), 2)[1].tolist() == [0, 1]


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("longest", (1, 2, 3, 1024))
def test_segments(seed, longest):
    draw = torch.Generator().manual_seed(seed)
    similar = torch.rand(6, 5, generator=draw) < 0.7
    flags = similar.tolist()
    best = max((s for s in segmentations(7) if max(s) <= longest), key=lambda lengths: gain(flags, lengths))
    with TensorCalls() as calls:
        gains = static_gains(similar)
    assert calls.reads == 1, "a GPU is waited for once"
    segments, saved = best_segments(gains, longest)
    assert segments == list(spans(best)) and saved == gain(flags, best)
