"""EncoderReuse: what the contract does not see."""

import diffusers
import pytest
import torch

import mmaccel
from mmaccel import video
from mmaccel.demos.families import models, sampling
from mmaccel.errors import SettingError, UnsupportedTargetError
from mmaccel.stepping.tensors import count_bytes, tensors
from mmaccel.video import examples


def test_key_steps_of_the_paper_and_of_shorter_runs():
    method = video.EncoderReuse()
    assert [s for s in range(50) if method.is_key(s, 50)] == [0, 1, 2, 3, 5, 10, 15, 25, 35]
    assert [s for s in range(100) if method.is_key(s, 100)] == [0, 2, 4, 6, 10, 20, 30, 50, 70]
    assert [s for s in range(4) if method.is_key(s, 4)] == [0, 1, 2, 3]


def test_the_encoder_runs_in_key_steps_and_the_decoder_in_all():
    pipe, arguments = examples.unet_pipeline()
    counts = dict.fromkeys(("conv_in", "down_blocks.0.resnets.0", "mid_block.resnets.0", "up_blocks.1.resnets.0"), 0)

    def count(name):
        def hook(*_):
            counts[name] += 1

        return pipe.unet.get_submodule(name).register_forward_hook(hook)

    with mmaccel.accelerate(pipe, video.EncoderReuse()) as fast:
        inner = [count(name) for name in counts if name != "conv_in"]
        fast(**arguments(steps=20))
        for hook in inner:
            hook.remove()
        assert counts == {**counts, "down_blocks.0.resnets.0": 7, "mid_block.resnets.0": 7, "up_blocks.1.resnets.0": 20}
        done = fast.report.details["computed"]
        assert [step for step, share in enumerate(done) if share == 1] == [0, 1, 2, 4, 6, 10, 14]
        total = sum(p.numel() for p in pipe.unet.parameters())
        encoder = [pipe.unet.conv_in, pipe.unet.down_blocks, pipe.unet.mid_block]
        kept = sum(p.numel() for part in encoder for p in part.parameters())
        assert done[3] == pytest.approx(1 - kept / total, abs=1e-3)
        assert fast.report.peak_extra_bytes > 0


class Still(diffusers.DiffusionPipeline):
    """The same sample and time in every step."""

    def __init__(self, unet, scheduler):
        super().__init__()
        self.register_modules(unet=unet, scheduler=scheduler)

    def __call__(self, steps, text, time=500, **added):
        self.scheduler.set_timesteps(steps)
        sample = torch.ones(1, 4, 8, 8)
        outputs = [self._step(sample, t, text, time, added) for t in self.scheduler.timesteps]
        return torch.stack(outputs)

    def _step(self, sample, t, text, time, added):
        output = self.unet(sample, t if time is None else time, text, **added).sample
        self.scheduler.step(output, t, sample)
        return output


@pytest.mark.parametrize("free", (False, True))
def test_reused_features_are_the_computed_ones(free):
    """Also with FreeU, which changes the features in place."""
    pipe, arguments = examples.unet_pipeline()
    if free:
        pipe.enable_freeu(s1=0.9, s2=0.2, b1=1.2, b2=1.4)
        for block in pipe.unet.up_blocks:  # of channels that a tiny model has
            block.resolution_idx = 0
    still = Still(pipe.unet, pipe.scheduler)
    text = arguments()["prompt_embeds"]
    plain = still(8, text)
    with mmaccel.accelerate(still, video.EncoderReuse(keys=(0, 25))) as fast:
        out = fast(8, text)
        assert sum(share == 1 for share in fast.report.details["computed"]) == 2
    torch.testing.assert_close(out, plain)


class Adapted(Still):
    """With what a T2I-Adapter makes of a picture, which its pipelines copy for each step."""

    def _step(self, sample, t, text, time, added):
        return super()._step(sample, t, text, time, {name: [x.clone() for x in made] for name, made in added.items()})


def test_reused_features_have_what_an_adapter_adds_in_place():
    pipe, arguments = examples.unet_pipeline()
    adapted, text = Adapted(pipe.unet, pipe.scheduler), arguments()["prompt_embeds"]
    made = {"down_intrablock_additional_residuals": [torch.ones(1, 8, 8, 8), torch.ones(1, 16, 4, 4)]}
    plain, without = adapted(8, text, **made), adapted(8, text)
    assert not torch.allclose(plain, without, atol=1e-2)
    with mmaccel.accelerate(adapted, video.EncoderReuse(keys=(0,))) as fast:
        torch.testing.assert_close(fast(8, text, **made), plain)
        assert fast.report.engaged


