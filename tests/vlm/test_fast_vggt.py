"""Merging tokens around the attention of an encoder over many views."""

import importlib.util

import pytest
import torch
from torch import nn

import mmaccel
from mmaccel import vlm
from mmaccel.cache import estimate
from mmaccel.errors import MemoryLimitError, SettingError, UnsupportedTargetError
from mmaccel.testing.snapshot import snapshot
from mmaccel.vlm import FastVGGT, visual_examples
from mmaccel.vlm.encoders import fast_vggt
from mmaccel.vlm.encoders.fast_vggt import targets
from mmaccel.vlm.families.multi_view import Views
from mmaccel.vlm.multi_view_example import VGGT, vggt
from tests.helpers import multi_view_models as others


def tokens(batch, views, alike=0.0):
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(batch, views.count, views.tokens // views.count, 16, generator=draw)
    return (alike * x[:, :1] + (1 - alike) * x).flatten(1, 2)


def naive(x, method, views):
    """Rows of plain tensors: who stands for whom, and the means."""
    length, into = len(x), targets(views).tolist()
    source, target = [i for i in range(length) if not into[i]], [i for i in range(length) if into[i]]
    cosine = {(i, j): float(torch.cosine_similarity(x[i], x[j], dim=0)) for i in source for j in target}
    partner = {i: max(target, key=lambda j, i=i: cosine[i, j]) for i in source}
    count = max(0, min(int(length * method.merge), len(source) - round(length * method.salient)))
    gone = sorted(source, key=lambda i: -cosine[i, partner[i]])[:count]
    groups = {i: [i] for i in range(length) if i not in gone}
    for i in gone:
        groups[partner[i]].append(i)
    return groups


@pytest.mark.parametrize(("rows", "columns"), ((4, 4), (3, 5), (1, 6), (1, 1)))
def test_the_first_view_and_special_tokens_and_one_patch_of_each_cell_are_targets(rows, columns):
    chosen = targets(Views(40, 2, rows, columns)).view(40, -1)
    assert chosen[0].all() and chosen[:, :2].all()
    grid = chosen[1:, 2:].view(-1, rows, columns)
    for row in range(0, rows, 2):
        for column in range(0, columns, 2):
            cell = grid[:, row : row + 2, column : column + 2].flatten(1)
            assert (cell.sum(1) == 1).all()
            assert cell.any(0).all(), "each place of a cell is drawn in some view"
    targets.cache_clear()
    assert torch.equal(targets(Views(40, 2, rows, columns)), chosen.flatten()), "each call draws the same"
    assert targets(Views(1, 2, rows, columns)).all()


@pytest.mark.parametrize("views", (Views(4, 0, 4, 4), Views(4, 1, 3, 5), Views(4, 2, 1, 6), Views(2, 0, 2, 2)), ids=str)
@pytest.mark.parametrize(("merge", "salient"), ((0.0, 0.1), (0.1, 0.0), (0.9, 0.1), (1.0, 0.0), (1.0, 1.0)))
def test_a_match_against_a_naive_reading(views, merge, salient):
    method, x = FastVGGT(merge, salient), tokens(2, views, 0.5)
    match = method.match(x, views)
    merged = match.merge(x)
    back = match.unmerge(merged)
    for row in range(2):
        groups = naive(x[row].double(), method, views)
        assert match.kept[row].tolist() == sorted(groups)
        for at, first in enumerate(sorted(groups)):
            torch.testing.assert_close(merged[row, at], x[row, groups[first]].mean(0))
            assert all(torch.equal(back[row, i], merged[row, at]) for i in groups[first])
    if not merge or salient == 1:
        assert torch.equal(merged, x) and torch.equal(back, x)
    assert match.merge(x.half()).dtype == torch.float16


def test_few_similarities_at_once_are_the_same_match(monkeypatch):
    views = Views(4, 1, 4, 4)
    whole = FastVGGT().match(tokens(2, views), views)
    monkeypatch.setattr(fast_vggt, "AT_ONCE", 100)
    parts = FastVGGT().match(tokens(2, views), views)
    assert all(torch.equal(a, b) for a, b in zip(whole, parts, strict=True))


def test_autocast_changes_no_match():
    """Cosines of tokens that are much alike differ by less than half precision tells."""
    views = Views(4, 1, 4, 4)
    alike = 1 + 0.03 * tokens(2, views)
    with torch.autocast("cpu", torch.bfloat16):
        found = FastVGGT().match(alike, views)
    assert all(torch.equal(a, b) for a, b in zip(found, FastVGGT().match(alike, views), strict=True))


def test_attention_over_all_views_sees_fewer_tokens_and_leaves_no_trace():
    model, arguments = vggt()
    before, plain, seen = snapshot(model), model(**arguments(3)), []
    own, joint = model.aggregator.frame_blocks[0].attn.qkv, model.aggregator.global_blocks[0].attn.qkv
    for module in (own, joint):
        module.register_forward_hook(lambda m, a, out: seen.append(out.shape[1]))
    targets.cache_clear()
    with mmaccel.accelerate(model, FastVGGT(least=0)) as fast:
        merged = fast(**arguments(3))
        assert targets.cache_info().misses == 1, "not drawn anew for each block"
        again = fast(**arguments(3))
        kept = fast.report.details["views"]["merged into"]
        fast(**arguments(1, views=6, height=20))
        assert fast.report.details["views"]["tokens"] == 6 * (3 + 5 * 4)
    length = 4 * (3 + 6 * 4)
    sources = 3 * (6 * 4 - 3 * 2)
    assert kept == length - (sources - round(0.1 * length)) and seen[:2] == [3 + 6 * 4, kept]
    assert merged.shape == plain.shape and not torch.equal(merged, plain) and torch.equal(merged, again)
    for module in (own, joint):
        module._forward_hooks.clear()
    assert snapshot(model) == before and torch.equal(model(**arguments(3)), plain)


@torch.no_grad()
def test_a_call_of_the_encoder_alone_is_a_run():
    """As VGGT's own page calls it."""
    model, arguments = vggt()
    pictures = arguments(1)["images"]
    with mmaccel.accelerate(model, FastVGGT(least=0)) as fast:
        told = []
        for call in (fast, fast.aggregator, fast.aggregator):
            call(pictures)
            told.append((fast.report.keys, fast.report.plain_keys))
        assert len({*told}) == 1 and fast.report.wall_seconds > 0 and fast.report.engaged
        for _ in range(2):
            fast.aggregator(pictures[:, :1])
            assert len(fast.report.warnings) == 1 and "one view alone" in fast.report.warnings[0]


def test_places_go_with_their_tokens():
    model, arguments = vggt()
    seen = []
    attention = model.aggregator.global_blocks[0].attn
    attention.forward, original = lambda x, pos: seen.append(pos) or original(x, pos), attention.forward
    with mmaccel.accelerate(model, FastVGGT(salient=0.0, least=0)) as fast:
        fast(**arguments(2))
    places = torch.cartesian_prod(torch.arange(1, 7), torch.arange(1, 5))
    places = torch.cat([torch.zeros(3, 2, dtype=torch.long), places]).repeat(4, 1)
    assert torch.equal(seen[0][1], places[targets(Views(4, 3, 6, 4))])


def test_equal_views_stay_equal():
    """Each token merges into its equal of the first view."""
    model, arguments = vggt()
    for special in (model.aggregator.camera_token, model.aggregator.register_token):
        special.data[:, 1] = special.data[:, 0]
    views = arguments(1, views=2)["images"][:, :1].expand(-1, 6, -1, -1, -1)
    with mmaccel.accelerate(model, FastVGGT(salient=0.0, least=0)) as fast:
        merged = fast(views)
    torch.testing.assert_close(merged[:, 1:], merged[:, :1].expand(-1, 5, -1, -1))


def test_one_view_has_nothing_to_merge_into():
    model, arguments = vggt()
    with mmaccel.accelerate(model, FastVGGT(least=0)) as fast:
        assert torch.equal(fast(**arguments(2, views=1)), model(**arguments(2, views=1)))
        assert not fast.report.engaged and "one view alone" in fast.report.warnings[0]


def test_few_tokens_are_a_plain_pass_that_says_why():
    model, arguments = vggt()
    plain = model(**arguments())
    with mmaccel.accelerate(model, FastVGGT()) as fast:
        assert torch.equal(fast(**arguments()), plain) and not fast.report.engaged
        assert fast.report.warnings == ["108 tokens: merging so few does not pay, and least=256"]
        fast(**arguments(views=10))
        assert fast.report.engaged and not fast.report.warnings
    with mmaccel.accelerate(model, FastVGGT(least=109)) as fast:
        assert torch.equal(fast(**arguments()), plain)
    with mmaccel.accelerate(model, FastVGGT(least=108)) as fast:
        assert not torch.equal(fast(**arguments()), plain)


def test_more_views_than_memory_is_one_line(monkeypatch):
    model, arguments = vggt()
    plain = model(**arguments())
    monkeypatch.setattr(estimate, "free_memory", lambda device: 1000)
    with (
        mmaccel.accelerate(model, FastVGGT(least=0)) as fast,
        pytest.raises(MemoryLimitError, match="4 views of 6 x 4 patches would take .* are free on cpu: give fewer"),
    ):
        fast(**arguments())
    assert torch.equal(model(**arguments()), plain)


def test_a_mask_and_another_sequence_are_one_line():
    model, arguments = vggt()
    attention = model.aggregator.global_blocks[0].attn
    plain = model(**arguments())
    with mmaccel.accelerate(model, FastVGGT(least=0)) as fast:
        fast(**arguments())
        with pytest.raises(SettingError, match="a mask no longer fits: call without attn_mask"):
            attention(torch.zeros(1, 108, 32), attn_mask=torch.zeros(108, 108))
        with pytest.raises(SettingError, match="a mask no longer fits: call without attn_bias"):
            attention(torch.zeros(1, 108, 32), attn_bias=torch.zeros(108, 108))
        with pytest.raises(SettingError, match="got 7 tokens, and .* make 108"):
            attention(torch.zeros(1, 7, 32))
    assert torch.equal(model(**arguments()), plain)


def test_other_models_and_other_methods_are_refused_by_name():
    model, arguments = vggt()
    plain = model(**arguments())
    with pytest.raises(UnsupportedTargetError, match="vlm.FastVGGT works on multi_view models"):
        mmaccel.accelerate(visual_examples.onevision()[0], FastVGGT())
    for method in (vlm.HoliTom(), vlm.StoredContext(), vlm.FusedDraft()):
        with pytest.raises(UnsupportedTargetError, match="VGGT is a multi_view model: vlm.FastVGGT works on it"):
            mmaccel.accelerate(model, method)
    model.aggregator.global_blocks = nn.ModuleList()
    with pytest.raises(UnsupportedTargetError, match="no block that attends over several views"):
        mmaccel.accelerate(model, FastVGGT())
    del model.aggregator
    with pytest.raises(UnsupportedTargetError, match="neither the `global_blocks`"):
        mmaccel.accelerate(model, FastVGGT())
    assert isinstance(model, VGGT) and plain.shape == (1, 4, 6, 4)


def test_compare_says_how_far_off_the_outputs_are():
    model, arguments = vggt()
    plain = model(**arguments(2))
    with mmaccel.accelerate(model, FastVGGT(least=0)) as fast:
        off = float((fast(**arguments(2)) - plain).norm() / plain.norm())
    found = mmaccel.compare(model, FastVGGT(least=0), FastVGGT(merge=0.0), seeds=[0], rounds=1, **arguments(2))
    rows = {row["method"] + str(row["settings"].get("merge")): row for row in found.rows}
    assert rows["vlm.FastVGGT0.9"]["quality"] == pytest.approx(off) and 0 < off < 1
    assert rows["vlm.FastVGGT0.0"]["quality"] == 0
    assert "off by" in str(found) and "other shapes" in str(found)
    with pytest.raises(SettingError, match="give the arguments of a call of VGGT"):
        mmaccel.compare(model, FastVGGT())


@torch.no_grad()
@pytest.mark.parametrize(
    ("kind", "special", "out"),
    ((others.DepthAnything3Net, 1, "depth"), (others.NestedDepthAnything3Net, 1, "depth"), (others.Pi3, 5, "points")),
)
def test_models_of_other_layouts(kind, special, out):
    model, images = kind().eval(), vggt()[1](2, views=5)["images"]
    plain, before = model(images)[out], snapshot(model)
    with mmaccel.accelerate(model, FastVGGT(merge=0.0)) as fast:
        assert torch.equal(fast(images)[out], plain)
    with mmaccel.accelerate(model, FastVGGT(least=0)) as fast:
        merged, report = fast(images)[out], fast.report
        assert report.engaged and report.details["views"]["tokens"] == 5 * (special + 6 * 4)
        assert report.work_ratio < 0.5
    assert merged.shape == plain.shape and not torch.equal(merged, plain)
    assert snapshot(model) == before and torch.equal(model(images)[out], plain)


@torch.no_grad()
def test_pictures_by_their_name():
    model, images = others.Pi3X().eval(), vggt()[1]()["images"]
    with mmaccel.accelerate(model, FastVGGT(least=0)) as fast:
        named = fast(poses=torch.zeros(1, 4, 4, 4), imgs=images)["points"]
        assert fast.report.engaged and torch.equal(named, fast(images)["points"])


@torch.no_grad()
def test_inference_is_a_run_and_a_network_has_one_session():
    model = others.DepthAnything3(others.DepthAnything3Net().eval())
    images = list(vggt()[1](views=5)["images"][0])
    plain, before = model.inference(images), snapshot(model)
    with mmaccel.accelerate(model, FastVGGT(least=0)) as fast:
        assert not torch.equal(fast.inference(images), plain)
        assert fast.report.engaged and fast.report.wall_seconds > 0
        with pytest.raises(mmaccel.ActiveSessionError, match="FastVGGT"):
            mmaccel.accelerate(others.DepthAnything3(model.model), FastVGGT())
    assert snapshot(model) == before and torch.equal(model.inference(images), plain)


def test_a_depth_of_single_views_has_nothing_to_merge():
    with pytest.raises(UnsupportedTargetError, match="no block that attends over several views"):
        mmaccel.accelerate(others.DepthAnything3Net(-1), FastVGGT())


@pytest.mark.parametrize("bad", ({"merge": 1.1}, {"merge": "x"}, {"salient": -0.1}, {"least": -1}), ids=str)
def test_bad_settings(bad):
    (name,) = bad
    with pytest.raises(SettingError, match=rf"FastVGGT\({name}=.*must be"):
        FastVGGT(**bad)


@pytest.mark.skipif(importlib.util.find_spec("depth_anything_3") is None, reason="depth-anything-3 is not installed")
def test_depth_anything_on_several_views():
    """The encoder of Depth Anything 3, small: local and global blocks by turns, from `alt_start` on."""
    from depth_anything_3.model.dinov2.dinov2 import DinoV2

    torch.manual_seed(0)
    net = type("DepthAnything3Net", (nn.Module,), {"forward": lambda self, x: self.backbone(x)[0][-1][0]})()
    net.backbone = DinoV2("vits", [11], alt_start=4, qknorm_start=4, rope_start=4)
    net.eval()
    views = torch.rand(2, 3, 3, 42, 56)
    with torch.no_grad():
        plain = net(views)
        with mmaccel.accelerate(net, FastVGGT(merge=0.0)) as fast:
            assert torch.equal(fast(views), plain)
        with mmaccel.accelerate(net, FastVGGT(least=0)) as fast:
            merged, report = fast(views), fast.report
        assert report.engaged and report.details["views"]["tokens"] == 3 * (1 + 3 * 4)
        assert merged.shape == plain.shape and not torch.equal(merged, plain) and torch.equal(net(views), plain)
