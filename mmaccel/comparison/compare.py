"""Compare: a target without and with methods on the same seeds, and with the simple alternative."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from ..adapter import find_adapter
from ..errors import ConflictError, SettingError
from ..method import Method, is_count, plain_number
from ..plan import Plan, plan
from .comparison import Comparison
from .entry import PLAIN, Entry
from .ranks import Ranks
from .trial import BaseTrial, trial_of

LEAST_RUNS = 3  # of each entry, so that there is a median


def compare(
    target: Any,
    *methods: Method | Plan | Sequence[Method],
    preset: str | None = None,
    seeds: Iterable[int] = (0,),
    rounds: int | None = None,
    simple: bool = True,
    processor: Any = None,
    ranks: bool = False,
    **inputs: Any,
) -> Comparison:
    """Run a target plainly and with each method on the same seeds, and put speed, quality and memory side by side.

    The first run of every entry is discarded. Then the entries take turns in a changing order, and the speed-up is the
    median of the ratios within a round. The simple alternative runs too, in about the time of each method: fewer steps
    of a diffusion pipeline, fewer frames for a model that looks at a video, a shorter window of Whisper. The worst seed
    is shown, and of several answers or recordings the worst come first.

    Parameters
    ----------
    target
        A transformers model or diffusers pipeline.
    *methods
        Each is an entry; a plan, tuple or list of methods is one entry of several methods together.
    preset
        ``"exact"``, ``"balanced"`` or ``"fast"``: one more entry.
    seeds
        Default: seed 0 only. The worst of several is shown, so its quality falls as seeds are added.
    rounds
        Runs of each seed; by default enough for at least 3 runs of every entry.
    simple
        Whether the simple alternative runs too (default True).
    processor
        Turns the tokens of an answer into words. For vision-language models it also prepares `frames` and
        `questions`, for recognisers `audio`, if these are given instead of the call's own arguments.
    ranks
        Whether the processes of `accelerate launch` or torchrun share the runs, each with its own copy of the target;
        default False. The same result is returned in all of them. Processes on one machine slow each other down.
    **inputs
        Arguments of the target's own call: those of `generate`, or of the pipeline. Without `generator`. Those that a
        method takes, such as the `assistant_model` of `vlm.ModelDraft`, go to its own runs alone. For recognisers also
        `audio` (a path, samples at 16 kHz, or a list of these; cut at pauses), `reference` (the words of each, for word
        errors) and `endpoint` (the detector of pauses; None for none).

    Raises
    ------
    SettingError, ConflictError, UnknownNameError, UnsupportedTargetError, ActiveSessionError
        Before anything runs.

    Examples
    --------
    >>> import mmaccel
    >>> from mmaccel import speech, video, zoo
    >>> pipe = zoo.load("tiny-wan")
    >>> found = mmaccel.compare(
    ...     pipe, video.HeterogeneousSteps(0.5), prompt="rocket moves up", seeds=range(4)
    ... )  # doctest: +SKIP
    >>> found.save("rocket.html")  # doctest: +SKIP
    >>> model, processor = speech.load("moonshine-tiny")  # doctest: +SKIP
    >>> mmaccel.compare(model, speech.SuffixDraft(), audio="talk.wav", processor=processor)  # doctest: +SKIP
    """
    numbers = _checked(seeds, rounds)
    plans = _plans(target, methods, preset)
    adapter = find_adapter(target, next(iter(plans.values())).modality)
    taken = frozenset[str]().union(*(plan.call_arguments for plan in plans.values()))
    trial = trial_of(adapter, inputs, processor, taken)
    made = [Entry(PLAIN, PLAIN), *(Entry(label, "method", plan) for label, plan in plans.items())]
    rounds = rounds or math.ceil(LEAST_RUNS / len(numbers))
    return measured(trial, made, numbers, rounds, simple, _processes(target) if ranks else Ranks())


def measured(
    trial: BaseTrial, entries: list[Entry], seeds: list[int], rounds: int, simple: bool, ranks: Ranks | None = None
) -> Comparison:
    """Run entries, the plain one first, and with `simple` the simple alternatives; returns the results."""
    from .runner import Runner  # needs torch, which is not loaded just for its name
    from .simple import run_beside_simple

    runner = Runner(trial, entries, seeds, rounds, title="compare", ranks=ranks)
    no_simple = run_beside_simple(runner, trial, simple)
    return Comparison.of(trial, runner.entries, seeds, no_simple, runner.ranks.count)


def _processes(target: Any) -> Ranks:
    from ..private import is_split  # needs torch

    ranks = Ranks.launched()
    if ranks.count > 1 and is_split(target):
        raise SettingError(
            f"{type(target).__name__} is split over the processes, so none can make a run alone: leave out ranks=True,"
            " and all make every run together"
        )
    return ranks


def _checked(seeds: Iterable[int], rounds: int | None) -> list[int]:
    try:
        numbers = list(map(plain_number, seeds))
    except TypeError as error:
        raise SettingError(f"seeds={seeds!r}: give several numbers, such as seeds=range(4)") from error
    if not numbers:
        raise SettingError("seeds is empty: give at least one number, such as seeds=range(4)")
    if not all(is_count(seed, 0) for seed in numbers) or len(set(numbers)) < len(numbers):
        raise SettingError(f"seeds={numbers!r}: they must be different integers of at least 0, such as seeds=range(4)")
    if rounds is not None and not is_count(rounds):
        raise SettingError(f"rounds={rounds!r}: it must be an integer of at least 1")
    return numbers


def _plans(target: Any, methods: tuple[Any, ...], preset: str | None) -> dict[str, Plan]:
    """All requested entries by label, resolved and checked."""
    plans = [plan(target, *(item if isinstance(item, tuple | list) else (item,))) for item in methods]
    if preset is not None or not plans:
        plans.append(plan(target, preset=preset))
    found: dict[str, Plan] = {}
    for made in plans:
        label = " + ".join(str(method) for method in made.methods)
        if label in found:
            raise ConflictError(f"{label} is given twice: name it once")
        found[label] = made
    return found