def test_methods_say_which_models_they_are_for():
    unet, _ = examples.unet_pipeline()
    wan, _ = examples.wan_pipeline()
    with pytest.raises(UnsupportedTargetError, match="EncoderReuse works on diffusion unet models, and WanPipeline is"):
        mmaccel.plan(wan, video.EncoderReuse())
    for method in (video.TeaCache(), video.SparseAttention(), video.TaylorSeer()):
        with pytest.raises(UnsupportedTargetError, match="works on diffusion transformer models, and StableDiffusion"):
            mmaccel.plan(unet, method)
    assert mmaccel.plan(unet, video.EncoderReuse()).family == "diffusion unet"
    for method in (video.EasyCache(), video.HeterogeneousSteps(), video.Auto()):
        assert mmaccel.plan(wan, method).family == "diffusion transformer"
        assert mmaccel.plan(unet, method).family == "diffusion unet"


def test_first_and_last_steps_run_the_encoder():
    pipe, arguments = examples.unet_pipeline()
    plain = pipe(**arguments())[0]
    with mmaccel.accelerate(pipe, video.EncoderReuse(keys=(0,), warmup=2, cooldown=3)) as fast:
        assert not torch.equal(fast(**arguments())[0], plain)
        assert [share == 1 for share in fast.report.details["computed"]] == [True] * 2 + [False] * 7 + [True] * 3
    for settings in ({"warmup": 0}, {"cooldown": -1}):
        with pytest.raises(SettingError, match=next(iter(settings))):
            video.EncoderReuse(**settings)


class Guided(Still):
    """Passes of their own for guidance, as modular pipelines make them; begins at a step, and guidance at another."""

    def __call__(self, steps, prompt, begin=0, guided=0):
        self.scheduler.set_timesteps(steps)
        sample = torch.ones(1, 4, 8, 8)
        for step, t in list(enumerate(self.scheduler.timesteps))[begin:]:
            output = self.unet(sample, t, prompt).sample
            if step >= guided:
                self.unet(sample, t, -prompt)
            sample = self.scheduler.step(output, t, sample).prev_sample
        return sample


@pytest.mark.parametrize(
    ("settings", "call", "whole"),
    (
        ({"warmup": 2}, {}, [0, 0, 1, 1]),
        ({}, {"begin": 3}, [3, 3]),
        ({}, {"guided": 4}, [0, 4, 5, 5]),
    ),
    ids=("long warm-up", "later start", "later guidance"),
)
def test_guidance_in_a_pass_of_its_own_is_reused_too(settings, call, whole):
    """Where a step was computed that is no key step, the next ones are reused, and not computed up to the next key."""
    pipe, arguments = examples.unet_pipeline()
    guided = Guided(pipe.unet, diffusers.DDIMScheduler(clip_sample=False))
    steps = [step for step in range(call.get("begin", 0), 8) for _ in range(1 + (step >= call.get("guided", 0)))]
    with mmaccel.accelerate(guided, video.EncoderReuse(keys=(0,), **settings)) as fast:
        fast(8, arguments()["prompt_embeds"], **call)
        done = fast.report.details["computed"]
        assert [step for step, share in zip(steps, done, strict=True) if share == 1] == whole
        assert not fast.report.warnings


@pytest.mark.parametrize("scheduler", (diffusers.DDIMScheduler, diffusers.EulerDiscreteScheduler))
def test_prior_noise_is_that_of_the_beginning(scheduler):
    """As a callback adds it: before each step whose time is below a half, and not after the last."""
    pipe, arguments = examples.unet_pipeline()
    pipe.scheduler = scheduler.from_config(pipe.scheduler.config)
    begun = []

    def add(pipe, step, _, given):
        times = pipe.scheduler.timesteps
        if step + 1 < len(times) and times[step + 1] < pipe.scheduler.config.num_train_timesteps / 2:
            given["latents"] = given["latents"] + 0.01 * begun[0] / pipe.scheduler.init_noise_sigma
        return given

    prepare = pipe.prepare_latents
    pipe.prepare_latents = lambda *args, **kwargs: begun.append(prepare(*args, **kwargs).clone()) or begun[-1].clone()
    with mmaccel.accelerate(pipe, video.EncoderReuse()) as fast:
        without = fast(**arguments())[0]
        begun.clear()
        expected = fast(**arguments(), callback_on_step_end=add)[0]
    with mmaccel.accelerate(pipe, video.EncoderReuse(prior_noise=0.01)) as fast:
        torch.testing.assert_close(fast(**arguments())[0], expected)
        assert not torch.allclose(expected, without, atol=1e-3)
        assert not fast.report.warnings


