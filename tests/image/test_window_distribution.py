"""The window decoder is lossless: the joint distribution of whole sequences, by chi-square on an enumerable toy."""

import dataclasses
import itertools
import math
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from scipy.stats import chisquare

from mmaccel.decoding import Budget, FixedWidth, Stats, VerifyCost, gumbel, one_hot, sample
from mmaccel.image.decoding import coupling as coupling_module
from mmaccel.image.decoding.coupling import Coupling, GumbelNoise
from mmaccel.image.decoding.layout import Layout
from mmaccel.image.decoding.row_decoding import RowDecoder
from mmaccel.image.decoding.window_decoding import Window, decode_window
from mmaccel.kernels import residual_sample

CODES, LENGTH, ROWS = 3, 4, 30_000
MARGIN = 6
SAMPLED = ("independent", "maximal", "gumbel")


class Toy:
    """A `GridDecoder` whose conditional distributions are random tables over the whole history.

    It keeps the tokens it was fed by position, as a cache does; with `forced`, position 2 holds a special
    token. Some tokens are impossible after some histories, as after top-k.
    """

    def __init__(self, batch, length=LENGTH, codes=CODES, forced=False, seed=0, distribution=0):
        self.batch, self.length, self.codes = batch, length, codes
        self.vocabulary = codes + forced
        self.device, self.generator = torch.device("cpu"), torch.Generator().manual_seed(seed)
        self.stats, self.extra_bytes, self.progress = Stats(), 0, []
        self.forced = torch.zeros(length + MARGIN + 1, dtype=torch.long)
        self.forced[:length] = -1
        if forced:
            self.forced[2] = codes
        self.tables = [self._table(i, distribution) for i in range(length)]
        self.seen = torch.full((batch, length + MARGIN + 1), -1)

    def _table(self, position, distribution):
        """`[V ** position, V]`, peaked so that the histories matter."""
        source = torch.Generator().manual_seed(1000 * distribution + position)
        histories = self.vocabulary**position
        if self.forced[position] >= 0:
            return one_hot(torch.full((histories,), int(self.forced[position])), self.vocabulary)
        weights = torch.rand(histories, self.codes, generator=source).pow(2) + 0.05
        impossible = torch.rand(histories, self.codes, generator=source) < 0.12
        impossible[:, 0] = False
        weights = torch.nn.functional.pad(weights.masked_fill(impossible, 0), (0, self.vocabulary - self.codes))
        return weights / weights.sum(-1, keepdim=True)

    def first(self, choose=None):
        p = self.tables[0].expand(self.batch, -1)
        tokens = torch.zeros(self.batch, self.length + MARGIN + 1, dtype=torch.long)
        tokens[:, 0] = choose(p) if choose is not None else sample(p, self.generator)
        return tokens

    def forward(self, tokens, index, reach, visible=None):
        assert int(index.max()) < reach
        self.seen.scatter_(1, index, tokens)
        result = one_hot(torch.zeros_like(index), self.vocabulary)  # behind the picture: token 0
        for target in range(1, self.length):
            here = index + 1 == target
            history = self.seen[:, :target]
            code = torch.zeros(self.batch, dtype=torch.long)
            for column in history.unbind(1):
                code = code * self.vocabulary + column
            active = here.any(1)
            assert bool((history[active] >= 0).all()), "a query needs a position that was never fed"
            p = self.tables[target][code.clamp(0)]
            result = torch.where(here[..., None], p[:, None], result)
        return result

    def noise(self, generator):
        return gumbel((self.batch, self.vocabulary), generator)

    def count(self, done):
        self.progress.append(done)

    def distribution(self):
        """Exact probability of every sequence, `{tuple: p}`."""
        distribution = {}
        for s in itertools.product(range(self.vocabulary), repeat=self.length):
            p, code = 1.0, 0
            for position, token in enumerate(s):
                p *= float(self.tables[position][code, token])
                code = code * self.vocabulary + token
            distribution[s] = p
        return distribution


