"""Blocks that a small model drafts: those kept, those redrawn, and what is refused."""

import copy
from contextlib import ExitStack, contextmanager

import pytest
import torch
from diffusers import AutoencoderKLWan, FlowMapEulerDiscreteScheduler

import mmaccel
from mmaccel import video
from mmaccel.errors import SettingError, UnsupportedTargetError
from mmaccel.patching import override
from mmaccel.testing.untrained import untrained
from mmaccel.video.autoregressive import routing
from mmaccel.video.examples import block_pipeline, wan_pipeline

SMALL = {"frames": 6, "height": 2, "width": 2, "steps": 3}


@pytest.fixture(scope="module")
def made():
    pipe, arguments = block_pipeline()
    call = arguments(batch=2, **SMALL)
    negative = {"negative_prompt_embeds": -call["prompt_embeds"], "guidance_scale": 3.0}
    return pipe, call, {**call, **negative}


def brightness(latents):
    return latents.mean((2, 3, 4))


@pytest.mark.parametrize("guided", [False, True])
@pytest.mark.parametrize(
    "sigmas", [None, [1.0, 0.7, 0.2], [1.0, 0.7, 0.3, 0.0]], ids=("default", "given", "ending in 0")
)
def test_a_draft_of_the_large_models_twin_is_the_plain_video(made, guided, sigmas):
    pipe, *calls = made
    call = {**calls[guided], "sigmas": sigmas, "draft": copy.deepcopy(pipe.transformer)}
    plain = pipe(**call)[0]
    with mmaccel.accelerate(pipe, video.BlockRouter(tau=-1e9, steps=None, latents=True)) as fast:
        assert torch.equal(fast(**call)[0], plain)
        assert (fast.report.forwards, fast.report.plain_forwards) == (3, 9)
        assert fast.report.details["kept"] == 2 and fast.report.peak_extra_bytes > 0
        assert not fast.memory


def test_what_scores_low_is_redrawn_from_the_same_noise(made):
    pipe, call, _ = made
    plain, tau = pipe(**call)[0], {}
    with mmaccel.accelerate(pipe, video.BlockRouter(tau=1e9, latents=True)) as fast:
        assert torch.equal(fast(**call)[0], plain)
        tau["first"], tau["second"] = fast.report.details["scores"]
        assert fast.report.forwards == fast.report.plain_forwards == 9
    keeps = min(tau.values()) + abs(tau["first"] - tau["second"]) / 2  # one of the two drafts
    with mmaccel.accelerate(pipe, video.BlockRouter(tau=keeps, latents=True)) as fast:
        mixed = fast(**call)[0]
    same = [torch.equal(mixed[:, :, i : i + 2], plain[:, :, i : i + 2]) for i in (0, 2, 4)]
    assert same[0] and not all(same)
    assert same[1] == (tau["first"] < keeps)


def test_a_block_that_another_process_redraws_is_redrawn(made, monkeypatch):
    """Where they share the weights, each with a prompt of its own: the one that kept its draft would wait forever."""
    pipe, call, _ = made
    plain, asked = pipe(**call)[0], []
    monkeypatch.setattr(routing, "agreed", lambda model, decision: asked.append((model, decision)) or True)
    with mmaccel.accelerate(pipe, video.BlockRouter(tau=-1e9, latents=True)) as fast:
        assert torch.equal(fast(**call)[0], plain) and asked == [(pipe.transformer, False)] * 2
        assert fast.report.details["kept"] == 0 and fast.report.forwards == fast.report.plain_forwards


def test_the_worst_frame_of_the_batch_decides(made):
    pipe, call, _ = made

    def one_bad(latents):
        scores = torch.ones(latents.shape[:2])
        scores[1, -1] = 0.4
        return scores

    with mmaccel.accelerate(pipe, video.BlockRouter(tau=0.5, latents=True)) as fast:
        fast(**call | {"score": one_bad})
        assert fast.report.details["scores"] == [0.4, 0.4] and fast.report.details["kept"] == 0


def test_frames_are_scored_where_there_is_a_decoder(made):
    pipe, call, _ = made
    sizes = {"base_dim": 4, "z_dim": 4, "dim_mult": [1, 1, 1, 1], "num_res_blocks": 1}
    statistics = {"latents_mean": [0.5] * 4, "latents_std": [2.0] * 4}
    vae = untrained(lambda: AutoencoderKLWan(**sizes, **statistics, temperal_downsample=[False, True, True]), 0)
    parts = {name: pipe.components[name] for name in ("tokenizer", "text_encoder", "transformer")}
    whole = type(pipe)(**parts, vae=vae.requires_grad_(False), scheduler=FlowMapEulerDiscreteScheduler())
    whole.set_progress_bar_config(disable=True)
    seen = []

    def score(frames):
        seen.append(frames)
        return frames.mean((2, 3, 4))

    with mmaccel.accelerate(whole, video.BlockRouter(tau=2.0)) as fast:
        drawn = fast(**call | {"score": score, "output_type": "pt", "return_dict": True}).frames
    assert drawn.shape[1] == 21 and [list(frames.shape) for frames in seen] == [[2, 8, 3, 32, 32]] * 2
    assert all(frames.min() >= 0 and frames.max() <= 1 for frames in seen)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"score": None}, "draft= needs score="),
        ({"draft": "own"}, "draft is the pipeline's own transformer"),
        ({"draft": torch.nn.Linear(1, 1)}, "draft=Linear: give a"),
        ({"draft": "double"}, "torch.float64 on cpu"),
        ({"draft": "wider"}, "has text_dim=32, and the pipeline's transformer 16"),
        ({"score": lambda latents: latents.mean()}, r"for each frame, \[2, 2\]"),
        ({"score": lambda latents: brightness(latents) / 0}, "not finite"),
    ],
)
def test_what_does_not_fit_is_said_and_nothing_is_left(made, change, said):
    pipe, call, _ = made
    if change.get("draft") == "own":
        change = {"draft": pipe.transformer}
    elif change.get("draft") == "double":
        change = {"draft": copy.deepcopy(call["draft"]).double()}
    elif change.get("draft") == "wider":
        change = {"draft": type(pipe.transformer).from_config({**pipe.transformer.config, "text_dim": 32})}
    plain = pipe(**call)[0]
    with mmaccel.accelerate(pipe, video.BlockRouter(latents=True)) as fast, pytest.raises(SettingError, match=said):
        fast(**call | change)
    assert torch.equal(pipe(**call)[0], plain)


