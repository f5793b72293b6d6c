"""What learned shares are worth to `video.TokenCache`, beside equal and solved ones.

    python -m mmaccel.demos.video.learned_shares --output docs/benchmarks/long/learned_shares

Shares of the layers can be solved from what each layer's own error is, by dynamic programming. What that error does to
the clip is another thing, and DiffSparse (2026) learns it through the same program. Here a weight is learned for the
error of each layer, from those on for which all shares are equal: they are disturbed, the program picks the shares for
them, and what the two clips of opposite disturbances miss of the plain one says which way to go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

import mmaccel
from mmaccel import zoo
from mmaccel.bench import pages
from mmaccel.comparison import results
from mmaccel.comparison.entry import Entry
from mmaccel.method import Method
from mmaccel.video import HeterogeneousSteps, TokenCache
from mmaccel.video.bench.benchmark import judge
from mmaccel.video.bench.cases import MODEL, fewer_steps, scenes
from mmaccel.video.bench.filming import Filming
from mmaccel.video.bench.page import table

from .share_solver import PARTS, Array, best_shares, record_errors

BUDGET = 0.5
SPREAD, RATE = 0.7, 0.3  # of the logarithms of the weights: the disturbance, and the step for each dB
INTRO = (
    "`python -m mmaccel.demos.video.learned_shares`: `{model}`, {steps} steps, guidance 3, shift 3. Between full steps"
    " every layer recomputes a share of its tokens, in eighths, half of the work in all: equal shares, those with the"
    " least error of each layer's own in plain runs of two prompts, by dynamic programming, and those that were learned"
    " through the same program from {rounds} pairs of clips of {trained} other prompts. {judged} more prompts judge, to"
    " which nothing was fitted; *work* is the share of the blocks that was computed, for however many tokens. All is in"
    " [learned_shares.json](learned_shares.json)."
)


def measure(rounds: int, trained: int, judged: int, seed: int) -> Iterator[dict[str, Any]]:
    """The result after each distance between full steps."""
    pipe, asked = zoo.load(MODEL), scenes(judged)
    filming = Filming([scene.prompt for scene in asked], pipe=pipe)
    training = Filming(zoo.prompts(MODEL, trained, seed), pipe=pipe)
    rows: list[dict[str, Any]] = []
    learned: dict[str, list[dict[str, Any]]] = {}
    for interval in (TokenCache.interval, filming.steps):
        method = TokenCache(BUDGET, interval)
        fitted = zoo.prompts(MODEL, 2, seed + 1)
        errors = record_errors(training.target, method, fitted, {"num_inference_steps": training.steps})
        log, shares = learn(training, method, errors, rounds, seed)
        learned[str(interval)] = log
        cases = {"equal shares": None, "solved shares": fractions(errors, method, training.steps), "learned": shares}
        found = {name: TokenCache(BUDGET, interval, given) for name, given in cases.items()}
        entries = [entry(filming, name, made) for name, made in found.items()]
        entries.append(entry(filming, "HeterogeneousSteps", HeterogeneousSteps(BUDGET)))
        entries.append(fewer_steps(filming.steps, BUDGET).entry(filming.target, 1.0))
        rows.extend(judge(filming, BUDGET, entries, asked, interval=interval))
        facts = {"steps": filming.steps, "rounds": rounds, "trained": trained, "judged": judged, "learned": learned}
        yield {**results.result(rows), **facts}


def entry(filming: Filming, name: str, method: Method) -> Entry:
    """Who runs; its row says the shares."""
    made = Entry.of(filming.target, method, name, "ours")
    given = method.settings().get("fractions")
    made.columns["label"] = " ".join(f"{round(share * PARTS)}" for share in given) if given else ""
    return made


def fractions(errors: Array, method: TokenCache, steps: int) -> tuple[float, ...]:
    """The best shares within the budget for such errors."""
    parts = best_shares(errors, int(method.share(steps) * len(errors) * PARTS + 1e-6))
    return tuple(part / PARTS for part in parts)


def learn(
    training: Filming, method: TokenCache, errors: Array, rounds: int, seed: int
) -> tuple[list[dict[str, Any]], tuple[float, ...]]:
    """A line for each pair of clips, and the shares for the weights that were learned."""
    random, missed = np.random.default_rng(seed), misses(training, method)
    weights, log = equalizing(errors, method, training.steps), []
    for turn in tqdm(range(rounds), desc=f"full steps every {method.interval}"):
        number = turn % len(training.prompts)
        noise = random.standard_normal(len(weights)) * SPREAD
        pair = [fractions(_weighted(errors, weights + sign * noise), method, training.steps) for sign in (1, -1)]
        first, second = (missed(shares, number) for shares in pair)
        weights -= RATE * (first - second) / 2 * noise
        log.append({"prompt": number, "shares": pair, "missed_db": [first, second], "weights": weights.tolist()})
    return log, fractions(_weighted(errors, weights), method, training.steps)


def equalizing(errors: Array, method: TokenCache, steps: int) -> Array:
    """Logarithms of the weights `[L]` for which the best shares are equal: what one more part gains is the same."""
    parts = min(int(method.share(steps) * PARTS), PARTS - 1)
    return -np.log((errors[:, parts] - errors[:, parts + 1]).clip(1e-9))


def _weighted(errors: Array, weights: Array) -> Array:
    return errors * np.exp(weights)[:, None]


def misses(training: Filming, method: TokenCache) -> Callable[[tuple[float, ...], int], float]:
    """What a clip with some shares misses of the plain latents of a prompt, in dB, the more the worse."""
    plain: dict[int, torch.Tensor] = {}
    known: dict[tuple[tuple[float, ...], int], float] = {}

    def missed(shares: tuple[float, ...], number: int) -> float:
        if number not in plain:
            plain[number] = training.run(training.target, number).latents
        if (shares, number) not in known:
            made = TokenCache(method.budget, method.interval, shares)
            with mmaccel.accelerate(training.target, made) as fast:
                latents = training.run(fast, number).latents
            error = (latents - plain[number]).square().mean() / plain[number].square().mean()
            known[shares, number] = 10 * float(error.clamp_min(1e-12).log10())
        return known[shares, number]

    return missed


def page(result: dict[str, Any]) -> str:
    """Its Markdown page."""
    facts = {name: result[name] for name in ("steps", "rounds", "trained", "judged")}
    groups: dict[int, list[dict[str, Any]]] = {}
    for row in result["rows"]:
        groups.setdefault(row["interval"], []).append(row)
    sections = {
        f"A full step every {interval}" if interval < result["steps"] else "No full steps between": (
            f"{lead(group)}\n\n{table(group)}"
        )
        for interval, group in groups.items()
    }
    return pages.page(result, "Learned shares of tokens", INTRO.format(model=MODEL, **facts), sections)


def lead(group: list[dict[str, Any]]) -> str:
    """How near the others come to the plain clip, on the mean, beside equal shares."""
    (equal,) = (row["quality"] for row in group if row["method"] == "equal shares")
    others = {row["method"]: row["quality"] - equal for row in group if row["method"] != "equal shares"}
    told = ", ".join(f"{name} {gain:+.1f} dB" for name, gain in sorted(others.items(), key=lambda item: item[1]))
    return f"- To the plain clip, mean, against equal shares: {told}."


if __name__ == "__main__":
    pages.run(
        __doc__,
        page,
        measure,
        rounds={"type": int, "default": 40, "help": "pairs of clips that are learned from (default 40)"},
        trained={"type": int, "default": 6, "help": "prompts that are learned from (default 6)"},
        judged={"type": int, "default": 8, "help": "half of them with things that move (default 8)"},
        seed={"type": int, "default": 7100, "help": "of prompts, noise and disturbances"},
    )
