"""diffusers' own pipelines around UNets, audio, a prior, control and modular blocks, small and without encoders."""

import diffusers
import pytest
import torch
from diffusers.models.transformers.transformer_glm_image import GlmImageKVCache
from diffusers.modular_pipelines import SequentialPipelineBlocks
from diffusers.modular_pipelines.stable_diffusion_xl.before_denoise import (
    StableDiffusionXLPrepareAdditionalConditioningStep,
    StableDiffusionXLPrepareLatentsStep,
    StableDiffusionXLSetTimestepsStep,
)
from diffusers.modular_pipelines.stable_diffusion_xl.denoise import StableDiffusionXLDenoiseStep
from diffusers.modular_pipelines.wan.modular_blocks_wan import WanCoreDenoiseStep
from diffusers.pipelines.ace_step.modeling_ace_step import AceStepConditionEncoder
from diffusers.pipelines.stable_audio import StableAudioProjectionModel
from diffusion_loop import noise
from PIL import Image
from transformers import (
    CLIPImageProcessor,
    CLIPTextConfig,
    CLIPTextModelWithProjection,
    CLIPVisionConfig,
    CLIPVisionModelWithProjection,
    T5Config,
    T5EncoderModel,
)

import mmaccel
from mmaccel import video
from mmaccel.adapter import find_adapter
from mmaccel.demos.families.models import build
from mmaccel.demos.families.sampling import Sampling, pipeline
from mmaccel.errors import SettingError, UnsupportedTargetError
from mmaccel.stepping.branches import Branches
from mmaccel.testing.snapshot import snapshot
from mmaccel.testing.untrained import untrained
from mmaccel.video import examples
from mmaccel.video.families.adapter import WATCHING

STEPS = 10
SIZE = {"num_inference_steps": STEPS, "output_type": "latent", "return_dict": False}
TEXT = {"prompt_embeds": noise(1, 5, 16), "negative_prompt_embeds": noise(1, 5, 16, seed=1)}
UNET = {
    "block_out_channels": (8, 16), "layers_per_block": 1, "norm_num_groups": 4, "attention_head_dim": 4,
    "sample_size": 8, "in_channels": 4, "out_channels": 4, "cross_attention_dim": 16,
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"), "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
}  # fmt: skip


def sdxl():
    added = {"addition_embed_type": "text_time", "addition_time_embed_dim": 8}
    unet = untrained(
        lambda: diffusers.UNet2DConditionModel(**UNET, **added, projection_class_embeddings_input_dim=64), 0
    )
    names = ("vae", "text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2")
    pipe = diffusers.StableDiffusionXLPipeline(
        **dict.fromkeys(names), unet=unet, scheduler=diffusers.EulerDiscreteScheduler(), add_watermarker=False
    )
    pooled = {"pooled_prompt_embeds": noise(1, 16), "negative_pooled_prompt_embeds": noise(1, 16, seed=1)}
    return pipe, {**TEXT, **pooled, **SIZE, "latents": noise(1, 4, 8, 8), "height": 64, "width": 64}


def animatediff():
    motion = {"motion_num_attention_heads": 2, "motion_norm_num_groups": 4, "motion_layers_per_block": 1}
    adapter = untrained(lambda: diffusers.MotionAdapter(block_out_channels=(8, 16), **motion), 0)
    pipe = diffusers.AnimateDiffPipeline(
        **dict.fromkeys(("vae", "text_encoder", "tokenizer")),
        unet=untrained(lambda: diffusers.UNet2DConditionModel(**UNET), 0),
        motion_adapter=adapter,
        scheduler=diffusers.DDIMScheduler(beta_schedule="linear", clip_sample=False),
    )
    return pipe, {**TEXT, **SIZE, "latents": noise(1, 4, 2, 8, 8), "height": 64, "width": 64, "num_frames": 2}


def cogvideo():
    """A step of this sampler is given what the one before predicted, between the output and the timestep."""
    pipe = diffusers.CogVideoXPipeline(
        **dict.fromkeys(("vae", "text_encoder", "tokenizer")),
        transformer=build("CogVideoXTransformer3DModel")[0],
        scheduler=diffusers.CogVideoXDPMScheduler(),
    )
    text = {"prompt_embeds": noise(1, 8, 8), "negative_prompt_embeds": noise(1, 8, 8, seed=1)}
    size = {"height": 64, "width": 64, "num_frames": 5}
    return pipe, {**text, **size, **SIZE, "latents": noise(1, 2, 4, 8, 8)}


