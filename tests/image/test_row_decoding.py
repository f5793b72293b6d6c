"""Row-parallel decoding: pass counts, order of writing, and what every query may see."""

import pytest
import torch

import mmaccel
from mmaccel.image import ZipAR, examples
from mmaccel.image.decoding.grid_decoder import GridDecoder
from mmaccel.image.decoding.layout import Layout
from mmaccel.image.decoding.row_decoding import RowDecoder

ROWS, COLUMNS, CODES = examples.ROWS, examples.COLUMNS, examples.CODES
FAMILIES = ("janus", "emu3", "glm_image")


class Witness:
    """Watches a run from outside: what is fed, what becomes final, and the mask, by plain sets.

    It knows the layout only: `lines` of `(start, length)`, and which grid each belongs to.
    """

    def __init__(self, monkeypatch):
        self.decoder = None
        self.passes, self.written, self.commits, self.leads = 0, [], [], []
        monkeypatch.setattr(RowDecoder, "__init__", self._begin(RowDecoder.__init__))
        monkeypatch.setattr(RowDecoder, "_forward", self._jobs(RowDecoder._forward))
        monkeypatch.setattr(RowDecoder, "_commit", self._finals(RowDecoder._commit))
        monkeypatch.setattr(GridDecoder, "forward", self._mask(GridDecoder.forward))

    def _begin(self, original):
        def begin(rows, decoder, *args, **kwargs):
            original(rows, decoder, *args, **kwargs)
            self.decoder, self.window = rows, rows.window
            self.written = [set() for _ in range(decoder.batch)]
            self.commits = [[0] * decoder.length for _ in range(decoder.batch)]

        return begin

    def _jobs(self, original):
        def forward(rows, jobs):
            self.now = jobs
            for job in jobs:
                self.written[job.row].update(job.final)  # a stand-in counts as the token it stands for
                if job.stand_in is not None:
                    assert job.final == [job.state.line.start - 1], "only the token before a line is replaced"
                    assert job.stand_in < job.state.line.start - 1
            return original(rows, jobs)

        return forward

    def _finals(self, original):
        def commit(rows, jobs, distributions):
            before = [[state.done for state in states] for states in rows.states]
            original(rows, jobs, distributions)
            for row, states in enumerate(rows.states):
                for number, state in enumerate(states):
                    for position in range(before[row][number], state.done):
                        self.commits[row][state.line.start + position] += 1
                    above = before[row][number - 1]
                    if number and state.done > before[row][number] and above < states[number - 1].line.length:
                        self.leads.append(above - state.done)
                        assert states[number - 1].line.grid == state.line.grid, "a grid began too early"

        return commit

    def _mask(self, original):
        def forward(decoder, tokens, index, reach, visible=None):
            if visible is None:  # not a pass of row decoding
                return original(decoder, tokens, index, reach)
            self.passes += 1
            width = index.shape[1]
            for row in range(decoder.batch):
                jobs = [job for job in self.now if job.row == row]
                owners = [job for job in jobs for _ in job.positions]
                fed = [position for job in jobs for position in job.positions]
                assert index[row, : len(fed)].tolist() == fed
                for w in range(width):
                    seen = {int(i) for i in visible[row, w].nonzero()}
                    if w >= len(fed):  # filler, whose result nobody reads
                        continue
                    position = fed[w]
                    wanted = {p for p in self.written[row] if p <= position}
                    wanted |= {d for d in owners[w].drafts if d <= position} if position in owners[w].drafts else set()
                    assert seen == wanted | {position}, f"row {row}, query at {position}"
            return original(decoder, tokens, index, reach, visible)

        return forward


def run(family, method, batch=1, guidance=None, seed=0, **sizes):
    model, arguments = getattr(examples, family)(**sizes)
    guidance = {"glm_image": 1.0}.get(family, 3.0) if guidance is None else guidance
    with mmaccel.accelerate(model, method) as fast:
        tokens = fast.generate(**arguments(batch, guidance=guidance), generator=torch.Generator().manual_seed(seed))
        return tokens, fast.report


@pytest.mark.parametrize("draft_window", (1, 2, 4), ids="draft{}".format)
@pytest.mark.parametrize("window", (1, 2, 3, 4))
@pytest.mark.parametrize("family", FAMILIES)
def test_order_and_masks(family, window, draft_window, monkeypatch):
    """Every token becomes final once, rows keep their lead, and queries see what is written, nothing else."""
    witness = Witness(monkeypatch)
    method = ZipAR(window=window, verify=draft_window > 1, draft_window=max(draft_window, 2))
    if window == COLUMNS and draft_window == 1 and family != "emu3":
        method = ZipAR(window=window - 1)  # the width of the grid is the model's own generate
    tokens, report = run(family, method, batch=3)
    forced = set(witness.decoder.forced)
    for row in witness.commits:
        missing = [position for position, times in enumerate(row) if times != 1]
        # the first token comes from the prompt; forced ones may be passed over without a forward
        assert set(missing) <= {0} | forced and max(row) == 1, missing
    assert all(lead >= method.window - 1 for lead in witness.leads), "a row overtook its lead"
    # lucky drafts can complete a short row before the next one starts
    assert witness.leads or window == COLUMNS or draft_window > 1, "no two rows ever ran side by side"
    codes = tokens[:, -report.plain_forwards :]
    assert len({tuple(row) for row in codes.tolist()}) == 3