def test_prior_noise_is_for_the_second_half_also_where_times_are_logarithms_of_the_noise():
    """As in Stable Video Diffusion."""
    pipe, arguments = examples.unet_pipeline()
    kind = {"timestep_type": "continuous", "prediction_type": "v_prediction", "use_karras_sigmas": True}
    pipe.scheduler = diffusers.EulerDiscreteScheduler(**kind)
    found = [], []
    for share, latents in zip((0.0, 0.01), found, strict=True):

        def look(pipe, step, time, given, latents=latents):
            return latents.append(given["latents"].clone()) or given

        with mmaccel.accelerate(pipe, video.EncoderReuse(keys=None, prior_noise=share)) as fast:
            fast(**arguments(steps=12), callback_on_step_end=look)
    assert [torch.equal(*pair) for pair in zip(*found, strict=True)] == [True] * 5 + [False] * 7


def test_prior_noise_outlives_guidance_and_needs_no_reuse():
    def unguided(pipe, step, _, given):
        if step == 2:
            pipe._guidance_scale = 0
            given["prompt_embeds"] = given["prompt_embeds"][-1:]
        return given

    pipe, arguments = examples.unet_pipeline()
    call = {**arguments(), "callback_on_step_end": unguided, "callback_on_step_end_tensor_inputs": ["prompt_embeds"]}
    found = []
    for share in (0.0, 0.01):
        with mmaccel.accelerate(pipe, video.EncoderReuse(prior_noise=share)) as fast:
            found.append(fast(**call)[0])
            assert not any("prior_noise" in warning for warning in fast.report.warnings)
    assert not torch.allclose(*found, atol=1e-3)
    with mmaccel.accelerate(pipe, video.EncoderReuse(keys=None, prior_noise=0.01)) as fast:
        fast(**arguments())
        assert fast.report.engaged and not fast.report.exact and not fast.report.warnings


def test_prior_noise_is_for_no_other_unet_that_the_sampler_steps():
    (pipe, arguments), (other, _) = examples.unet_pipeline(), examples.unet_pipeline(1)
    other.scheduler = pipe.scheduler
    plain = other(**arguments())[0]
    with mmaccel.accelerate(pipe, video.EncoderReuse(prior_noise=0.01)):
        assert torch.equal(other(**arguments())[0], plain)


def test_memory_is_the_features_of_the_encoder():
    pipe, arguments = examples.unet_pipeline()
    sizes = []
    parts = (pipe.unet.conv_in, *pipe.unet.down_blocks, pipe.unet.mid_block)

    def count(_part, _args, output):  # a block returns its last features twice, which are kept once
        sizes.append(count_bytes({id(x): x for x in tensors(output)}))

    handles = [part.register_forward_hook(count) for part in parts]
    pipe(**arguments())
    for handle in handles:
        handle.remove()
    with mmaccel.accelerate(pipe, video.EncoderReuse()) as fast:
        fast(**arguments())
        assert fast.report.peak_extra_bytes == sum(sizes[: len(parts)])


def test_a_compiled_unet_is_refused():
    pipe, _ = examples.unet_pipeline()
    pipe.unet.compile()
    with pytest.raises(UnsupportedTargetError, match="is compiled"):
        mmaccel.plan(pipe, video.EncoderReuse())


def test_nothing_reused_is_said():
    pipe, arguments = examples.unet_pipeline()
    with mmaccel.accelerate(pipe, video.EncoderReuse()) as fast:
        fast(**arguments(steps=4))
        assert "EncoderReuse reused nothing: every step of this run was a key step" in str(fast.report)