def compare(toy, samples):
    """p-value of the joint distribution (cells under 5 expected are pooled), TV distance, and the TV of noise alone."""
    distribution, n = toy.distribution(), len(samples)
    code = torch.zeros(n, dtype=torch.long)
    for column in samples.unbind(1):
        code = code * toy.vocabulary + column
    counts = torch.bincount(code, minlength=toy.vocabulary**toy.length).double()
    expected = torch.tensor(list(distribution.values()), dtype=torch.float64) * n
    assert counts[expected == 0].sum() == 0, "an impossible sequence was drawn"
    tv = float((counts - expected).abs().sum() / 2 / n)
    p = expected / n
    floor = float((p * (1 - p) * 2 / math.pi / n).sqrt().sum() / 2)
    rare = expected < 5
    observed = torch.cat([counts[~rare], counts[rare].sum()[None]])
    wanted = torch.cat([expected[~rare], expected[rare].sum()[None]])
    used = wanted > 0
    wanted = wanted[used] * (observed[used].sum() / wanted[used].sum())
    return chisquare(observed[used].numpy(), wanted.numpy()).pvalue, tv, floor


def assert_lossless(toy, samples, slack=1.5):
    pvalue, tv, floor = compare(toy, samples)
    assert pvalue > 1e-4, f"p={pvalue:.2e}, TV {tv:.4f}, noise alone {floor:.4f}"
    assert tv < slack * floor + 1e-3, f"TV {tv:.4f}, noise alone {floor:.4f}"


def assert_biased(toy, samples):
    pvalue, tv, floor = compare(toy, samples)
    assert pvalue < 1e-6, f"the mutant was not noticed: p={pvalue:.2e}, TV {tv:.4f}, noise alone {floor:.4f}"
    assert tv > 2 * floor


class Cycle:
    """Widths that go up and down, so that drafts are given up and drawn anew."""

    def __init__(self, *widths):
        self.widths = itertools.cycle(widths)

    def width(self):
        return next(self.widths)

    def observe(self, width, emitted, seconds):
        assert all(1 <= n <= width for n in emitted)


@pytest.mark.parametrize("forced", (False, True), ids=("free", "forced"))
@pytest.mark.parametrize("init", ("uniform", "repeat_left"))
@pytest.mark.parametrize("window", (2, 3, 5))
@pytest.mark.parametrize("name", SAMPLED)
def test_fixed_window(name, window, init, forced):
    """All rows at once; they advance at their own speed, which is the batched case at its hardest."""
    toy = Toy(ROWS, forced=forced, seed=7)
    tokens = decode_window(toy, FixedWidth(window), name, init)
    assert tokens.shape == (ROWS, LENGTH)
    if forced:
        assert bool((tokens[:, 2] == CODES).all())
    assert_lossless(toy, tokens)
    assert toy.progress[-1] == LENGTH and toy.progress == sorted(toy.progress)


@pytest.mark.parametrize("init", ("uniform", "repeat_left"))
@pytest.mark.parametrize("name", SAMPLED)
def test_changing_widths(name, init):
    """The window shrinks to 1 and grows again in the middle of a run, on longer sequences."""
    toy = Toy(ROWS, length=5, seed=11, distribution=1)
    assert_lossless(toy, decode_window(toy, Cycle(4, 2, 5, 1, 3), name, init))


@pytest.mark.parametrize("batch", (1, 3))
def test_small_batches_with_a_budget(batch):
    """Batches as users have them: the window is cut at the end by the slowest row, and the budget learns."""
    cost = VerifyCost((1, 2, 4), (1.0, 1.3, 1.7))
    constants = {"START": 3, "HISTORY": 16, "SETTLE": 1, "TRIAL": 2, "PATIENCE": 1.0, "FORGIVE": 0.2}
    budget = type("Quick", (Budget,), constants)((2, 3, 4))
    widths, choose, observe = set(), budget.width, budget.observe
    budget.width = lambda: (widths.add(choose()), choose())[1]
    budget.observe = lambda width, emitted, _: observe(width, emitted, cost.seconds(width))
    generator, rows = torch.Generator().manual_seed(3), []
    for _ in range(900):
        toy = Toy(batch, length=4, codes=2, distribution=2)
        toy.generator = generator
        rows.append(decode_window(toy, budget))
    assert len(widths) > 2, "the budget never changed its mind"
    assert_lossless(toy, torch.cat(rows), slack=2.5)  # few cells: the distance itself varies more


