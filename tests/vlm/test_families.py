"""Every class that is shown pictures: what `docs/visual_families.json` says of it is so, or it is refused by name."""

import json

import pytest
import torch
import transformers
from newer_classes import exists
from transformers import PaliGemmaConfig, PaliGemmaForConditionalGeneration

import mmaccel
from mmaccel import vlm
from mmaccel.adapter import adapters, find_adapter
from mmaccel.demos.families.visual_models import UNTRIED, build, rows
from mmaccel.demos.families.visual_table import (
    ALL,
    BATCH,
    TARGET,
    count_served,
    equal,
    kept_positions,
    same,
    tried,
)
from mmaccel.errors import PromptError, UnsupportedTargetError
from mmaccel.vlm.families.rows import REFUSED
from mmaccel.vlm.families.visual_adapter import VisualAdapter
from mmaccel.vlm.visual_examples import IMAGE, TEXT, VIDEO, VISION, clip, prompt, sharp

TABLE = json.loads(TARGET.read_text(encoding="utf-8"))
SERVED = {name for adapter in adapters() if issubclass(adapter, VisualAdapter) for name in adapter.classes}
# One for each way of handing pictures over, and of placing them.
RUN = (
    "Qwen2_5OmniThinkerForConditionalGeneration",
    "Qwen3_5ForConditionalGeneration",
    "Ernie4_5_VLMoeForConditionalGeneration",
    "Gemma3ForConditionalGeneration",
    "Gemma4ForConditionalGeneration",
    "MistralLarge4ForConditionalGeneration",
    "Ovis2ForConditionalGeneration",
    "Llama4ForConditionalGeneration",
    "LlavaNextForConditionalGeneration",
    "Molmo2ForConditionalGeneration",
)


def test_the_classes_of_the_table_are_those_of_the_adapters():
    assert set(TABLE) == set(rows()) == SERVED


def test_each_class_of_transformers_that_is_shown_pictures_is_served_or_says_why_not():
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES as MAPPING

    named = {name for names in MAPPING.values() for name in ((names,) if isinstance(names, str) else names)}
    other = {name for adapter in adapters() if adapter.modality != "vlm" for name in adapter.classes}
    other |= {"EvollaForProteinText2Text", "Mistral4ForCausalLM"}  # which are shown no pictures
    assert named - SERVED - set(REFUSED) - set(UNTRIED) - other == set()
    assert all(map(exists, {*SERVED, *REFUSED, *UNTRIED}))
    assert not SERVED & {*REFUSED, *UNTRIED}


def test_most_classes_are_served_by_six_methods():
    assert count_served(TABLE) >= 45
    for name, row in TABLE.items():
        assert row["clean"] and row["placed"] is not False and all(row["exact"].values()), name
        assert row["positions"] is not False, name
        assert len(row["kept"]) >= 4 and all(0 < share < 1 for share in row["kept"].values()), name


@pytest.mark.parametrize("name", RUN)
def test_what_the_table_says_is_so(name):
    assert tried(name) == TABLE[name]


def test_frames_merge_in_most_towers_that_are_shown_clips():
    assert all(row["merged"] is not False for row in TABLE.values())
    assert sum(row["merged"] is True for row in TABLE.values()) >= 25


def test_pictures_stand_apart_and_frames_do_not():
    """Six pictures in each of two prompts, or two videos of six frames."""
    for name, visuals in (
        ("LlavaForConditionalGeneration", 12),
        ("Mistral3ForConditionalGeneration", 12),
        ("InternVLForConditionalGeneration", 2),
        ("VideoLlavaForConditionalGeneration", 2),
    ):
        model, call = build(name)
        with mmaccel.accelerate(model, vlm.VidCom2(keep=0.4)) as fast:
            fast.generate(**call(2))
            assert len(vlm.kept(fast)) == visuals, name


def test_tiles_of_one_picture_are_not_frames_of_a_video():
    """InternVL's processor writes the tiles of a picture at one stretch, and words between the frames of a video."""
    model, _ = build("InternVLForConditionalGeneration")
    given = prompt(1, [*[5, *[IMAGE] * 16, 6] * 2, *[IMAGE] * 3 * 16])
    given |= {"pixel_values": clip(1, 5, 32)[0], "max_new_tokens": 4, "do_sample": False}
    with mmaccel.accelerate(model, vlm.VidCom2(keep=None, tokens=4)) as fast:
        fast.generate(**given)
        assert [len(kept.sizes) for kept in vlm.kept(fast)] == [2, 1, 1, 1] and fast.report.visual_tokens == 4 * 4


