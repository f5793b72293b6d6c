"""What happens inside: frames merge in the tower, tokens merge and go in the language model, and pictures show it."""

from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import cosine_similarity, normalize

import mmaccel
from mmaccel import vlm
from mmaccel.adapter import find_adapter
from mmaccel.demos.families.visual_models import build
from mmaccel.demos.families.visual_table import KEYED, MERGING, still
from mmaccel.errors import ConflictError, PromptError, SettingError, UnsupportedTargetError
from mmaccel.testing.snapshot import snapshot
from mmaccel.vlm import visual_examples
from mmaccel.vlm.decoder.call import AttentionCall, GenerateRun
from mmaccel.vlm.decoder.columns import Columns
from mmaccel.vlm.families import tower as towers
from mmaccel.vlm.families.tower import Probe, layer_of
from mmaccel.vlm.pruning.frame_merging import merging
from mmaccel.vlm.pruning.inner import Cuts, _last_attention, by_attention, late_merging
from mmaccel.vlm.pruning.row import Row

# One for each way in which towers arrange patches: in windows, with angles, with features of several layers, as tiles.
MERGED = (
    "Qwen2VLForConditionalGeneration",
    "Qwen2_5_VLForConditionalGeneration",
    "Qwen3VLForConditionalGeneration",
    "Glm4vForConditionalGeneration",
    "VideoLlama3ForConditionalGeneration",
    "InternVLForConditionalGeneration",
    "SmolVLMForConditionalGeneration",
    "LlavaOnevisionForConditionalGeneration",
)
TOWERS = {"llava_onevision": visual_examples.onevision, "llava_next_video": visual_examples.next_video}


# The tower


@pytest.mark.parametrize("family", TOWERS)
def test_driving_the_tower_ourselves_changes_nothing(family):
    """With nothing to merge, features are those of transformers, bit for bit."""
    model, arguments = TOWERS[family]()
    call = arguments(2)
    method = vlm.EarlyTom(merge_after=1, tau=-1.0, window=2)  # segments of one frame: none has a middle
    with mmaccel.accelerate(model, method) as fast:
        visuals = fast.adapter.encode("video", method, call)
    with torch.no_grad():
        plain = model.model.get_video_features(call["pixel_values_videos"]).pooler_output
    assert all(torch.equal(visual.features, features) for visual, features in zip(visuals, plain, strict=True))
    assert all(len(visual.present) == 6 for visual in visuals)


@pytest.mark.parametrize("family", TOWERS)
def test_merged_frames_are_fewer_in_later_layers(family):
    model, arguments = TOWERS[family]()
    pixels = arguments(2, frames=12)["pixel_values_videos"]
    pixels[:, 1:6] = pixels[:, 1:2] + 0.05 * torch.randn(pixels[:, 1:6].shape, generator=torch.manual_seed(0))
    layers, sizes = model.model.vision_tower.encoder.layers, []
    handles = [layer.mlp.register_forward_hook(lambda m, a, o: sizes.append(len(a[0]))) for layer in layers]
    with mmaccel.accelerate(model, vlm.EarlyTom(keep=0.2, merge_after=1)) as fast:
        tokens = fast.generate(**{**arguments(2, frames=12), "pixel_values_videos": pixels})
        report = fast.report
        shares = [kept.share for kept in vlm.kept(fast)]
    for handle in handles:
        handle.remove()
    assert sizes[0] == 24 and sizes[1] < 24 and tokens.shape[0] == 2
    # a share of the whole video, then the inner stage halves it for the last two of six layers
    assert report.visual_tokens == pytest.approx(0.2 * report.plain_visual_tokens * (4 + 2 * 0.5) / 6, abs=2)
    assert all(share == pytest.approx(0.1, abs=0.01) for share in shares)


class First(vlm.EarlyTom):
    """Merges the first two frames of each clip, after two layers."""

    def merge(self, frames):
        return torch.cat([frames[:2].mean(0, keepdim=True), frames[2:]]), torch.tensor([0, *range(2, len(frames))])

    def merges_after(self, layers):
        return (1, 2)


class Keyed(vlm.EarlyTom):
    """Reads the tower's keys as well."""

    needs_key = True


class Layer(torch.nn.Module):
    """Notes what it is given."""

    def forward(self, hidden_states, **kwargs):
        self.given = {"hidden_states": hidden_states, **kwargs}
        return hidden_states