class Unchecked(torch.nn.Identity):
    """In place of a checker of prompts that needs another package."""

    device = torch.device("cpu")


def cosmos():
    """Guides what a step predicts of the data, so that it takes every step twice: once to look at that."""
    pipe = diffusers.CosmosTextToWorldPipeline(
        **dict.fromkeys(("text_encoder", "tokenizer", "vae")),
        transformer=build("CosmosTransformer3DModel")[0],
        scheduler=diffusers.EDMEulerScheduler(),
        safety_checker=Unchecked(),
    )
    size = {"height": 64, "width": 64, "num_frames": 9}
    return pipe, {**TEXT, **size, **SIZE, "latents": noise(1, 4, 2, 8, 8)}


def autoencoder(channels=4):
    sizes = {"block_out_channels": (8,) * 4, "norm_num_groups": 4}
    sizes |= {"down_block_types": ("DownEncoderBlock2D",) * 4, "up_block_types": ("UpDecoderBlock2D",) * 4}
    return untrained(lambda: diffusers.AutoencoderKL(**sizes, latent_channels=channels, shift_factor=0.0), 0)


def image_to_image():
    pipe = diffusers.StableDiffusionImg2ImgPipeline(
        **dict.fromkeys(("text_encoder", "tokenizer", "safety_checker", "feature_extractor")),
        vae=autoencoder(),
        unet=untrained(lambda: diffusers.UNet2DConditionModel(**UNET), 0),
        scheduler=diffusers.DDIMScheduler(clip_sample=False, steps_offset=1),
        requires_safety_checker=False,
    )
    call = {**TEXT, **SIZE, "image": Image.new("RGB", (64, 64), (200, 10, 10)), "num_inference_steps": 2 * STEPS}
    return pipe, {**call, "strength": 0.5}


@pytest.mark.parametrize("strength", (0.5, 0.8, 0.9, 1.0))
def test_the_first_step_of_a_sampler_that_has_a_timestep_twice(strength):
    """PNDM makes its second step at one timestep with the third."""
    pipe, call = image_to_image()
    pipe.scheduler = diffusers.PNDMScheduler(skip_prk_steps=True, steps_offset=1)
    pipe.set_progress_bar_config(disable=True)
    with mmaccel.accelerate(pipe, video.HeterogeneousSteps(0.5)) as fast:
        first = []
        hook = pipe.unet.register_forward_hook(
            lambda *_: first.append(pipe.scheduler.step.function.__self__.stepper.run.step)
        )
        fast(**{**call, "num_inference_steps": 10, "strength": strength})
        hook.remove()
    assert first[0] == 11 - pipe.num_timesteps


def first_frame():
    """LTX from a first picture: the pipeline steps all tokens but those of the first frame."""
    levels = (True, True, False, False)
    sizes = {"block_out_channels": (8,) * 4, "decoder_block_out_channels": (8,) * 4, "latent_channels": 4}
    sizes |= {"layers_per_block": (1,) * 5, "decoder_layers_per_block": (1,) * 5, "decoder_inject_noise": (False,) * 5}
    sizes |= {"spatio_temporal_scaling": levels, "decoder_spatio_temporal_scaling": levels}
    sizes |= {"upsample_residual": (False,) * 4, "upsample_factor": (1,) * 4, "patch_size": 1}
    pipe, arguments = examples.ltx_pipeline()
    own = diffusers.LTXImageToVideoPipeline(
        **dict.fromkeys(("text_encoder", "tokenizer")),
        vae=untrained(lambda: diffusers.AutoencoderKLLTXVideo(**sizes), 0),
        transformer=pipe.transformer,
        scheduler=pipe.scheduler,
    )
    call = {name: value for name, value in arguments().items() if name != "latents"}
    size = {"height": 32, "width": 32, "num_frames": 9, "num_inference_steps": STEPS}
    return own, {**call, **size, "image": Image.new("RGB", (32, 32), (200, 10, 10))}


def prior():
    model, _ = build("StableCascadeUNet")
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    encoder = CLIPTextModelWithProjection(CLIPTextConfig(**sizes, vocab_size=8, projection_dim=8))
    pipe = diffusers.StableCascadePriorPipeline(
        **dict.fromkeys(("tokenizer", "feature_extractor", "image_encoder")),
        text_encoder=encoder,
        prior=model,
        scheduler=diffusers.DDPMWuerstchenScheduler(),
    )
    pooled = {"prompt_embeds_pooled": noise(1, 1, 16), "negative_prompt_embeds_pooled": noise(1, 1, 16, seed=1)}
    text = {"prompt_embeds": noise(1, 5, 16), "negative_prompt_embeds": noise(1, 5, 16, seed=1)}
    return pipe, {**pooled, **text, "height": 64, "width": 64, "num_inference_steps": STEPS, "return_dict": False}


