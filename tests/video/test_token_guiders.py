"""Steps that compute some tokens refuse guiders that perturb attention, or skip the blocks at the ends."""

import diffusers
import pytest
from diffusers.hooks.hooks import HookRegistry
from diffusers.hooks.layer_skip import AttentionProcessorSkipHook
from diffusers.hooks.smoothed_energy_guidance_utils import SmoothedEnergyGuidanceHook
from diffusers.modular_pipelines.wan.modular_blocks_wan import WanCoreDenoiseStep
from diffusion_loop import noise

import mmaccel
from mmaccel import video
from mmaccel.demos.families.models import build
from mmaccel.errors import UnsupportedTargetError


def guided(kind, **settings):
    pipe = WanCoreDenoiseStep().init_pipeline()
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0)
    pipe.update_components(transformer=build("WanTransformer3DModel")[0], scheduler=scheduler)
    pipe.update_components(guider=kind(3.0, **settings))
    pipe.set_progress_bar_config(disable=True)
    text = {"prompt_embeds": noise(1, 5, 16), "negative_prompt_embeds": noise(1, 5, 16, seed=1)}
    size = {"height": 32, "width": 32, "num_frames": 5, "num_inference_steps": 10, "output": "latents"}
    return pipe, {**text, **size, "latents": noise(1, 4, 2, 4, 4)}


@pytest.mark.parametrize("method", (video.HeterogeneousSteps(fraction=0.25), video.TokenCache(budget=0.8)), ids=str)
@pytest.mark.parametrize("place", ("attn1", "attn1.to_q"))
def test_perturbed_attention_is_refused(place, method):
    """The hooks of guiders for perturbed attention and smoothed energy, put where they put them."""
    pipe, call = guided(diffusers.ClassifierFreeGuidance)
    part = pipe.transformer.blocks[1].get_submodule(place)
    hook = SmoothedEnergyGuidanceHook() if place.endswith("to_q") else AttentionProcessorSkipHook(None, True)
    HookRegistry.check_if_exists_or_initialize(part).register_hook(hook, "guider")
    with mmaccel.accelerate(pipe, method) as fast, pytest.raises(UnsupportedTargetError, match="PAG"):
        fast(**call)


@pytest.mark.parametrize("layer", (0, -1))
def test_skipping_a_block_at_the_ends_is_refused(layer):
    layer %= len(build("WanTransformer3DModel")[0].blocks)
    skipped = diffusers.hooks.LayerSkipConfig(indices=[layer], fqn="blocks")
    ends = {"skip_layer_guidance_start": 0.0, "skip_layer_guidance_stop": 1.0}
    pipe, call = guided(diffusers.SkipLayerGuidance, skip_layer_config=skipped, **ends)
    method = video.HeterogeneousSteps(fraction=0.25)
    with mmaccel.accelerate(pipe, method) as fast, pytest.raises(UnsupportedTargetError, match="first or last block"):
        fast(**call)
