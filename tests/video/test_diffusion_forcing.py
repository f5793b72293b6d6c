"""Pipelines with a sampler for every frame (SkyReels-V2): step methods on synchronous and staggered frames."""

import copy
import inspect
import pickle
from functools import cache

import diffusers
import diffusion_loop as loop
import pytest
import torch
from PIL import Image

import mmaccel
from mmaccel import video, zoo
from mmaccel.errors import UnsupportedTargetError
from mmaccel.testing.contract import Interrupted, broken_after
from mmaccel.testing.untrained import untrained
from mmaccel.video.heterogeneous.step_solver import calibrate_steps

FLOW = {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": 3.0}
BUILD = {"base_dim": 3, "dim_mult": [1, 1, 1, 1], "num_res_blocks": 1, "temperal_downsample": [False, True, True]}
LATENTS = {"z_dim": 4, "latents_mean": [0.0] * 4, "latents_std": [1.0] * 4}
TEXT = {"prompt_embeds": loop.noise(1, 5, 16), "negative_prompt_embeds": loop.noise(1, 5, 16, seed=1)}
LATENT = {"output_type": "latent", "return_dict": False}
SIZE = {"height": 32, "width": 32, "num_frames": 17, "num_inference_steps": 12, "guidance_scale": 3.0}
STAGGERED = {"ar_step": 3, "causal_block_size": 1}
LONG = {"num_frames": 33, "base_num_frames": 17, "overlap_history": 5, "addnoise_condition": 20}
WAYS = {
    "synchronous": {},
    "staggered": STAGGERED,
    "long": LONG,
    "in blocks": {"ar_step": 4, "causal_block_size": 2},
}


def skyreels(kind="", batch=1):
    """A small pipeline of diffusers' own class, and a call of it."""

    def parts():
        sizes = {"num_attention_heads": 2, "attention_head_dim": 12, "num_layers": 2, "ffn_dim": 16, "freq_dim": 16}
        transformer = diffusers.SkyReelsV2Transformer3DModel(**sizes, in_channels=4, out_channels=4, text_dim=16)
        return torch.nn.ModuleList([transformer, diffusers.AutoencoderKLWan(**BUILD, **LATENTS)])

    transformer, vae = untrained(parts, 0)
    scheduler = diffusers.UniPCMultistepScheduler(**FLOW)
    cls = getattr(diffusers, f"SkyReelsV2DiffusionForcing{kind}Pipeline")
    pipe = cls(tokenizer=None, text_encoder=None, vae=vae, transformer=transformer, scheduler=scheduler)
    pipe.set_progress_bar_config(disable=True)
    picture = Image.new("RGB", (32, 32), (200, 10, 10))
    given = {"": {}, "ImageToVideo": {"image": picture}, "VideoToVideo": {"video": [picture] * 9, **LONG}}[kind]
    text = {name: embeddings.repeat(batch, 1, 1) for name, embeddings in TEXT.items()}

    def call(fast, **more):
        torch.manual_seed(0)  # the noise on what is given comes from the generator of all
        generator = torch.Generator().manual_seed(1)
        return fast(**{"prompt": None, **text, **LATENT, **SIZE, **given, "generator": generator, **more})[0]

    return pipe, call


STEPS = (
    video.HeterogeneousSteps(),
    video.HeterogeneousSteps(target="converged"),
    video.EasyCache(1e6, warmup=2),
    video.TeaCache(1e6),
    video.BlockCache(),
    video.TaylorSeer(),
    video.PyramidAttentionBroadcast(),
    video.FasterCache(),
)


def attributes(pipe):
    return {(type(part), name) for part in (pipe, pipe.scheduler, pipe.transformer) for name in vars(part)}


@cache
def plain_run(way):
    """What a pipeline without methods gives, and its attributes after that."""
    pipe, call = skyreels()
    return call(pipe, **WAYS[way]), attributes(pipe)


@pytest.mark.parametrize(
    ("way", "method"), [(way, each) for way in WAYS for each in (STEPS[:4] if way == "in blocks" else STEPS)], ids=str
)
def test_methods_engage_and_leave_no_trace(way, method):
    pipe, call = skyreels()
    plain, after = plain_run(way)
    with mmaccel.accelerate(pipe, method) as fast:
        first, again = call(fast, **WAYS[way]), call(fast, **WAYS[way])
        assert torch.equal(first, again) and not torch.equal(first, plain) and first.isfinite().all()
        assert fast.report.engaged and not any("followed" in text for text in fast.report.warnings)
    assert attributes(pipe) <= after
    assert torch.equal(call(pipe, **WAYS[way]), plain) and attributes(pipe) == after


@pytest.mark.parametrize("method", (video.EasyCache(0.0), video.HeterogeneousSteps(interval=1)), ids=str)
@pytest.mark.parametrize("way", WAYS.values(), ids=tuple(WAYS))
def test_where_all_is_computed_nothing_changes(method, way):
    pipe, call = skyreels(batch=2)
    plain = call(pipe, **way)
    with mmaccel.accelerate(pipe, method) as fast:
        assert torch.equal(call(fast, **way), plain)
        assert fast.report.forwards == fast.report.plain_forwards > 0


@pytest.mark.parametrize("kind", ("ImageToVideo", "VideoToVideo"))
def test_given_frames_do_not_step(kind):
    pipe, call = skyreels(kind)
    plain = call(pipe)
    with mmaccel.accelerate(pipe, video.HeterogeneousSteps()) as fast:
        drawn = call(fast)
        assert fast.report.forwards < fast.report.plain_forwards and drawn.shape == plain.shape
    same = (drawn == plain).all(dim=(0, 1, 3, 4))
    assert bool(same[0]) and not bool(same.all())


def test_frames_together_step_as_one_sampler_does():
    """Wan with the same weights, which one sampler steps.

    Without the corrector, which in these pipelines goes by the sample that was written over the one it kept.
    """
    wan, (pipe, _) = zoo.load("tiny-wan"), skyreels()
    names = inspect.signature(diffusers.SkyReelsV2Transformer3DModel).parameters
    same = diffusers.SkyReelsV2Transformer3DModel(**{k: v for k, v in wan.transformer.config.items() if k in names})
    same.eval().load_state_dict(wan.transformer.state_dict())
    scheduler = diffusers.UniPCMultistepScheduler(**FLOW, disable_corrector=list(range(14)))
    sky, wan.scheduler = type(pipe)(None, None, same, wan.vae, scheduler), copy.deepcopy(scheduler)
    sky.vae_scale_factor_spatial = wan.vae_scale_factor_spatial
    sky.vae_scale_factor_temporal = wan.vae_scale_factor_temporal
    embedded = wan.encode_prompt("rocket moves up, blue background", max_sequence_length=16)
    text = dict(zip(("prompt_embeds", "negative_prompt_embeds"), embedded, strict=True))
    size = {"height": 32, "width": 32, "num_frames": 9, "num_inference_steps": 14, "guidance_scale": 3.0}

    for pipe in (sky, wan):
        pipe.set_progress_bar_config(disable=True)

    def draw(pipe):
        return pipe(prompt=None, **text, **size, **LATENT, generator=torch.Generator().manual_seed(0))[0]

    found = {}
    for target in (sky, wan):
        plain = draw(target)
        for method in (video.HeterogeneousSteps(), video.HeterogeneousSteps(target="converged")):
            with mmaccel.accelerate(target, method) as fast:
                found.setdefault(str(method), []).append(draw(fast))
                assert fast.report.forwards == 14 and fast.report.details["missed"] > 0
        found.setdefault("plain", []).append(plain)
    for ours, theirs in found.values():
        assert torch.allclose(ours, theirs, atol=2e-3)
    plain, fast = found["plain"][0], found["video.HeterogeneousSteps()"][0]
    assert 1e-4 < (fast - plain).square().mean() / plain.square().mean() < 0.02


def test_a_staggered_run_computes_steps_for_all_frames_at_once():
    pipe, call = skyreels()
    passes = []
    forward = pipe.transformer.forward
    pipe.transformer.forward = lambda *args, **kwargs: passes.append(kwargs["timestep"][0]) or forward(*args, **kwargs)
    with mmaccel.accelerate(pipe, video.HeterogeneousSteps()) as fast:
        call(fast, **STAGGERED)
        computed = fast.report.details["steps"]
        assert len(computed) == 24, "12 steps of 5 frames, each 3 behind the one before"
        assert len(passes) == 2 * sum(computed) == fast.report.forwards < 0.6 * fast.report.plain_forwards
        assert all(len(times.unique()) > 1 for times in passes[8:16])


def test_interrupted_runs_leave_the_next_as_it_was():
    pipe, call = skyreels()
    with mmaccel.accelerate(pipe, video.HeterogeneousSteps(), video.SparseAttention()) as fast:
        drawn = call(fast)
        with broken_after(pipe.transformer.blocks[0].ffn, 5), pytest.raises(Interrupted):
            call(fast)
        assert torch.equal(call(fast), drawn)


def test_what_needs_all_frames_in_one_step_is_refused():
    pipe, call = skyreels()
    for method in (
        video.TokenCache(),
        video.HeterogeneousSteps(fraction=0.2),
        video.HeterogeneousSteps(policy="groups"),
    ):
        with pytest.raises(
            UnsupportedTargetError, match=r"has a sampler for every frame: video.HeterogeneousSteps\(\)"
        ):
            mmaccel.plan(pipe, method)
    with pytest.raises(UnsupportedTargetError, match="calibrate_steps needs steps that all frames make together"):
        calibrate_steps(pipe, **TEXT)
    assert "save_pretrained" not in vars(pipe.scheduler)


def test_a_scheduler_that_was_changed_is_told():
    pipe, call = skyreels()
    fast = mmaccel.accelerate(pipe, video.HeterogeneousSteps())
    pipe.scheduler = diffusers.UniPCMultistepScheduler(**FLOW)
    drawn = call(fast)
    assert "pipe.scheduler was changed after accelerate(): remove() the session" in fast.report.warnings[0]
    fast.remove()
    assert torch.equal(drawn, call(pipe))


def test_copies_of_the_scheduler_belong_to_nobody():
    pipe, call = skyreels()
    with mmaccel.accelerate(pipe, video.HeterogeneousSteps()) as fast:
        drawn, copies = call(fast, **LONG), []

        def watch(pipe, *_):
            copies.append(copy.deepcopy(pipe.scheduler))
            return {}

        assert torch.equal(call(fast, **LONG, callback_on_step_end=watch), drawn)
        assert copies and not any("step" in vars(made) or "mmaccel" in str(vars(made)) for made in copies)
        times = pipe.scheduler.timesteps
        assert pipe.generate_timestep_matrix(5, times, 5, 0)[0].shape == (len(times), 5), "called by hand"


def test_an_accelerated_pipeline_is_copied_and_pickled_as_a_plain_one():
    pipe, call = skyreels()
    plain = call(pipe)
    with mmaccel.accelerate(pipe, video.HeterogeneousSteps()) as fast:
        drawn = call(fast)
        for again in (copy.deepcopy(pipe), pickle.loads(pickle.dumps(pipe))):  # noqa: S301
            assert torch.equal(call(again), plain) and torch.equal(call(copy.deepcopy(again)), plain)
            assert "mmaccel" not in str(vars(again.scheduler))
        assert torch.equal(call(fast), drawn) and not torch.equal(drawn, plain)


def test_a_staggered_run_keeps_to_its_budget_or_says_so():
    pipe, call = skyreels()
    with mmaccel.accelerate(pipe, video.HeterogeneousSteps(0.5)) as fast:
        call(fast, **STAGGERED, num_inference_steps=20)
        assert fast.report.work_ratio == 0.5 and not fast.report.warnings
    with mmaccel.accelerate(pipe, video.HeterogeneousSteps(0.25)) as fast:
        call(fast, num_frames=65, ar_step=2, causal_block_size=1)
        share = fast.report.work_ratio
        assert f"a budget of 0.25 is too small for 12 steps: {share:.0%} of them are computed" in fast.report.warnings
    with mmaccel.accelerate(pipe, video.HeterogeneousSteps()) as fast:
        drawn = call(fast, **STAGGERED, num_inference_steps=6)
        assert "6 steps are too few to forecast any" in fast.report.warnings[0], "of a frame, and 18 of the whole run"
    assert torch.equal(drawn, call(pipe, **STAGGERED, num_inference_steps=6))


@pytest.mark.parametrize(("kind", "way"), (("ImageToVideo", {}), ("", LONG)), ids=("given frames", "long"))
def test_a_tolerance_is_one_for_all_frames_and_runs(kind, way):
    pipe, call = skyreels(kind)
    with mmaccel.accelerate(pipe, video.HeterogeneousSteps(0.4)) as fast:
        drawn, missed, computed = call(fast, **way), fast.report.details["missed"], fast.report.forwards
    with mmaccel.accelerate(pipe, video.HeterogeneousSteps(0.4, tolerance=1.001 * missed)) as fast:
        assert torch.equal(call(fast, **way), drawn)
    with mmaccel.accelerate(pipe, video.HeterogeneousSteps(0.4, tolerance=0.5 * missed)) as fast:
        call(fast, **way)
        assert fast.report.forwards > computed
        assert len([text for text in fast.report.warnings if "further astray than the tolerance" in text]) == 1


def test_the_sampler_that_is_advised_is_one_of_the_pipeline():
    pipe, call = skyreels()
    pipe.scheduler = diffusers.DPMSolverMultistepScheduler(algorithm_type="sde-dpmsolver++")
    with pytest.raises(UnsupportedTargetError, match=r'UniPCMultistepScheduler\(prediction_type="flow_prediction"'):
        mmaccel.plan(pipe, video.HeterogeneousSteps(target="converged"))
    pipe.scheduler = diffusers.UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True)
    with mmaccel.accelerate(pipe, video.HeterogeneousSteps(target="converged")) as fast:
        call(fast)
        assert fast.report.engaged
