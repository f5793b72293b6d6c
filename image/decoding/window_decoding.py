"""The lossless window decoder: verify a window of drafts in one forward, keep what agrees, redraft the rest.

Speculative Jacobi Decoding (Teng et al., 2024) with the couplings of SCD and SJD-PAC. One pass over
`[last token, drafts]` gives the distribution of every drafted position; drafts are accepted from the left by
the token ratio, the first failure is redrawn from the residual, and all later positions are redrafted.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch

from mmaccel.decoding import Budget, Stats, one_hot, ratio

from .coupling import GumbelNoise, couple

INITS = ("uniform", "repeat_left")

Accept = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Decoder(Protocol):
    """What window decoding needs; :class:`GridDecoder` is one, and so are the enumerable toys of the tests."""

    batch: int
    length: int
    vocabulary: int
    device: torch.device
    generator: torch.Generator | None
    forced: torch.Tensor
    stats: Stats
    extra_bytes: int

    @property
    def codes(self) -> int: ...

    def first(self, choose: Callable[[torch.Tensor], torch.Tensor] | None = None) -> torch.Tensor: ...

    def forward(self, tokens: torch.Tensor, index: torch.Tensor, reach: int) -> torch.Tensor: ...

    def noise(self, generator: torch.Generator | None) -> torch.Tensor: ...

    def count(self, done: int) -> None: ...


class FixedWindow:
    """Always the same width."""

    def __init__(self, window: int) -> None:
        self.window = window

    def width(self) -> int:
        return self.window

    def observe(self, width: int, emitted: list[int], seconds: float) -> None:
        pass


def decode_window(
    decoder: Decoder,
    budget: FixedWindow | Budget,
    coupling: str = "maximal",
    init: str = "uniform",
    accept: Accept = ratio,
) -> torch.Tensor:
    """Decode one picture per row; local token ids `[batch, length]`.

    Parameters
    ----------
    decoder
        The model behind :class:`Decoder`.
    budget
        Says how wide the next window is; it is shown only lengths of committed runs and their seconds, never
        drafts that are still open, or its choices would be correlated with them and bias the distribution.
    coupling, init
        See :class:`SpeculativeJacobi`.
    accept
        Probability of keeping each draft, from `(p, q, drafts)`; the token ratio unless a lossy method
        brings its own.
    """
    generator, noise = _sources(decoder, coupling)
    clock = _clock(decoder.device)
    tokens = decoder.first(_first_choice(coupling, noise))
    done = [1] * decoder.batch  # final tokens of each row
    q = torch.zeros(decoder.batch, 0, decoder.vocabulary, device=decoder.device)
    while min(done) < decoder.length:
        began, started = time.perf_counter(), clock()
        width = min(budget.width(), decoder.length - min(done))
        q = _open(decoder, tokens, done, q, width, init, generator)
        start = torch.tensor(done, device=decoder.device)[:, None]
        index = start - 1 + torch.arange(width, device=decoder.device)
        window = tokens.gather(1, index)
        drafted = time.perf_counter()
        p = decoder.forward(window, index, max(done) - 1 + width)
        verified = time.perf_counter()
        drafts = window[:, 1:]
        chance = accept(p[:, :-1], q, drafts)
        passed = torch.rand(chance.shape, generator=generator, device=decoder.device) < chance
        rows = noise.at(index + 1, min(done), max(done) - 1 + width) if noise is not None else None
        chosen, kept = couple(coupling, p, q, drafts, passed, generator, rows)
        tokens.scatter_(1, index + 1, chosen)
        runs = kept.tolist()  # the only wait for the device in a pass
        open_rows = [run for run, n in zip(runs, done, strict=True) if n < decoder.length]
        decoder.stats.observe(open_rows, width - 1)
        advance = [min(run + 1, decoder.length - n) for run, n in zip(runs, done, strict=True)]
        done = [n + step for n, step in zip(done, advance, strict=True)]
        q = _shift(p, advance)
        budget.observe(width, [run + 1 for run in open_rows], clock() - started)
        decoder.extra_bytes = max(decoder.extra_bytes, 3 * p.numel() * p.element_size())
        decoder.count(min(done))
        seconds = decoder.stats.seconds
        seconds["draft"] += drafted - began
        seconds["other"] += time.perf_counter() - verified
    return tokens[:, : decoder.length]


def _clock(device: torch.device) -> Callable[[], float]:
    """Seconds of this thread on a processor, so that what else the machine does is no cost of a pass.

    A thread that waits for an accelerator uses none, and Windows counts them in steps longer than a pass.
    """
    return time.thread_time if device.type == "cpu" and sys.platform != "win32" else time.perf_counter


def _sources(decoder: Decoder, coupling: str) -> tuple[torch.Generator | None, GumbelNoise | None]:
    """Where drafts and their tests are drawn from, and the noise of the two Gumbel couplings.

    The two never share a generator, so that a position gets the same noise whatever the windows are.
    """
    if not coupling.startswith("gumbel"):
        return decoder.generator, None
    if coupling == "gumbel_exact":
        # The noise alone decides the tokens. It is what one-token sampling would draw from this generator.
        drafting = torch.Generator(decoder.device).manual_seed(0)
        return drafting, GumbelNoise(partial(decoder.noise, decoder.generator), decoder.length)
    seed = int(torch.randint(2**62, (), generator=decoder.generator, device=decoder.device))
    private = torch.Generator(decoder.device).manual_seed(seed)
    return decoder.generator, GumbelNoise(partial(decoder.noise, private), decoder.length)


def _first_choice(coupling: str, noise: GumbelNoise | None) -> Callable[[torch.Tensor], torch.Tensor] | None:
    if coupling != "gumbel_exact" or noise is None:
        return None

    def choose(p: torch.Tensor) -> torch.Tensor:
        position = torch.zeros(p.shape[0], 1, dtype=torch.long, device=p.device)
        return (p.log() + noise.at(position, 0, 0)[:, 0]).argmax(-1)

    return choose


def _shift(p: torch.Tensor, advance: list[int]) -> torch.Tensor:
    """`p` of the positions that stay open become their `q`; zero rows mark positions without a draft yet."""
    steps = torch.tensor(advance, device=p.device)[:, None]
    source = torch.arange(p.shape[1], device=p.device) + steps
    kept = p.gather(1, source.clamp_max(p.shape[1] - 1)[..., None].expand(-1, -1, p.shape[2]))
    return kept * (source < p.shape[1])[..., None]


def _open(
    decoder: Decoder,
    tokens: torch.Tensor,
    done: list[int],
    q: torch.Tensor,
    width: int,
    init: str,
    generator: torch.Generator | None,
) -> torch.Tensor:
    """Bring `q` to `width - 1` drafts per row, drawing those that are missing into `tokens`."""
    missing = width - 1 - q.shape[1]
    q = torch.nn.functional.pad(q, (0, 0, 0, missing)) if missing > 0 else q[:, : width - 1]
    if width == 1:
        return q
    position = torch.tensor(done, device=decoder.device)[:, None] + torch.arange(width - 1, device=decoder.device)
    empty = q.sum(-1) == 0
    old = tokens.gather(1, position)
    drafts, start = _initial(decoder, tokens, position, empty, init, generator)
    forced = decoder.forced[position]
    certain = one_hot(forced.clamp_min(0), decoder.vocabulary)
    drafts = torch.where(forced >= 0, forced, drafts)
    start = torch.where((forced >= 0)[..., None], certain, start)
    tokens.scatter_(1, position, torch.where(empty, drafts, old))
    return torch.where(empty[..., None], start, q)


def _initial(
    decoder: Decoder,
    tokens: torch.Tensor,
    position: torch.Tensor,
    empty: torch.Tensor,
    init: str,
    generator: torch.Generator | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Drafts for positions that no pass has seen, and what they are drawn from."""
    if init == "uniform":
        drafts = torch.randint(decoder.codes, position.shape, generator=generator, device=decoder.device)
        uniform = torch.zeros(decoder.vocabulary, device=decoder.device)
        uniform[: decoder.codes] = 1 / decoder.codes
        return drafts, uniform.expand(*position.shape, -1)
    # The newest token left of the gap, again and again.
    filled = (~empty).sum(-1, keepdim=True)
    left = tokens.gather(1, position[:, :1] - 1 + filled)
    left = torch.where(left < decoder.codes, left, 0).expand_as(position)
    return left, one_hot(left, decoder.vocabulary)
