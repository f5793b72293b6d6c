"""The clean sample that a denoiser sees in a noisy one, which is forecast with samplers of noise.

Such a denoiser returns the noise, or its velocity in EDM's sense, and near pure noise the clean sample follows from it
only by a division by next to nothing: what a forecast of the noise misses a little, the sampler misses by far. The
clean sample changes slowly there, and it is what DPM-Solver++ and UniPC go by themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from mmaccel.stepping.replay import Make

from ..samplers import is_flow

PREDICTIONS = ("epsilon", "v_prediction", "sample")
# What samplers have that evaluate half of their steps at levels between, or all at those of the step before, as DDIM
# does from data to noise.
OTHERS = ("sigmas_interpol", "mid_point_sigma", "initial_alpha_cumprod")


@dataclass(frozen=True)
class Mixture:
    """What a sample is made of in one step of a sampler: ``(signal * clean + noise * drawn) / scale``.

    Attributes
    ----------
    signal, noise
        Whose squares sum to 1.
    scale
        1, or `signal` for samplers whose samples grow with the noise instead.
    prediction
        What the denoiser returns, of :data:`PREDICTIONS`.
    """

    signal: float
    noise: float
    scale: float
    prediction: str

    def clean(self, output: torch.Tensor, sample: torch.Tensor) -> torch.Tensor:
        """The clean sample by which a denoiser returns `output`, in float32."""
        output, sample = output.float(), self.scale * sample.float()
        if self.prediction == "epsilon":
            return (sample - self.noise * output) / self.signal
        return output if self.prediction == "sample" else self.signal * sample - self.noise * output

    def output(self, clean: torch.Tensor, sample: torch.Tensor) -> torch.Tensor:
        """What a denoiser returns that sees this clean sample, in float32."""
        clean, sample = clean.float(), self.scale * sample.float()
        if self.prediction == "epsilon":
            return (sample - self.signal * clean) / self.noise
        return clean if self.prediction == "sample" else (self.signal * sample - clean) / self.noise


def mixtures(scheduler: Any) -> list[Mixture]:
    """Those of the steps of a sampler of noise; none for flow matching, whose velocity is as good to forecast."""
    config, products = scheduler.config, getattr(scheduler, "alphas_cumprod", None)
    prediction = config.get("prediction_type")
    is_other = is_flow(scheduler) or config.get("use_flow_sigmas") or any(hasattr(scheduler, name) for name in OTHERS)
    is_wider = str(config.get("variance_type")).startswith("learned")  # what the denoiser returns than the sample
    if products is None or prediction not in PREDICTIONS or is_other or is_wider:
        return []
    sigmas = getattr(scheduler, "sigmas", None)
    if sigmas is None:
        kept = products.cpu()[scheduler.timesteps.long().cpu()].double()  # which Apple's GPUs have not
    else:
        kept = 1 / (1 + torch.as_tensor(sigmas).cpu().double() ** 2)
    # samplers that know only sigmas have samples of clean + sigma * noise
    grows = sigmas is not None and not hasattr(scheduler, "_sigma_to_alpha_sigma_t")
    return [
        Mixture(share**0.5, (1 - share) ** 0.5, share**0.5 if grows else 1.0, prediction) for share in kept.tolist()
    ]


def by_clean(
    mixture: Mixture, make: Make, output: torch.Tensor, sample: torch.Tensor, is_computed: bool
) -> tuple[Make, torch.Tensor]:
    """A step of a sampler that goes by clean samples, and that of `output`.

    A step that was computed is first made with the output itself, bit for bit.
    """
    given = [output] if is_computed else []

    def step(clean: torch.Tensor, sample: torch.Tensor) -> Any:
        return make(given.pop() if given else mixture.output(clean, sample).to(output.dtype), sample)

    return step, mixture.clean(output, sample)
