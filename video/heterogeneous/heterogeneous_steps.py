"""Heterogeneous step allocation: the steps and tokens that matter are computed, the others forecast."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import ClassVar

from mmaccel.errors import UnsupportedTargetError
from mmaccel.method import Advice, is_count, is_number, is_share
from mmaccel.registry import register
from mmaccel.stepping.allocation import TARGETS

from ..blocks.token_subset import KINDS
from ..families.adapter import (
    WHOLE_STEPS,
    DiffusionMethod,
    DiffusionTransformerAdapter,
    PipelineSession,
    has_frame_samplers,
    refuse_frame_samplers,
    require_steps,
)
from ..families.context_parallel import refuse_split
from ..following import follow
from ..samplers import FLOW_MAP, goes_by_mean, is_flow, is_one_of, is_repeatable
from .partial import PartialForward, require_partial
from .run import HeterogeneousRun

POLICIES = ("refresh", "groups")
CHOICES = ("hottest", "random")


@register("video")
@dataclass(frozen=True)
class HeterogeneousSteps(DiffusionMethod):
    """Spends a budget of computation on the steps whose velocity changes most, and forecasts the rest.

    Some steps, denser at the beginning of a run, compute all tokens. In the others every token moves by a forecast: its
    last velocity and its slope, or a part of it. When a token is computed again, the forecast steps since then are
    corrected: the sampler repeats them, with velocities on the parabola through the last three computed ones, or with
    multistep samplers and small budgets on the line through two. With most samplers of noise (DDIM, PNDM, DPM-Solver++,
    Euler's for Stable Diffusion) it is not the velocity that is forecast and corrected but the clean sample that the
    denoiser sees, which changes less where there is much noise. A few steps may compute only the hottest tokens, which
    attend to the kept keys and values of all; no measurement found this better than computing none, so it is off by
    default. Where every frame has a sampler of its own (diffusion forcing, as in SkyReels-V2), a step is computed or
    forecast for all frames that it moves, and each is forecast and corrected along its own noise levels. Sound that is
    drawn beside the frames, as in LTX-2 and Kandinsky 6, is neither: in skipped steps it goes on with its last
    velocity. Lossy below a budget of 1.

    Parameters
    ----------
    budget
        Share of the denoising time to spend, above 0 and at most 1 (exact); default 0.5.
    policy
        ``"refresh"`` (default, measured to be better), or ``"groups"``: the paper's step divisors 1, 2, 4 and 8 for
        groups of tokens by the heat of their velocity.
    forecast
        Share of the velocity's slope that forecasts use, 0 to 1. None (default) for what was measured to be the
        safest: with Euler's steps all of it where no gap between computed steps is longer than a tenth of the run, as
        at half of 40 steps, and less in proportion where one is; with samplers of several past steps no more than half
        of it.
    correct
        Correct the sample once forecasts turn out wrong (default). It needs a sampler that draws no noise: Euler's,
        Heun's, DDIM, PNDM, LMS, KDPM2, UniPC, DPM-Solver++, DEIS, Helios's or MiniMax-H3's. With others forecasts stay
        uncorrected, and the report says so.
    target
        What to be near to: the ``"plain"`` run (default), or the ``"converged"`` one of many more steps. Then a step
        goes by the mean of its velocity instead of its value where the step begins, as predictor-corrector methods do,
        and half of the steps computed were measured to be nearer to the converged clip than the plain run of all is, on
        most prompts; on a few they give another clip, far from both. For samplers of flow matching that draw no noise,
        but Heun's and AnyFlow's, whose steps go by such a mean themselves.
    tolerance
        How far forecasts may lead astray, as the root mean square of all corrections in units of the latents, before a
        run computes all its further steps and so exceeds its budget; None (default) for any. It needs corrections.
        `video.Auto` finds it for a quality; the report has the ``"missed"`` of every corrected run among its details.
    warmup
        Full steps at the beginning. The default is four tenths of the computed steps, measured to keep the prompts that
        otherwise become another clip; 1 with an `interval`, 2 with ``"groups"``. Below a budget of a third it is none:
        distances between full steps grow from the first on, and the last lies at nine tenths of the run, but for two
        experts, diffusion forcing and runs from a picture on, which then begin with 1 where fewer than 8 steps are
        computed. Multistep samplers, such as UniPC, may do as well with fewer steps there, and the report says so;
        those of noise whose steps are corrected compute them at equal distances, from the first on. With none of this,
        `cooldown` and `interval` given, runs of fewer than 10 steps are computed as they are, and the report says what
        helps instead.
    cooldown
        Full steps at the end. The default is 1, and none where distances grow or are equal, see `warmup`.
    interval
        Distance between full steps in the middle of the run; None (default) spreads as many as the budget allows,
        denser towards both ends, or below a budget of a third towards the beginning, see `warmup`.
    fraction
        Share of the tokens that partial steps compute; None (default) or 0 for no partial steps. Otherwise every
        fourth of the skipped steps is partial, or with an `interval` as many as the budget allows. The budget counts
        tokens: a partial step takes more time than its share. Partial steps do not work in a compiled transformer.
    tokens
        Which tokens partial steps compute: ``"hottest"`` (default), or ``"random"`` to measure the value of the choice.
    steps
        Indices of the full steps, as :func:`calibrate_steps` finds them for a number of steps (of Heun's samplers of
        passes, two a step); None (default) for the general schedule. A run may have no more steps before the first or
        behind the last of them than lie between any two.
    kv
        Where partial steps keep keys and values: ``"native"`` (default) as the model has them, ``"fp8"`` in 8 bits,
        ``"cpu"`` in the main memory.

    Raises
    ------
    SettingError
        If a setting is outside its range, or a run is too short for its warm-up and cool-down, or not of the length
        that `steps` are for.
    MemoryLimitError
        Before the run, if its keys and values do not fit.
    UnsupportedTargetError
        If the target is not a pipeline, partial steps are requested for a family with unknown blocks or a pipeline with
        a sampler for every frame, or a `tolerance` for a sampler whose steps are not corrected.

    Examples
    --------
    >>> str(HeterogeneousSteps(budget=0.25))
    'video.HeterogeneousSteps(budget=0.25)'
    """

    paper = "Heterogeneous Step Allocation (HSA), 2026"
    advice: ClassVar[Advice] = Advice(
        "The first to try: at a half and a quarter of the time it is ahead of all others on average.",
        "Almost nothing at half of 40 Euler steps; with UniPC a few prompts move further. At a quarter the worst prompt"
        " can become another clip, as good and far away.",
    )
    traces: ClassVar[bool] = True
    forward: ClassVar[type[PartialForward]] = PartialForward  # what works on some of the tokens
    role = "step cache"
    families = WHOLE_STEPS
    neutral = {"budget": 1.0}
    engaging = {"budget": 0.5, "fraction": 0.2, "warmup": 1}

    budget: float = 0.5
    policy: str = "refresh"
    forecast: float | None = None
    correct: bool = True
    target: str = TARGETS[0]
    tolerance: float | None = None
    warmup: int | None = None
    cooldown: int | None = None
    interval: int | None = None
    fraction: float | None = None
    tokens: str = "hottest"
    steps: tuple[int, ...] | None = None
    kv: str = "native"

    def __post_init__(self) -> None:
        self._require(is_share(self.budget), "budget", "above 0 and at most 1")
        self._require(self.policy in POLICIES, "policy", "one of " + ", ".join(POLICIES))
        fits = self.forecast is None or is_number(self.forecast, 0, 1)
        self._require(fits, "forecast", "None or between 0 and 1")
        self._require(isinstance(self.correct, bool), "correct", "True or False")
        self._require(self.target in TARGETS, "target", "one of " + ", ".join(TARGETS))
        fits = self.tolerance is None or is_number(self.tolerance, 0)
        self._require(fits, "tolerance", "None or at least 0")
        fits = self.tolerance is None or self.correct
        self._require(fits, "tolerance", "None with correct=False: only corrections tell how far forecasts lead astray")
        for name, low in (("warmup", 1), ("cooldown", 0), ("interval", 1)):
            value = getattr(self, name)
            self._require(value is None or is_count(value, low), name, f"None or an integer of at least {low}")
        self._require(self.fraction is None or is_number(self.fraction, 0, 1), "fraction", "None or between 0 and 1")
        self._require(self.tokens in CHOICES, "tokens", "one of " + ", ".join(CHOICES))
        self._require(self.kv in [*KINDS], "kv", "one of " + ", ".join(KINDS))
        if self.steps is not None:
            given = tuple(self.steps) if isinstance(self.steps, Sequence) else ()
            fits = len(given) >= 2 and all(is_count(step, 0) for step in given) and tuple(sorted({*given})) == given
            self._require(fits, "steps", "rising indices, two or more (how many steps a run has, its call says)")
            object.__setattr__(self, "steps", given)

    @property
    def exact(self) -> bool:
        return self.budget == 1

    @property
    def chooses_tokens(self) -> bool:
        """Whether there may be partial steps, which compute some of the tokens."""
        return not self.exact and self.steps is None and (bool(self.fraction) or self.policy == "groups")

    def check(self, adapter: DiffusionTransformerAdapter) -> None:
        require_steps(adapter, self.name)
        scheduler = adapter.target.scheduler
        fits = is_flow(scheduler) and is_repeatable(scheduler) and not goes_by_mean(scheduler)
        if self.target == "converged" and not fits:
            fitting = "FlowMatchEulerDiscreteScheduler(shift=3)"
            if has_frame_samplers(adapter.target):
                fitting = 'UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True)'
            other = "" if is_one_of((FLOW_MAP,), scheduler) else f", or set pipe.scheduler = {fitting}"
            raise UnsupportedTargetError(
                f"{type(scheduler).__name__} is no sampler of flow matching that draws no noise and goes by the"
                f" velocity where a step begins, as target='converged' needs: leave target= out{other}"
            )
        if self.tolerance is not None and not is_repeatable(scheduler):
            raise UnsupportedTargetError(
                f"forecasts are not corrected with {type(scheduler).__name__}, whose steps cannot be repeated, and only"
                f" corrections tell whether tolerance={self.tolerance:g} is kept: leave tolerance= out, or take a"
                " sampler that draws no noise, such as EulerDiscreteScheduler or UniPCMultistepScheduler"
            )
        if self.chooses_tokens:
            refuse_frame_samplers(adapter.target, f"{self.name}(fraction=..., policy={self.policy!r})")
            refuse_split(adapter.denoisers(), f"{self.name}(fraction=..., policy={self.policy!r})")
            for denoiser in adapter.denoisers():
                require_partial(denoiser)

    def attach(self, session: PipelineSession, stack: ExitStack) -> None:
        if self.exact:
            return
        parts: dict[int, PartialForward] = {}
        for denoiser in session.adapter.denoisers() if self.chooses_tokens else []:
            parts[id(denoiser)] = self.forward(denoiser, stack, self.kv)
        follow(session, stack, lambda run: HeterogeneousRun(self, session, run, parts))