@pytest.mark.parametrize("rows", (4, 6))
@pytest.mark.parametrize("window", (1, 2, 3))
@pytest.mark.parametrize("batch", (1, 3))
def test_passes_of_a_plain_grid(rows, window, batch):
    """Each row starts `window` passes after the one above; the prefill gives the first token."""
    tokens, report = run("janus", ZipAR(window=window), batch, rows=rows)
    assert tokens.shape == (batch, rows * rows)
    assert report.forwards == rows + (rows - 1) * window
    assert report.plain_forwards == rows * rows and report.engaged and not report.exact


@pytest.mark.parametrize(("rows", "columns"), ((4, 4), (3, 5), (5, 3)))
@pytest.mark.parametrize("window", (1, 2, 3))
def test_passes_of_emu3(rows, columns, window):
    """Ends of line cost no pass of their own."""
    tokens, report = run("emu3", ZipAR(window=window), rows=rows, columns=columns)
    assert report.forwards <= columns + (rows - 1) * window + 1  # see test_no_pass_after_the_last_row
    assert report.plain_forwards == rows * (columns + 1) + 3 == tokens.shape[1] - 6


@pytest.mark.parametrize("family", ("emu3", "glm_image"))
def test_every_pass_is_counted(family, monkeypatch):
    witness = Witness(monkeypatch)
    counts = []
    for seed in range(4):
        witness.passes = 0
        report = run(family, ZipAR(window=2, verify=True, draft_window=4), seed=seed)[1]
        counts.append((report.forwards, witness.passes + 1))
    assert all(reported == made for reported, made in counts), counts


def test_no_pass_after_the_last_row(monkeypatch):
    witness = Witness(monkeypatch)
    run("emu3", ZipAR(window=2))
    assert witness.passes + 1 == COLUMNS + (ROWS - 1) * 2


@pytest.mark.parametrize("window", (1, 2, 3))
def test_passes_of_glm_image(window):
    """The 2 x 2 preview, then the large grid; the end token costs nothing."""
    report = run("glm_image", ZipAR(window=window))[1]
    preview = 2 + min(window, 2)  # a lead wider than the preview is plain order there
    assert report.forwards == preview + COLUMNS + (ROWS - 1) * window


@pytest.mark.parametrize("verify", (False, True))
@pytest.mark.parametrize("batch", (1, 3))
def test_end_of_line_and_frame_of_emu3(batch, verify):
    tokens, _ = run("emu3", ZipAR(window=2, verify=verify), batch)
    picture = tokens[:, 6:]
    rows, tail = picture[:, :-3].view(batch, ROWS, COLUMNS + 1), picture[:, -3:]
    assert bool((rows[:, :, -1] == 11).all()) and bool((rows[:, :, :-1] >= 20).all())
    assert tail.tolist() == [[12, 13, 2]] * batch


@pytest.mark.parametrize("verify", (False, True))
def test_codes_and_end_of_glm_image(verify):
    tokens, _ = run("glm_image", ZipAR(window=2, verify=verify), 3)
    assert bool((tokens[:, 6:-1] < CODES).all()) and bool((tokens[:, -1] == CODES + 1).all())


def test_drafts_save_passes():
    """On a peaked distribution drafts are accepted, so that rows need fewer passes."""
    plain = run("janus", ZipAR(window=3), rows=6, guidance=3.0)[1]
    model, arguments = examples.janus(rows=6)
    with mmaccel.accelerate(model, ZipAR(window=3, verify=True, draft_window=4)) as fast:
        fast.generate(**arguments(temperature=0.05), generator=torch.Generator().manual_seed(0))
        assert fast.report.forwards < plain.forwards
        assert fast.report.details["stats"]["accepted"] > 0


def test_guided_batches_of_one_and_three_agree():
    """Greedy rows do not feel their neighbours in the batch. (With drafts, luck decides what a row has seen.)"""
    for family in FAMILIES:
        model, arguments = getattr(examples, family)(seed=2)
        guidance = 1.0 if family == "glm_image" else 3.0
        call = arguments(3, guidance=guidance, do_sample=False, top_k=None)
        for method in (ZipAR(window=1), ZipAR(window=2), ZipAR(window=3)):
            with mmaccel.accelerate(model, method) as fast:
                together = fast.generate(**call)
                for row in range(3):
                    names = ("input_ids", "attention_mask", "negative_prompt_ids")
                    alone = {k: v[row : row + 1] if k in names and len(v) == 3 else v for k, v in call.items()}
                    if family == "emu3":
                        alone["image_sizes"] = call["image_sizes"][:1]
                    if family == "glm_image":
                        alone["image_grid_thw"] = call["image_grid_thw"][:2]
                        alone["images_per_sample"] = call["images_per_sample"][:1]
                    assert torch.equal(fast.generate(**alone)[0], together[row]), (family, str(method), row)


def test_layout_of_lines():
    layout = Layout.grids([(1, 2), (2, 3)], end_of_line=7, tail=(8, 9))
    assert [(line.start, line.length, line.grid) for line in layout.lines] == [
        (0, 3, 0),
        (3, 4, 1),
        (7, 4, 1),
        (11, 2, 2),
    ]
    assert layout.length == 13 and layout.columns == 4
    assert layout.forced_tokens.tolist() == [-1, -1, 7, -1, -1, -1, 7, -1, -1, -1, 7, 8, 9]