def control():
    (pipe, arguments) = examples.flux_pipeline()
    net = diffusers.FluxControlNetModel.from_transformer(
        pipe.transformer, num_layers=1, num_single_layers=0, attention_head_dim=16, num_attention_heads=2
    )
    parts = {**pipe.components, "vae": autoencoder(1)}
    call = {**arguments(steps=STEPS), "control_image": Image.new("RGB", (256, 256), (200, 10, 10))}
    return diffusers.FluxControlNetPipeline(**parts, controlnet=net), call


def stable_video():
    """SVD: a clip from a picture, each frame with a guidance of its own, by the sampler it is released with."""
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision |= {"image_size": 224, "patch_size": 112, "projection_dim": 32}
    model, _ = build("UNetSpatioTemporalConditionModel")
    sizes = {**model.config, "in_channels": 8}  # the picture's beside those of the clip
    pipe = diffusers.StableVideoDiffusionPipeline(
        vae=untrained(lambda: diffusers.AutoencoderKLTemporalDecoder(block_out_channels=(32,), latent_channels=4), 0),
        image_encoder=CLIPVisionModelWithProjection(CLIPVisionConfig(**vision)),
        unet=untrained(lambda: type(model).from_config(sizes), 0),
        scheduler=diffusers.EulerDiscreteScheduler(
            prediction_type="v_prediction", timestep_type="continuous", sigma_min=0.002, sigma_max=700.0,
            use_karras_sigmas=True,
        ),
        feature_extractor=CLIPImageProcessor(),
    )  # fmt: skip
    call = {**SIZE, "image": Image.new("RGB", (8, 8), (200, 10, 10)), "height": 8, "width": 8, "num_frames": 2}
    return pipe, {**call, "latents": noise(1, 2, 4, 8, 8)}


def oobleck():
    sizes = {
        "encoder_hidden_size": 8,
        "downsampling_ratios": [1, 2],
        "decoder_channels": 8,
        "decoder_input_channels": 3,
    }
    return untrained(lambda: diffusers.AutoencoderOobleck(**sizes, channel_multiples=[1, 2], sampling_rate=4), 0)


def stable_audio():
    """Lengths are encoded beside the text. (The sampler that it is released with needs another package, torchsde.)"""
    pipe = diffusers.StableAudioPipeline(
        **dict.fromkeys(("text_encoder", "tokenizer")),
        vae=oobleck(),
        projection_model=untrained(lambda: StableAudioProjectionModel(4, 4, 0, 32), 0),
        transformer=build("StableAudioDiTModel")[0],
        scheduler=diffusers.EDMDPMSolverMultistepScheduler(),
    )
    pipe.text_encoder = T5EncoderModel(T5Config(vocab_size=8, d_model=4, d_kv=2, d_ff=4, num_layers=1, num_heads=2))
    text = {"prompt_embeds": noise(1, 5, 4), "negative_prompt_embeds": noise(1, 5, 4, seed=1)}
    masks = {f"{name}attention_mask": torch.ones(1, 5, dtype=torch.long) for name in ("", "negative_")}
    return pipe, {**text, **masks, "num_inference_steps": STEPS, "return_dict": False, "latents": noise(1, 3, 16)}


def ace_step():
    """Guidance that remembers the steps before (APG), and times between 0 and 1."""
    sizes = {"hidden_size": 32, "intermediate_size": 64, "text_hidden_dim": 16, "timbre_hidden_dim": 8}
    sizes |= {"num_lyric_encoder_hidden_layers": 1, "num_timbre_encoder_hidden_layers": 1, "num_attention_heads": 4}
    pipe = diffusers.AceStepPipeline(
        **dict.fromkeys(("vae", "text_encoder", "tokenizer")),
        transformer=build("AceStepTransformer1DModel")[0],
        condition_encoder=untrained(lambda: AceStepConditionEncoder(**sizes, num_key_value_heads=2, head_dim=8), 0),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(num_train_timesteps=1, shift=1.0),
    )
    mask = torch.ones(1, 5, dtype=torch.long)
    pipe.encode_prompt = lambda **_: (noise(1, 5, 16), mask, noise(1, 5, 16, seed=1), mask)
    return pipe, {"prompt": "", "audio_duration": 0.64, **SIZE}


