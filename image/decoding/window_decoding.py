"""The lossless window decoder: verify a window of drafts in one forward, keep what agrees, redraft the rest.

Speculative Jacobi Decoding (Teng et al., 2024) with the couplings of SCD and SJD-PAC, as drafter and target of the
shared loop. One pass over `[last token, drafts]` gives the distribution of every drafted position; drafts are accepted
from the left by the token ratio, the first failure is redrawn from the residual, and all later positions are redrafted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from mmaccel.decoding import Width, draft_and_verify, one_hot

from .coupling import Acceptance, Coupling, GumbelNoise
from .grid_decoder import GridDecoder

INITS = ("uniform", "repeat_left")


@dataclass(frozen=True, eq=False)
class WindowDraft:
    """Drafts of all rows.

    Attributes
    ----------
    positions
        `[R, W]`, of the last final token and of the drafts.
    tokens
        `[R, W]`, what stands there.
    q
        `[R, W, V]`, what the draft behind each position was drawn from; 0 behind the last one.
    """

    positions: torch.Tensor
    tokens: torch.Tensor
    q: torch.Tensor

    @property
    def size(self) -> int:
        return self.tokens.shape[1] - 1

    @property
    def width(self) -> int:
        return self.tokens.shape[1]

    @property
    def nodes(self) -> int | None:
        return None

    depth = size


@dataclass(frozen=True, eq=False)
class WindowVerdict:
    """Tokens `[R, W]` of the positions behind `positions`, what they were drawn from, and drafts kept by each row."""

    positions: torch.Tensor
    tokens: torch.Tensor
    p: torch.Tensor
    kept: torch.Tensor


def decode_window(
    decoder: GridDecoder,
    width: Width,
    coupling: str = "maximal",
    init: str = "uniform",
    acceptance: Acceptance | None = None,
) -> torch.Tensor:
    """Decode one picture per row; local token ids `[batch, length]`.

    Parameters
    ----------
    decoder
        The model and its cache.
    width
        Says how wide the next window is.
    coupling, init
        See :class:`SpeculativeJacobi`.
    acceptance
        Of a lossy method, see :class:`Coupling`.
    """
    window = Window(decoder, coupling, init, acceptance)
    draft_and_verify(window, window, width, decoder.stats)
    return window.tokens[:, : decoder.length]


class Window:
    """The open positions of all rows: drafter and target in one, because unverified drafts live on in it.

    Attributes
    ----------
    tokens
        `[batch, length + margin]`, final tokens and behind them drafts.
    done
        Final tokens of each row.
    """

    def __init__(self, decoder: GridDecoder, coupling: str, init: str, acceptance: Acceptance | None) -> None:
        self.decoder, self.device, self.init = decoder, decoder.device, init
        self.generator, self.noise = _sources(decoder, coupling)
        self.tokens = decoder.first(_first_choice(coupling, self.noise))
        self.choose = Coupling(coupling, self.generator, acceptance)
        self.done = [1] * decoder.batch
        self._p = torch.zeros(decoder.batch, 1, decoder.vocabulary, device=decoder.device)  # of the last pass
        self._advance = [1] * decoder.batch  # tokens that it made final

    @property
    def room(self) -> int:
        return self.decoder.length - min(self.done)

    def propose(self, most: int) -> WindowDraft:
        """Drafts for the next `most` positions; those that no pass has seen are guessed."""
        start = torch.tensor(self.done, device=self.device)[:, None]
        positions = start - 1 + torch.arange(most + 1, device=self.device)
        q = self._carried(positions[:, 1:])
        return WindowDraft(positions, self.tokens.gather(1, positions), q)

    def _carried(self, positions: torch.Tensor) -> torch.Tensor:
        """`q` of the drafts: what the last pass said where it looked, and that of a first guess elsewhere."""
        seen, count = self._p.shape[1], positions.shape[1]
        if count == 0:
            return torch.zeros_like(self._p[:, :1])
        source = torch.arange(count + 1, device=self.device) + torch.tensor(self._advance, device=self.device)[:, None]
        index = source.clamp_max(seen - 1)[..., None].expand(-1, -1, self._p.shape[2])
        q = self._p.gather(1, index)
        if count + max(self._advance) > seen:
            self._guess(positions, source[:, :-1] >= seen, q)
        q[:, -1] = 0
        return q

    def _guess(self, positions: torch.Tensor, empty: torch.Tensor, q: torch.Tensor) -> None:
        """Write first guesses to the empty positions, and into `q` what they are drawn from."""
        decoder = self.decoder
        guesses, start = self._initial(positions, empty)
        forced = decoder.forced[positions]
        certain = one_hot(forced.clamp_min(0), decoder.vocabulary)
        guesses = torch.where(forced >= 0, forced, guesses)
        start = torch.where((forced >= 0)[..., None], certain, start)
        self.tokens.scatter_(1, positions, torch.where(empty, guesses, self.tokens.gather(1, positions)))
        q[:, :-1] = torch.where(empty[..., None], start, q[:, :-1])

    def _initial(self, positions: torch.Tensor, empty: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        decoder = self.decoder
        if self.init == "uniform":
            guesses = torch.randint(decoder.codes, positions.shape, generator=self.generator, device=self.device)
            uniform = torch.zeros(decoder.vocabulary, device=self.device)
            uniform[: decoder.codes] = 1 / decoder.codes
            return guesses, uniform.expand(*positions.shape, -1)
        # the newest token left of the gap, again and again
        filled = (~empty).sum(-1, keepdim=True)
        left = self.tokens.gather(1, positions[:, :1] - 1 + filled)
        left = torch.where(left < decoder.codes, left, 0).expand_as(positions)
        return left, one_hot(left, decoder.vocabulary)

    def forward(self, draft: WindowDraft) -> torch.Tensor:
        return self.decoder.forward(draft.tokens, draft.positions, max(self.done) + draft.size)

    def judge(self, output: torch.Tensor, draft: WindowDraft) -> WindowVerdict:
        positions, noise = draft.positions + 1, None
        if self.noise is not None:
            noise = self.noise.at(positions, min(self.done), max(self.done) + draft.size)
        tokens, kept = self.choose(output, draft.q, draft.tokens[:, 1:], noise)
        return WindowVerdict(positions, tokens, output, kept)

    def commit(self, verdict: WindowVerdict) -> list[int]:
        """Write all tokens; slots of the cache are written again as long as their positions are open."""
        self.tokens.scatter_(1, verdict.positions, verdict.tokens)
        runs, length = verdict.kept.tolist(), self.decoder.length  # the only wait for the device in a pass
        accepted = [run for run, done in zip(runs, self.done, strict=True) if done < length]
        self._advance = [min(run + 1, length - done) for run, done in zip(runs, self.done, strict=True)]
        self.done = [done + step for done, step in zip(self.done, self._advance, strict=True)]
        return accepted

    def observe(self, verdict: WindowVerdict) -> None:
        self._p, decoder = verdict.p, self.decoder
        decoder.extra_bytes = max(decoder.extra_bytes, 3 * verdict.p.nbytes)
        decoder.count(min(self.done))


def _sources(decoder: GridDecoder, coupling: str) -> tuple[torch.Generator | None, GumbelNoise | None]:
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