def decoder_passes(pipe):
    """Rows of each pass of the decoder."""
    rows = []
    pipe.unet.up_blocks[-1].register_forward_hook(lambda *given: rows.append(len(given[-1])))
    return rows


@pytest.mark.parametrize("batch", (1, 3))
@pytest.mark.parametrize("scheduler", (diffusers.DDIMScheduler, diffusers.EulerDiscreteScheduler))
def test_decoders_of_several_steps_in_one_batch(batch, scheduler):
    pipe, arguments = examples.unet_pipeline()
    pipe.scheduler = scheduler()
    given = arguments(batch=batch, steps=20)
    with mmaccel.accelerate(pipe, video.EncoderReuse(cooldown=1)) as fast:
        one_by_one = fast(**given)[0]
        done, kept = fast.report.details["computed"], fast.report.peak_extra_bytes
    rows = decoder_passes(pipe)
    with mmaccel.accelerate(pipe, video.EncoderReuse(cooldown=1, parallel=3)) as fast:
        out = fast(**given)[0]
        torch.testing.assert_close(out, one_by_one, rtol=1e-4, atol=1e-4)
        assert fast.report.details["computed"] == done
        assert not fast.report.warnings
        assert fast.report.peak_extra_bytes == kept + 2 * count_bytes([torch.cat([out] * 2)])  # of two coming steps
    # key steps 0, 1, 2, 4, 6, 10, 14 and the last, and up to three steps between them; guidance doubles a batch
    assert [n // (2 * batch) for n in rows] == [1, 1, 1, 1, 1, 1, 1, 3, 1, 3, 1, 3, 1, 1]
    assert sum(rows) == 2 * batch * 20


def test_a_changed_prompt_is_not_answered_with_what_was_made_ahead():
    pipe, arguments = examples.unet_pipeline()
    method = {"keys": (0,), "warmup": 1}
    other = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(9))

    def change(_pipe, step, _time, given):
        return {"prompt_embeds": other} if step == 3 else given

    call = arguments(steps=8, callback_on_step_end=change, callback_on_step_end_tensor_inputs=["prompt_embeds"])
    outputs = []
    for parallel in (1, 8):
        with mmaccel.accelerate(pipe, video.EncoderReuse(**method, parallel=parallel)) as fast:
            outputs.append(fast(**call)[0])
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-4, atol=1e-4)
    rows = decoder_passes(pipe)
    with mmaccel.accelerate(pipe, video.EncoderReuse(**method, parallel=8)) as fast:
        fast(**call)
    assert [n // 2 for n in rows] == [1, 7, 4]  # those of the steps behind the change are made again


@pytest.mark.parametrize("time, added, single", ((500, False, True), (None, True, True), (None, False, False)))
def test_times_of_its_own_and_what_is_added_in_each_step_keep_calls_single(time, added, single):
    pipe, arguments = examples.unet_pipeline()
    still = Still(pipe.unet, pipe.scheduler)
    text, shapes = arguments()["prompt_embeds"], []
    hook = pipe.unet.mid_block.register_forward_pre_hook(lambda _, args: shapes.append(args[0].shape))
    still(1, text)
    hook.remove()
    given = {"mid_block_additional_residual": torch.ones(shapes[0])} if added else {}
    if added:  # as a ControlNet has them; diffusers takes both together
        given["down_block_additional_residuals"] = [torch.zeros(1)] * 4
    rows = decoder_passes(pipe)
    with mmaccel.accelerate(still, video.EncoderReuse(keys=(0,), parallel=4)) as fast:
        fast(8, text, time=time, **given)
        assert ("decoders ran one by one" in str(fast.report)) == single
    assert (rows == [1] * 8) == single


@pytest.mark.parametrize("is_shared", (False, True))
@pytest.mark.parametrize("layers", ("up", "mid"))
def test_decoders_whose_attention_is_perturbed_run_one_by_one(layers, is_shared):
    """Such attention takes its batch for three parts, of which it perturbs the last.

    Also where another pipeline of the same UNet does so.
    """
    plain, arguments = examples.unet_pipeline()
    pipe = diffusers.StableDiffusionPAGPipeline(
        **plain.components, pag_applied_layers=layers, requires_safety_checker=False
    )
    pipe.set_progress_bar_config(disable=True)
    outputs = []
    for parallel in (1, 3):
        target = plain if is_shared else pipe
        with mmaccel.accelerate(target, video.EncoderReuse(keys=(0, 30), parallel=parallel)) as fast:
            outputs.append((pipe if is_shared else fast)(**arguments(steps=8))[0])
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-4, atol=1e-4)
    assert ("decoders ran one by one" in str(fast.report)) == (layers == "up")


