"""The shipped video model, and the world that it was trained on."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from mmaccel import zoo
from mmaccel.errors import PromptError, SettingError, WeightsError
from mmaccel.zoo import tiny_wan
from mmaccel.zoo.worlds import moving_world as world

drawn = pytest.mark.usefixtures("emoji_font")
WEIGHTS = "transformer/diffusion_pytorch_model.safetensors"


@pytest.fixture(scope="module")
def pipeline():
    loaded = zoo.load("tiny-wan")
    loaded.set_progress_bar_config(disable=True)
    return loaded


# ---------------------------------------------------------------- the world


@drawn
def test_a_clip_is_a_function_of_its_seed():
    one, two, other = world.draw_clip(7), world.draw_clip(7), world.draw_clip(8)
    assert np.array_equal(one.frames, two.frames) and one.caption == two.caption
    assert not np.array_equal(one.frames, other.frames)
    assert one.frames.shape == (17, 64, 64, 3) and one.frames.dtype == np.uint8


@drawn
def test_captions_and_places_tell_the_same():
    for seed in range(40):
        clip = world.draw_clip(seed)
        assert clip.caption.endswith(f"{clip.scene.background} background")
        for actor, path in zip(clip.scene.actors, clip.places, strict=True):
            assert f"{actor.name} {actor.motion}" in clip.caption
            assert np.array_equal(np.sign(path[-1] - path[0]), world.MOTIONS[actor.motion])
            assert path.min() >= 0 and path.max() <= world.IMAGE_SIZE - world.SPRITE_SIZE


@drawn
def test_things_are_where_the_places_say():
    """Nothing but the boxes changes, and they do where something moves."""
    for seed in range(10):
        clip = world.draw_clip(seed)
        inside = np.zeros(clip.frames.shape[1:3], bool)
        for top, left in clip.places.reshape(-1, 2):
            inside[top : top + world.SPRITE_SIZE, left : left + world.SPRITE_SIZE] = True
        changed = (clip.frames != clip.frames[0]).any((0, 3))
        assert not changed[~inside].any()
        assert changed.any() == (clip.scene.moving > 0)


@drawn
def test_held_out_scenes_are_few_and_stay_apart():
    share = np.mean([world.random_scene(np.random.default_rng(i)).held_out for i in range(2000)])
    assert 0.015 < share < 0.035
    assert world.draw_clip(0, held_out=True).scene.held_out
    assert not any(world.draw_clip(i).scene.held_out for i in range(20))


@drawn
def test_loose_captions_leave_out_what_the_full_one_says():
    pairs = [(world.draw_clip(i, full_caption=False).caption, world.draw_clip(i).caption) for i in range(40)]
    assert any(loose != full for loose, full in pairs)
    assert all(set(loose.replace(",", "").split()) <= set(full.replace(",", "").split()) for loose, full in pairs)


# ---------------------------------------------------------------- the model


def test_is_the_real_classes_and_takes_the_plain_call(pipeline):
    from diffusers import AutoencoderKLWan, FlowMatchEulerDiscreteScheduler, WanPipeline, WanTransformer3DModel

    assert isinstance(pipeline, WanPipeline)
    assert type(pipeline.transformer) is WanTransformer3DModel and type(pipeline.vae) is AutoencoderKLWan
    assert type(pipeline.scheduler) is FlowMatchEulerDiscreteScheduler and pipeline.scheduler.config.shift == 3.0
    assert {p.dtype for p in pipeline.transformer.parameters()} == {torch.float32}
    frames = pipeline("rocket", num_inference_steps=2, generator=torch.Generator().manual_seed(0)).frames
    assert frames.shape == (1, 17, 64, 64, 3)


@pytest.fixture(scope="module")
def heart(pipeline):
    generator = torch.Generator().manual_seed(0)
    return pipeline("red heart moves down, green background", num_inference_steps=12, generator=generator).frames[0]


def redness(clip):
    return (clip[..., 0] - clip[..., 1]).clip(0)


def test_it_draws_what_the_caption_says(heart):
    assert redness(heart)[-1].max() > 0.4
    red, green, blue = heart[:, :3, :3].mean((0, 1, 2))
    assert green > red + 0.1 and green > blue + 0.1


def test_it_moves_as_the_caption_says(heart):
    rows = (redness(heart).sum(2) * np.arange(64)).sum(1) / redness(heart).sum((1, 2))
    assert rows[-1] - rows[0] > 16


def test_still_scenes_stand_still_and_moving_ones_move(pipeline):
    def change(prompt):
        clip = pipeline(prompt, num_inference_steps=8, generator=torch.Generator().manual_seed(0)).frames[0]
        return np.abs(clip[-1] - clip[0]).mean()

    still, moving = (zoo.prompts("tiny-wan", 1, seed=1, things=2, moving=m)[0] for m in (0, 2))
    assert change(moving) > 3 * change(still)


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("spaceship moves up", ["spaceship", "knows"]),
        ("red hart stays", ["hart", "red heart"]),
        ("moves up, blue background", ["names no thing"]),
        ("", ["empty"]),
        (["rocket", " "], ["empty"]),
        ("pizzza", ["pizza"]),
    ],
)
def test_prompts_outside_its_world_get_an_answer(pipeline, prompt, words):
    with pytest.raises(PromptError) as error:
        pipeline(prompt)
    assert all(word in str(error.value) for word in words)
    assert "\n" not in str(error.value)


def test_every_prompt_it_offers_is_one_it_takes(pipeline):
    prompts = zoo.prompts("tiny-wan", 50, seed=3)
    assert len(set(prompts)) == 50 and prompts == zoo.prompts("tiny-wan", 50, seed=3)
    for prompt in prompts:
        pipeline.vocabulary.check(prompt)
    longest = max(pipeline.tokenizer(prompts)["input_ids"], key=len)
    assert len(longest) <= pipeline.facts["text_length"]


@pytest.mark.parametrize(("things", "moving"), [(1, 0), (1, 1), (2, 0), (2, 1), (2, 2)])
def test_prompts_by_how_much_moves(things, moving):
    for prompt in zoo.prompts("tiny-wan", 10, things=things, moving=moving):
        assert prompt.count(",") == things and prompt.count("moves") == moving


def test_prompts_that_there_are_not():
    with pytest.raises(SettingError, match="things=1, moving=2"):
        zoo.prompts("tiny-wan", 1, things=1, moving=2)
    with pytest.raises(SettingError, match="fewer"):
        zoo.prompts("tiny-wan", 100, things=1, moving=0)


def test_training_encodes_captions_as_the_pipeline_does(pipeline):
    from mmaccel.demos.training.wan.parts import encode_captions

    prompts = ["", "rocket moves up, pizza stays, blue background"]
    with torch.no_grad():
        ours = encode_captions(pipeline.tokenizer, pipeline.text_encoder, prompts)
        theirs, _ = pipeline.encode_prompt(prompts, max_sequence_length=pipeline.facts["text_length"])
    torch.testing.assert_close(ours, theirs)


@drawn
def test_training_runs_the_autoencoder_as_it_is(pipeline):
    from mmaccel.demos.training.wan.vae import decode, encode, pixels_of

    pixels = pixels_of([world.draw_clip(1)])
    with torch.no_grad():
        latents = encode(pipeline.vae, pixels).chunk(2, 1)[0]
        torch.testing.assert_close(latents, pipeline.vae.encode(pixels).latent_dist.mode(), atol=1e-4, rtol=1e-4)
        ours = decode(pipeline.vae, latents).clamp(-1, 1)
        torch.testing.assert_close(ours, pipeline.vae.decode(latents).sample, atol=1e-4, rtol=1e-4)
    assert (ours - pixels).square().mean() < 0.01


def test_clips_to_train_on_are_encoded_once(tmp_path):
    from mmaccel.demos.training.wan.vae import pool

    made = [(torch.rand(2, 3, 4).half().transpose(1, 2), ["rocket", "frog"])]
    first, again = (pool(tmp_path, 2, made.pop if made else None) for _ in range(2))
    assert first[0].shape == (2, 4, 3) and torch.equal(first[0], again[0]) and again[1] == ["rocket", "frog"]
    latents, captions = pool(tmp_path, 1, None)
    assert torch.equal(latents, first[0][:1]) and captions == ["rocket"]
    latents, captions = pool(tmp_path, 3, lambda: (torch.zeros(3, 4, 2), ["star", "frog", "pizza"]))
    assert len(latents) == 3 and captions[2] == "pizza", "made anew where there are fewer"


def test_held_out_loss_is_told_and_low():
    facts = json.loads((zoo.path("tiny-wan") / "training.json").read_text())
    assert 0 < facts["held_out_loss"] < 0.2


# ---------------------------------------------------------------- damaged files


def _copy(tmp_path):
    return shutil.copytree(zoo.path("tiny-wan"), tmp_path / "model")


def test_truncated_weights(tmp_path):
    folder = _copy(tmp_path)
    data = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(data[: len(data) // 2])
    with pytest.raises(WeightsError, match="damaged"):
        tiny_wan.load(folder)


def test_missing_and_misshapen_weights(tmp_path):
    folder = _copy(tmp_path)
    tensors = load_file(folder / WEIGHTS)
    save_file({k: v for k, v in tensors.items() if k != "proj_out.weight"}, folder / WEIGHTS, {"format": "pt"})
    with pytest.raises(WeightsError, match=r"proj_out\.weight"):
        tiny_wan.load(folder)
    save_file({**tensors, "proj_out.weight": torch.zeros(3, 3)}, folder / WEIGHTS, {"format": "pt"})
    with pytest.raises(WeightsError, match="not those of a WanTransformer3DModel"):
        tiny_wan.load(folder)