def test_pictures_with_other_words_between_them_are_not_frames_of_a_clip():
    """A clip of four frames, and behind a sentence two pictures that are compared."""
    model, _ = build("InternVLForConditionalGeneration")
    frame, picture = [*[IMAGE] * 16, 6, 7, 8, 5], [*[IMAGE] * 16, *range(10, 24)]
    given = prompt(1, [*frame * 4, *range(10, 24), *picture * 2])
    given |= {"pixel_values": clip(1, 6, 32)[0], "max_new_tokens": 4, "do_sample": False}
    with mmaccel.accelerate(model, vlm.VidCom2(keep=None, tokens=4)) as fast:
        fast.generate(**given)
        assert [len(kept.sizes) for kept in vlm.kept(fast)] == [4, 1, 1] and fast.report.visual_tokens == 3 * 4


def test_glm_has_the_placeholder_of_pictures_for_videos_too():
    model, call = build("Glm4vForConditionalGeneration")
    given = call(2)
    assert not (given["input_ids"] == VIDEO).any() and (given["input_ids"] == IMAGE).any()
    with mmaccel.accelerate(model, vlm.HoliTom(keep=0.4)) as fast:
        fast.generate(**given)
        assert [len(kept.sizes) for kept in vlm.kept(fast)] == [6, 6]
        given.pop("mm_token_type_ids")  # which kind a token is of follows from what was given
        fast.generate(**given)
        assert fast.report.engaged


def test_tokens_that_a_processor_has_left_out_are_not_missed():
    """VideoLLaMA 3 leaves out, of each frame, the tokens that the one before has too, and then their features."""
    model, call = build("VideoLlama3ForConditionalGeneration")
    given, stays = call(2), torch.arange(2 * 96) % 3 > 0
    left = given["input_ids"] != VIDEO
    left[~left] = stays
    given |= {name: given[name][left].view(2, -1) for name in ("input_ids", "attention_mask")}
    given |= {"video_compression_mask": stays, "return_dict_in_generate": True, "output_logits": True}
    plain = model.generate(**given)
    with mmaccel.accelerate(model, ALL) as fast:
        assert equal(fast.generate(**given), plain)
    for method in (vlm.HoliTom(keep=0.4), vlm.EarlyTom(keep=0.4)):
        with mmaccel.accelerate(model, method) as fast:
            fast.generate(**given)
            assert fast.report.engaged and fast.report.plain_visual_tokens == 2 * 64


