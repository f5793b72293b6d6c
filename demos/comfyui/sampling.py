"""Samplers as ComfyUI has them, functions that call a model once a step, with some of the calls forecast.

Such a function owns its loop, so no step of it can be made again by itself. But it draws no random numbers: called
anew with all that the model said so far, it comes back to the same place without the model. So the steps between two
computed ones are made again with better forecasts, whatever the sampler keeps of its past. Of models of flow matching
velocities are forecast, of others the clean samples that they see.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch

from mmaccel.patching import override
from mmaccel.report import Report
from mmaccel.stepping import StepAllocation
from mmaccel.stepping.schedule import FEWEST, default_schedule, default_warmup, refresh
from mmaccel.stepping.tensors import count_bytes

Function = Callable[..., torch.Tensor]
# Functions of ComfyUI, with the names that users see, that call the model once a step, at the step's own noise level,
# and draw no random numbers.
FOLLOWED = {
    "sample_euler": "euler",
    "sample_dpmpp_2m": "dpmpp_2m",
    "sample_unipc": "uni_pc",
    "sample_unipc_bh2": "uni_pc_bh2",
    "sample_deis": "deis",
    "sample_res_multistep": "res_multistep",
    "sample_ipndm": "ipndm",
    "sample_gradient_estimation": "gradient_estimation",
}


def reason_to_pass(function: Any, options: dict[str, Any], sigmas: Sequence[Any], budget: float) -> str:
    """Why a run over these noise levels is better left as it is; empty where some of its steps can be forecast."""
    steps = len(sigmas) - 1
    name = getattr(function, "__name__", type(function).__name__)
    if name not in FOLLOWED:
        known = ", ".join(FOLLOWED.values())
        return f"the steps of {name.removeprefix('sample_')} cannot be forecast: choose the sampler {known}"
    if options.get("s_churn"):
        return "a sampler with s_churn draws new noise in its steps: set it to 0"
    needed = math.ceil(round(FEWEST / budget, 6))
    if steps < needed:
        found = f"{budget:g} of {steps} steps are too few to forecast the others from: take {needed} steps or more"
        larger = math.ceil(20 * FEWEST / steps) / 20  # in steps of the node's field
        return f"{found}, or a budget of {larger:g} or more" if larger < 1 else found
    if any(float(sigma) == 0 for sigma in sigmas[:-1]):
        return "a step begins without noise, where there is no velocity"
    return ""


class _Reached(Exception):
    """The sampler called the model where it is not known yet what that says."""

    def __init__(self, sample: torch.Tensor) -> None:
        super().__init__()
        self.sample = sample


class _KnownModel:
    """Stands where the model is: answers by known velocities or clean samples, and ends the sampler behind the last."""

    def __init__(self, model: Any, known: Sequence[torch.Tensor], is_clean: bool) -> None:
        self.model, self.known, self.is_clean = model, iter(known), is_clean

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def __call__(self, x: torch.Tensor, sigma: torch.Tensor, **options: Any) -> torch.Tensor:
        known = next(self.known, None)
        if known is None:
            raise _Reached(x)
        return known if self.is_clean else x - _wide(sigma, x) * known


class ForecastSampler:
    """A sampler function of which a budget of calls reaches the model, and the others are forecast and corrected.

    Heterogeneous Step Allocation (2026), as :class:`mmaccel.video.HeterogeneousSteps` has it for diffusers. Lossy
    below a budget of 1.

    Parameters
    ----------
    function
        One of :data:`FOLLOWED`: ``function(model, noise, sigmas, extra_args, callback, disable, **options)``.
    budget
        Share of the calls that reach the model, above 0 and at most 1.
    report
        Is told what was computed.
    places
        Where the steps stand on the way from noise to data, one for each of the noise levels; None (default) for the
        noise levels themselves, as fits flow matching.
    is_flow
        Whether the model's samples are mixed as in flow matching (default), so that velocities are forecast; otherwise
        clean samples are.
    is_whole
        Whether the run leads from pure noise to data (default), and not from a picture on or a part of the way.

    Examples
    --------
    >>> sampler = ForecastSampler(sample_euler, 0.5, report)  # doctest: +SKIP
    >>> sampler(model, noise, sigmas)  # doctest: +SKIP
    """

    def __init__(
        self,
        function: Function,
        budget: float,
        report: Report,
        places: Sequence[float] | None = None,
        is_flow: bool = True,
        is_whole: bool = True,
    ) -> None:
        self.function, self.budget, self.report = function, budget, report
        self.places, self.is_flow, self.is_whole = places, is_flow, is_whole

    def __call__(
        self,
        model: Any,
        noise: torch.Tensor,
        sigmas: torch.Tensor,
        extra_args: dict[str, Any] | None = None,
        callback: Callable[[dict[str, Any]], Any] | None = None,
        disable: bool | None = None,
        **options: Any,
    ) -> torch.Tensor:
        """Sample as the function does; `noise` `[B, C, ...]`, `sigmas` `[steps + 1]`."""
        run = _Run(self, model, noise, sigmas, extra_args or {}, options)
        with ExitStack() as stack:
            _keep_coefficients(stack, self.function)
            return run.sample(callback)


def _keep_coefficients(stack: ExitStack, function: Function) -> None:
    """Let deis integrate its coefficients once for a run, which depend on its noise levels only, until `stack` closes.

    That takes it as long as many small models take for a step, and it begins anew for every step that is made again.
    """
    source = getattr(function, "__globals__", {}).get("deis")
    if getattr(function, "__name__", "") != "sample_deis" or not hasattr(source, "get_deis_coeff_list"):
        return
    found: list[Any] = []
    original = source.get_deis_coeff_list

    def kept(*args: Any, **more: Any) -> Any:
        if not found:
            found.append(original(*args, **more))
        return found[0]

    override(stack, source, "get_deis_coeff_list", kept)


class _Run:
    """One run: what the model said so far, velocities or clean samples, is the whole state of the sampler."""

    def __init__(
        self,
        sampler: ForecastSampler,
        model: Any,
        noise: torch.Tensor,
        sigmas: torch.Tensor,
        extra_args: dict[str, Any],
        options: dict[str, Any],
    ) -> None:
        self.function, self.report = sampler.function, sampler.report
        self.model, self.noise, self.sigmas = model, noise, sigmas
        self.extra_args, self.options = extra_args, options
        self.known: list[torch.Tensor] = []
        self.is_clean = not sampler.is_flow
        steps = len(sigmas) - 1
        places = sampler.places or [float(sigma) for sigma in sigmas]
        one_step = getattr(sampler.function, "__name__", "") == "sample_euler"
        is_usual = one_step and sampler.is_whole  # of the others no more than this is measured
        warmup = default_warmup(steps, sampler.budget)
        schedule = default_schedule(steps, sampler.budget) if is_usual else refresh(steps, sampler.budget, warmup)
        curved = one_step and not self.is_clean
        self.allocation = StepAllocation(places, schedule, sampler=self, one_step=one_step, curved=curved)

    def sample(self, callback: Callable[[dict[str, Any]], Any] | None) -> torch.Tensor:
        x = self._again()
        for step in range(len(self.sigmas) - 1):
            sigma, start = self.sigmas[step], x
            is_computed = self.allocation.begin(step) > 0
            self._count(is_computed)
            x = self.allocation.step(self._make, self._computed(x, sigma) if is_computed else None, x)
            if callback is not None:
                denoised = self.known[-1] if self.is_clean else start - sigma * self.known[-1]
                callback({"x": start, "i": step, "sigma": sigma, "sigma_hat": sigma, "denoised": denoised})
        return x

    def _computed(self, x: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
        """The velocity or the clean sample that the model gives, after guidance."""
        denoised: torch.Tensor = self.model(x, sigma * x.new_ones([len(x)]), **self.extra_args)
        return denoised if self.is_clean else (x - denoised) / sigma

    def _make(self, known: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        """One more step, by this velocity or clean sample; where it starts follows from those before."""
        self.known.append(known)
        return self._again()

    def _again(self) -> torch.Tensor:
        """Where the sampler calls the model next, or ends, if it goes by what is known so far."""
        known = _KnownModel(self.model, self.known, self.is_clean)
        try:
            return self.function(
                known, self.noise, self.sigmas, extra_args=self.extra_args, callback=None, disable=True, **self.options
            )
        except _Reached as reached:
            return reached.sample

    def _count(self, is_computed: bool) -> None:
        report = self.report
        computed = report.details.setdefault("computed", [])
        computed.append(float(is_computed))
        report.plain_forwards, report.forwards = len(computed), sum(computed)
        report.engaged = report.engaged or not is_computed
        held = self.allocation.nbytes() + count_bytes(self.known)
        report.peak_extra_bytes = max(report.peak_extra_bytes, held)


def _wide(sigma: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Noise levels `[B]` or `[]` so that they multiply `x`."""
    return sigma.reshape(-1, *[1] * (x.ndim - 1)) if sigma.ndim else sigma
