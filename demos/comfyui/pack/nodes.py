"""The nodes Accelerate, Report and Compare. ComfyUI imports this file; mmaccel does not."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import comfy.patcher_extension
import comfy.sample
import comfy.samplers
import latent_preview
import torch
from comfy.model_sampling import CONST
from comfy_api.latest import ComfyExtension, io, ui

from mmaccel.demos.comfyui.sampling import ForecastSampler, reason_to_pass
from mmaccel.machine import synchronize
from mmaccel.report import UNMEASURED, Report

KEY = "mmaccel"
CATEGORY = "mmaccel"


class Acceleration:
    """What the node Accelerate leaves in a model's options: its setting, and the report of the last run."""

    def __init__(self, budget: float, node: str) -> None:
        self.budget, self.node = budget, node
        self.report = Report(methods=[f"video.HeterogeneousSteps(budget={budget:g})"], exact=budget == 1)

    def __deepcopy__(self, memo: dict[int, Any]) -> Acceleration:
        return self  # later nodes clone the model with its options; its report stays one

    @contextmanager
    def in_charge(self, sampler: Any, guider: Any, sigmas: torch.Tensor) -> Iterator[None]:
        """Within the block the sampler forecasts some of its steps, or says why not."""
        self.report.baseline_seconds = None  # of another run, whose steps or size may be others
        self.report.start()
        function = getattr(sampler, "sampler_function", sampler)
        reason = reason_to_pass(function, getattr(sampler, "extra_options", {}), sigmas, self.budget)
        if reason or self.budget == 1:
            if self.budget < 1:
                self.report.warnings.append(f"all steps were computed: {reason}")
            yield
            return
        sampling = guider.inner_model.model_sampling
        times, is_flow = sampling.timestep(sigmas), isinstance(sampling, CONST)
        places = [float(t) / max(float(times[0]), 1e-9) for t in times]
        is_whole = sampler.max_denoise(guider, sigmas) and float(sigmas[-1]) == 0
        sampler.sampler_function = ForecastSampler(function, self.budget, self.report, places, is_flow, is_whole)
        try:
            yield
        finally:
            sampler.sampler_function = function

    def brief(self) -> str:
        """What fits into the node: what was computed, or why all was."""
        found = self.report
        if found.warnings or not found.forwards:
            return "\n".join(found.warnings)
        return f"{found.forwards:g} instead of {found.plain_forwards:g} passes, {found.wall_seconds:.1f} s"

    def told(self) -> str:
        """The report, which advises a node where it would advise a line of Python."""
        return str(self.report).replace(UNMEASURED, "not measured: the node Compare does")


def sample(
    executor: Any, guider: Any, sigmas: torch.Tensor, extra_args: dict[str, Any], *args: Any, **more: Any
) -> Any:
    """Wraps every run of a sampler on an accelerated model."""
    acceleration = extra_args["model_options"]["transformer_options"].get(KEY)
    if acceleration is None:
        return executor(guider, sigmas, extra_args, *args, **more)
    synchronize()
    began = time.perf_counter()
    with acceleration.in_charge(executor.class_obj, guider, sigmas):
        samples = executor(guider, sigmas, extra_args, *args, **more)
    synchronize()
    acceleration.report.wall_seconds = time.perf_counter() - began
    if acceleration.node:
        show(acceleration.brief(), acceleration.node)
    return samples


def show(text: str, node: str) -> None:
    """Write a text into a node of the page; what nodes answer as `ui` is shown of core's own only."""
    from server import PromptServer

    PromptServer.instance.send_progress_text(text, node)


class Accelerate(io.ComfyNode):
    """Lets samplers compute some of their steps, and forecast the others."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        share = "Share of the steps that are computed; the others are forecast and corrected. 1 changes nothing."
        return io.Schema(
            node_id="MmaccelAccelerate",
            display_name="Accelerate",
            category=CATEGORY,
            description="Samplers compute some of their steps and forecast the others: half of them in half the time.",
            inputs=[
                io.Model.Input("model"),
                io.Float.Input("budget", default=0.5, min=0.1, max=1.0, step=0.05, tooltip=share),
            ],
            outputs=[io.Model.Output(display_name="model")],
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def execute(cls, model: Any, budget: float) -> io.NodeOutput:
        if accelerated(model) is not None:
            raise ValueError("this model comes from another node Accelerate: leave out one of the two")
        fast = model.clone()
        fast.model_options["transformer_options"][KEY] = Acceleration(budget, str(cls.hidden.unique_id))
        fast.add_wrapper_with_key(comfy.patcher_extension.WrappersMP.SAMPLER_SAMPLE, KEY, sample)
        return io.NodeOutput(fast)


class ReportNode(io.ComfyNode):
    """Says what the last run computed and forecast."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="MmaccelReport",
            display_name="Report",
            category=CATEGORY,
            description="What the last run of an accelerated model computed and forecast.",
            inputs=[
                io.Model.Input("model", tooltip="The model from Accelerate."),
                io.Latent.Input("latent", tooltip="What the sampler made of it: the report waits for it."),
            ],
            outputs=[io.Latent.Output(display_name="latent"), io.String.Output(display_name="report")],
            hidden=[io.Hidden.unique_id],
            is_output_node=True,
        )

    @classmethod
    def execute(cls, model: Any, latent: dict[str, Any]) -> io.NodeOutput:
        text = acceleration_of(model).told()
        show(text, str(cls.hidden.unique_id))
        return io.NodeOutput(latent, text, ui=ui.PreviewText(text))