def as_clip(given, frames=6):
    """A call of Molmo 2 with pictures, as one with clips."""
    pixels, pooling, grids = (given.pop(name) for name in ("pixel_values", "image_token_pooling", "image_grids"))
    clips = torch.tensor([[frames, 4, 4]]).repeat(len(grids) // frames, 1)
    return {**given, "pixel_values_videos": pixels, "video_token_pooling": pooling, "video_grids": clips}


def test_frames_of_molmo_are_told_apart():
    model, call = build("Molmo2ForConditionalGeneration")
    given = {**as_clip(call(2)), "return_dict_in_generate": True, "output_logits": True}
    plain = model.generate(**given)
    with mmaccel.accelerate(model, ALL) as fast:
        assert equal(fast.generate(**given), plain)
    with mmaccel.accelerate(model, vlm.DyCoke(keep=0.4)) as fast:
        fast.generate(**given)
        assert fast.report.warnings == []
        for kept in vlm.kept(fast):
            assert kept.sizes.shape == (6, 4, 4) and kept.sizes[0].all(), "the first frame of a window stays"


def test_frames_that_cannot_be_told_apart_are_said():
    """DyCoke, say, would take tokens at even distances instead of those that changed."""
    model, call = build("VideoLlama3ForConditionalGeneration")
    thinned, stays = call(1), torch.arange(96) % 3 > 0
    left = thinned["input_ids"] != VIDEO
    left[~left] = stays
    thinned |= {name: thinned[name][left][None] for name in ("input_ids", "attention_mask")}
    thinned["video_compression_mask"] = stays
    packed, packed_call = build("MiniCPMV4_6ForConditionalGeneration")
    pictures = packed_call(1)
    ids = pictures["input_ids"]
    clips = {**pictures, "input_ids": ids.masked_fill(ids == IMAGE, VIDEO)}
    clips["pixel_values_videos"] = clips.pop("pixel_values")
    clips["target_sizes_videos"] = clips.pop("target_sizes")
    for target, given, said in (
        (model, thinned, "left tokens out: use_token_compression=False"),
        (packed, clips, "does not tell which are of one clip"),
        (model, call(1), None),
        (packed, pictures, None),
    ):
        for method in (
            vlm.DyCoke(keep=0.4),
            vlm.FrameFusion(keep=0.4, layer=4),
            vlm.StreamingCompression(keep=0.4),
            vlm.FastV(keep=0.4),
        ):
            with mmaccel.accelerate(target, method) as fast:
                fast.generate(**given)
                told = [line for line in fast.report.warnings if "no frames were compared with each other" in line]
            expected = said is not None and not isinstance(method, vlm.FastV)
            assert len(told) == expected and all(said in line for line in told)


@pytest.mark.parametrize(
    ("name", "types", "value"),
    (
        ("Gemma3ForConditionalGeneration", "token_type_ids", 1),
        ("Ernie4_5_VLMoeForConditionalGeneration", "moe_mm_token_type_ids", 2),
    ),
)
def test_types_of_tokens_are_those_of_the_tokens_that_stay(name, types, value):
    """Gemma lets the tokens of a picture attend to each other in both directions, and Ernie has experts for them."""
    model, call = build(name)
    with mmaccel.accelerate(model, vlm.VidCom2(keep=0.4)) as fast:
        seen, begin = {}, fast.adapter.begin

        def watch(methods, run, kwargs):
            prompt = begin(methods, run, kwargs)
            seen.update(kwargs)
            return prompt

        fast.adapter.begin = watch
        fast.generate(**call(2))
    visual = torch.isin(seen["input_ids"], torch.tensor([IMAGE, VIDEO]))
    assert seen[types].tolist() == (visual * value).tolist()
    assert seen[types].shape < call(2)["input_ids"].shape


def test_audio_is_left_alone():
    """Words, a sound, and a video of which tokens are left out."""
    model, call = build("Qwen2_5OmniThinkerForConditionalGeneration")
    config = model.config
    config.audio_token_id, config.audio_start_token_id = 60, 58
    sound = [58, *[60] * 4, 59]
    given = call(1)
    ids = given["input_ids"]
    given["input_ids"] = torch.cat([ids[:, :2], torch.tensor([sound]), ids[:, 2:]], 1)
    given["attention_mask"] = torch.ones_like(given["input_ids"])
    generator = torch.Generator().manual_seed(0)
    given["input_features"] = torch.randn(1, 8, 16, generator=generator)
    given["feature_attention_mask"] = torch.ones(1, 16, dtype=torch.long)
    more = {"return_dict_in_generate": True, "output_logits": True}
    plain = model.generate(**given, **more)
    with mmaccel.accelerate(model, ALL) as fast:
        assert equal(fast.generate(**given, **more), plain)
    with mmaccel.accelerate(model, vlm.VidCom2(keep=0.4)) as fast:
        heard = fast.generate(**given, **more).logits
        silent = fast.generate(**{**given, "input_features": -given["input_features"]}, **more).logits
        assert fast.report.plain_visual_tokens == 96 and not torch.equal(heard[0], silent[0])


def test_a_prompt_without_a_mask_has_the_places_that_the_model_gives_it():
    assert same(*build("Qwen2_5OmniThinkerForConditionalGeneration"), attention_mask=None)


def test_too_many_placeholders_are_said_and_nothing_is_left_behind():
    model, call = build("Glm4vForConditionalGeneration")
    given = call(BATCH)
    given["input_ids"][0, -1] = IMAGE
    with mmaccel.accelerate(model, vlm.VidCom2()) as fast, pytest.raises(PromptError, match="for 288 video tokens"):
        fast.generate(**given)
    assert torch.equal(model.generate(**call(1)), build("Glm4vForConditionalGeneration")[0].generate(**call(1)))


@pytest.mark.parametrize(
    "name",
    (
        "HunYuanVLForConditionalGeneration",
        "Qwen2_5_VLForConditionalGeneration",
        "Glm4vForConditionalGeneration",
        "Cosmos3EdgeForConditionalGeneration",
    ),
)
def test_tokens_that_stay_have_the_positions_that_they_had(name):
    """Those of HunYuan have four axes, and no count before them."""
    assert kept_positions(*build(name)) is True


@pytest.mark.parametrize(
    "name",
    (
        "Qwen3_5ForConditionalGeneration",
        "Cohere2VisionForConditionalGeneration",
        "Lfm2VlForConditionalGeneration",
        "HunYuanVLForConditionalGeneration",
    ),
)
def test_keys_are_those_of_layers_that_attend_and_of_their_windows(name):
    """Others of Qwen3.5 and LFM2 have a state, MLPs of HunYuan a number; windows of Cohere are short of the prompt."""
    model, call = build(name)
    with mmaccel.accelerate(model, ALL) as fast:
        fast.generate(**call(BATCH))
        assert fast.report.keys == fast.report.plain_keys > 0


def test_layers_with_a_window_get_the_shorter_prompt_too_and_nothing_else_is_said():
    model, call = build("Gemma3ForConditionalGeneration")
    method = vlm.VidCom2(keep=0.4)
    with mmaccel.accelerate(model, method) as fast:
        fast.generate(**call(1))
        assert fast.report.engaged and fast.report.warnings == []
        fast.generate(**prompt(1, [5, 6]), max_new_tokens=2)
        assert fast.report.warnings == [f"{method} did not engage: {method.idle(None)}"]


@pytest.mark.parametrize("name", ("AriaForConditionalGeneration", "GotOcr2ForConditionalGeneration"))
def test_a_tower_that_tells_nothing_about_tokens_is_said_at_plan(name):
    model, _ = build(name)
    with pytest.raises(UnsupportedTargetError, match=f"{name} has .*: vlm.VidCom2 does without"):
        mmaccel.plan(model, vlm.HoliTom())
    mmaccel.plan(model, vlm.VidCom2())


def test_a_hybrid_needs_a_layer_behind_its_first_attention():
    model, _ = build("Qwen3_5ForConditionalGeneration")
    with pytest.raises(mmaccel.errors.SettingError, match="before layer 3: .* needs a layer from 4 to 5"):
        mmaccel.plan(model, vlm.FastV(layer=3))


def test_a_model_that_cannot_be_served_is_refused_by_name():
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = PaliGemmaConfig(
        text_config={"model_type": "gemma", **sizes, "num_key_value_heads": 1, "head_dim": 8, "vocab_size": 64},
        vision_config={"model_type": "siglip_vision_model", **sizes, "image_size": 16, "patch_size": 8},
        projection_dim=16,
    )
    model = PaliGemmaForConditionalGeneration(config)
    with pytest.raises(UnsupportedTargetError, match="tokens of PaliGemmaForConditionalGeneration: all tokens of its"):
        mmaccel.plan(model, vlm.VidCom2())
    untold = type("Somebodys", (type(model).__mro__[1],), {"input_modalities": ("image", "text")})
    adapter = find_adapter(model)
    adapter.target = untold.__new__(untold)
    assert "tokens of Somebodys: nothing was tried on this class yet" in adapter.unfit(vlm.VidCom2())


def test_as_many_frames_as_a_token_has_patches_are_not_one_frame_of_patches():
    model, call = build("Qwen2VLForConditionalGeneration")
    with mmaccel.accelerate(model, vlm.VidCom2(keep=0.4)) as fast:
        fast.generate(**call(1, frames=4))
        assert [kept.sizes.shape for kept in vlm.kept(fast)] == [(4, 4, 4)]


def test_llava_takes_pictures_of_any_size_from_a_tower_that_does():
    config = transformers.LlavaConfig(
        text_config={"model_type": "mistral", **TEXT, "head_dim": 8},
        vision_config={**VISION, "model_type": "pixtral", "image_size": 32, "patch_size": 4, "head_dim": 8},
        image_token_index=IMAGE,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
    )
    model = sharp(lambda: transformers.LlavaForConditionalGeneration(config), 0)
    pixels, sizes = clip(1, 2, 32)[0], torch.tensor([[32, 32], [16, 32]])
    given = {**prompt(1, [5, *[IMAGE] * 64, 6, *[IMAGE] * 32]), "max_new_tokens": 4, "do_sample": False}
    given |= {"pixel_values": pixels, "image_sizes": sizes}
    plain = model.generate(**given)
    for method in (ALL, vlm.HoliTom(keep=0.4)):
        with mmaccel.accelerate(model, method) as fast:
            answer = fast.generate(**given)
            assert [kept.sizes.shape for kept in vlm.kept(fast)] == [(1, 8, 8), (1, 4, 8)]
            assert fast.report.engaged == (method is not ALL) and (method is not ALL or torch.equal(answer, plain))


@pytest.mark.parametrize("implementation", ("eager", "flash_attention_2"))
def test_other_attention_than_that_of_torch_is_refused(implementation):
    model, _ = build("Glm4vForConditionalGeneration")
    model.config.get_text_config()._attn_implementation = implementation
    with pytest.raises(UnsupportedTargetError, match=f"attn_implementation='{implementation}': load the model with"):
        mmaccel.plan(model, vlm.VidCom2())