def test_every_pass_commits_a_token_and_wide_windows_save_passes():
    plain, wide = Toy(500), Toy(500)
    decode_window(plain, FixedWidth(1))
    decode_window(wide, FixedWidth(LENGTH))
    assert plain.stats.rounds == LENGTH - 1  # the first token comes from the prompt
    assert plain.stats.emitted == 500 * (LENGTH - 1)
    assert wide.stats.rounds <= plain.stats.rounds and wide.stats.accepted > 0
    assert wide.stats.rows < plain.stats.rows


# Mutants: each published fault must be seen by the same test.


def resampling_from_p(monkeypatch):
    """After a rejection the token is drawn from p instead of the residual."""
    monkeypatch.setattr(
        coupling_module, "residual_sample", lambda p, q, n, seed: residual_sample(p, torch.zeros_like(q), n, seed)
    )


@pytest.mark.parametrize("name", SAMPLED)
def test_mutant_resampling_from_p(name, monkeypatch):
    resampling_from_p(monkeypatch)
    toy = Toy(ROWS, seed=7)
    assert_biased(toy, decode_window(toy, FixedWidth(3), name))


def test_mutant_old_q_behind_the_rejection(monkeypatch):
    """Drafts behind the rejection were brought to the new p, but the old q is kept for them."""
    judge = Window.judge

    def stale(window, output, draft):
        old = torch.cat([draft.q[:, :-1], output[:, -1:]], 1)
        return dataclasses.replace(judge(window, output, draft), p=old)

    monkeypatch.setattr(Window, "judge", stale)
    toy = Toy(ROWS, seed=7)
    assert_biased(toy, decode_window(toy, FixedWidth(4), "maximal"))


@pytest.mark.parametrize("stale", (True, False), ids=("stale_q", "q_is_p"))
def test_mutant_batch_minimum(stale, monkeypatch):
    """Rows in groups of three advance by the group's minimum: lossless with q := p, biased with the old q."""
    judge = Window.judge

    def minimum(window, p, draft):
        verdict = judge(window, p, draft)
        kept, place = verdict.kept, torch.arange(p.shape[1])
        least = kept.view(-1, 3).amin(1).repeat_interleave(3)
        tested = (place > least[:, None]) & (place <= kept[:, None]) & (place < p.shape[1] - 1)
        old = torch.cat([draft.q[:, :-1], p[:, -1:]], 1)
        return dataclasses.replace(verdict, kept=least, p=torch.where(tested[..., None], old, p) if stale else p)

    monkeypatch.setattr(Window, "judge", minimum)
    toy = Toy(2 * ROWS, seed=7)  # a small bias
    tokens = decode_window(toy, FixedWidth(4), "independent")
    (assert_biased if stale else assert_lossless)(toy, tokens)


# Rows with drafts of their own, in plain raster order, have the same distribution again.


def decode_rows(shape, draft_window, end_of_line=False):
    """A toy picture of that shape by `RowDecoder`; its lead is the whole row."""
    rows, columns = shape
    codes = 2
    layout = Layout.grids([shape], end_of_line=codes if end_of_line else None)
    toy = Toy(3000, length=layout.length, codes=codes, forced=end_of_line, distribution=4)
    toy.task = SimpleNamespace(layout=layout)
    assert layout.forced_tokens.tolist() == toy.forced[: layout.length].tolist()
    return toy, RowDecoder(toy, layout.columns, draft_window).run()


@pytest.mark.parametrize("draft_window", (1, 2, 4))
@pytest.mark.parametrize(
    ("shape", "end_of_line"), (((1, 4), False), ((2, 2), False), ((1, 2), True)), ids=("row", "rows", "forced")
)
def test_rows_with_drafts(shape, end_of_line, draft_window):
    assert_lossless(*decode_rows(shape, draft_window, end_of_line), slack=2.5)


def test_mutant_rows_resampling_from_p(monkeypatch):
    resampling_from_p(monkeypatch)
    assert_biased(*decode_rows((1, 4), 4))


# The seed-equivalent mode.


