"""Clean samples are those that diffusers' own samplers go by, and what was computed stays as it is."""

import diffusers
import pytest
import torch

import mmaccel
from mmaccel import video, zoo
from mmaccel.video.heterogeneous.clean_samples import by_clean, mixtures

STEPS = 8
LEVELS = {"num_train_timesteps": 1000, "beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
ONE = ("DDIMScheduler", "EulerDiscreteScheduler", "DDPMScheduler")  # whose steps tell the clean sample
SEVERAL = ("DPMSolverMultistepScheduler", "UniPCMultistepScheduler", "DEISMultistepScheduler")
OTHERS = ("PNDMScheduler", "HeunDiscreteScheduler", "LMSDiscreteScheduler", "CogVideoXDDIMScheduler", "LCMScheduler")


def made(name, **more):
    scheduler = getattr(diffusers, name)(**{**LEVELS, **more})
    scheduler.set_timesteps(STEPS)
    return scheduler


def drawn(seed, scale=1.0):
    return scale * torch.randn(2, 4, 3, 5, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("prediction", ("epsilon", "v_prediction", "sample"))
@pytest.mark.parametrize("name", ONE)
def test_it_is_what_a_step_of_the_sampler_tells(name, prediction):
    scheduler = made(
        name, prediction_type=prediction, **({} if name == "EulerDiscreteScheduler" else {"clip_sample": False})
    )
    found = mixtures(scheduler)
    sample = drawn(0, float(scheduler.init_noise_sigma))
    for step, timestep in enumerate(scheduler.timesteps[:3]):
        output = drawn(step + 1)
        if name == "EulerDiscreteScheduler":
            scheduler.scale_model_input(sample, timestep)
        result = scheduler.step(output, timestep, sample)
        told = result.pred_original_sample
        torch.testing.assert_close(found[step].clean(output, sample), told, rtol=1e-4, atol=1e-4)
        sample = result.prev_sample


@pytest.mark.parametrize("prediction", ("epsilon", "v_prediction", "sample"))
@pytest.mark.parametrize("name", SEVERAL)
def test_it_is_what_samplers_of_several_steps_go_by(name, prediction):
    kind = {"algorithm_type": "deis" if name.startswith("DEIS") else "dpmsolver++"} if "Uni" not in name else {}
    scheduler = made(name, prediction_type=prediction, **kind)
    found, sample, output = mixtures(scheduler), drawn(0), drawn(1)
    for step in (0, 3, STEPS - 1):
        scheduler._step_index = step
        converted = scheduler.convert_model_output(output, sample=sample)
        clean = found[step].clean(output, sample)
        if name.startswith("DEIS"):  # goes by the noise
            clean = (sample - found[step].signal * clean) / found[step].noise
        torch.testing.assert_close(clean, converted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("prediction", ("epsilon", "v_prediction", "sample"))
@pytest.mark.parametrize("name", (*ONE, *SEVERAL, *OTHERS))
def test_it_leads_back_to_what_the_denoiser_returned(name, prediction):
    scheduler = made(name, prediction_type=prediction)
    found, output, sample = mixtures(scheduler), drawn(1), drawn(0, 3.0)
    assert len(found) >= len(scheduler.timesteps)
    for mixture in found[: len(scheduler.timesteps)]:
        clean = mixture.clean(output, sample)
        torch.testing.assert_close(mixture.output(clean, sample), output, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("name", "more"),
    (
        ("FlowMatchEulerDiscreteScheduler", {}),
        ("UniPCMultistepScheduler", {"prediction_type": "flow_prediction", "use_flow_sigmas": True}),
        ("KDPM2DiscreteScheduler", {}),
        ("DDIMInverseScheduler", {}),
        ("DDPMScheduler", {"variance_type": "learned_range"}),
        ("EDMEulerScheduler", {}),
    ),
)
def test_with_flow_matching_and_levels_between_there_are_none(name, more):
    scheduler = getattr(diffusers, name)(**more)
    scheduler.set_timesteps(STEPS)
    assert mixtures(scheduler) == []


def test_a_step_that_was_computed_is_made_with_the_output_itself_once():
    scheduler, seen = made("DDIMScheduler"), []
    output, sample = drawn(1).half(), drawn(0).half()
    make, clean = by_clean(mixtures(scheduler)[0], lambda v, x: seen.append(v), output, sample, is_computed=True)
    make(clean, sample)
    make(clean, sample)
    assert seen[0] is output and seen[1].dtype == output.dtype and seen[1] is not output
    torch.testing.assert_close(seen[1], output, rtol=1e-2, atol=1e-2)
    make, clean = by_clean(mixtures(scheduler)[0], lambda v, x: seen.append(v), output, sample, is_computed=False)
    make(clean + 1, sample)
    assert seen[2] is not output and not torch.equal(seen[2], output)


@pytest.fixture(scope="module")
def pipe():
    found = zoo.load("tiny-unet")
    found.set_progress_bar_config(disable=True)
    return found


def latents(target, steps):
    call = {"num_inference_steps": steps, "output_type": "latent"}
    return target("big red heart on yellow", **call, generator=torch.Generator().manual_seed(3)).images


@pytest.mark.parametrize("name", ("DDIMScheduler", "UniPCMultistepScheduler", "EulerDiscreteScheduler"))
def test_a_run_that_computes_all_steps_is_the_plain_one_bit_for_bit(pipe, name, monkeypatch):
    monkeypatch.setattr(pipe, "scheduler", getattr(diffusers, name).from_config(pipe.scheduler.config))
    plain = latents(pipe, STEPS)
    with mmaccel.accelerate(pipe, video.HeterogeneousSteps(0.9, steps=tuple(range(STEPS)))) as fast:
        assert torch.equal(latents(fast, STEPS), plain)
    assert torch.equal(latents(pipe, STEPS), plain)


def test_few_steps_of_a_sampler_of_several_past_ones_lie_evenly(pipe, monkeypatch):
    schedulers = diffusers.UniPCMultistepScheduler, diffusers.DDIMScheduler
    found = []
    for cls in schedulers:
        monkeypatch.setattr(pipe, "scheduler", cls.from_config(pipe.scheduler.config))
        with mmaccel.accelerate(pipe, video.HeterogeneousSteps(0.25)) as fast:
            latents(fast, 16)
            found.append([step for step, share in enumerate(fast.report.details["steps"]) if share])
    assert found[0] == [0, 4, 8, 12] and found[1] == [0, 2, 6, 14]