def adapters(unet, count):
    """Weights of IP-Adapters with random numbers, as checkpoints have them."""
    text, generator = unet.config.cross_attention_dim, torch.Generator().manual_seed(0)
    layers = [unet.get_submodule(n.removesuffix(".processor")) for n in unet.attn_processors if "attn2" in n]

    def normal(*sizes):
        return torch.randn(*sizes, generator=generator)

    for _ in range(count):
        proj = {"proj.weight": normal(4 * text, 8), "proj.bias": normal(4 * text)}
        proj |= {"norm.weight": torch.ones(text), "norm.bias": torch.zeros(text)}
        sizes = {2 * i + 1: (len(layer.to_k.weight), text) for i, layer in enumerate(layers)}
        attention = {f"{i}.to_{x}_ip.weight": normal(*size) for i, size in sizes.items() for x in "kv"}
        yield {"image_proj": proj, "ip_adapter": attention}


@pytest.mark.parametrize("as_list", (False, True))
@pytest.mark.parametrize("guidance", (1.0, 3.0))
def test_masks_of_adapters_are_no_rows_of_a_batch(guidance, as_list):
    pipe, arguments = examples.unet_pipeline()
    pipe.unet._load_ip_adapter_weights(list(adapters(pipe.unet, 2)), low_cpu_mem_usage=False)
    masks = torch.zeros(2, 1, 64, 64)
    masks[0, :, :, :32] = masks[1, :, :, 40:] = 1
    rows = 1 + (guidance > 1)
    call = {**arguments(steps=8), "guidance_scale": guidance}
    call["ip_adapter_image_embeds"] = [torch.linspace(-1, 1, 8 * rows).view(rows, 1, 8)] * 2
    call["cross_attention_kwargs"] = {"ip_adapter_masks": list(masks[:, None]) if as_list else masks}
    outputs = []
    for parallel in (1, 4):
        with mmaccel.accelerate(pipe, video.EncoderReuse(keys=(0, 30), parallel=parallel)) as fast:
            outputs.append(fast(**call)[0])
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-4, atol=1e-4)
    assert "decoders ran one by one" not in str(fast.report)


def test_an_interrupted_run_leaves_nothing_that_was_made_ahead():
    pipe, arguments = examples.unet_pipeline()
    plain = pipe(**arguments(steps=8))[0]

    def stop(_pipe, step, _time, given):
        if step == 3:
            raise KeyboardInterrupt
        return given

    with mmaccel.accelerate(pipe, video.EncoderReuse(keys=(0,), parallel=8)) as fast:
        first = fast(**arguments(steps=8))[0]
        with pytest.raises(KeyboardInterrupt):
            fast(**arguments(steps=8, callback_on_step_end=stop))
        assert torch.equal(fast(**arguments(steps=8))[0], first)
    assert torch.equal(pipe(**arguments(steps=8))[0], plain)


@pytest.mark.parametrize("parallel", (0, 1.5, True))
def test_bad_parallel(parallel):
    with pytest.raises(SettingError, match="parallel"):
        video.EncoderReuse(parallel=parallel)


@pytest.mark.parametrize("keys", (5, (50,), (-1,), ("a",)))
def test_bad_settings(keys):
    with pytest.raises(SettingError, match="keys"):
        video.EncoderReuse(keys=keys)


@pytest.mark.parametrize("name", [name for name in models.rows() if "UNet" in name and name != "StableCascadeUNet"])
def test_every_unet_decodes_several_steps_at_once(name):
    """Also where guidance makes two passes, and where each frame has a row of its own."""
    pipe, inputs = sampling.pipeline(name)
    outputs = []
    for parallel in (1, 3):
        with mmaccel.accelerate(pipe, video.EncoderReuse(keys=(0, 30), parallel=parallel)) as fast:
            outputs.append(fast(inputs, steps=8))
            assert not fast.report.warnings
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-4, atol=1e-3)