@pytest.mark.parametrize("forced", (False, True), ids=("free", "forced"))
@pytest.mark.parametrize("init", ("uniform", "repeat_left"))
@pytest.mark.parametrize("widths", ((2,), (5,), (4, 1, 3)), ids=str)
def test_gumbel_exact_is_sequential_gumbel_max(widths, init, forced):
    """One row of noise a position, from the caller's generator and nothing else: both end in the same state."""
    toy = Toy(64, length=5, forced=forced, distribution=3, seed=5)
    tokens = decode_window(toy, Cycle(*widths), "gumbel_exact", init)
    generator = torch.Generator().manual_seed(5)
    code, wanted = torch.zeros(64, dtype=torch.long), []
    for position in range(5):
        wanted.append((toy.tables[position][code].log() + toy.noise(generator)).argmax(-1))
        code = code * toy.vocabulary + wanted[-1]
    assert torch.equal(tokens, torch.stack(wanted, 1))
    assert torch.equal(toy.generator.get_state(), generator.get_state())


def test_gumbel_exact_keeps_the_distribution():
    toy = Toy(ROWS, seed=6)
    assert_lossless(toy, decode_window(toy, FixedWidth(3), "gumbel_exact"))


def test_noise_belongs_to_its_position():
    """However many positions are asked for at a time, and after old ones were forgotten."""
    generators = [torch.Generator().manual_seed(0) for _ in range(2)]
    one, many = (GumbelNoise(partial(gumbel, (2, 3), generator), 6) for generator in generators)
    single = torch.cat([one.at(torch.full((2, 1), i), i, i) for i in range(6)], 1)
    many.at(torch.tensor([[0], [1]]), 0, 1)
    rows = torch.stack([torch.arange(2, 5), torch.arange(3, 6)])
    assert torch.equal(many.at(rows, 2, 5), single.gather(1, rows[..., None].expand(-1, -1, 3)))
    assert torch.equal(many.at(torch.full((2, 1), 5), 5, 5), single[:, 5:])
    assert len(many.rows) == 1, "rows before `first` are forgotten"
    assert torch.equal(many.at(torch.full((2, 1), 8), 5, 8), single[:, 5:])
    assert torch.equal(*(generator.get_state() for generator in generators)), "positions behind the picture draw none"


def test_noise_of_final_tokens_is_forgotten(monkeypatch):
    """A row of it is as large as the vocabulary: no more are kept than a window needs."""
    kept, at = [], GumbelNoise.at

    def watched(noise, *given):
        found = at(noise, *given)
        kept.append(len(noise.rows))
        return found

    monkeypatch.setattr(GumbelNoise, "at", watched)
    for name in ("gumbel", "gumbel_exact"):
        decode_window(Toy(1, length=6), FixedWidth(2), name)
        assert max(kept) <= 2


def test_noise_of_a_seed_is_the_same_whatever_the_windows_are(monkeypatch):
    """It shares no generator with the drafts, and another seed has other noise."""
    seen, at = {}, GumbelNoise.at

    def watched(noise, positions, *given):
        found = at(noise, positions, *given)
        seen.update({int(i): row.tolist() for i, row in zip(positions[0], found[0], strict=True) if i < 6})
        return found

    monkeypatch.setattr(GumbelNoise, "at", watched)
    runs = []
    for number, width in ((7, 1), (7, 2), (7, 4), (8, 4)):
        seen.clear()
        decode_window(Toy(1, length=6, seed=number), FixedWidth(width), "gumbel")
        runs.append(dict(seen))
    assert runs[0] == runs[1] == runs[2] and len(runs[0]) == 5
    assert all(runs[2][position] != runs[3][position] for position in runs[3])


def test_only_codes_are_repeated_from_the_left(monkeypatch):
    """Where the end of a line is left of the gap, the first code is: no model was fed specials between."""
    fed, forward = [], Toy.forward

    def watched(toy, tokens, index, *given):
        fed.extend(zip(index.flatten().tolist(), tokens.flatten().tolist(), strict=True))
        return forward(toy, tokens, index, *given)

    monkeypatch.setattr(Toy, "forward", watched)
    for widths in ((2, 4), (1, 2, 3), (3, 2, 1, 4)):
        decode_window(Toy(20, length=5, forced=True), Cycle(*widths), "maximal", "repeat_left")
    assert {token for position, token in fed if position == 2} == {CODES}
    assert {token for position, token in fed if position in (1, 3, 4)} <= set(range(CODES))


def test_gumbel_couplings_need_noise():
    p = torch.full((1, 2, 3), 1 / 3)
    with pytest.raises(ValueError, match="need noise"):
        Coupling("gumbel", torch.Generator())(p, p, torch.zeros(1, 1, dtype=torch.long))