class Compare(io.ComfyNode):
    """Samples plainly and accelerated from the same noise."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        samplers, schedulers = comfy.samplers.KSampler.SAMPLERS, comfy.samplers.KSampler.SCHEDULERS
        return io.Schema(
            node_id="MmaccelCompare",
            display_name="Compare",
            category=CATEGORY,
            description="Samples plainly and accelerated from the same noise, and gives both with their difference.",
            inputs=[
                io.Model.Input("model", tooltip="The model from Accelerate."),
                io.Conditioning.Input("positive"),
                io.Conditioning.Input("negative"),
                io.Latent.Input("latent_image"),
                io.Vae.Input("vae"),
                io.Int.Input("seed", default=0, min=0, max=2**64 - 1, control_after_generate=True),
                io.Int.Input("steps", default=20, min=1, max=10_000),
                io.Float.Input("cfg", default=6.0, min=0.0, max=100.0, step=0.1),
                io.Combo.Input("sampler_name", options=samplers, default="euler"),
                io.Combo.Input("scheduler", options=schedulers, default="simple"),
            ],
            outputs=[
                io.Image.Output(display_name="accelerated"),
                io.Image.Output(display_name="plain, accelerated, difference"),
                io.String.Output(display_name="report"),
            ],
            hidden=[io.Hidden.unique_id],
            is_output_node=True,
        )

    @classmethod
    def execute(cls, model: Any, vae: Any, latent_image: dict[str, Any], **settings: Any) -> io.NodeOutput:
        report, untouched = acceleration_of(model).report, Acceleration(1, node="")
        plain = model.clone()
        plain.model_options["transformer_options"][KEY] = untouched  # which measures the same part of a run
        drawn(plain, latent_image, **{**settings, "steps": 1})  # what comes first pays for loading and warming up
        pictures = []
        for one in (plain, model):
            found = vae.decode(drawn(one, latent_image, **settings))
            pictures.append(found.reshape(-1, *found.shape[-3:]))
        report.baseline_seconds = untouched.report.wall_seconds
        difference = (pictures[0] - pictures[1]).abs()
        text = f"{psnr(difference)} to the plain run\n{report}"
        show(text, str(cls.hidden.unique_id))
        rows = torch.cat([*pictures, (4 * difference).clamp(max=1)], dim=2)  # beside each other, along the width
        return io.NodeOutput(pictures[1], rows, text, ui=ui.PreviewText(text))


def drawn(model: Any, latent: dict[str, Any], seed: int, positive: Any, negative: Any, **settings: Any) -> torch.Tensor:
    """One run of a sampler, as core's KSampler makes it."""
    start = comfy.sample.fix_empty_latent_channels(model, latent["samples"])
    noise = comfy.sample.prepare_noise(start, seed, latent.get("batch_index"))
    steps, cfg = settings["steps"], settings["cfg"]
    return comfy.sample.sample(
        model,
        noise,
        steps,
        cfg,
        settings["sampler_name"],
        settings["scheduler"],
        positive,
        negative,
        start,
        noise_mask=latent.get("noise_mask"),
        callback=latent_preview.prepare_callback(model, steps),
        seed=seed,
    )


def psnr(difference: torch.Tensor) -> str:
    """Of pictures with values from 0 to 1."""
    error = float(difference.double().square().mean())
    return "equal" if error == 0 else f"{-10 * torch.log10(torch.tensor(error)).item():.1f} dB"


def accelerated(model: Any) -> Acceleration | None:
    return model.model_options.get("transformer_options", {}).get(KEY)


def acceleration_of(model: Any) -> Acceleration:
    found = accelerated(model)
    if found is None:
        raise ValueError("this model is not accelerated: put the node Accelerate between the loader and this one")
    return found


class Pack(ComfyExtension):
    """All nodes of mmaccel."""

    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        return [Accelerate, ReportNode, Compare]


async def comfy_entrypoint() -> Pack:
    return Pack()