def modular():
    model, _ = build("WanTransformer3DModel")
    pipe = WanCoreDenoiseStep().init_pipeline()
    skipped = diffusers.hooks.LayerSkipConfig(indices=[1], fqn="blocks")
    guider = diffusers.SkipLayerGuidance(
        3.0, skip_layer_config=skipped, skip_layer_guidance_start=0.0, skip_layer_guidance_stop=1.0
    )
    pipe.update_components(
        transformer=model, scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0), guider=guider
    )
    pipe.set_progress_bar_config(disable=True)
    text = {"prompt_embeds": noise(1, 5, 16), "negative_prompt_embeds": noise(1, 5, 16, seed=1)}
    size = {"height": 32, "width": 32, "num_frames": 5, "num_inference_steps": STEPS, "output": "latents"}
    return pipe, {**text, **size, "latents": noise(1, 4, 2, 4, 4)}


BUILD = (
    sdxl,
    animatediff,
    cogvideo,
    cosmos,
    image_to_image,
    first_frame,
    prior,
    control,
    modular,
    stable_video,
    stable_audio,
    ace_step,
)


def run(target, call):
    torch.manual_seed(0)
    out = target(**call)
    return out if isinstance(out, torch.Tensor) else out[0]


@pytest.mark.parametrize("build", BUILD, ids=lambda build: build.__name__)
def test_half_the_calls_are_saved_without_a_trace(build):
    pipe, call = build()
    pipe.set_progress_bar_config(disable=True)
    plain = run(pipe, call)
    before = snapshot(pipe)
    for method in (video.HeterogeneousSteps(1.0), video.EasyCache(0.0)):
        with mmaccel.accelerate(pipe, method) as fast:
            assert torch.equal(run(fast, call), plain)
    for method in (video.HeterogeneousSteps(0.5, warmup=1), video.EasyCache(1e6, warmup=2)):
        with mmaccel.accelerate(pipe, method) as fast:
            out, report = run(fast, call), fast.report
            assert out.isfinite().all() and not torch.equal(out, plain) and report.engaged
            assert report.forwards <= 0.6 * report.plain_forwards  # fewer steps of image-to-image than were planned for
            assert len(video.trace_of(fast).shares()) == STEPS if isinstance(method, video.HeterogeneousSteps) else True
    assert snapshot(pipe) == before and torch.equal(run(pipe, call), plain)


@pytest.mark.parametrize("sampler", (diffusers.EulerDiscreteScheduler, diffusers.DPMSolverMultistepScheduler))
def test_a_run_that_a_refiner_is_to_end_spends_its_budget_on_the_steps_that_are_made(sampler):
    pipe, call = sdxl()
    pipe.scheduler = sampler()
    pipe.set_progress_bar_config(disable=True)
    call = {**call, "num_inference_steps": 30, "denoising_end": 0.6}
    with mmaccel.accelerate(pipe, video.HeterogeneousSteps(0.5)) as fast:
        run(fast, call)
        made = len(pipe.scheduler.timesteps[pipe.scheduler.timesteps >= 400])
        assert made < 20 and fast.report.plain_forwards == made and fast.report.forwards == made // 2
        shares = video.trace_of(fast).shares()
        assert len(shares) == made and shares[-1] == 1
        run(fast, {**call, "denoising_end": None})
        assert fast.report.plain_forwards == 30
        run(pipe, call)
        assert fast.report.plain_forwards == made, "also where the pipeline itself is called"


