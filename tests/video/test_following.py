"""Following the steps of a pipeline: several runs in one call, and what cannot be followed is said or refused."""

import copy
import threading
from types import SimpleNamespace

import diffusers
import diffusion_loop as loop
import pytest
import sampled_models
import torch
from PIL import Image
from tensor_calls import TensorCalls
from transformers import (
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    CLIPVisionModel,
    SiglipImageProcessorPil,
    SiglipVisionConfig,
    SiglipVisionModel,
)

import mmaccel
from mmaccel import video
from mmaccel.errors import ActiveSessionError, ConflictError, SettingError, UnsupportedTargetError
from mmaccel.stepping.tensors import tensors
from mmaccel.testing.contract import Interrupted, broken_after
from mmaccel.video import examples
from mmaccel.video.families.adapter import IN_CALLBACK
from mmaccel.video.samplers import first_step, is_flow, levels_of, step_names

FLOW = {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": 3.0}
BUILD = {"base_dim": 3, "dim_mult": [1, 1, 1, 1], "num_res_blocks": 1, "temperal_downsample": [False, True, True]}
TEXT = {"prompt_embeds": loop.noise(1, 5, 16), "negative_prompt_embeds": loop.noise(1, 5, 16, seed=1)}
PICTURE = Image.new("RGB", (16, 16), (200, 10, 10))


def animate():
    """Every segment ends with `set_timesteps` for the next, the last one too."""
    sizes = {"num_attention_heads": 2, "attention_head_dim": 12, "ffn_dim": 16, "freq_dim": 16, "num_layers": 1}
    channels = {"in_channels": 36, "latent_channels": 16, "out_channels": 16, "text_dim": 16, "image_dim": 4}
    motion = {"encoder_size": 16, "style_dim": 8, "dim": 4, "encoder_dim": 16}
    face = {"face_encoder_hidden_dim": 16, "face_encoder_num_heads": 2, "inject_face_latents_blocks": 1}
    transformer = diffusers.WanAnimateTransformer3DModel(
        **sizes,
        **channels,
        **{f"motion_{name}": size for name, size in motion.items()},
        **face,
        motion_encoder_channel_sizes={"4": 8, "8": 8, "16": 8},
        rope_max_seq_len=32,
    )
    vision = {"hidden_size": 4, "projection_dim": 4, "num_hidden_layers": 2, "intermediate_size": 16}
    pipe = diffusers.WanAnimatePipeline(
        tokenizer=None,
        text_encoder=None,
        vae=diffusers.AutoencoderKLWan(**BUILD, z_dim=16),
        scheduler=diffusers.UniPCMultistepScheduler(**FLOW),
        image_processor=CLIPImageProcessorPil(crop_size=4, size=4),
        image_encoder=CLIPVisionModel(CLIPVisionConfig(**vision, num_attention_heads=2, image_size=4, patch_size=1)),
        transformer=transformer,
    )
    clips = {"image": PICTURE, "pose_video": [PICTURE] * 9, "face_video": [PICTURE] * 9, "segment_frame_length": 5}
    return pipe, {**TEXT, **clips, "height": 16, "width": 16, "guidance_scale": 1.0}


def helios():
    """`set_timesteps` before every chunk of frames."""
    sizes = {"num_attention_heads": 2, "attention_head_dim": 12, "ffn_dim": 16, "freq_dim": 16, "num_layers": 1}
    transformer = diffusers.HeliosTransformer3DModel(
        **sizes, in_channels=4, out_channels=4, text_dim=16, rope_dim=(4, 4, 4)
    )
    vae = diffusers.AutoencoderKLWan(**BUILD, z_dim=4, latents_mean=[0.0] * 4, latents_std=[1.0] * 4)
    scheduler = diffusers.HeliosScheduler(stages=1, stage_range=[0, 1])
    pipe = diffusers.HeliosPipeline(
        tokenizer=None, text_encoder=None, vae=vae, scheduler=scheduler, transformer=transformer
    )
    size = {"height": 32, "width": 32, "num_frames": 10, "num_latent_frames_per_chunk": 2}
    return pipe, {**TEXT, **size, "guidance_scale": 1.0}


def framepack():
    """The same for sections, through `retrieve_timesteps`."""
    sizes = {"num_attention_heads": 2, "attention_head_dim": 10, "num_layers": 1, "num_single_layers": 1}
    more = {"num_refiner_layers": 1, "text_embed_dim": 16, "pooled_projection_dim": 8, "rope_axes_dim": (2, 4, 4)}
    transformer = diffusers.HunyuanVideoFramepackTransformer3DModel(
        **sizes, **more, in_channels=4, out_channels=4, patch_size=2, image_proj_dim=4, has_image_proj=True,
        has_clean_x_embedder=True,
    )  # fmt: skip
    blocks = {"down_block_types": ("HunyuanVideoDownBlock3D",) * 4, "up_block_types": ("HunyuanVideoUpBlock3D",) * 4}
    vae = diffusers.AutoencoderKLHunyuanVideo(
        **blocks, latent_channels=4, block_out_channels=(8, 8, 8, 8), layers_per_block=1, norm_num_groups=4,
        mid_block_add_attention=False,
    )  # fmt: skip
    vision = {"hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    pipe = diffusers.HunyuanVideoFramepackPipeline(
        text_encoder=None,
        tokenizer=None,
        transformer=transformer,
        vae=vae,
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
        text_encoder_2=None,
        tokenizer_2=None,
        image_encoder=SiglipVisionModel(SiglipVisionConfig(**vision, image_size=8, patch_size=4)),
        feature_extractor=SiglipImageProcessorPil(size={"height": 8, "width": 8}),
    )
    text = {"prompt_embeds": TEXT["prompt_embeds"], "pooled_prompt_embeds": loop.noise(1, 8)}
    text["prompt_attention_mask"] = torch.ones(1, 5)
    return pipe, {**text, "image": PICTURE, "height": 32, "width": 32, "num_frames": 9, "latent_window_size": 2}


@pytest.mark.parametrize("build", (animate, helios, framepack))
def test_all_segments_of_a_call_are_reported(build):
    state = torch.get_rng_state()
    torch.manual_seed(0)
    pipe, call = build()
    torch.set_rng_state(state)
    pipe.set_progress_bar_config(disable=True)
    call = {**call, "num_inference_steps": 4, "output_type": "latent", "return_dict": False}
    with mmaccel.accelerate(pipe, video.HeterogeneousSteps(0.75, warmup=1)) as fast:
        fast(**call, generator=torch.Generator().manual_seed(0))
        report = fast.report
        assert (report.forwards, report.plain_forwards) == (6, 8), "two segments of four steps"
        assert report.details["steps"].count(0.0) == 2 and report.engaged
        warned = [text for text in report.warnings if "3 computed steps are few" in text]
        assert warned == report.warnings and len(warned) == (build is not framepack), "once, for all segments"
        trace = video.trace_of(fast).shares()
        assert trace == report.details["steps"][4:]


def test_a_call_forgets_the_call_before():
    pipe, start, call = loop.pipeline("WanTransformer3DModel")
    with mmaccel.accelerate(pipe, video.EasyCache(1e6, warmup=2)) as fast:
        for _ in range(2):
            fast(start, call)
            assert fast.report.plain_forwards == 2 * loop.STEPS and fast.report.forwards == 6
        pipe(start, call)
        pipe(start, call)
        assert fast.report.plain_forwards == 2 * loop.STEPS, "the target's own call"


def test_the_targets_own_call_after_a_broken_one_is_reported_by_itself():
    pipe, start, call = loop.pipeline("WanTransformer3DModel")
    with mmaccel.accelerate(pipe, video.EasyCache(1e6, warmup=2)) as fast:
        with broken_after(pipe.transformer.blocks[0].ffn, 3), pytest.raises(Interrupted):
            fast(start, call)
        for _ in range(2):
            pipe(start, call)
            assert fast.report.plain_forwards == 2 * loop.STEPS and fast.report.forwards == 6


def test_the_report_of_the_targets_own_call_has_what_is_known():
    pipe, start, call = loop.pipeline("WanTransformer3DModel")
    with mmaccel.accelerate(pipe, video.EasyCache(1e6, warmup=2)) as fast:
        fast(start, call)
        assert "s measured" in str(fast.report)
        pipe(start, call)
        _, passes, wall, memory = str(fast.report).splitlines()
        assert passes == f"  passes      6 instead of {2 * loop.STEPS}, 2.00x fewer" and "MiB extra" in memory
        assert wall == "  wall time   not measured: only a whole call of the session is"


@pytest.mark.parametrize("method", (video.TeaCache(1e6), video.EasyCache(1e6, warmup=2), video.TokenCache()), ids=str)
def test_a_call_that_breaks_off_between_two_steps_leaves_nothing(method, monkeypatch):
    """Neither memory nor anything on the blocks, before another run begins."""
    pipe, arguments = examples.wan_pipeline()
    block, made = pipe.transformer.blocks[0], []
    make = type(method).stepper
    monkeypatch.setattr(type(method), "stepper", lambda *given: made.append(make(*given)) or made[-1])
    with mmaccel.accelerate(pipe, method) as fast:
        with pytest.raises(RuntimeError, match="stop"):
            fast(**arguments(), callback_on_step_end=stop)
        assert "forward" not in vars(block) and made[0].held_bytes() == 0
        with pytest.raises(RuntimeError, match="stop"):
            pipe(**arguments(), callback_on_step_end=stop)
        assert "forward" not in vars(block) and made[1].held_bytes() == 0, "its progress bar was closed"


PARTLY = video.TokenCache(0.8, warmup=1, cooldown=0)


@pytest.mark.parametrize("method", (video.TeaCache(1e6), video.BlockCache(1e6, warmup=2), PARTLY), ids=str)
def test_what_belongs_to_one_pass_is_let_go_behind_it(method, monkeypatch):
    """Also where it breaks off, or the run ends."""
    pipe, arguments = examples.wan_pipeline()
    made, left = [], []
    make = type(method).stepper
    monkeypatch.setattr(type(method), "stepper", lambda *given: made.append(make(*given)) or made[-1])

    def held(stepper):
        return [value for name in ("entry", "start", "subset") if (value := getattr(stepper, name, None))]

    def note(pipe, step, timestep, kwargs):
        left.extend(held(made[-1]))
        return kwargs

    with mmaccel.accelerate(pipe, method) as fast:
        fast(**arguments(), callback_on_step_end=note)
        assert not left and not getattr(made[0], "tokens", None)
        with broken_after(pipe.transformer.blocks[1].ffn, 3), pytest.raises(Interrupted):
            fast(**arguments())
        assert len(made) == 2 and not held(made[1])


def test_levels_are_those_of_the_sampler():
    euler, unipc = diffusers.FlowMatchEulerDiscreteScheduler(), diffusers.UniPCMultistepScheduler(**FLOW)
    for scheduler in (euler, unipc):
        scheduler.set_timesteps(4)
        assert levels_of(scheduler) == [float(sigma) for sigma in scheduler.sigmas] and len(levels_of(scheduler)) == 5
    for scheduler in (diffusers.DDIMScheduler(), diffusers.EulerDiscreteScheduler()):  # no flow: shares of time
        scheduler.set_timesteps(4)
        assert levels_of(scheduler) == [*(float(t) / 1000 for t in scheduler.timesteps), 0.0]
    audio = SimpleNamespace(config=scheduler.config, timesteps=torch.tensor([0.9999, 0.9998, 0.4]))
    assert levels_of(audio) == [*audio.timesteps.tolist(), 0.0], "which are shares already"


@pytest.mark.parametrize("sampler", ("FlowMatchEulerDiscreteScheduler", "DDIMScheduler"))
def test_levels_are_read_back_at_once(sampler):
    """Not one by one, each of which would wait for a GPU that holds them."""
    scheduler = getattr(diffusers, sampler)()
    scheduler.set_timesteps(20)
    with TensorCalls() as calls:
        levels_of(scheduler)
    assert calls.reads <= 2


HEUNS = (
    (examples.wan_pipeline, diffusers.FlowMatchHeunDiscreteScheduler(shift=3)),
    (examples.unet_pipeline, diffusers.HeunDiscreteScheduler()),
)


@pytest.mark.parametrize(("build", "scheduler"), HEUNS, ids=("flow", "noise"))
def test_both_halves_of_a_step_of_heuns_are_followed(build, scheduler):
    """Its timesteps come twice but for the first, and each is a pass of its own."""
    pipe, arguments = build()
    pipe.scheduler, call = scheduler, arguments(1, steps=12)
    plain = pipe(**call)[0]
    for method in (video.HeterogeneousSteps(1.0), video.EasyCache(0.0)):
        with mmaccel.accelerate(pipe, method) as fast:
            assert torch.equal(fast(**call)[0], plain)
    with mmaccel.accelerate(pipe, video.HeterogeneousSteps()) as fast:
        fast(**call)
        assert len(fast.report.details["steps"]) == 23 and sum(fast.report.details["steps"]) == 12
        assert not fast.report.warnings
    with mmaccel.accelerate(pipe, video.EasyCache(1e6, warmup=2)) as fast:
        out = fast(**call)[0]
        assert fast.report.work_ratio == 3 / 23 and not fast.report.warnings and not torch.equal(out, plain)
    assert torch.equal(pipe(**call)[0], plain)


@pytest.mark.parametrize(("name", "sampler"), (
    ("Loop", "LTXEulerAncestralRFScheduler"),
    ("LTXI2VLongMultiPromptPipeline", "FlowMatchEulerDiscreteScheduler"),
))  # fmt: skip
def test_a_last_timestep_that_is_left_out_is_no_step(name, sampler):
    """With LTX's ancestral sampler it is where the last step ends; one pipeline leaves it out with every sampler."""

    class LeavingLast(loop.Loop):
        def __call__(self, start, call):
            self.scheduler.set_timesteps(sigmas=torch.linspace(1, 0, 13))
            self.return_dict, x = False, start[0]
            for t in self.scheduler.timesteps[:-1]:
                x = self.scheduler.step(self._rows([x], t, call, None)[0], t, x, return_dict=False)[0]
            return x

    made, start, call = loop.pipeline("LTXVideoTransformer3DModel")
    LeavingLast.__name__ = name
    pipe = LeavingLast(made.transformer, getattr(diffusers, sampler)())
    with mmaccel.accelerate(pipe, video.HeterogeneousSteps()) as fast:
        fast(start, call)
        shares, levels = fast.report.details["steps"], video.trace_of(fast).levels
        assert len(shares) == 12 and shares[-1] == 1 and sum(shares) == 6
        assert levels == pytest.approx(pipe.scheduler.sigmas[:12].tolist())
    with mmaccel.accelerate(pipe, video.EasyCache(1e6, warmup=2)) as fast:
        fast(start, call)
        assert fast.report.details["computed"][::2] == [1, 1, *[0] * 9, 1]
    assert is_flow(pipe.scheduler)


def test_what_a_step_goes_by_is_found_by_its_name():
    """Also where a class passes on all that it is given; one that says nothing is taken to be as usual."""

    class Passing(diffusers.CogVideoXDPMScheduler):
        def step(self, *given, **named):
            return super().step(*given, **named)

    class Wrapping:
        def step(self, *given, **named):
            return given

    asked = ("model_output", "old_pred_original_sample", "timestep", "timestep_back", "sample")
    assert step_names(diffusers.CogVideoXDPMScheduler)[:5] == step_names(Passing)[:5] == asked
    assert step_names(Wrapping) == ("model_output", "timestep", "sample")


METHODS = (video.HeterogeneousSteps(), video.EasyCache(1e6, warmup=2), video.TeaCache(1e6))


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
@pytest.mark.parametrize("again", (True, False))
def test_a_scheduler_that_is_swapped_is_said(method, again):
    """Also where the run before was broken off, so that something of it is left."""
    pipe, arguments = examples.wan_pipeline()
    call = arguments(steps=6)
    with mmaccel.accelerate(pipe, method) as fast:
        if again:
            with pytest.raises(RuntimeError, match="stop"):
                fast(**call, callback_on_step_end=stop)
        old, pipe.scheduler = pipe.scheduler, diffusers.UniPCMultistepScheduler(**FLOW)
        out = fast(**call)[0]
        assert "steps could not be followed" in str(fast.report) and "pipe.scheduler was changed" in str(fast.report)
        assert not fast.report.engaged
    assert torch.equal(pipe(**call)[0], out)
    for part in (old, pipe.scheduler, pipe.transformer):
        assert not {"step", "set_timesteps", "forward"} & set(vars(part))
    with mmaccel.accelerate(pipe, method) as fast:
        fast(**call)
        assert not any("followed" in text for text in fast.report.warnings)


def stop(pipe, step, timestep, kwargs):
    if step == 2:
        raise RuntimeError("stop")
    return kwargs


def test_a_transformer_that_is_swapped_is_said():
    (pipe, arguments), (other, _) = examples.wan_pipeline(), examples.wan_pipeline(1)
    with mmaccel.accelerate(pipe, video.HeterogeneousSteps()) as fast:
        fast(**arguments(steps=12))
        assert not fast.report.warnings
        pipe.register_modules(transformer=other.transformer)
        fast(**arguments(steps=12))
        told = "WanPipeline did not run pipe.transformer, unless its transformer was changed after accelerate()"
        assert any(told in text for text in fast.report.warnings)


@pytest.mark.parametrize("method", (*METHODS, video.TokenCache(0.6)), ids=lambda method: type(method).__name__)
@pytest.mark.parametrize("name", ("transformer", "transformer_2"))
def test_one_of_two_transformers_that_is_swapped_is_said(method, name):
    """A method that works inside the blocks would wrap those of the new one, whose passes nobody follows."""
    pipe, arguments = loop.two_experts(0.6)
    other, call = examples.wan_pipeline(2)[0].transformer, arguments(1, steps=12)
    with mmaccel.accelerate(pipe, method) as fast:
        fast(**call)
        assert fast.report.engaged
        setattr(pipe, name, other)
        out = fast(**call)[0]
        told = f"so all were computed: pipe.{name} was changed after accelerate()"
        assert any(told in text for text in fast.report.warnings) and not fast.report.engaged
    assert torch.equal(pipe(**call)[0], out)


def test_a_pipeline_that_shares_the_sampler_alone_teaches_nothing():
    """Its run has no pass of the session's transformer."""
    (pipe, arguments), (other, _) = examples.wan_pipeline(), examples.wan_pipeline(1)
    other.scheduler, call = pipe.scheduler, arguments(1, steps=12)
    plain = other(**call)[0]
    with mmaccel.accelerate(pipe, video.MagCache()) as fast:
        assert torch.equal(other(**call)[0], plain) and not fast.report.warnings
        fast(**call)
        assert "measured its ratios in this run" in str(fast.report)
    with mmaccel.accelerate(pipe, video.HeterogeneousSteps()) as fast:
        other(**call)
        with pytest.raises(SettingError, match="has not run yet"):
            video.trace_of(fast)


@pytest.mark.parametrize("method", (video.HeterogeneousSteps(), video.EasyCache(1e6, warmup=2)), ids=str)
def test_a_denoiser_needs_no_configuration(method):
    """As a traced one in a module of one's own."""

    class Traced(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, sample, t, text):
            return self.inner(sample, t, text, return_dict=False)[0]

    class Own(loop.Loop):
        def _pass(self, state, t, call):
            return [self.transformer(state[0], t.expand(1), call["encoder_hidden_states"])]

    made, start, call = loop.pipeline("WanTransformer3DModel")
    pipe = Own(Traced(made.transformer), made.scheduler)
    plain = pipe(start, call, steps=12)
    with mmaccel.accelerate(pipe, method) as fast:
        assert not torch.equal(fast(start, call, steps=12), plain) and fast.report.engaged and not fast.report.warnings
    assert torch.equal(pipe(start, call, steps=12), plain)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_a_transformer_for_references_is_followed(method):
    """As MiniMax-H3 runs it in place of the other, which may not even be loaded."""

    class Referring(loop.Loop):
        def __init__(self, transformer, transformer_ref, scheduler):
            super().__init__(transformer, scheduler)
            self.register_modules(transformer_ref=transformer_ref)

        def __call__(self, *given, **named):
            whole, self.transformer = self.transformer, self.transformer_ref
            try:
                return super().__call__(*given, **named)
            finally:
                self.transformer = whole

    (made, start, call), (other, _, _) = loop.pipeline("WanTransformer3DModel"), loop.pipeline("WanTransformer3DModel")
    for whole in (made.transformer, None):
        pipe = Referring(whole, other.transformer, made.scheduler)
        plain = pipe(start, call, steps=12)
        with mmaccel.accelerate(pipe, method) as fast:
            assert not torch.equal(fast(start, call, steps=12), plain)
            assert fast.report.engaged and not fast.report.warnings and fast.report.plain_forwards == 24
        assert torch.equal(pipe(start, call, steps=12), plain)


def test_a_part_that_is_not_followed_is_told_from_those_that_are():
    class Apart(loop.Loop):
        def __init__(self, transformer, transformer_2, other, scheduler):
            super().__init__(transformer, scheduler)
            self.register_modules(transformer_2=transformer_2, other=other)

        def _pass(self, state, t, call):
            return [self.other(state[0], t.expand(1), call["encoder_hidden_states"])[0]]

    made, start, call = loop.pipeline("WanTransformer3DModel")
    others = [loop.pipeline("WanTransformer3DModel")[0].transformer for _ in range(2)]
    with mmaccel.accelerate(Apart(made.transformer, *others, made.scheduler), video.EasyCache()) as fast:
        fast(start, call)
        assert "Apart did not run pipe.transformer or pipe.transformer_2, unless" in fast.report.warnings[-1]


def test_a_sampler_gets_all_that_the_pipeline_gives_it():
    """Of a step, also where the method makes it."""
    given = []

    class Noted(diffusers.FlowMatchEulerDiscreteScheduler):
        def step(self, *args, **more):
            given.append((len(args), more))
            return super().step(*args, **more)

    pipe, arguments = examples.wan_pipeline()
    pipe.scheduler = Noted(shift=3)
    for method in METHODS:
        with mmaccel.accelerate(pipe, method) as fast:
            given.clear()
            fast(**arguments(steps=5))
            assert given[:5] == [(3, {"return_dict": False})] * 5
            given.clear()
            pipe.scheduler.set_timesteps(5)
            t, x = pipe.scheduler.timesteps[0], torch.zeros(1, 4, 2, 4, 4)
            pipe.scheduler.step(x, t, x, 0.5, s_noise=0.25)
            assert given == [(4, {"s_noise": 0.25})]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_steps_are_followed_again_after_a_plain_run(method):
    """Once: what followed before would see no step, and say so."""
    pipe, arguments = examples.wan_pipeline()
    call = arguments(steps=12)
    with mmaccel.accelerate(pipe, method) as fast:
        expected, warned = fast(**call)[0], list(fast.report.warnings)
        with fast.baseline() as plain:
            assert not torch.equal(plain(**call)[0], expected)
        assert torch.equal(fast(**call)[0], expected)
        assert fast.report.warnings == warned and not any("followed" in text for text in warned)


@pytest.mark.parametrize("method", (video.TeaCache(1e6), video.EasyCache(1e6, warmup=2), video.TokenCache()), ids=str)
def test_a_pass_that_breaks_off_leaves_nothing(method, monkeypatch):
    """Also in a call of the target itself, where nobody says that the call is over."""
    pipe, arguments = examples.wan_pipeline()
    made, make = [], type(method).stepper
    monkeypatch.setattr(type(method), "stepper", lambda *given: made.append(make(*given)) or made[-1])
    with mmaccel.accelerate(pipe, method):
        with broken_after(pipe.transformer.blocks[0].ffn, 3), pytest.raises(Interrupted):
            pipe(**arguments())
        assert len(made) == 1 and made[0].held_bytes() == 0
        assert "forward" not in vars(pipe.transformer.blocks[0])


def test_a_pipeline_that_steps_another_scheduler_is_said():
    class Framewise(loop.Loop):
        def __call__(self, start, call, steps):
            self.scheduler.set_timesteps(steps)
            own = type(self.scheduler).from_config(self.scheduler.config)
            own.set_timesteps(steps)
            self.return_dict, x = False, start[0]
            for t in own.timesteps:
                x = own.step(self._rows([x], t, call, None)[0], t, x)[0]
            return x

    made, start, call = loop.pipeline("WanTransformer3DModel")
    pipe = Framewise(made.transformer, made.scheduler)
    plain = pipe(start, call, 12)
    for method in METHODS:
        with mmaccel.accelerate(pipe, method) as fast:
            assert torch.equal(fast(start, call, 12), plain)
            assert any("does not step pipe.scheduler" in text for text in fast.report.warnings)
            assert fast.report.plain_forwards == 8, "nothing is kept for ever more branches of one step"


def test_a_step_of_more_passes_than_are_followed_is_said():
    """As over the tiles of a long clip."""

    class Tiled(loop.Loop):
        def _rows(self, state, t, call, branches):
            return [sum(self._pass(state, t, call(1))[0] for _ in range(9)) / 9]

    made, start, call = loop.pipeline("WanTransformer3DModel")
    pipe = Tiled(made.transformer, made.scheduler)
    plain = pipe(start, call)
    with mmaccel.accelerate(pipe, video.EasyCache(1e6, warmup=2)) as fast:
        assert torch.equal(fast(start, call), plain)
        assert any("Tiled makes more than 8 passes in a step" in text for text in fast.report.warnings)


def without_encoders(cls, transformer, scheduler=None):
    """A pipeline of diffusers' own class with nothing but what denoises."""
    pipe = cls.__new__(cls)
    diffusers.DiffusionPipeline.__init__(pipe)
    pipe.register_modules(transformer=transformer, scheduler=scheduler or diffusers.FlowMatchEulerDiscreteScheduler())
    return pipe


OF_BLOCKS = (
    video.BlockCache(),
    video.TeaCache(),
    video.FirstBlockCache(),
    video.TaylorSeer(),
    video.MagCache(),
    video.PyramidAttentionBroadcast(),
    video.FasterCache(),
)
OF_TOKENS = (video.TokenCache(), video.HeterogeneousSteps(fraction=0.2), video.HeterogeneousSteps(policy="groups"))


def test_plans_refuse_a_bare_transformer_and_compiled_blocks():
    model, _ = sampled_models.wan()
    for method in (*METHODS, *OF_BLOCKS, *OF_TOKENS, video.Auto()):
        with pytest.raises(UnsupportedTargetError, match=r"needs the steps of a pipeline.*accelerate\(pipe"):
            mmaccel.plan(model, method)
    assert mmaccel.plan(model, video.SparseAttention())
    model.blocks[0].compile()
    pipe = without_encoders(diffusers.WanPipeline, model)
    for method in (*OF_TOKENS, video.TeaCache()):
        with pytest.raises(UnsupportedTargetError, match="compiled"):
            mmaccel.plan(pipe, method)


def test_plans_refuse_what_has_no_denoiser_or_one_that_is_wrapped():
    unet, _ = examples.unet_pipeline()
    with pytest.raises(UnsupportedTargetError, match="needs the steps of a pipeline, and UNet2DConditionModel is only"):
        mmaccel.plan(unet.unet, video.EncoderReuse())
    pipe, _ = examples.wan_pipeline()
    wrapped = torch.nn.Module()
    wrapped._orig_mod = pipe.transformer
    pipe.transformer = wrapped
    for method in (*METHODS, video.SparseAttention()):
        with pytest.raises(UnsupportedTargetError, match=r"torch\.compile\(WanTransformer3DModel\): write"):
            mmaccel.plan(pipe, method)
    pipe.transformer = None
    for method in (*METHODS, video.Auto()):
        with pytest.raises(UnsupportedTargetError, match="WanPipeline has no transformer or unet whose steps"):
            mmaccel.plan(pipe, method)
    with pytest.raises(UnsupportedTargetError, match="WanPipeline has no transformer to make sparse"):
        mmaccel.plan(pipe, video.SparseAttention())


@pytest.mark.parametrize("method", (*OF_BLOCKS, *OF_TOKENS), ids=lambda method: type(method).__name__)
def test_plans_check_the_second_transformer_too(method):
    """Wan 2.2 has two."""
    (pipe, _), (other, _) = examples.wan_pipeline(), examples.wan_pipeline(1)
    pipe.register_modules(transformer_2=other.transformer)
    assert mmaccel.plan(pipe, method)
    other.transformer.compile()
    with pytest.raises(UnsupportedTargetError, match="is compiled"):
        mmaccel.plan(pipe, method)


@pytest.mark.parametrize("method", (*METHODS, *OF_BLOCKS, *OF_TOKENS, video.Auto()), ids=str)
def test_a_cache_on_the_second_transformer_is_refused(method):
    (pipe, _), (other, _) = examples.wan_pipeline(), examples.wan_pipeline(1)
    pipe.register_modules(transformer_2=other.transformer)
    other.transformer.enable_cache(diffusers.FirstBlockCacheConfig())
    with pytest.raises(ConflictError, match="FirstBlockCacheConfig enabled already"):
        mmaccel.plan(pipe, method)


def test_a_second_call_at_once_is_refused_and_the_first_goes_on():
    """From another thread, as in a server that shares a pipeline."""
    pipe, arguments = examples.wan_pipeline()
    call, errors = arguments(steps=12), []
    plain = pipe(**call)[0]
    with mmaccel.accelerate(pipe, video.HeterogeneousSteps()) as fast:
        alone = fast(**call)[0]

        def second():
            try:
                fast(**call)
            except ActiveSessionError as error:
                errors.append(str(error))

        def meanwhile(pipe, step, timestep, kwargs):
            if step == 5:
                other = threading.Thread(target=second)
                other.start()
                other.join()
            return kwargs

        assert torch.equal(fast(**call, callback_on_step_end=meanwhile)[0], alone)
        assert len(errors) == 1 and "in the middle of another call" in errors[0]
    assert torch.equal(pipe(**call)[0], plain)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
@pytest.mark.parametrize("is_thread", (True, False))
def test_a_pipeline_that_shares_the_transformer_is_refused_in_the_middle_of_a_run(method, is_thread):
    """In the middle of it, it would get the run's own predictions, though it has a scheduler of its own."""
    pipe, arguments = examples.wan_pipeline()
    scheduler = diffusers.UniPCMultistepScheduler(**FLOW)
    sibling = diffusers.WanPipeline(**{**pipe.components, "scheduler": scheduler})
    sibling.set_progress_bar_config(disable=True)
    call, own, found = arguments(steps=12), arguments(steps=6, height=10), []
    plain = sibling(**own)[0]

    def draw():
        try:
            found.append(sibling(**own)[0])
        except ActiveSessionError as error:
            found.append(str(error))

    def meanwhile(pipe, step, timestep, kwargs):
        if step in (5, 11):  # behind the last step the run is over
            other = threading.Thread(target=draw)
            other.start() if is_thread else draw()
            if is_thread:
                other.join()
        return kwargs

    with mmaccel.accelerate(pipe, method) as fast:
        alone, computed = fast(**call)[0], fast.report.details["computed"]
        assert torch.equal(fast(**call, callback_on_step_end=meanwhile)[0], alone)
        assert "in the middle of another call, and its transformer serves one at a time" in found[0]
        assert torch.equal(found[1], plain) and fast.report.details["computed"] == computed
        draw()
        assert torch.equal(found[2], plain), "outside of a run it is as before"


@pytest.mark.parametrize("name", ("callback_on_step_end", "callback"))
def test_callbacks_of_either_name_are_known_while_they_run(name):
    pipe, _ = examples.wan_pipeline()
    with mmaccel.accelerate(pipe, video.HeterogeneousSteps()) as fast:
        given = {name: lambda *_: IN_CALLBACK in fast.memory}
        fast.plan.methods[0].prepare(fast, (), given)
        assert given[name](0, 1) and IN_CALLBACK not in fast.memory


def test_a_call_within_a_callback_takes_the_run_over():
    """Of the pipeline itself, whose sampler needs no state of its own."""
    pipe, arguments = examples.unet_pipeline()
    call, found = arguments(steps=12), []

    def again(pipe, step, timestep, kwargs):
        if step == 5:
            found.append(pipe(**call)[0])
        return kwargs

    with mmaccel.accelerate(pipe, video.EasyCache(1e6, warmup=2)) as fast:
        alone = fast(**call)[0]
        fast(**call, callback_on_step_end=again)
        assert torch.equal(found[0], alone)


def test_the_callbacks_of_diffusers_stay_what_they_are():
    """Pipelines know them by their type."""
    seen = []

    class Noted(diffusers.callbacks.PipelineCallback):
        tensor_inputs = ["latents"]

        def callback_fn(self, pipeline, step_index, timestep, callback_kwargs):
            seen.append(list(callback_kwargs))
            return callback_kwargs

    pipe, arguments = examples.wan_pipeline()
    with mmaccel.accelerate(pipe, video.HeterogeneousSteps()) as fast:
        fast(**arguments(steps=12), callback_on_step_end=Noted(cutoff_step_ratio=None, cutoff_step_index=1))
    assert seen == [["latents"]] * 12


SIGMAS = [1.0, 0.97, 0.93, 0.88, 0.82, 0.75, 0.66, 0.55, 0.42, 0.3, 0.2, 0.1]


@pytest.mark.parametrize("target", ("plain", "converged"))
def test_steps_set_by_hand_are_followed(target):
    """Their noise levels, however they lie; the next plain run is that of before."""
    pipe, arguments = examples.flux_pipeline()
    call = {**arguments(), "sigmas": SIGMAS}
    del call["num_inference_steps"]
    plain = pipe(**call)[0]
    with mmaccel.accelerate(pipe, video.HeterogeneousSteps(0.75, target=target)) as fast:
        found, report = fast(**call)[0], fast.report
        assert not report.warnings and sum(report.details["steps"]) == 9 and len(report.details["steps"]) == len(SIGMAS)
    assert 0 < float((found - plain).std() / plain.std()) < 0.1
    assert torch.equal(pipe(**call)[0], plain)


@pytest.mark.parametrize("method", (video.HeterogeneousSteps(), video.EasyCache(threshold=1e6, warmup=2)), ids=str)
@pytest.mark.parametrize("through", ("target", "session"))
def test_a_run_that_is_interrupted_answers_no_later_pass(method, through):
    """The transformer, called by itself afterwards, is the plain one, also after the target's own call."""
    pipe, arguments = examples.wan_pipeline()
    call = arguments(1, steps=16)
    passed = {"hidden_states": call["latents"], "timestep": torch.tensor([500])}
    passed |= {"encoder_hidden_states": call["prompt_embeds"], "return_dict": False}
    plain = pipe.transformer(**passed)[0]

    def interrupt(pipe, step, timestep, kwargs):
        pipe._interrupt = step == 8
        return {}

    with mmaccel.accelerate(pipe, method) as fast:
        (fast if through == "session" else pipe)(**call, callback_on_step_end=interrupt)
        for _ in range(2):
            assert torch.equal(pipe.transformer(**passed)[0], plain)


def test_a_run_that_ends_early_is_told(work_clock):
    pipe, arguments = examples.wan_pipeline()
    call = arguments(1, steps=16)

    def interrupt(pipe, step, timestep, kwargs):
        pipe._interrupt = step == 11
        return {}

    with mmaccel.accelerate(pipe, video.HeterogeneousSteps()) as fast:
        fast(**arguments(1, steps=12))
        try:
            raise KeyError
        except KeyError:  # an error that the caller is about to mend is none of the run
            fast(**call, callback_on_step_end=interrupt)
        assert len(video.trace_of(fast).shares()) == 12 == len(fast.report.details["steps"])
        assert fast.report.details["missed"] > 0
    with mmaccel.accelerate(pipe, video.MagCache()) as fast:
        fast(**call, callback_on_step_end=interrupt)
        assert "measured no ratios: the run ended after 12 of 16 steps" in fast.report.warnings[0]
        fast(**call)
        assert "measured its ratios" in fast.report.warnings[0]
        fast(**call)
        assert fast.report.engaged


def test_a_method_beside_it_takes_no_warning_away():
    pipe, arguments = examples.wan_pipeline()
    sparse = video.SparseAttention(min_length=8, always=True)
    with mmaccel.accelerate(pipe, video.HeterogeneousSteps(), sparse) as fast:
        fast(**arguments(1, steps=4))
        assert fast.report.engaged and "4 steps are too few to forecast any" in fast.report.warnings[0]


def test_steps_that_may_be_made_again_keep_no_outputs():
    """What is kept of a step is its velocity, and not the model's output and the sample that the pipeline gave."""
    pipe, arguments = examples.wan_pipeline()
    kept = []

    def look(pipe, step, timestep, given):
        run = follower_of(fast).stepper
        makes = [made.make for made in run.allocation.replay.made] if run else []
        kept.extend(value for make in makes for value in closed_over(make) if isinstance(value, torch.Tensor))
        return {}

    with mmaccel.accelerate(pipe, video.HeterogeneousSteps(0.3, warmup=1)) as fast:
        fast(**arguments(1, steps=12), callback_on_step_end=look)
    assert kept and all(value.numel() == 1 for value in kept), "a timestep at most"


def follower_of(session):
    """What follows the steps of its pipeline."""
    return session.target.scheduler.step.function.__self__


def closed_over(function):
    """Tensors in what a function closes over."""
    for cell in function.__closure__ or ():
        yield from tensors(cell.cell_contents)


def test_a_run_with_a_held_first_frame_begins_at_its_own_step():
    """The held tokens' timestep is 0, and says nothing."""
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler()
    scheduler.set_timesteps(10)
    times = scheduler.timesteps[4] * torch.tensor([[0.0, 0.0, 1.0, 1.0]])
    assert first_step(scheduler, times) == 4 and first_step(scheduler, scheduler.timesteps[3]) == 3


def test_a_sampler_that_is_shared_is_accelerated_once():
    """Two pipelines with transformers of their own."""
    (one, _), (other, _) = examples.wan_pipeline(), examples.wan_pipeline(seed=1)
    other.scheduler = one.scheduler
    sparse = video.SparseAttention(min_length=64, always=True)
    with mmaccel.accelerate(one, sparse), mmaccel.accelerate(other, sparse):
        pass  # neither follows it
    told = "this FlowMatchEulerDiscreteScheduler is already accelerated by"
    with mmaccel.accelerate(one, video.HeterogeneousSteps()), pytest.raises(ActiveSessionError, match=told):
        mmaccel.accelerate(other, video.HeterogeneousSteps())
    fast = mmaccel.accelerate(other, video.HeterogeneousSteps())
    other.scheduler = diffusers.FlowMatchEulerDiscreteScheduler(shift=5)
    fast.remove()
    mmaccel.accelerate(one, video.HeterogeneousSteps()).remove()  # the first is free, though it was swapped


@pytest.mark.parametrize("again", (copy.copy, diffusers.WanPipeline.from_pipe), ids=("copy", "from_pipe"))
def test_a_pipeline_of_the_same_parts_is_as_fast_unless_it_has_another_sampler(again):
    pipe, arguments = examples.wan_pipeline()
    call, twin = arguments(1), again(pipe)
    plain = pipe(**call)[0]
    with mmaccel.accelerate(pipe, video.HeterogeneousSteps()) as fast:
        out, other = fast(**call)[0], again(pipe)
        assert not torch.equal(out, plain)
        for shared in (twin, other):
            shared.set_progress_bar_config(disable=True)
            assert torch.equal(shared(**call)[0], out) and fast.report.engaged
        other.scheduler = type(pipe.scheduler).from_config(pipe.scheduler.config)
        assert torch.equal(other(**call)[0], plain)
    assert all(torch.equal(shared(**call)[0], plain) for shared in (twin, other))


def test_a_sampler_that_draws_every_step_anew_is_refused():
    pipe, _ = examples.wan_pipeline()
    pipe.scheduler = diffusers.FlowMatchEulerDiscreteScheduler(shift=3, stochastic_sampling=True)
    for method in (video.HeterogeneousSteps(), video.EasyCache(), video.auto()):
        with pytest.raises(
            UnsupportedTargetError, match=r"Scheduler\(stochastic_sampling=True\) draws the sample anew"
        ):
            mmaccel.plan(pipe, method)


def test_a_scheduler_set_on_the_session_is_that_of_the_pipeline():
    pipe, _ = examples.wan_pipeline()
    other = diffusers.FlowMatchEulerDiscreteScheduler(shift=5)
    with mmaccel.accelerate(pipe, video.HeterogeneousSteps()) as fast:
        fast.scheduler = other
        assert pipe.scheduler is fast.scheduler is other and "scheduler" not in vars(fast)


@pytest.fixture
def animated():
    state = torch.get_rng_state()
    torch.manual_seed(0)
    pipe, call = animate()
    torch.set_rng_state(state)
    pipe.set_progress_bar_config(disable=True)
    call = {**call, "num_inference_steps": 12, "output_type": "latent", "generator": torch.Generator().manual_seed(0)}
    return pipe, call


def test_segments_are_measured_and_what_is_picked_stays(animated):
    pipe, call = animated
    with mmaccel.accelerate(pipe, video.auto(min_psnr=1.0)) as fast:
        fast(**call)
        measured = fast.plan.measured
        assert measured
        fast(**call)
        assert fast.plan.measured is measured and fast.report.plain_forwards == 24, "one run of two segments"


def test_steps_of_segments_are_calibrated(animated):
    pipe, call = animated
    assert len(video.calibrate_steps(pipe, **call).steps) == 6


class Referring(diffusers.WanTransformer3DModel):
    """May read a reference before the steps, as `WanAnimate2Transformer3DModel`."""

    def forward(self, hidden_states, timestep, encoder_hidden_states, kv_cache_mode="cached", return_dict=True):
        return super().forward(hidden_states, timestep, encoder_hidden_states, return_dict=return_dict)


class Reading(loop.Loop):
    """Lets its transformer read a reference of another size, once it knows the steps."""

    def _rows(self, state, t, call, branches):
        if float(t) == float(self.scheduler.timesteps[0]):
            self.transformer(loop.noise(1, 4, 1, 8, 8), t.expand(1), **call(1), kv_cache_mode="extract")
        return super()._rows(state, t, call, branches)


@pytest.mark.parametrize("method", (video.HeterogeneousSteps(), video.EasyCache(1e6), video.BlockCache(1e6)), ids=str)
def test_a_pass_that_reads_a_reference_is_of_no_step(method, monkeypatch):
    pipe, start, call = loop.pipeline("WanTransformer3DModel")
    with mmaccel.accelerate(pipe, method) as fast:
        expected, plain = fast(start, call, steps=12), fast.report
    pipe.__class__, pipe.transformer.__class__ = Reading, Referring
    monkeypatch.setattr("mmaccel.video.families.adapter.EXTRACTING", Referring.__name__)
    with mmaccel.accelerate(pipe, method) as fast:
        assert torch.equal(fast(start, call, steps=12), expected) and fast.report.engaged
        assert (fast.report.plain_forwards, fast.report.warnings) == (plain.plain_forwards, plain.warnings)


class FirstReading(loop.Loop):
    """Reads its reference in the passes of the first step itself, as Flux 2 Klein KV and Qwen-Image 2.1 do."""

    def _rows(self, state, t, call, branches):
        mode = {"kv_cache_mode": "extract"} if float(t) == float(self.scheduler.timesteps[0]) else {}
        return super()._rows(state, t, lambda branch: {**call(branch), **mode}, branches)


def test_a_first_step_that_reads_a_reference_is_a_step():
    pipe, start, call = loop.pipeline("WanTransformer3DModel")
    with mmaccel.accelerate(pipe, video.HeterogeneousSteps()) as fast:
        expected, plain = fast(start, call, steps=12), fast.report
    pipe.__class__, pipe.transformer.__class__ = FirstReading, Referring
    with mmaccel.accelerate(pipe, video.HeterogeneousSteps()) as fast:
        assert torch.equal(fast(start, call, steps=12), expected)
        assert fast.report.details["computed"] == plain.details["computed"]
