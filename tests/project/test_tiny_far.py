"""The shipped model that draws videos in blocks, the smaller one that drafts for it, and who tells what they show."""

import shutil

import numpy as np
import pytest
import torch
from diffusers import AnyFlowFARPipeline, AnyFlowFARTransformer3DModel, FlowMapEulerDiscreteScheduler

import mmaccel
from mmaccel import video, zoo
from mmaccel.demos.training.far import shape
from mmaccel.demos.training.far.loss import BlockLoss, TrainingAttention
from mmaccel.demos.video.recognized_things import Asked
from mmaccel.errors import PromptError, SettingError
from mmaccel.zoo.worlds import moving_world as world

PROMPT = "soccer ball moves right, green background"
SHORT = {"num_frames": 23, "num_inference_steps": 8, "guidance_scale": 1.0, "output_type": "pt"}


def seeded(**more):
    return {**SHORT, "generator": torch.Generator().manual_seed(0), **more}


@pytest.fixture(scope="module")
def pipeline():
    loaded = zoo.load("tiny-far")
    loaded.set_progress_bar_config(disable=True)
    return loaded


@pytest.fixture(scope="module")
def plain(pipeline):
    return pipeline(PROMPT, **seeded()).frames


def test_is_the_real_classes_of_two_sizes_on_one_text_encoder(pipeline):
    assert isinstance(pipeline, AnyFlowFARPipeline)
    assert type(pipeline.scheduler) is FlowMapEulerDiscreteScheduler and pipeline.scheduler.config.shift == 3.0
    sizes = []
    for model in (pipeline.transformer, pipeline.draft):
        assert type(model) is AnyFlowFARTransformer3DModel and model.dtype == torch.float32
        sizes.append(sum(parameter.numel() for parameter in model.parameters()))
    assert sizes[0] > 5 * sizes[1]


def test_what_its_recipe_writes_is_loaded_from_any_folder(pipeline, tmp_path):
    """The recipe writes no autoencoder and no text encoder: those are the shipped ones."""
    shutil.copytree(zoo.path("tiny-far"), tmp_path / "model")
    loaded = zoo.load("tiny-far", tmp_path / "model")
    for part in ("transformer", "vae", "text_encoder"):
        weights, shipped = getattr(loaded, part).state_dict(), getattr(pipeline, part).state_dict()
        assert all(torch.equal(value, shipped[name]) for name, value in weights.items())


def test_it_draws_what_the_caption_says_in_blocks(plain):
    assert plain.shape == (1, 23, 3, 64, 64)
    red, green, blue = plain[0, :, :, :3, :3].mean((0, 2, 3)).tolist()
    assert green > red + 0.1 and green > blue + 0.1


@pytest.mark.usefixtures("emoji_font")
def test_the_thing_is_recognized_in_each_frame(plain):
    asked = Asked(PROMPT)
    assert asked.things == {"soccer ball": "moves right"}
    assert asked.recognized(plain[0]) > 0.9 and asked.score(plain).min() > 0.7
    assert Asked("rocket moves right").recognized(plain[0]) == 0


@pytest.mark.usefixtures("emoji_font")
@pytest.mark.parametrize("kept", [True, False])
def test_drafts_that_score_are_kept_and_others_are_drawn_anew(pipeline, plain, kept):
    with mmaccel.accelerate(pipeline, video.BlockRouter(tau=0.0 if kept else 1.0)) as fast:
        drawn = fast(PROMPT, **seeded(draft=pipeline.draft, score=Asked(PROMPT).score)).frames
        assert fast.report.details["kept"] == 2 * kept and fast.report.details["drafts"] == 2
    assert torch.equal(drawn, plain) != kept
    assert Asked(PROMPT).recognized(drawn[0]) > 0.8


@pytest.mark.parametrize("frames", [3, 7, 9])
def test_any_number_of_frames_is_drawn(pipeline, frames):
    assert pipeline(PROMPT, **seeded(num_frames=frames, num_inference_steps=1)).frames.shape[1] == frames


@pytest.mark.parametrize("frames", [2, 8, 24])
def test_an_even_number_of_frames_is_rounded_as_the_pipeline_rounds_it(pipeline, frames):
    drawn = pipeline(PROMPT, **seeded(num_frames=frames, num_inference_steps=1)).frames
    assert drawn.shape[1] == frames + 1 and sum(pipeline.blocks(frames)) == 1 + frames // 2


def test_a_single_frame_is_refused(pipeline):
    with pytest.raises(SettingError, match="two blocks at least, num_frames=3"):
        pipeline(PROMPT, **seeded(num_frames=1))


def test_prompts_outside_its_world_are_refused(pipeline):
    with pytest.raises(PromptError, match="spaceship"):
        pipeline("spaceship", **seeded())


def test_what_it_learns_is_what_it_is_asked_when_it_draws():
    """A block's velocity behind clean blocks in training, and behind the cache of the same blocks."""
    torch.manual_seed(0)
    model = shape.build_transformer("draft").eval()
    model.proj_out.weight.data.normal_(0, 0.1)
    shown, noise, text = torch.randn(1, 20, 8, 16, 16), torch.randn(1, 4, 8, 16, 16), torch.randn(1, 16, 96)
    time = torch.full((1, 4), 600.0)
    pipe = AnyFlowFARPipeline(
        tokenizer=None, text_encoder=None, vae=None, scheduler=shape.build_scheduler(), transformer=model
    )
    pipe._guidance_scale, pipe._attention_kwargs = 1.0, None
    blocks, flag = [4] * 5, {"num_cached_chunks": 0, "is_cache_step": False}
    kept = {
        layer: {"full_cache": torch.zeros(2, 1, 2, 768, 64), "compressed_cache": torch.zeros(2, 1, 2, 192, 64)}
        for layer in range(model.config.num_layers)
    }
    call = {"encoder_hidden_states": text, "return_dict": False, "r_timestep": time / 2}
    with torch.no_grad():
        for block in range(4):
            kept = pipe.encode_kv_cache(kept, flag, blocks[: block + 1], block, shown, text, None)
        drawn = model(noise, time, **call, chunk_partition=blocks, kv_cache=kept, kv_cache_flag=flag)[0]
        TrainingAttention.put_on(model)
        shares = torch.full((1, 5), 1 / 3)  # after the scheduler's shift: 0.6
        heard = []
        model.register_forward_hook(lambda module, args, output: heard.append(output[0]))
        shown[:, 16:] = 0  # with clean latents of zero, noise / 0.6 is noised to `noise`
        BlockLoss(model)(shown, text, shares, torch.full((1, 5), 0.5), torch.cat([shown[:, :16], noise / 0.6], 1))
    assert (heard[0][:, -4:] - drawn).abs().max() < 1e-4 * drawn.abs().max()


@pytest.mark.usefixtures("emoji_font")
def test_clips_to_learn_from_are_long_and_slow():
    clip = world.draw_clip(3, footage=world.FAR)
    assert clip.frames.shape == (71, 64, 64, 3)
    for actor, path in zip(clip.scene.actors, clip.places, strict=True):
        assert np.array_equal(np.sign(path[-1] - path[0]), world.MOTIONS[actor.motion])
        assert np.abs(np.diff(path, axis=0)).max() <= 1
    frames = torch.from_numpy(clip.frames).permute(0, 3, 1, 2) / 255
    asked = Asked(clip.caption)
    assert asked.recognized(frames) == asked.moved(frames) == 1.0
    assert asked.moved(frames.flip(0)) < 1.0 or not clip.scene.moving