@pytest.mark.parametrize(("strength", "steps"), ((0.14, 7), (0.3, 15), (1.0, 50)))
def test_another_pipeline_with_the_same_parts_ends_where_it_will(strength, steps):
    """Not where the last call of the session was to end: it may even begin further down, or at the first step."""
    pipe, call = sdxl()
    names = ("vae", "text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2")
    sibling = diffusers.StableDiffusionXLImg2ImgPipeline(
        **dict.fromkeys(names), unet=pipe.unet, scheduler=pipe.scheduler, add_watermarker=False
    )
    for each in (pipe, sibling):
        each.set_progress_bar_config(disable=True)
    call["num_inference_steps"] = 50
    kept = {name: value for name, value in call.items() if name not in ("height", "width")}
    image = {**kept, "image": noise(1, 4, 8, 8, seed=7), "strength": strength}
    plain = run(sibling, image)
    with mmaccel.accelerate(pipe, video.HeterogeneousSteps(0.5, warmup=1)) as fast:
        run(fast, {**call, "denoising_end": 0.8})
        found, report = run(sibling, image), fast.report
        assert report.plain_forwards == steps and report.engaged and report.work_ratio < 0.7
        assert not torch.equal(found, plain) and len(report.details["steps"]) == steps
    with mmaccel.accelerate(sibling, video.HeterogeneousSteps(0.5, warmup=1)) as fast:
        shares = []
        for target in (fast, sibling):
            run(target, {**image, "strength": 0.3, "denoising_end": 0.9})
            assert fast.report.plain_forwards == 10 == len(fast.report.details["steps"])
            shares.append(video.trace_of(fast).shares())
        assert shares[0] == shares[1] and shares[1][-1] == 1, "planned for the steps that are made, either way"
        assert sibling.scheduler.step.function.__self__.stepper is None, "over, though the sampler has more steps"


@pytest.mark.parametrize("method", (video.EasyCache(1e9, warmup=1), video.TaylorSeer(interval=3, warmup=2)), ids=str)
@pytest.mark.parametrize("part", ({"stop": 0.5}, {"start": 0.5}), ids=("ends", "begins"))
def test_guidance_that_comes_or_goes_leaves_other_branches_theirs(method, part, monkeypatch):
    """A pass with skipped layers comes in the place of that without the prompt: it is not answered for that."""
    pipe, call = modular()
    skipped = diffusers.hooks.LayerSkipConfig(indices=[1], fqn="blocks")
    pipe.update_components(
        guider=diffusers.SkipLayerGuidance(
            3.0, skip_layer_config=skipped, skip_layer_guidance_start=0.0, skip_layer_guidance_stop=1.0, **part
        )
    )
    numbers, found = [], Branches.next

    def told(self, expert, text, is_first=False):
        numbers.append((found(self, expert, text, is_first), bool(torch.equal(text, call["prompt_embeds"]))))
        return numbers[-1][0]

    monkeypatch.setattr(Branches, "next", told)
    with mmaccel.accelerate(pipe, method) as fast:
        fast(**call)
    assert {is_prompt for _, is_prompt in numbers} == {True, False}, "there are passes without the prompt"
    assert len(set(numbers)) == 3, "each number has one text"


@pytest.mark.parametrize("made", ("modular", "modular_sdxl"))
@pytest.mark.parametrize("still", (0, 1, 2))
def test_nothing_is_forecast_from_steps_in_which_guidance_stands_still(still, made):
    """CFG-Zero*: its first velocities are zeros, or its first noise, and no slope leads from them to the next."""
    pipe, call = globals()[made]()
    pipe.update_components(guider=diffusers.ClassifierFreeZeroStarGuidance(3.0, zero_init_steps=still))
    with mmaccel.accelerate(pipe, video.HeterogeneousSteps(0.5, warmup=1, interval=2)) as fast:
        run(fast, call)
        assert list(video.trace_of(fast).shares()[:4]) == [1, float(still > 0), 1, 0] and fast.report.engaged


def modular_sdxl():
    """The modular twin, which has no progress bar of its own, and keeps nothing of a call."""
    pipe, call = sdxl()
    blocks = SequentialPipelineBlocks.from_blocks_dict(
        {
            "times": StableDiffusionXLSetTimestepsStep(),
            "latents": StableDiffusionXLPrepareLatentsStep(),
            "added": StableDiffusionXLPrepareAdditionalConditioningStep(),
            "denoise": StableDiffusionXLDenoiseStep(),
        }
    )
    twin = blocks.init_pipeline()
    twin.update_components(unet=pipe.unet, scheduler=pipe.scheduler, guider=diffusers.ClassifierFreeGuidance(5.0))
    text = {name: value for name, value in call.items() if "embeds" in name}
    call = {name: call[name] for name in ("pooled_prompt_embeds", "latents", "height", "width")}
    return twin, {**call, "denoiser_input_fields": text, "batch_size": 1, "dtype": torch.float32, "output": "latents"}