@pytest.mark.parametrize("shape", ((10, 1, 1), (10, 1), (1, 10, 1)), ids=("frames", "row of patches", "batched row"))
def test_merging_keeps_which_frames_are_there(shape):
    """Two layers that each merge the first two frames of each clip; around them each frame has its own place."""
    layers = [Layer() for _ in range(3)]
    hidden = torch.arange(10.0).view(shape)
    with merging(First(), layers, [(5, 1), (5, 1)], 3) as state:
        for layer in layers:
            hidden = layer(hidden)
    assert [left.tolist() for left in state.left] == [[0, 3, 4], [0, 3, 4]]
    assert [len(layer.given["hidden_states"].flatten()) for layer in layers] == [10, 8, 6]
    assert layers[2].given["hidden_states"].flatten().tolist() == [1.25, 3.0, 4.0, 6.25, 8.0, 9.0]
    assert hidden.flatten().tolist() == [1.25, 1.25, 1.25, 3.0, 4.0, 6.25, 6.25, 6.25, 8.0, 9.0]
    assert hidden.shape == shape and not any("forward" in vars(layer) for layer in layers)
    told = state.restore([torch.tensor([float(i)]) for i in range(6)])
    assert torch.cat(told).tolist() == [0, 0, 0, 1, 2, 3, 3, 3, 4, 5]


def test_frames_are_counted_on_the_device_of_the_layer():
    layers = [Layer() for _ in range(3)]
    with merging(First(), layers, [(5, 1)], 3) as state:
        layers[2](torch.zeros(5, 1, device="meta"))
    assert all(part.is_meta for part in (*state.left, *state.owner))


def test_arguments_of_a_layer_follow_its_frames():
    """Clips of 2 and 3 patches a frame in one row, with angles, a mask of all pairs, and windows within frames."""
    layers, clips, total = [Layer(), Layer()], [(3, 2), (4, 3)], 18
    hidden = torch.arange(float(total))[None, :, None]
    given = {
        "angles": (torch.arange(total)[:, None], torch.arange(total)[None, :, None]),
        "attention_mask": torch.arange(total**2).view(1, 1, total, total),
        "cu_seqlens": torch.tensor([0, 2, 4, 6, 7, 9, 12, 15, 18], dtype=torch.int32),
        "other": torch.zeros(3, 5),
    }
    with merging(First(), layers, clips, 2):
        for layer in layers:
            hidden = layer(hidden, **given)
    rows = [0, 1, 4, 5, 6, 7, 8, 12, 13, 14, 15, 16, 17]  # frames 0 and 2 of one clip, 0, 2 and 3 of the other
    seen = layers[1].given
    assert seen["angles"][0].flatten().tolist() == rows and seen["angles"][1].flatten().tolist() == rows
    assert torch.equal(seen["attention_mask"][0, 0], given["attention_mask"][0, 0][rows][:, rows])
    assert seen["cu_seqlens"].tolist() == [0, 2, 4, 5, 7, 10, 13] and seen["cu_seqlens"].dtype == torch.int32
    assert seen["other"] is given["other"] and hidden.shape == (1, total, 1)


def test_nothing_merges_where_nothing_can():
    layers = [Layer() for _ in range(3)]
    for clips, last in (([(1, 4), (1, 9)], 3), ([], 3), ([(5, 1)], 0)):
        with merging(First(), layers, clips, last) as state:
            assert state is None
    with merging(First(), layers, [(5, 1)], 3) as state:
        assert torch.equal(layers[0](torch.ones(7, 2)), torch.ones(7, 2)), "rows that are not those of the frames"
    assert state.left[0].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("name", MERGED)
def test_frames_that_are_alike_merge_in_any_tower_and_nothing_is_lost(name):
    """Features, scores, and what the language model's first layers add, of every frame, whether it merged or not."""
    model, call = build(name)
    adapter, given = find_adapter(model), still(call(2, frames=12))
    kind = "video" if "pixel_values_videos" in given else "image"
    plain = adapter.encode(kind, KEYED, given)
    before = snapshot(model)
    merged = adapter.encode(kind, Keyed(**asdict(MERGING)), given)
    assert snapshot(model) == before
    for visual, other in zip(merged, plain, strict=True):
        assert len(visual.present) < 12 and torch.allclose(visual.features, other.features, atol=1e-5)
        assert torch.allclose(visual.scores, other.scores[visual.present], atol=1e-5)
        assert torch.allclose(visual.key, other.key[visual.present], atol=1e-4)
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(visual.extra, other.extra, strict=True))


def test_early_tom_needs_a_tower_whose_layers_are_in_a_list():
    with pytest.raises(UnsupportedTargetError, match="Lfm3Vl.*in a list: vlm.VidCom2"):
        mmaccel.accelerate(build("Lfm3VlForConditionalGeneration")[0], vlm.EarlyTom())


# The language model