def test_a_draft_is_to_be_where_the_pipeline_computes(made, monkeypatch):
    """Under `enable_model_cpu_offload()` the transformer waits elsewhere between its calls."""
    pipe, call, _ = made
    monkeypatch.setattr(type(pipe), "_execution_device", torch.device("meta"))
    told = "float32 on cpu, .* on meta: draft.to"
    with mmaccel.accelerate(pipe, video.BlockRouter(latents=True)) as fast, pytest.raises(SettingError, match=told):
        fast(**call)


def test_without_a_draft_or_a_cache_the_plain_video_is_drawn(made):
    pipe, call, _ = made
    plain = pipe(**call)[0]
    with mmaccel.accelerate(pipe, video.BlockRouter(tau=-1e9, latents=True)) as fast:
        assert torch.equal(fast(**call | {"draft": None, "score": None})[0], plain)
        assert not fast.report.engaged and "without draft= and score=" in str(fast.report)


def test_other_pipelines_are_refused(made):
    with pytest.raises(UnsupportedTargetError, match="BlockRouter works on diffusion in blocks models"):
        mmaccel.plan(wan_pipeline()[0], video.BlockRouter())
    with pytest.raises(SettingError, match=r"BlockRouter\(latents=True\)"):
        mmaccel.plan(made[0], video.BlockRouter())
    assert mmaccel.plan(made[0], video.HeterogeneousSteps(fraction=0)).family == "diffusion in blocks"


def test_methods_of_other_pipelines_work_on_blocks_too(made):
    """Whose passes also return the keys and values of the blocks before."""
    pipe, call = made[0], {key: value for key, value in made[1].items() if key not in ("draft", "score")}
    with mmaccel.accelerate(pipe, video.EasyCache(threshold=1e6, warmup=1)) as fast:
        fast(**call | {"num_inference_steps": 6})
        assert fast.report.forwards < fast.report.plain_forwards == 18


@pytest.mark.parametrize("context", [(), (video.RollingContext(blocks=1, first=0),)], ids=("all", "latest"))
def test_a_pass_that_fills_keys_and_values_is_no_step(made, context):
    """Behind a last step that the pipeline leaves out too, since its noise is gone."""
    pipe, call = made[0], {**made[1], "sigmas": [1.0, 0.7, 0.3, 0.0]}
    filled, draft = [], call.pop("draft")
    score = call.pop("score")

    def look(module, given, keywords, output):
        if keywords["kv_cache_flag"]["is_cache_step"]:
            filled.append([layer["full_cache"].clone() for layer in output[1].values()])

    handle = pipe.transformer.register_forward_hook(look, with_kwargs=True)
    try:
        with mmaccel.accelerate(pipe, *context, video.BlockRouter(tau=-1e9, latents=True)) as fast:
            fast(**call, draft=draft, score=score)
            assert not fast.report.warnings and (fast.report.forwards, fast.report.plain_forwards) == (3, 9)
    finally:
        handle.remove()
    assert len(filled) == 2 and all(float(kept.abs().max()) > 0 for layers in filled for kept in layers)
    assert not any(torch.equal(*layers) for layers in zip(*filled, strict=True))
    with mmaccel.accelerate(pipe, *context, video.EasyCache(1e6, warmup=1, cooldown=0)) as fast:
        drawn = fast(**call)[0]
        assert drawn.isfinite().all() and not fast.report.warnings
        assert fast.report.details["computed"] == [1.0, 1.0, 0.0] * 3


@contextmanager
def nothing_handed_back(pipe):
    """While entered, the transformer keeps the pipeline's keys and values to itself, where it predicts."""
    plain = pipe.transformer.forward

    def forward(*args, **kwargs):
        output, kept = plain(*args, **kwargs)
        return output, kept if kwargs["kv_cache_flag"]["is_cache_step"] else {}

    with ExitStack() as stack:
        override(stack, pipe.transformer, "forward", forward)
        yield


@pytest.mark.parametrize(
    "method", (*(video.EasyCache(x, warmup=2) for x in (0.1, 0.3, 0.5)), video.HeterogeneousSteps()), ids=str
)
def test_keys_and_values_are_neither_measured_nor_counted(made, method):
    pipe, call = made[0], {key: value for key, value in made[1].items() if key not in ("draft", "score")}

    def report():
        with mmaccel.accelerate(pipe, method) as fast:
            fast(**call | {"num_inference_steps": 12})
            return fast.report

    with nothing_handed_back(pipe):
        expected = report()
    found = report()
    assert found.details["computed"] == expected.details["computed"] and 0 < found.forwards < found.plain_forwards
    assert found.peak_extra_bytes == expected.peak_extra_bytes > 0


def test_tea_cache_is_calibrated_by_what_is_predicted(made):
    pipe, call = made[0], {key: value for key, value in made[1].items() if key not in ("draft", "score")}
    call["num_inference_steps"] = 12
    with nothing_handed_back(pipe):
        expected = video.calibrate_tea_cache(pipe, **call)
    assert video.calibrate_tea_cache(pipe, **call) == expected