def test_a_modular_run_that_a_refiner_is_to_end_spends_its_budget_on_the_steps_that_are_made():
    pipe, call = modular_sdxl()
    pipe.set_progress_bar_config(disable=True)
    call = {**call, "num_inference_steps": 30, "denoising_end": 0.6}
    with mmaccel.accelerate(pipe, video.HeterogeneousSteps(0.5)) as fast:
        run(fast, call)
        made = len(pipe.scheduler.timesteps[pipe.scheduler.timesteps >= 400])
        assert made < 20 and fast.report.plain_forwards == 2 * made and fast.report.forwards == 2 * (made // 2)
        shares = video.trace_of(fast).shares()
        assert len(shares) == made and shares[-1] == 1
        run(pipe, {**call, "denoising_end": None})
        assert fast.report.plain_forwards == 60, "the pipeline itself, which knows nothing of the call before"
        run(fast, {**call, "denoising_end": None})
        assert fast.report.plain_forwards == 60


def test_a_call_that_returns_all_its_state_is_neither_measured_nor_compared():
    """Nor begun: it names no pictures that could be compared. Once another was measured, it is fast."""
    pipe, call = modular()
    named, passes = call.pop("output"), []
    pipe.transformer.register_forward_hook(lambda *_: passes.append(1))
    with pytest.raises(SettingError, match="whole state: name what is to be compared"):
        mmaccel.compare(pipe, video.EasyCache(), **call)
    assert not passes
    with mmaccel.accelerate(pipe, video.auto(min_psnr=1.0)) as fast:
        with pytest.raises(SettingError, match=r"whole state: name what is to be compared .* output='images'"):
            fast(**call)
        assert not passes
        fast(**call, output=[named, "timesteps"])
        assert fast.plan.measured and fast.report.engaged
        assert fast(**call).get(named).isfinite().all() and fast.report.engaged


def test_a_modular_pipeline_that_has_not_loaded_its_parts_is_told_how():
    pipe = WanCoreDenoiseStep().init_pipeline()
    methods = (video.HeterogeneousSteps(), video.EasyCache(), video.auto(), video.SparseAttention())
    for part in ("scheduler", "transformer"):
        for method in methods:
            told = rf"WanModularPipeline has not loaded its {part}: call pipe\.load_components\(\) before accelerate"
            with pytest.raises(UnsupportedTargetError, match=told):
                mmaccel.plan(pipe, method)
        pipe.update_components(scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0))
    pipe.update_components(transformer=build("WanTransformer3DModel")[0])
    assert all(mmaccel.plan(pipe, method) for method in methods)


def test_a_call_of_several_runs_says_nothing_of_those_that_came_to_nothing():
    pipe, call = animatediff()
    pipe.set_progress_bar_config(disable=True)
    pipe.enable_free_init(num_iters=3, use_fast_sampling=True)  # runs of 4, 8 and 12 steps
    call = {**call, "num_inference_steps": 12}
    for method in (video.EncoderReuse(), video.HeterogeneousSteps(0.5)):
        with mmaccel.accelerate(pipe, method) as fast:
            run(fast, call)
            assert fast.report.engaged and fast.report.work_ratio < 1
            assert not [text for text in fast.report.warnings if "reused nothing" in text or "too few to" in text]


def test_one_step_after_another_call_of_one_is_no_part_of_a_picture():
    pipe, call = image_to_image()
    pipe.set_progress_bar_config(disable=True)
    with mmaccel.accelerate(pipe, video.EasyCache(1e6, warmup=2)) as fast:
        for _ in range(2):
            run(fast, {**call, "strength": 0.05})
            assert not any("one noise level" in text for text in fast.report.warnings)


def test_parts_of_a_wide_picture_are_no_steps():
    absent = ("vae", "text_encoder", "tokenizer", "safety_checker", "feature_extractor")
    below = {
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
    }  # attention where a part of 64 x 64 is smaller
    pipe = diffusers.StableDiffusionPanoramaPipeline(
        **dict.fromkeys(absent),
        unet=untrained(lambda: diffusers.UNet2DConditionModel(**{**UNET, **below}), 0),
        scheduler=diffusers.DDIMScheduler(clip_sample=False, steps_offset=1),
        requires_safety_checker=False,
    )
    pipe.set_progress_bar_config(disable=True)
    call = {**TEXT, **SIZE, "latents": noise(1, 4, 64, 72), "height": 512, "width": 576}  # two parts
    plain = run(pipe, call)
    for method in (video.HeterogeneousSteps(0.5), video.EasyCache(1e6, warmup=2)):
        with mmaccel.accelerate(pipe, method) as fast:
            assert torch.equal(run(fast, call), plain)
            assert any("several steps at one noise level" in text for text in fast.report.warnings)
    assert torch.equal(run(pipe, call), plain)


