"""What holds for every method that shortens a video, and each method against a plain reading of its formula."""

import math

import pytest
import torch
from reads import Reads

from mmaccel.errors import SettingError
from mmaccel.registry import methods
from mmaccel.vlm import (
    CompressKV,
    DyCoke,
    EarlyTom,
    FastVID,
    HoliTom,
    IDPruner,
    SelectKV,
    StreamingCompression,
    VidCom2,
    VisionZip,
)
from mmaccel.vlm.pruning.compressor import VISUAL_FAMILIES, Compressor
from mmaccel.vlm.pruning.early_tom import plan_merges, running_segments, top_of_stretches
from mmaccel.vlm.pruning.segments import apportion

REGISTERED = [cls for cls in methods().values() if issubclass(cls, Compressor)]
ALL = [cls for cls in REGISTERED if cls.shorten is not Compressor.shorten]
SHAPES = [(1, 1), (1, 9), (2, 1), (2, 4), (3, 7), (5, 16), (9, 5), (13, 9)]


def video(seed, frames, length, kind="random", width=8, dtype=torch.float32):
    """Features, scores and keys."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(frames, length, width, generator=draw)
    if kind == "still":
        x = x[:1].expand(frames, -1, -1)
    elif kind == "constant":
        x = torch.ones_like(x)
    elif kind == "scenes":
        scene = (torch.arange(frames) * 3) // max(frames, 1)
        x = x[scene] + 0.3 * torch.randn(x.shape, generator=draw) * torch.rand(1, length, 1, generator=draw).round()
    scores = torch.rand(frames, length, generator=draw)
    if kind == "constant":
        scores = torch.ones_like(scores)
    return x.to(dtype), scores.to(dtype), torch.randn(frames, length, 4, generator=draw).to(dtype)


def run(method, x, scores, key):
    return method.compress(x, scores, key if method.needs_key else None)


def check(method, x, scores, key):
    kept = run(method, x, scores, key)
    frames, length, width = x.shape
    tokens, anchor, size = kept
    assert tokens.dtype == x.dtype and anchor.dtype == size.dtype == torch.int64
    assert tokens.shape == (len(anchor), width) and len(size) == len(anchor) >= 1
    assert len(set(anchor.tolist())) == len(anchor) and anchor.min() >= 0 and anchor.max() < frames * length
    assert ((anchor // length).diff() >= 0).all()
    assert size.min() >= 1 and size.sum() <= frames * length
    assert tokens.isfinite().all()
    assert torch.equal(tokens[size == 1], x.flatten(0, 1)[anchor[size == 1]])
    again = run(method, x.clone(), scores.clone(), key.clone())
    assert all(torch.equal(a, b) for a, b in zip(kept, again, strict=True))
    return kept


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("kind", ("random", "still", "constant", "scenes"))
@pytest.mark.parametrize("dtype", (torch.float32, torch.float16, torch.bfloat16), ids=str)
def test_invariants(cls, kind, dtype):
    shapes = SHAPES if dtype == torch.float32 else SHAPES[1::2]  # what rounding changes shows on any
    for seed, (frames, length) in enumerate(shapes):
        inputs = video(seed, frames, length, kind, dtype=dtype)
        total = frames * length
        for settings in ({"keep": s} for s in (0.001, 0.15, 0.5, 0.95)):
            kept = check(cls(**settings), *inputs)
            assert cls is HoliTom or len(kept.size) == max(1, round(settings["keep"] * total))
        for tokens in {1, max(1, total // 3), total, total + 5}:
            kept = check(cls(keep=None, tokens=tokens), *inputs)
            assert cls is HoliTom or len(kept.size) == min(tokens, total)


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("shape", ((1, 0), (0, 16)), ids=str)
def test_what_is_empty_stays_so(cls, shape):
    x, scores, key = torch.zeros(*shape, 8), torch.zeros(*shape), torch.zeros(*shape, 4)
    assert [len(part) for part in run(cls(keep=0.25), x, scores, key)] == [0, 0, 0]


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_keeping_everything_changes_nothing(cls):
    for frames, length in SHAPES:
        x, scores, key = video(3, frames, length, "scenes")
        kept = run(cls(keep=1.0), x, scores, key)
        assert torch.equal(kept.tokens, x.flatten(0, 1)) and torch.equal(
            kept.anchor_index, torch.arange(x[..., 0].numel())
        )


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_what_a_method_says_of_itself(cls):
    assert methods()[f"vlm.{cls.__name__}"] is cls and cls.families <= VISUAL_FAMILIES
    assert cls(**cls.neutral).is_neutral and not cls().is_neutral and not cls(**cls.engaging).is_neutral
    assert not cls(keep=None, tokens=5).is_neutral
    for bad in (
        {"keep": 0.0},
        {"keep": 1.1},
        {"keep": None},
        {"tokens": 5},
        {"keep": None, "tokens": 0},
        {"keep": "x"},
    ):
        with pytest.raises(SettingError, match=f"^{cls.__name__}"):
            cls(**bad)
    if cls.needs_attention:
        with pytest.raises(ValueError, match="attention"):
            cls().compress(torch.randn(2, 4, 3))


@pytest.mark.parametrize(
    ("cls", "setting"),
    (
        (VidCom2, {"channels": 0.1}),
        (VidCom2, {"temperature": 100.0}),
        (VisionZip, {"dominant": 0.2}),
        (DyCoke, {"window": 2}),
        (FastVID, {"context": 0.9}),
        (FastVID, {"stride": 2}),
        (FastVID, {"segments": 2}),
        (EarlyTom, {"tau": 0.99}),
        (EarlyTom, {"window": 2}),
        (IDPruner, {"balance": 0.9}),
        (IDPruner, {"step": 4}),
        (HoliTom, {"tau": 0.999}),
    ),
    ids=str,
)
def test_a_setting_decides_what_is_kept(cls, setting):
    usual, other = cls(keep=0.5), cls(keep=0.5, **setting)
    found = []
    for seed in range(6):
        inputs = video(seed, 12, 16, "scenes")
        kept = [run(method, *inputs) for method in (usual, other)]
        found.append(all(torch.equal(a, b) for a, b in zip(*kept, strict=True)))
    assert not all(found)


def test_early_tom_merges_frames_by_its_own_settings():
    """Frames that turn by 0.1 and more: with the usual settings none are in the middle of a segment."""
    angle = torch.tensor([0.0, 0.5, 0.6, 0.9, 1.2, 1.6])
    x = torch.stack([angle.cos(), angle.sin()], 1)[:, None]
    for settings in ({}, {"tau": -1.0, "window": 9}, {"tau": 0.8, "window": 9}, {"tau": 0.3, "window": 9, "ema": 0.2}):
        method = EarlyTom(**settings)
        merged, first = method.merge(x)
        merges = plan_merges(x, method.tau, method.window, method.ema)
        assert torch.equal(merged, merges.apply(x)) and torch.equal(first, merges.first)
        ends = running_segments(x, method.tau, method.window, method.ema)
        kept = EarlyTom(keep=0.75, **settings).compress(x.expand(-1, 2, -1), torch.ones(6, 2))  # one each, and 3 more
        counts = (kept.anchor_index // 2).bincount(minlength=6)
        assert len(kept.tokens) == 9 and (counts == 2).nonzero().flatten().tolist() == sorted(
            sorted(range(6), key=lambda frame, ends=ends: frame not in {f for end in ends for f in end})[:3]
        )


@pytest.mark.parametrize(
    ("cls", "bad"),
    (
        (HoliTom, {"tau": 1.5}),
        (HoliTom, {"inner_layer": 0}),
        (HoliTom, {"inner_layer": 1.5}),
        (HoliTom, {"inner_keep": 0.0}),
        (HoliTom, {"inner_keep": 1.1}),
        (VidCom2, {"channels": 0}),
        (VidCom2, {"temperature": 0.0}),
        (VisionZip, {"dominant": -0.1}),
        (DyCoke, {"window": 1}),
        (FastVID, {"segments": 0}),
        (FastVID, {"tau": -2}),
        (FastVID, {"context": 1.5}),
        (FastVID, {"stride": 0}),
        (FastVID, {"beta": None}),
        (IDPruner, {"balance": 2}),
        (IDPruner, {"step": 0}),
        (EarlyTom, {"tau": 2}),
        (EarlyTom, {"window": 1}),
        (EarlyTom, {"ema": 0.0}),
        (EarlyTom, {"merge_after": -1}),
        (EarlyTom, {"alike": -2}),
        (EarlyTom, {"inner_layer": 0}),
        (EarlyTom, {"inner_keep": 2}),
    ),
    ids=str,
)
def test_bad_settings(cls, bad):
    (name,) = bad
    with pytest.raises(SettingError, match=rf"^{cls.__name__}\({name}=.*must be"):
        cls(**bad)


def test_only_one_of_them_shortens_a_prompt():
    assert {DyCoke, EarlyTom, FastVID, HoliTom, IDPruner, VidCom2, VisionZip} <= set(ALL)
    for cls in REGISTERED:
        assert {other for other in REGISTERED if cls.conflicts(other)} == set(REGISTERED), cls
        drops_inside = cls.cuts is not Compressor.cuts
        assert cls.conflicts(CompressKV) == SelectKV.conflicts(cls) == drops_inside, cls


def test_apportion():
    assert apportion([1, 1, 1], 7, [9, 9, 9]) == [3, 2, 2]
    assert apportion([1, 2, 1], 8, [9, 3, 9]) == [3, 3, 2]
    assert apportion([3, 1], 9, [2, 2]) == [2, 2]
    assert apportion([1, 1], 0, [2, 2]) == [0, 0] and apportion([], 3, []) == []
    draw = torch.Generator().manual_seed(0)
    for _ in range(200):
        count = int(torch.randint(1, 7, (), generator=draw))
        weights = (torch.rand(count, generator=draw) + 0.01).tolist()
        room = torch.randint(0, 9, (count,), generator=draw).tolist()
        total = int(torch.randint(0, 30, (), generator=draw))
        given = apportion(weights, total, room)
        assert sum(given) == min(total, sum(room)) and all(0 <= g <= r for g, r in zip(given, room, strict=True))
        for i in range(count):  # nobody below its share, but for rounding
            assert given[i] >= min(room[i], math.floor(total * weights[i] / sum(weights)))


@pytest.mark.parametrize("cls", (EarlyTom, FastVID, StreamingCompression, VidCom2, VisionZip))
@pytest.mark.parametrize("tokens", (1, 5, 11, 31))
def test_where_there_are_fewer_tokens_than_frames_the_end_of_a_video_is_seen_too(cls, tokens):
    draw = torch.Generator().manual_seed(0)
    still = torch.randn(1, 9, 8, generator=draw).expand(32, -1, -1)
    shown = cls(keep=None, tokens=tokens).compress(still, torch.rand(32, 9, generator=draw)).anchor_index // 9
    assert len(shown) == len(shown.unique()) == tokens
    gaps = torch.cat([shown, torch.tensor([32])]).diff()
    assert int(gaps.max()) <= 2 * -(-32 // tokens), shown.tolist()


# Plain readings of the formulas, in lists of floats.


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def unit(a):
    norm = math.sqrt(dot(a, a))
    return [x / norm for x in a]


def cosine(a, b):
    return dot(unit(a), unit(b))


def mean(rows):
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


def highest(values, count):
    return sorted(range(len(values)), key=lambda i: -values[i])[:count]


def plain(*tensors):
    return [x.double().tolist() for x in tensors]


def close(tokens, rows):
    torch.testing.assert_close(tokens, torch.tensor(rows, dtype=tokens.dtype), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("seed", range(8))
def test_vidcom2(seed):
    x, *_ = video(seed, 4, 10, "scenes")
    (rows,) = plain(x)
    flat = [token for frame in rows for token in frame]
    variance = [sum((v - sum(c) / 40) ** 2 for v in c) / 40 for c in zip(*flat, strict=True)]
    steady = sorted(range(8), key=lambda c: variance[c])[:4]
    units = [[unit([token[c] for c in sorted(steady)]) for token in frame] for frame in rows]

    def g(a, b):
        squared = sum((p - q) ** 2 for p, q in zip(a, b, strict=True))
        return sum(math.exp(-squared / (2 * 2.0**k)) for k in (-3, -2, -1, 0, 1))

    whole = mean([token for frame in units for token in frame])
    video_score = [[g(token, whole) for token in frame] for frame in units]
    score = [
        [g(t, mean(frame)) + v for t, v in zip(frame, vs, strict=True)]
        for frame, vs in zip(units, video_score, strict=True)
    ]
    exponent = [-sum(vs) / 10 / 0.01 for vs in video_score]
    powers = [math.exp(e - max(exponent)) for e in exponent]
    scale = [1 + p / sum(powers) - 0.25 for p in powers]
    counts = apportion(scale, 16, [10] * 4)
    expected = sorted(f * 10 + i for f in range(4) for i in highest([-s for s in score[f]], counts[f]))
    assert max(counts) > 4  # an unusual frame has more than its even share
    assert VidCom2(keep=0.4).compress(x).anchor_index.tolist() == expected


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("with_key", (True, False))
def test_vision_zip(seed, with_key):
    x, scores, key = video(seed, 2, 30)
    rows, attention, keys = plain(x, scores, key if with_key else x)
    index, tokens, sizes = [], [], []
    for frame in range(2):
        dominant = highest(attention[frame], 8)  # round(10 * 54 / 64)
        rest = [i for i in range(30) if i not in dominant]
        targets = rest[::11][:2]
        members = {t: [] for t in targets}
        for i in rest:
            if i not in targets:
                members[max(targets, key=lambda t: cosine(keys[frame][i], keys[frame][t]))].append(rows[frame][i])
        for i in sorted(dominant + targets):
            joined = members.get(i, [])
            index.append(frame * 30 + i)
            sizes.append(1 + len(joined))
            extra = mean(joined) if joined else [0] * 8
            tokens.append([a + b for a, b in zip(rows[frame][i], extra, strict=True)])
    kept = VisionZip(keep=None, tokens=20).compress(x, scores, key if with_key else None)
    assert kept.anchor_index.tolist() == index and kept.size.tolist() == sizes and sum(sizes) == 60
    close(kept.tokens, tokens)


@pytest.mark.parametrize("frames", (4, 7, 9))
def test_dycoke(frames):
    """The merging rate 0.7 of the paper: 10 tokens of a first frame, 3 of the others."""
    x, *_ = video(frames, frames, 10)
    (rows,) = plain(x)
    expected, before = [], {1: 1, 2: 2, 3: 1}
    for frame in range(frames):
        if frame % 4 == 0:
            expected += [frame * 10 + i for i in range(10)]
        else:
            like = [cosine(rows[frame][i], rows[frame - before[frame % 4]][i]) for i in range(10)]
            expected += sorted(frame * 10 + i for i in highest([-c for c in like], 3))
    kept = DyCoke(keep=None, tokens=len(expected)).compress(x)
    assert kept.anchor_index.tolist() == expected
    if frames == 4:
        assert DyCoke().compress(x).anchor_index.tolist() == expected


def test_dycoke_on_a_small_budget():
    x, *_ = video(0, 8, 10)
    kept = DyCoke(keep=0.2).compress(x).anchor_index  # two first frames do not fit into 16, one does
    assert (kept // 10).bincount(minlength=8).tolist() == [10, 1, 0, 1, 1, 1, 1, 1]  # the last is seen
    like = [torch.cosine_similarity(x[4, i], x[0, i], dim=0).item() for i in range(10)]
    assert kept[kept // 10 == 4].tolist() == [40 + like.index(min(like))]
    assert DyCoke(keep=None, tokens=4).compress(x).anchor_index.tolist() == [0, 2, 5, 7]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("balance", "step"), ((0.5, 1), (0.5, 3), (0.0, 1), (0.9, 1)))
def test_id_pruner(seed, balance, step):
    x, scores, _ = video(seed, 3, 8)
    rows = [token for frame in plain(x)[0] for token in frame]
    importance = [s for frame in plain(scores)[0] for s in frame]
    low, high = min(importance), max(importance)
    importance = [(s - low) / (high - low + 1e-6) for s in importance]
    chosen = []
    while len(chosen) < 7:
        value = {
            i: balance * importance[i] - (1 - balance) * max(cosine(rows[i], rows[j]) for j in chosen)
            if chosen
            else importance[i]
            for i in range(24)
            if i not in chosen
        }
        chosen += sorted(value, key=lambda i: -value[i])[: min(step, 7 - len(chosen))]
    kept = IDPruner(keep=None, tokens=7, balance=balance, step=step).compress(x, scores)
    assert kept.anchor_index.tolist() == sorted(chosen)


def test_id_pruner_by_importance_alone():
    x, scores, _ = video(0, 3, 8)
    kept = IDPruner(keep=None, tokens=7, balance=1.0).compress(x, scores).anchor_index
    assert kept.tolist() == sorted(highest(scores.flatten().tolist(), 7))


def fastvid(rows, attention, each, least, tau, beta=0.6, stride=4):
    """Every frame keeps `each` tokens, of which ``int(0.4 * each)`` go to the anchors of its scene."""
    frames, length = len(rows), len(rows[0])
    like = [cosine(mean(rows[f]), mean(rows[f + 1])) for f in range(frames - 1)]
    cuts = set(highest([-c for c in like], least - 1)) | {f for f, c in enumerate(like) if c < tau}
    scenes, start = [], 0
    for f in range(frames):
        if f in cuts or f == frames - 1:
            scenes.append(range(start, f + 1))
            start = f + 1
    kept, few = {}, int(0.4 * each)
    for scene in scenes:
        salient = {f: highest(attention[f], each - few) for f in scene}
        rest = {f: [i for i in range(length) if i not in salient[f]] for f in scene}
        holders = [f for f in scene if (scene[-1] - f) % stride == 0]
        shares, anchors = [few * len(scene) // len(holders)] * len(holders), []
        for extra in range(few * len(scene) - sum(shares)):
            shares[extra] += 1
        for f, share in zip(holders, shares, strict=True):
            width = len(rows[0][0])
            d = [[math.dist(rows[f][i], rows[f][j]) / math.sqrt(width) for j in rest[f]] for i in rest[f]]
            rho = [math.exp(-sum(v * v for v in sorted(row)[:4]) / 4) for row in d]
            delta = [
                min([v for v, r in zip(row, rho, strict=True) if r > own] or [max(map(max, d))])
                for row, own in zip(d, rho, strict=True)
            ]
            best = highest([r * e for r, e in zip(rho, delta, strict=True)], share)
            anchors += [(f, rest[f][i]) for i in sorted(best)]
        members = {a: [] for a in anchors}
        for f in scene:
            for i in rest[f]:
                members[max(anchors, key=lambda a: cosine(rows[f][i], rows[a[0]][a[1]]))].append(rows[f][i])
        kept |= {f * length + i: (rows[f][i], 1) for f in scene for i in salient[f]}
        for (f, i), joined in members.items():
            weight = max(beta, 1 / (len(joined) + 1))
            value = [weight * a + (1 - weight) * b for a, b in zip(rows[f][i], mean(joined), strict=True)]
            kept[f * length + i] = value, len(joined)
    return kept


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("least", "tau", "beta"), ((2, 0.3, 0.6), (4, -1.0, 0.1), (1, 0.9, 0.6), (1, -1.0, 0.6)))
def test_fastvid(seed, least, tau, beta):
    x, scores, _ = video(seed, 7, 12, "scenes")
    expected = fastvid(*plain(x, scores), 3, least, tau, beta)
    kept = FastVID(keep=0.25, segments=least, tau=tau, beta=beta).compress(x, scores)
    assert kept.anchor_index.tolist() == sorted(expected)
    assert kept.size.tolist() == [expected[i][1] for i in sorted(expected)] and kept.size.sum() == 84
    close(kept.tokens, [expected[i][0] for i in sorted(expected)])


def early_segments(rows, tau, window, ema):
    segments, start, running = [], 0, 1.0
    for f in range(1, len(rows)):
        like = sum(cosine(a, b) for a, b in zip(rows[start], rows[f], strict=True)) / len(rows[0])
        running = ema * like + (1 - ema) * running
        if running < tau or f - start + 1 >= window:
            segments.append((start, f - 1))
            start, running = f, 1.0
    return [*segments, (start, len(rows) - 1)]


def test_a_segment_is_held_against_its_first_frame():
    """Frames that turn by 25 degrees each are all like the one before, and soon unlike the first."""
    angle = torch.arange(9.0) * math.pi * 25 / 180
    x = torch.stack([angle.cos(), angle.sin()], 1)[:, None]
    # cos 50 is above one half, cos 75 below; each segment begins the count again
    assert running_segments(x, tau=0.5, window=9, ema=1.0) == [(0, 2), (3, 5), (6, 8)]
    assert running_segments(x, tau=-1.0, window=20, ema=1.0) == [(0, 8)]
    # a running cosine falls later
    assert running_segments(x[:5], tau=0.5, window=9, ema=0.5) == [(0, 3), (4, 4)]


@pytest.mark.parametrize("seed", range(6))
def test_early_tom(seed):
    """6 frames of 9 tokens: three each, and two more at ends of segments."""
    x, scores, _ = video(seed, 6, 9, "scenes" if seed % 2 else "still")
    rows, attention = plain(x, scores)
    segments = early_segments(rows, 0.5, 6, 0.9)
    ends = sorted({f for segment in segments for f in segment})
    middle = [f for f in range(6) if f not in ends]
    counts = {f: 3 + (f in (ends + middle)[:2]) for f in range(6)}
    expected = []
    for f in range(6):
        if f in ends:
            picked = highest(attention[f], counts[f])
        else:
            stretches = {3: (range(3), range(3, 6), range(6, 9)), 4: (range(3), range(3, 5), range(5, 7), range(7, 9))}
            picked = [max(s, key=lambda i: attention[f][i]) for s in stretches[counts[f]]]
        expected += sorted(f * 9 + i for i in picked)
    assert running_segments(x) == segments and (seed % 2 or middle)
    assert EarlyTom(keep=None, tokens=20).compress(x, scores).anchor_index.tolist() == expected


def test_stretches():
    assert top_of_stretches(torch.tensor([1.0, 1, 1, 1, 1]), 2).tolist() == [0, 3]
    assert top_of_stretches(torch.arange(5.0), 5).tolist() == [0, 1, 2, 3, 4]
    assert top_of_stretches(torch.arange(5.0), 0).tolist() == []
    assert top_of_stretches(torch.zeros(5, device="meta"), 2).shape == (2,), "no value is read back"


@pytest.mark.parametrize("seed", range(20))
def test_merged_frames(seed):
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(1, 5, 8, generator=draw) + 0.5 * torch.randn(11, 5, 8, generator=draw)
    (rows,) = plain(x)
    between = [sum(cosine(a, b) for a, b in zip(p, q, strict=True)) / 5 for p, q in zip(rows, rows[1:], strict=False)]
    expected = []
    for a, b in early_segments(rows, 0.5, 6, 0.9):
        f, least = a, sum(cosine(p, q) for p, q in zip(rows[a], rows[b], strict=True)) / 5
        while f <= b:
            following = between[f + 1] if f + 2 < b else 0.0
            if a < f and f + 1 < b and between[f] > least and between[f] > following:
                weight = between[f] / (between[f] + following)
                expected.append(
                    [
                        [weight * p + (1 - weight) * q for p, q in zip(s, t, strict=True)]
                        for s, t in zip(rows[f], rows[f + 1], strict=True)
                    ]
                )
                f += 2
            else:
                expected.append(rows[f])
                f += 1
    merges = plan_merges(x)
    close(merges.apply(x), expected)
    assert (merges.second.diff() > 0).all() and merges.first[0] == 0 and merges.second[-1] == 10
    attention = torch.rand(11, 5, generator=draw)
    alone = merges.first == merges.second
    assert torch.equal(merges.apply(attention)[alone], attention[merges.first[alone]])
    assert merges.apply(attention.half()).dtype == torch.float16


def test_merged_frames_have_the_weights_of_the_paper():
    angle = torch.tensor([0.0, 0.5, 0.6, 0.9, 1.2, 1.6])
    x = torch.stack([angle.cos(), angle.sin()], 1)[:, None]
    merges = plan_merges(x, tau=-1.0, window=9)
    assert merges.first.tolist() == [0, 1, 3, 5] and merges.second.tolist() == [0, 2, 4, 5]
    torch.testing.assert_close(merges.weight, torch.tensor([1, math.cos(0.1) / (math.cos(0.1) + math.cos(0.3)), 1, 1]))
    assert plan_merges(x[:1]).first.tolist() == [0] and plan_merges(x[:2]).first.tolist() == [0, 1]
    assert plan_merges(x, tau=-1.0, window=3).first.tolist() == [0, 1, 2, 3, 4, 5]  # no middle, no merges


def test_cosines_of_frames_are_read_at_once():
    """One by one, each would wait for a GPU."""
    x = torch.randn(5, 16, 8, generator=torch.Generator().manual_seed(0))
    x[3] = x[2]
    with Reads() as reads:
        merges = plan_merges(x, tau=-1.0, window=9, alike=0.3)
        running_segments(x)
    assert not torch.equal(merges.first, merges.second) and reads.count == 0


def test_frames_of_which_one_patch_differs_do_not_merge():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, 16, 8, generator=generator)
    x[3] = x[2]
    x[3, 7] *= -1  # a mean cosine of 7/8, and the nearest to it of others is about 0
    settings = {"tau": -1.0, "window": 9}
    for alike, second in ((-1.0, [0, 1, 3, 4]), (0.0, [0, 1, 2, 3, 4])):
        assert plan_merges(x, **settings, alike=alike).second.tolist() == second
        assert len(EarlyTom(**settings, alike=alike).merge(x)[0]) == len(second)
    x[3] = x[2]
    assert plan_merges(x, **settings, alike=0.99).second.tolist() == [0, 1, 3, 4]


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_autocast_changes_no_choice(cls):
    """Cosines of tokens that are much alike differ by less than half precision tells."""
    x, scores, key = video(0, 5, 40, width=32)
    given = 1 + 0.03 * x, scores, 1 + 0.03 * key
    kept = run(cls(keep=0.3), *given)
    with torch.autocast("cpu", torch.bfloat16):
        again = run(cls(keep=0.3), *given)
    assert all(torch.equal(a, b) for a, b in zip(kept, again, strict=True))
