"""Row-parallel decoding: several lines of a picture advance at once.

Line `r + 1` may write column `j` once line `r` has `window` tokens from column `j` on (ZipAR, He et al.,
2024). Tokens keep their raster positions and see only what is really written. Where ends of line are not forced, a line
may begin before the last token of the line above is written; a stand-in takes its place until then. With drafts, every
line also verifies a short window of its own (Parallel Jacobi Decoding), and drafts are seen by their own line alone.

Its loop is its own, because a pass feeds many lines of one picture, each with another number of final tokens and drafts
and a mask over scattered positions; how drafts are judged and redrawn, and the statistics, are those of the windows.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate

import torch

from mmaccel.decoding import one_hot, sample

from .coupling import Coupling
from .grid_decoder import GridDecoder
from .layout import Line


@dataclass
class LineState:
    """How far one line of one picture is.

    Attributes
    ----------
    done
        Final tokens.
    written
        Final tokens whose keys and values are in the cache.
    q
        Distributions that the drafts behind `done` were drawn from, `[n, V]`.
    """

    line: Line
    done: int = 0
    written: int = 0
    q: torch.Tensor | None = None

    @property
    def complete(self) -> bool:
        return self.done >= self.line.length


@dataclass
class LineInput:
    """What one line feeds to one forward: final tokens without keys yet, then drafts."""

    row: int
    state: LineState
    final: list[int]  # positions
    drafts: list[int] = field(default_factory=list)
    limit: int = 0  # tokens that may become final now; 0 only writes keys
    stand_in: int | None = None  # token to read instead of an unwritten last token of the line above

    @property
    def positions(self) -> list[int]:
        return self.final + self.drafts


class RowDecoder:
    """Decode a task line by line in parallel.

    Parameters
    ----------
    decoder
        The model and its cache.
    window
        Lead, in tokens, that a line keeps before the next one.
    draft_window
        Tokens that each line verifies a pass, its last final one included; 1 drafts nothing.
    """

    def __init__(self, decoder: GridDecoder, window: int, draft_window: int = 1) -> None:
        self.decoder, self.window, self.draft_window = decoder, window, draft_window
        self.forced = decoder.task.layout.forced
        self.choose = Coupling("maximal", decoder.generator)
        self.states = [[LineState(line) for line in decoder.task.layout.lines] for _ in range(decoder.batch)]
        self.valid = torch.zeros(decoder.batch, decoder.length + 1, dtype=torch.bool, device=decoder.device)

    def run(self) -> torch.Tensor:
        """Local token ids `[batch, length]`."""
        decoder = self.decoder
        self.tokens = decoder.first()
        for position, token in self.forced.items():
            self.tokens[:, position] = token
        for states in self.states:
            self._advance(states[0], 1)
        while not all(state.complete for states in self.states for state in states):
            jobs = [job for row in range(decoder.batch) for job in self._jobs(row)]
            if jobs:  # none where only forced tokens were left
                self._commit(jobs, self._forward(jobs))
            decoder.count(min(sum(state.done for state in states) for states in self.states))
        stats = decoder.stats  # noted line by line, where a draft may pass many times before it is final
        stats.emitted, stats.rows = decoder.batch * (decoder.length - 1), decoder.batch * stats.rounds
        return self.tokens[:, : decoder.length]

    def _advance(self, state: LineState, count: int) -> None:
        state.done = min(state.done + count, state.line.length)
        while not state.complete and state.line.start + state.done in self.forced:
            state.done += 1

    def _reach(self, states: list[LineState], number: int) -> int:
        """Tokens of line `number` that may be final by the end of the next pass."""
        line = states[number].line
        if number == 0 or states[number - 1].complete:
            return line.length
        above = states[number - 1]
        if above.line.grid != line.grid:
            return 0
        return min(line.length, max(0, above.done - self.window + 1))

    def _jobs(self, row: int) -> Iterator[LineInput]:
        states = self.states[row]
        for number, state in enumerate(states):
            start = state.line.start
            reach = self._reach(states, number)
            if reach == state.line.length:
                self._advance(state, 0)  # a line may begin with forced tokens
            unwritten = list(range(start + state.written, start + state.done))
            if reach > state.done:
                yield self._drafting(
                    LineInput(row, state, unwritten or [start + state.done - 1], limit=reach - state.done),
                    states,
                    number,
                )
            elif unwritten and not self._fed_by_next(states, number, unwritten):
                yield LineInput(row, state, unwritten)

    def _drafting(self, job: LineInput, states: list[LineState], number: int) -> LineInput:
        """Complete a job with what it reads instead of an unwritten token, and with drafts."""
        state, decoder = job.state, self.decoder
        begin = state.line.start + state.done
        if state.done == 0 and not states[number - 1].complete and begin - 1 not in self.forced:
            above = states[number - 1]
            job.stand_in = above.line.start + above.done - 1
        count = min(self.draft_window, state.line.length - state.done) - 1
        job.drafts = list(range(begin, begin + count))
        have = 0 if state.q is None else state.q.shape[0]
        for position in job.drafts[have:]:
            token = self.forced.get(position)
            if token is None:
                code = torch.randint(decoder.codes, (1,), generator=decoder.generator, device=decoder.device)
                self.tokens[job.row, position] = code[0]
                q = torch.full((1, decoder.vocabulary), 1 / decoder.codes, device=decoder.device)
                q[:, decoder.codes :] = 0
            else:
                q = one_hot(torch.tensor([token], device=decoder.device), decoder.vocabulary)
            state.q = q if state.q is None else torch.cat([state.q, q])
        return job

    def _fed_by_next(self, states: list[LineState], number: int, unwritten: list[int]) -> bool:
        """Whether nobody needs these keys, or the next line starts from them in this very pass."""
        if all(state.line.start + i in self.forced for state in states[number + 1 :] for i in range(state.line.length)):
            return True  # only forced tokens follow, if any
        return len(unwritten) == 1 and states[number].complete and states[number + 1].done == 0

    def _forward(self, jobs: list[LineInput]) -> list[torch.Tensor]:
        """One pass; for each job, `p [1 + drafts, V]` after its last final token and its drafts."""
        decoder, began = self.decoder, time.perf_counter()
        rows: list[list[LineInput]] = [[job for job in jobs if job.row == row] for row in range(decoder.batch)]
        width = max(sum(len(job.positions) for job in row) for row in rows)
        scratch = max(job.positions[-1] for job in jobs) + 1  # for pictures with fewer tokens to feed
        index, owner, draft = self._table(rows, width, scratch)
        tokens = self.tokens.gather(1, index)
        ends = [list(accumulate(len(job.positions) for job in row)) for row in rows]
        for row, row_jobs in enumerate(rows):
            for job, end in zip(row_jobs, ends[row], strict=True):
                if job.stand_in is not None:
                    tokens[row, end - len(job.positions)] = self.tokens[row, job.stand_in]
                job.state.written = max(job.state.written, job.final[-1] + 1 - job.state.line.start)
        self.valid.scatter_(1, index, self.valid.gather(1, index) | ~draft)
        self.valid[:, scratch:] = False
        p = decoder.forward(tokens, index, scratch + 1, self._visible(index, owner, draft, scratch + 1))
        decoder.stats.seconds["verify"] += time.perf_counter() - began
        return [
            p[row, end - len(job.drafts) - 1 : end]
            for row, row_jobs in enumerate(rows)
            for job, end in zip(row_jobs, ends[row], strict=True)
        ]

    def _table(
        self, rows: list[list[LineInput]], width: int, scratch: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Position, number of the job, and whether it is a draft, `[batch, width]` each."""
        index, owner, draft = [], [], []
        for jobs in rows:
            spare = width - sum(len(job.positions) for job in jobs)
            index.append([i for job in jobs for i in job.positions] + [scratch] * spare)
            owner.append([n for n, job in enumerate(jobs) for _ in job.positions] + [-1] * spare)
            draft.append(
                [d for job in jobs for d in [False] * len(job.final) + [True] * len(job.drafts)] + [False] * spare
            )
        device = self.decoder.device
        return (
            torch.tensor(index, device=device),
            torch.tensor(owner, device=device),
            torch.tensor(draft, device=device),
        )

    def _visible(self, index: torch.Tensor, owner: torch.Tensor, draft: torch.Tensor, reach: int) -> torch.Tensor:
        """Bool `[batch, W, reach]`: what is written, up to the query, and the drafts of its own line."""
        causal = torch.arange(reach, device=index.device) <= index[..., None]
        visible = self.valid[:, None, :reach] & causal
        if bool(draft.any()):
            own = (owner[:, :, None] == owner[:, None]) & draft[:, None] & (index[:, None] <= index[..., None])
            slots = index[:, None].expand(-1, index.shape[1], -1)
            seen = torch.zeros(visible.shape, dtype=torch.int32, device=index.device)
            visible = visible | (seen.scatter_add_(2, slots, own.int()) > 0)
        # every query sees itself, so that no row of the mask is empty
        return visible.scatter(2, index[..., None], True)

    def _commit(self, jobs: list[LineInput], distributions: list[torch.Tensor]) -> None:
        writing = [(job, p) for job, p in zip(jobs, distributions, strict=True) if job.limit]
        if not writing:
            self.decoder.stats.forwards += 1  # a pass that only wrote keys
            return
        width = max(p.shape[0] for _, p in writing)
        certain = one_hot(torch.zeros(width, dtype=torch.long, device=self.decoder.device), self.decoder.vocabulary)
        p = torch.stack([torch.cat([p, certain[p.shape[0] :]]) for _, p in writing])
        if width == 1:
            chosen, kept = sample(p, self.decoder.generator), [0] * len(writing)
        else:
            chosen, kept = self._verify(writing, p, certain)
        self.decoder.stats.observe(
            [min(k, len(job.drafts)) for (job, _), k in zip(writing, kept, strict=True)], width - 1
        )
        for i, (job, distribution) in enumerate(writing):
            begin, before = job.state.line.start + job.state.done, job.state.done
            self.tokens[job.row, begin : begin + distribution.shape[0]] = chosen[i, : distribution.shape[0]]
            self._advance(job.state, min(kept[i] + 1, job.limit, distribution.shape[0]))
            job.state.q = distribution[job.state.done - before :]

    def _verify(
        self, writing: list[tuple[LineInput, torch.Tensor]], p: torch.Tensor, certain: torch.Tensor
    ) -> tuple[torch.Tensor, list[int]]:
        """Test the drafts of every line by the token ratio; `chosen [J, W]` and drafts kept."""
        decoder, width = self.decoder, p.shape[1]
        q, drafts = [], []
        for job, _ in writing:
            count = len(job.drafts)
            own = certain[:0] if job.state.q is None else job.state.q[:count]
            q.append(torch.cat([own, certain[count : width - 1]]))
            tokens = self.tokens[job.row, job.drafts] if count else self.tokens[0, :0]
            drafts.append(torch.nn.functional.pad(tokens, (0, width - 1 - count)))
        nothing = torch.zeros(len(q), 1, decoder.vocabulary, device=decoder.device)
        chosen, kept = self.choose(p, torch.cat([torch.stack(q), nothing], 1), torch.stack(drafts))
        return chosen, kept.tolist()