def test_tokens_are_not_chosen_where_only_some_of_them_are_stepped():
    pipe, call = first_frame()
    pipe.set_progress_bar_config(disable=True)
    plain = run(pipe, call)
    method = video.HeterogeneousSteps(0.5, fraction=0.5, warmup=1)
    with (
        mmaccel.accelerate(pipe, method) as fast,
        pytest.raises(UnsupportedTargetError, match=r"steps 128 of the 192 tokens .*: leave fraction= and policy="),
    ):
        run(fast, call)
    assert torch.equal(run(pipe, call), plain)


@pytest.mark.parametrize("method", (video.HeterogeneousSteps(0.5, warmup=1), video.EasyCache(1e6, warmup=2)), ids=str)
def test_a_control_net_that_runs_in_skipped_steps_is_told_of(method):
    """Once, and not where no step was skipped, nor of pipelines without one."""
    pipe, call = control()
    runs = []
    pipe.controlnet.register_forward_hook(lambda *_: runs.append(1))
    with mmaccel.accelerate(pipe, method) as fast:
        fast(**call)
        told = [text for text in fast.report.warnings if "ControlNet" in text]
        assert told == ["the ControlNet runs in skipped steps too, for nothing, and is not among the passes counted"]
        assert fast.report.forwards < fast.report.plain_forwards == len(runs)
        fast(**{**call, "num_inference_steps": 1})
        assert not any("ControlNet" in text for text in fast.report.warnings)
    pipe, arguments = examples.flux_pipeline()
    with mmaccel.accelerate(pipe, method) as fast:
        fast(**arguments(steps=STEPS))
        assert fast.report.engaged and not any("ControlNet" in text for text in fast.report.warnings)


def test_a_pass_over_some_tokens_takes_no_control_between_the_blocks():
    """Of which there is as much as of all tokens; a token cache adds it to all."""
    pipe, call = control()
    pipe.set_progress_bar_config(disable=True)
    with (
        mmaccel.accelerate(pipe, video.HeterogeneousSteps(0.5, fraction=0.5, warmup=1)) as fast,
        pytest.raises(UnsupportedTargetError, match="ControlNet adds to all tokens .*: pass fraction=0"),
    ):
        run(fast, call)
    with mmaccel.accelerate(pipe, video.TokenCache(0.8)) as fast:
        assert run(fast, call).isfinite().all() and fast.report.engaged


@pytest.mark.parametrize("method", (video.TokenCache(0.8), video.HeterogeneousSteps(fraction=0.5, warmup=1)), ids=str)
def test_tokens_are_not_chosen_beside_those_of_given_pictures(method):
    """Of which GLM-Image keeps keys and values; without a picture it keeps none."""
    pipe, inputs = pipeline("GlmImageTransformer2DModel")
    layers = GlmImageKVCache(pipe.transformer.config.num_layers)
    call = {**inputs, "kv_caches": layers}
    with mmaccel.accelerate(pipe, method) as fast:
        fast(call)
        assert fast.report.engaged
        layers.set_mode("write")
        pipe.transformer(**call)
        layers.set_mode("read")
        with pytest.raises(UnsupportedTargetError, match="keys and values of given pictures too.*: leave the pictures"):
            fast(call)
    with mmaccel.accelerate(pipe, video.HeterogeneousSteps(warmup=1)) as fast:
        assert fast(call).isfinite().all() and fast.report.engaged


class Steady(Sampling):
    """With one text tensor for each branch, by whose place in memory diffusers knows it."""

    def _guided(self, whole, inputs, t):
        if not hasattr(self, "texts"):
            text = inputs["encoder_hidden_states"]
            self.texts = text, -text
        time = torch.full_like(inputs["timestep"], float(t))
        given = [{**inputs, "hidden_states": whole, "timestep": time, "encoder_hidden_states": x} for x in self.texts]
        prompt, other = (self.transformer(**branch)[0] for branch in given)
        return other + 3 * (prompt - other)


@pytest.mark.parametrize("method", (video.EasyCache(1e6, warmup=2), video.TeaCache(1e6), video.TaylorSeer(3)), ids=str)
def test_the_exact_cache_of_projected_text_stays_on(method):
    made, inputs = pipeline("NucleusMoEImageTransformer2DModel")
    pipe = Steady(made.scheduler, transformer=made.transformer)
    plain = pipe(inputs)
    with mmaccel.accelerate(pipe, method) as fast:
        alone = fast(inputs)
    pipe.transformer.enable_cache(diffusers.TextKVCacheConfig())
    with mmaccel.accelerate(pipe, method) as fast:
        assert torch.equal(fast(inputs), alone) and not torch.equal(alone, plain)
    assert torch.equal(pipe(inputs), plain) and pipe.transformer.is_cache_enabled