def row(tokens=12, visual=range(2, 10), cells=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shown = torch.zeros(tokens, dtype=torch.bool)
    shown[list(visual)] = True
    anchor = torch.full((tokens,), -1)
    anchor[shown] = torch.arange(len(visual))
    number = torch.where(shown, 0, -1)
    hidden = torch.randn(tokens, 6, generator=generator)
    return Row(hidden, shown, number, anchor, [cells], torch.rand(tokens, generator=generator), len(visual))


@pytest.mark.parametrize("merge", (False, True))
def test_cut_by_attention_against_a_naive_reading(merge):
    given = row()
    index, hidden = by_attention(lambda total: total // 2, merge)(given)
    visual = given.visual.nonzero().flatten().tolist()
    best = sorted(sorted(visual, key=lambda i: -given.scores[i])[:4])
    assert index.tolist() == sorted([0, 1, 10, 11, *best])
    for place, i in enumerate(index.tolist()):
        joined = [given.hidden[i]]
        if merge and i in best:
            for j in set(visual) - set(best):
                nearest = max(best, key=lambda k: float(cosine_similarity(given.hidden[j], given.hidden[k], dim=0)))
                joined += [given.hidden[j]] if nearest == i else []
        assert torch.allclose(hidden[place], torch.stack(joined).mean(0), atol=1e-5)


def test_attention_of_the_last_token_leaves_padding_out():
    """Heads differ in how much padding would get of it, so that the order of the others would too."""
    draw = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 4, 6, 8, generator=draw), torch.randn(2, 2, 6, 8, generator=draw)
    mask = torch.ones(6, 6, dtype=torch.bool).tril() & (torch.arange(6) >= torch.tensor([0, 3])[:, None, None])
    call = AttentionCall(0, query, key, key, mask[:, None], 0.5, None, None, lambda: query, GenerateRun())
    found = _last_attention(call)
    for row, start in enumerate((0, 3)):
        scores = torch.einsum("hd,hnd->hn", query[row, :, -1], key[row].repeat_interleave(2, 0)[:, start:]) * 0.5
        assert torch.allclose(found[row, start:], scores.softmax(-1).mean(0)) and not found[row, :start].any()


def test_autocast_changes_no_cut():
    """Neither which tokens the last one attends to most, nor which of those that are much alike are merged."""
    query, key = torch.randn(2, 1, 4, 30, 8, generator=torch.Generator().manual_seed(0))
    call = AttentionCall(0, query, key, key, None, None, None, None, lambda: query, GenerateRun())
    given = row(40, visual=range(2, 38))
    given.hidden = 1 + 0.03 * given.hidden
    cut, found = by_attention(lambda total: total // 3, merge=True), []
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            found.append((_last_attention(call), *cut(given)))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_a_second_cut_counts_from_before_the_first():
    """Half of the tokens before layer 2, and a quarter of all, not of that half, before layer 4."""

    class Twice(vlm.FastV):
        def cuts(self, layers):
            return {at: by_attention(lambda total, part=part: total // part, False) for at, part in ((2, 2), (4, 4))}

    model, arguments = visual_examples.onevision()
    with mmaccel.accelerate(model, Twice(keep=0.25)) as fast:
        result = fast.generate(**arguments(1), return_dict_in_generate=True)
        assert fast.report.visual_tokens == (2 * 96 + 2 * 48 + 2 * 24) // 6 and not fast.report.warnings
    lengths = [layer.keys.shape[2] for layer in result.past_key_values.layers]
    assert [lengths[0] - length for length in lengths] == [0, 0, 48, 48, 72, 72]


def test_cuts_that_leave_everything_did_nothing():
    model, arguments = visual_examples.onevision()
    call = arguments(2)
    with mmaccel.accelerate(model, vlm.FastV(keep=None, tokens=96)) as fast:
        tokens = fast.generate(**call)
        assert not fast.report.engaged and "did not engage" in fast.report.warnings[0]
    assert torch.equal(tokens, model.generate(**call))


@pytest.mark.parametrize("layer", (6, 7))
def test_a_cut_is_before_a_layer_that_there_is(layer):
    model, _ = visual_examples.onevision()
    mmaccel.plan(model, vlm.FastV(layer=5))
    with pytest.raises(SettingError, match=f"before layer {layer}: .* from 1 to 5"):
        mmaccel.plan(model, vlm.FastV(layer=layer))


def test_inner_stage_is_where_the_paper_has_it():
    assert list(late_merging(28, None, 0.5)) == [18] and late_merging(28, None, 1.0) == {}
    assert list(late_merging(28, 7, 0.5)) == [7] and list(late_merging(1, None, 0.5)) == [1], "never before the first"
    ((_, cut),) = late_merging(28, None, 0.01).items()
    given = row()
    assert int(given.visual[cut(given)[0]].sum()) == 1, "one stays, however few are asked for"
    assert list(vlm.HoliTom().cuts(28)) == [18] and vlm.HoliTom(inner_keep=1.0).cuts(28) == {}


def test_a_first_pass_that_is_not_the_prompt_drops_nothing_and_says_so():
    """Drafts by prompt lookup come with the prompt."""
    model, arguments = visual_examples.qwen3_vl()
    call = arguments(1)
    call["input_ids"][0, -4:] = call["input_ids"][0, :4]
    plain = model.generate(**dict(call))
    with mmaccel.accelerate(model, vlm.FastV(keep=0.3)) as fast:
        assert torch.equal(fast.generate(**call, prompt_lookup_num_tokens=4), plain)
        assert fast.report.warnings == [
            "nothing was dropped inside the language model: the prompt came in several chunks"
        ]
        assert not fast.report.engaged and fast.report.visual_tokens == fast.report.plain_visual_tokens


@pytest.mark.parametrize("masked", (False, True))
def test_passes_of_guidance_are_left_alone(masked):
    """They have another cache, and another prompt."""
    model, arguments = visual_examples.onevision()
    negative = torch.randint(4, 50, (3, 9), generator=torch.Generator().manual_seed(1))
    more = {"guidance_scale": 1.6, "negative_prompt_ids": negative}
    if masked:
        more["negative_prompt_attention_mask"] = torch.ones_like(negative).index_fill(1, torch.tensor([0, 1]), 0)
    plain = model.generate(**arguments(3, **more))
    with mmaccel.accelerate(model, vlm.FastV(keep=None, tokens=10**6)) as fast:
        assert torch.equal(fast.generate(**arguments(3, **more)), plain)
    with mmaccel.accelerate(model, vlm.FastV(keep=0.4)) as fast:
        fast.generate(**arguments(3, **more))
        assert fast.report.engaged and fast.report.visual_tokens < fast.report.plain_visual_tokens


@pytest.mark.parametrize("method", (vlm.FastV, vlm.FrameFusion))
def test_a_mask_of_the_model_s_own_stays(method):
    """Molmo 2 lets the tokens of pictures see each other."""
    model, arguments = build("Molmo2ForConditionalGeneration")
    told = {"output_logits": True, "return_dict_in_generate": True}
    plain = model.generate(**arguments(1, **told)).logits
    with mmaccel.accelerate(model, method(keep=None, tokens=10**6)) as fast:
        torch.testing.assert_close(fast.generate(**arguments(1, **told)).logits, plain)


def test_what_a_mask_leaves_of_a_prompt():
    mask = torch.rand(1, 1, 5, 5, generator=torch.Generator().manual_seed(0)) > 0.3
    columns = Columns(torch.tensor([[0, 2, 4], [0, 1, 3]]), torch.tensor([[True] * 3, [False, True, True]]), 5)
    for given in (mask, torch.zeros(1, 1, 5, 5).masked_fill(~mask, torch.finfo(torch.float32).min)):
        told = {"position_embeddings": (), "attention_mask": given}
        columns.fill(told)
        seen = told["attention_mask"] == (True if given.dtype == torch.bool else 0)
        assert torch.equal(seen[0, 0], mask[0, 0][[0, 2, 4]][:, [0, 2, 4]])
        assert torch.equal(seen[1, 0][:, 1:], mask[0, 0][[0, 1, 3]][:, [1, 3]]) and not seen[1, 0, :, 0].any()
        newest = torch.nn.functional.pad(given[:, :, -1:], (0, 1))
        later = columns.later_mask(newest, 1, 4)
        assert columns.later_mask(newest, 1, 4) is later, "the same for all layers"
        assert columns.later_mask(newest.clone(), 1, 4) is not later
        seen = later == (True if given.dtype == torch.bool else 0)
        assert torch.equal(seen[1, 0, 0, :3], torch.cat([torch.tensor([False]), mask[0, 0, -1, [1, 3]]]))
        assert torch.equal(seen[0, 0, 0, :3], mask[0, 0, -1, [0, 2, 4]])


@pytest.mark.parametrize("more", ({"encoder_repetition_penalty": 3.0}, {"encoder_no_repeat_ngram_size": 2}), ids=str)
def test_what_transformers_leaves_out_beside_embeddings_leaves_the_prompt_whole(more):
    model, arguments = visual_examples.onevision()
    plain = model.generate(**arguments(1, **more))
    with mmaccel.accelerate(model, vlm.VidCom2(keep=0.3)) as fast:
        assert torch.equal(fast.generate(**arguments(1, **more)), plain)
        assert f"{next(iter(more))} was given" in fast.report.warnings[0]
        fast.generate(**arguments(1, encoder_repetition_penalty=1.0))
        assert fast.report.engaged and not fast.report.warnings


@pytest.mark.parametrize("family", ("onevision", "qwen2_5_vl"))
def test_guesses_that_come_with_a_prompt_of_embeddings_leave_it_to_the_model(family):
    """It would take the last logits of the prompt for those of the guesses."""
    model, arguments = getattr(visual_examples, family)()
    call = arguments(1)
    call["input_ids"][0, -2:] = call["input_ids"][0, :2]  # which words follow
    plain = model.generate(**dict(call))
    with mmaccel.accelerate(model, vlm.VidCom2(keep=0.3)) as fast:
        assert torch.equal(fast.generate(**call, prompt_lookup_num_tokens=4), plain) and not fast.report.engaged
        assert fast.report.warnings == ["vlm.VidCom2(keep=0.3) ran plainly: prompt_lookup_num_tokens was given"]
        first = fast.generate(**call, return_dict_in_generate=True)
        assert fast.report.engaged
        ids = torch.cat([first.sequences, call["input_ids"]], 1)
        again = {**call, "input_ids": ids, "attention_mask": torch.ones_like(ids), "mm_token_type_ids": None}
        again |= {"past_key_values": first.past_key_values, "prompt_lookup_num_tokens": 4}
        with pytest.raises(PromptError, match="prompt_lookup_num_tokens was given with a picture behind a shortened"):
            fast.generate(**{name: value for name, value in again.items() if value is not None})


@pytest.mark.parametrize("family", ("onevision", "qwen2_5_vl"))
def test_hidden_states_are_those_of_the_whole_prompt(family):
    """Qwen-Omni speaks by them."""
    model, arguments = getattr(visual_examples, family)()
    call, more = arguments(1), {"output_hidden_states": True, "return_dict_in_generate": True}
    with mmaccel.accelerate(model, vlm.VidCom2(keep=0.3)) as fast:
        result = fast.generate(**call, **more)
        assert fast.report.warnings == ["vlm.VidCom2(keep=0.3) ran plainly: output_hidden_states was given"]
        assert result.hidden_states[0][0].shape[1] == call["input_ids"].shape[1] and not fast.report.engaged
        first = fast.generate(**call, return_dict_in_generate=True)
        ids = torch.cat([first.sequences, torch.tensor([[5, 6, 7]])], 1)
        again = fast.generate(ids, past_key_values=first.past_key_values, max_new_tokens=2, **more)
        assert again.hidden_states[0][0].shape[1] == 4, "a later turn has those of its own words"
        assert not any("plainly" in warning for warning in fast.report.warnings)


def test_attention_that_cannot_be_read_drops_nothing_and_says_so():
    layers = ["full_attention", "sliding_attention", *["full_attention"] * 4]
    model, arguments = visual_examples.onevision(layer_types=layers, use_sliding_window=True, sliding_window=512)
    plain = model.generate(**arguments(1))
    with mmaccel.accelerate(model, vlm.FastV(keep=0.3)) as fast:
        assert torch.equal(fast.generate(**arguments(1)), plain) and not fast.report.engaged
        assert (
            "nothing was dropped inside the language model: some of its layers have a sliding window"
            in fast.report.warnings
        )


@torch.no_grad()
def test_cuts_end_with_their_call():
    """Neither the next prompt, of words alone, nor a direct call has them."""
    model, arguments = visual_examples.onevision()
    words = visual_examples.prompt(2, [5, 6], question=90)
    plain, logits = model.generate(**words, max_new_tokens=3, do_sample=False), model(**words).logits
    with mmaccel.accelerate(model, vlm.FastV(keep=0.3)) as fast:
        fast.generate(**arguments(2))
        assert torch.equal(model(**words).logits, logits)
        fast.generate(**arguments(2))
        assert torch.equal(fast.generate(**words, max_new_tokens=3, do_sample=False), plain)
        assert not fast.report.engaged and fast.report.visual_tokens == 0


def test_columns_are_taken_where_a_spread_model_has_its_arguments():
    """Fake tensors refuse to be mixed with those of another device."""
    columns = Columns(torch.tensor([[0, 2], [1, 2]]), torch.tensor([[True, True], [False, True]]), 4)
    with FakeTensorMode(allow_non_fake_inputs=True):
        far, causal = torch.empty(2, 4, 3, device="meta"), torch.ones(2, 1, 1, 5, dtype=torch.bool, device="meta")
        kwargs = {"position_embeddings": (far, far), "position_ids": far[..., 0]}
        columns.fill(kwargs)
        assert kwargs["position_embeddings"][0].shape == (2, 2, 3) and kwargs["position_ids"].shape == (2, 2)
        assert columns.later_mask(causal, 1, 3).is_meta


@pytest.mark.parametrize("cls", (vlm.HoliTom, vlm.EarlyTom))
def test_settings_of_the_inner_stage(cls):
    assert list(cls(inner_layer=3).cuts(12)) == [3] and cls(inner_keep=1.0).cuts(12) == {}
    given = row()
    for keep in (0.25, 0.75):
        ((_, cut),) = cls(inner_keep=keep).cuts(12).items()
        index, hidden = cut(given)
        assert int(given.visual[index].sum()) == 8 * keep
        assert not all(any(torch.equal(state, old) for old in given.hidden) for state in hidden), "others merge"


def test_layers_of_the_cuts():
    assert list(vlm.FrameFusion(layer=3).cuts(9)) == [3, 4] and list(vlm.FastV(layer=3).cuts(9)) == [3]
    after = {None: (4, 8), 0: (), 5: (5, 10), 20: ()}
    assert vlm.EarlyTom().merges_after(2) == (1,), "a tower of few layers"
    assert {at: vlm.EarlyTom(merge_after=at).merges_after(12) for at in after} == after


@pytest.mark.parametrize("family", TOWERS)
def test_the_layer_of_a_call_counts_before_that_of_the_model(family):
    """Features and scores are those of `vision_feature_layer`, whether frames merge on the way or not."""
    model, arguments = TOWERS[family]()
    chosen = 1 if family == "llava_onevision" else 3
    call = {**arguments(1), "vision_feature_layer": chosen}
    with torch.no_grad():
        plain = model.model.get_video_features(call["pixel_values_videos"], vision_feature_layer=chosen).pooler_output[
            0
        ]
        usual = model.model.get_video_features(call["pixel_values_videos"]).pooler_output[0]
    assert not torch.equal(plain, usual)
    merging_nothing = vlm.EarlyTom(merge_after=1, tau=-1.0, window=2)
    for method in (vlm.HoliTom(), merging_nothing):
        with mmaccel.accelerate(model, method) as fast:
            (visual,) = fast.adapter.encode("video", method, call)
            (other,) = fast.adapter.encode("video", method, arguments(1))
        assert torch.equal(visual.features, plain) and not torch.equal(visual.scores, other.scores)


@pytest.mark.parametrize("count", (1, 3, 6, 8))
def test_frame_fusion_against_a_naive_reading(count):
    given = row()
    given.hidden[6] = 2 * given.hidden[2]  # one place in two frames
    given.hidden[7] = given.hidden[3] + 0.3 * given.hidden[8]
    method = vlm.FrameFusion(keep=None, tokens=count, threshold=0.6)
    index, hidden = method._merge(given)
    pairs = {i + 4: float(cosine_similarity(given.hidden[i], given.hidden[i + 4], dim=0)) for i in range(2, 6)}
    joins = [i for i in sorted(pairs, key=pairs.get, reverse=True) if pairs[i] >= 0.6][: 8 - count]
    assert index.tolist() == [i for i in range(12) if i not in joins]
    for place, i in enumerate(index.tolist()):
        expected = (given.hidden[i] + given.hidden[i + 4]) / 2 if i + 4 in joins else given.hidden[i]
        assert torch.allclose(hidden[place], expected, atol=1e-5)


def test_holitom_is_its_two_stages():
    """Tokens and cache of a run: what the outer stage leaves, then half of it in the last layers."""
    model, arguments = visual_examples.onevision()
    method = vlm.HoliTom(keep=0.25, tau=0.5)
    with mmaccel.accelerate(model, method) as fast:
        result = fast.generate(**arguments(1), return_dict_in_generate=True)
        prompt, cuts = fast.adapter.last
    outer = prompt.kept
    assert outer < 0.3 * prompt.total
    lengths = [layer.keys.shape[2] for layer in result.past_key_values.layers]
    (layer,) = cuts.columns
    assert layer == 4 and lengths[:4] == [lengths[0]] * 4
    assert lengths[0] - lengths[4] == outer - round(outer * 0.5) and lengths[4:] == [lengths[4]] * 2


@pytest.mark.parametrize("method", (vlm.FastV(), vlm.FrameFusion(layer=2), vlm.HoliTom(), vlm.EarlyTom()), ids=str)
def test_what_leaves_ragged_caches_goes_with_no_cache_method(method):
    model, _ = visual_examples.onevision()
    for other in (vlm.CompressKV(), vlm.SelectKV(), vlm.VidCom2()):
        with pytest.raises(ConflictError, match="cannot be combined"):
            mmaccel.accelerate(model, method, other)


def test_fewer_tokens_and_a_smaller_cache_together():
    model, arguments = visual_examples.onevision()
    with mmaccel.accelerate(model, vlm.VidCom2(keep=0.5), vlm.CompressKV(budget=0.3)) as fast:
        tokens = fast.generate(**arguments(2))
        assert fast.report.engaged and not fast.report.warnings and fast.report.work_ratio < 0.5
    assert tokens.shape == model.generate(**arguments(2)).shape


# Pictures


def test_kept_patches_are_drawn_where_they_are(tmp_path):
    model, arguments = visual_examples.onevision()
    with mmaccel.accelerate(model, vlm.HoliTom(keep=0.2, tau=0.3, inner_keep=1.0)) as fast:
        with pytest.raises(SettingError, match="left out no visual tokens"):
            vlm.kept(fast)
        fast.generate(**arguments(1))
        (kept,) = vlm.kept(fast)
        prompt, _ = fast.adapter.last
    assert kept.sizes.shape == (6, 4, 4) and kept.share == pytest.approx(prompt.kept / prompt.total)
    places = prompt.anchor[0][prompt.anchor[0] >= 0]
    assert torch.equal((kept.sizes.flatten() > 0).nonzero().squeeze(1), places.sort().values)
    assert kept.sizes.max() > 1, "something merged"
    frames = [Image.fromarray(np.zeros((64, 64, 3), np.uint8))] * 6
    kept.save(frames, tmp_path / "kept.png")
    picture = np.asarray(Image.open(tmp_path / "kept.png"))
    read = np.zeros((6, 64, 64, 3), np.uint8)
    clip = vlm.VideoFrames(read, np.arange(6), np.arange(6.0), 1.0, 6, 6.0, tmp_path / "clip.mp4", "av")
    assert np.array_equal(np.asarray(kept.picture(clip)), picture)
    for row_, column in ((0, 0), (2, 3)):
        x, y = 256 // 4 * column + 32, 30 + 256 // 4 * row_ + 32
        gone = kept.sizes[0, row_, column] == 0
        assert (picture[y, x].mean() > 150) == bool(gone)
    for given in (5, 0):
        with pytest.raises(SettingError, match=f"{given} frames for 6"):
            kept.picture(frames[:given])
    with pytest.raises(SettingError, match="7 frames for 6"):
        kept.picture([*frames, frames[0]])


@pytest.mark.parametrize("count", (4, 3))
def test_a_picture_shows_the_first_of_the_frames_that_were_taken_for_one(count):
    """Processors repeat the last frame where there is an odd number of them."""
    sizes = torch.tensor([[[1.0, 0.0], [3.0, 1.0]], [[1.0, 1.0], [1.0, 1.0]]])
    colours = ((200, 0, 0), (0, 200, 0), (0, 0, 200), (0, 200, 0))
    frames = [np.full((8, 8, 3), colour, np.uint8) for colour in colours]
    picture = np.asarray(vlm.Kept(sizes).picture(frames[:count])).astype(int)
    left, right = np.array_split(picture, 2, 1)
    assert (left[200, 200] == colours[0]).all() and (right[200, 200] == colours[2]).all()
    orange = (picture == (255, 140, 0)).all(-1)
    places = orange.nonzero()
    assert orange.any() and places[1].max() < 128 + picture.shape[1] // 8 and places[0].min() > 128


def test_pictures_come_in_the_order_of_the_prompt():
    sizes = [torch.ones(1, 1, count) for count in (1, 2, 3)]
    prompt = SimpleNamespace(sizes=sizes, starts=[50, 70, 20])
    session = SimpleNamespace(adapter=SimpleNamespace(last=(prompt, None)))
    assert [kept.sizes.shape[2] for kept in vlm.kept(session)] == [3, 1, 2]


def test_eight_frames_stand_in_a_row():
    frames = [np.zeros((8, 8, 3), np.uint8)] * 9
    (wide, high), (row, one) = (vlm.Kept(torch.ones(n, 2, 2)).picture(frames[:n]).size for n in (9, 8))
    assert wide == row and high > 1.5 * one


def test_what_the_language_model_drops_is_gone_in_the_picture():
    model, arguments = visual_examples.onevision()
    with mmaccel.accelerate(model, vlm.FastV(keep=0.25)) as fast:
        fast.generate(**arguments(2))
        assert [kept.share for kept in vlm.kept(fast)] == [0.25, 0.25]


@pytest.mark.parametrize("beams", (2, 3))
def test_beams_show_what_their_prompt_keeps(beams):
    """Every beam of a prompt has the cuts of the prompt, each video its own."""
    model, arguments = visual_examples.onevision()
    with mmaccel.accelerate(model, vlm.FastV(keep=0.25)) as fast:
        fast.generate(**arguments(2))
        alone, tokens = [kept.sizes for kept in vlm.kept(fast)], fast.report.visual_tokens
        fast.generate(**arguments(2, num_beams=beams))
        assert fast.report.visual_tokens == tokens < fast.report.plain_visual_tokens
        together = [kept.sizes for kept in vlm.kept(fast)]
    assert not torch.equal(*alone), "the videos would not be told apart"
    assert all(torch.equal(one, other) for one, other in zip(alone, together, strict=True))


def test_scores_mind_the_mask_of_each_frame():
    draw = torch.Generator().manual_seed(0)
    query, key = torch.randn(3, 2, 5, 4, generator=draw), torch.randn(3, 2, 5, 4, generator=draw)
    seen = torch.arange(5) < torch.tensor([5, 3, 4])[:, None]
    probe = Probe()
    probe(lambda *_, **__: None, None, query, key, key, seen[:, None, None].expand(-1, 1, 5, -1))
    for frame, count in enumerate((5, 3, 4)):
        scores = (query[frame] @ key[frame, :, :count].transpose(1, 2)) / 2
        among = scores.softmax(-1)[:, :count]  # what padding attends to does not count
        assert torch.allclose(probe.received[frame][:count], among.mean((0, 1)))
        assert not probe.received[frame][count:].any() and torch.equal(probe.keys[frame][0], key[frame, :, 0].flatten())


@pytest.mark.parametrize("count", (30, 23))
def test_scores_are_read_of_some_queries_at_a_time(monkeypatch, count):
    """Of a large picture those of all queries would take gigabytes; the last tokens may be padding."""
    draw = torch.Generator().manual_seed(0)
    query, key = torch.randn(1, 4, 30, 8, generator=draw), torch.randn(1, 2, 30, 8, generator=draw)
    seen = (torch.arange(30) < count).expand(1, 1, 30, 30)
    at_once, read, softmax = [], Probe(), torch.softmax
    monkeypatch.setattr(torch, "softmax", lambda x, *a, **more: at_once.append(x.numel()) or softmax(x, *a, **more))
    for most in (towers.AT_ONCE, 4 * 30 * 7):
        monkeypatch.setattr(towers, "AT_ONCE", most)
        at_once.clear()
        read(lambda *_, **__: None, None, query, key, key, seen)
    assert max(at_once) == most and torch.allclose(*read.received)


def test_hidden_states_come_out_of_the_layer_before():
    layers = [torch.nn.Identity() for _ in range(4)]
    for number, layer in ((0, 0), (1, 0), (2, 1), (4, 3), (-1, 3), (-2, 2), ([-1, 2], 1)):
        assert layer_of(layers, number) is layers[layer]


def test_scores_are_those_of_the_towers_last_layer():
    """Against an explicit softmax of its queries and keys, frame by frame, pooled as the features."""
    model, arguments = visual_examples.onevision()
    method, call = vlm.HoliTom(), arguments(1)
    with mmaccel.accelerate(model, method) as fast:
        (visual,) = fast.adapter.encode("video", method, call)
        (keyed,) = fast.adapter.encode("video", KEYED, call)
    tower, seen = model.model.vision_tower, {}
    attention = tower.encoder.layers[-1].self_attn
    handle = attention.register_forward_pre_hook(lambda m, a, k: seen.update(k), with_kwargs=True)
    with torch.no_grad():
        tower(call["pixel_values_videos"][0])
        handle.remove()
        states = seen["hidden_states"]
        query, key = (p(states).unflatten(2, (4, 8)).transpose(1, 2) for p in (attention.q_proj, attention.k_proj))
        received = (query @ key.transpose(2, 3) * 8**-0.5).softmax(-1).mean((1, 2)).view(6, 1, 8, 8)
        pooled = torch.nn.functional.interpolate(received, size=(4, 4), mode="bilinear").flatten(1)
    assert torch.allclose(visual.scores, pooled, atol=1e-6)
    assert torch.allclose(keyed.scores, visual.scores, atol=1e-6) and normalize(keyed.key, dim=-1).shape == (6, 16, 32)
    assert visual.key is None, "nobody asked for copies of its keys"


def test_tokens_are_dropped_inside_a_compiled_model_too(monkeypatch):
    (model, arguments), method = visual_examples.onevision(num_hidden_layers=3), vlm.FastV(**vlm.FastV.engaging)
    call = arguments()
    with mmaccel.accelerate(model, method) as fast:
        expected, kept = fast.generate(**call), fast.report.visual_tokens
    model.compile(backend="eager")
    before, compiled = Cuts.before, []

    def watched(cuts, *args):
        compiled.append(torch.compiler.is_compiling())
        return before(cuts, *args)

    monkeypatch.setattr(Cuts, "before", watched)
    with mmaccel.accelerate(model, method) as fast:
        assert torch.equal(fast.generate(**call), expected)
        assert fast.report.visual_tokens == kept and not fast.report.warnings
    assert compiled and not any(compiled), "it would be compiled anew for the cache of each call"