@pytest.mark.parametrize("name", ("LCMScheduler", "TCDScheduler"))
def test_samplers_that_draw_anew_are_refused(name):
    """Measured with the exact noise of a mixture of points: forecasts there end at -60 dB."""
    pipe, _ = sdxl()
    pipe.scheduler = getattr(diffusers, name)()
    for method in (video.HeterogeneousSteps(), video.EasyCache(), video.Auto()):
        with pytest.raises(UnsupportedTargetError, match=f"{name} draws the sample anew in every one: run fewer steps"):
            mmaccel.plan(pipe, method)
        with pytest.raises(UnsupportedTargetError) as error:
            mmaccel.plan(pipe, method)
        assert "SparseAttention" not in str(error.value), "which works on transformers alone"
    pipe.scheduler = type("Own", (getattr(diffusers, name),), {})()
    with pytest.raises(UnsupportedTargetError, match="Own draws the sample anew in every one"):
        mmaccel.plan(pipe, video.EasyCache())


@pytest.mark.parametrize("name", WATCHING)
def test_pipelines_that_go_by_the_attention_of_every_pass_are_refused(name):
    """Guidance by self-attention met a map of another size in the first step that was left out."""
    kind = getattr(diffusers, name)
    for each in (kind, type("Own", (kind,), {})):
        pipe = each.__new__(each)
        vars(pipe).update(unet=build("UNet2DConditionModel")[0], scheduler=diffusers.DDIMScheduler())
        said = f"{each.__name__} goes by the attention of every one: run fewer steps"
        for method in (video.HeterogeneousSteps(), video.EasyCache(), video.EncoderReuse(), video.Auto()):
            with pytest.raises(UnsupportedTargetError, match=said):
                mmaccel.plan(pipe, method)


def test_advice_names_the_unet_of_a_pipeline_and_no_method_that_refuses_it():
    pipe, call = sdxl()
    pipe.set_progress_bar_config(disable=True)
    with mmaccel.accelerate(pipe, video.HeterogeneousSteps()) as fast:
        run(fast, {**call, "num_inference_steps": 4})
        assert "remove() the session and call pipe.unet.compile() before accelerate()" in str(
            fast.report
        ) and "SparseAttention" not in str(fast.report)
    pipe.unet = torch.compile(pipe.unet, backend="eager")
    with pytest.raises(UnsupportedTargetError, match=r"write pipe\.unet\.compile"):
        mmaccel.plan(pipe, video.EasyCache())


def test_passes_that_skip_the_block_where_reuse_begins_are_computed():
    """The hook of a guider answers for it, in a third pass from the second step on."""
    pipe, call = modular()
    with mmaccel.accelerate(pipe, video.BlockCache(1e6, warmup=2)) as fast:
        assert run(fast, call).isfinite().all()
        shares = fast.report.details["computed"]
    assert len(shares) == 3 * STEPS - 1 and set(shares[4::3]) == {1.0}
    assert shares[5:7] == shares[-6:-4] and max(shares[5:7]) < 1, "the others reuse"


def test_what_has_no_sampler_of_its_own_is_refused():
    class Two(diffusers.DiffusionPipeline):
        def __init__(self, transformer, first_scheduler, second_scheduler):
            super().__init__()
            self.register_modules(
                transformer=transformer, first_scheduler=first_scheduler, second_scheduler=second_scheduler
            )

    model, _ = build("WanTransformer3DModel")
    pipe = Two(model, diffusers.DDIMScheduler(), diffusers.DDIMScheduler())
    with pytest.raises(UnsupportedTargetError, match="follows the steps of pipe.scheduler, which Two does not have"):
        mmaccel.plan(pipe, video.EasyCache())


def test_a_prior_with_a_scheduler_of_its_own_is_not_stepped_with_the_decoder():
    class Both(diffusers.DiffusionPipeline):
        def __init__(self, prior, prior_scheduler, unet, scheduler):
            super().__init__()
            self.register_modules(prior=prior, prior_scheduler=prior_scheduler, unet=unet, scheduler=scheduler)

    prior, unet = build("PriorTransformer")[0], build("UNet2DModel")[0]
    pipe = Both(prior, diffusers.UnCLIPScheduler(), unet, diffusers.DDIMScheduler())
    assert find_adapter(pipe).denoisers() == [unet]
