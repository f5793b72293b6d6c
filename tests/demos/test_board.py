"""The board of the demo: the pace of a race, the verdict, notices, and the gallery to start from."""

import re
import threading
import types

import gradio as gr
import numpy as np
import pytest
from PIL import Image

from mmaccel import zoo
from mmaccel.demos.app.frame import Frame
from mmaccel.demos.app.looks import board, panels
from mmaccel.demos.app.looks.board import ACCELERATED, PLAIN, Progress, Scoreboard, film, notice, ratio
from mmaccel.demos.app.looks.gallery import Card, gallery, waves
from mmaccel.demos.app.tabs import image_tab, video_tab
from mmaccel.demos.app.tabs.image_run import _cost
from mmaccel.demos.training.janus import card as model_card
from mmaccel.demos.training.unet import train as unet_recipe
from mmaccel.errors import PromptError
from mmaccel.report import Report


class Clock:
    """Time that passes when it is told to."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(board.time, "perf_counter", lambda: self.now)

    def run(self, progress, lane, seconds, steps=10, until=1.0):
        """A lane that goes at an even pace, so far."""
        progress.tell(0.0, lane)
        for step in range(1, round(steps * until) + 1):
            self.now += seconds / steps
            progress.tell(step / steps, lane)


def lanes(page):
    """Share in percent and seconds of each lane."""
    found = re.findall(r'aria-label="(\w+)" aria-valuenow="(\d+)".*?class="time">([\d.]+) s', page)
    return {name: (int(share), float(seconds)) for name, share, seconds in found}


def test_the_second_run_races_the_recorded_pace_of_the_first(monkeypatch):
    clock, progress = Clock(monkeypatch), Progress((PLAIN, ACCELERATED))
    progress.tell(0.0, "load")
    clock.now += 5
    assert lanes(progress.page()) == {PLAIN: (0, 0.0), ACCELERATED: (0, 0.0)}
    clock.run(progress, PLAIN, 10.0, until=0.5)
    assert lanes(progress.page()) == {PLAIN: (50, 5.0), ACCELERATED: (0, 0.0)}
    clock.now += 5
    clock.run(progress, ACCELERATED, 4.0, until=0.5)
    page = progress.page()
    assert "at the pace it just had" in page
    shares = lanes(page)
    assert shares[ACCELERATED] == (50, 2.0)
    assert shares[PLAIN] == (20, 2.0), "not where the plain run was after two seconds"
    clock.now += 2
    progress.tell(0.0, "measure")
    clock.now += 60
    assert lanes(progress.page()) == {PLAIN: (40, 4.0), ACCELERATED: (100, 4.0)}, "the race goes on after its end"


def test_a_slow_second_run_leaves_the_first_at_its_end(monkeypatch):
    clock, progress = Clock(monkeypatch), Progress((PLAIN, ACCELERATED))
    clock.run(progress, PLAIN, 1.0)
    clock.run(progress, ACCELERATED, 10.0, until=0.5)
    assert lanes(progress.page()) == {PLAIN: (100, 1.0), ACCELERATED: (50, 5.0)}


def test_the_gain_is_said_as_it_was_measured():
    report = Report(["a"], False, wall_seconds=2.0, baseline_seconds=4.8, forwards=10, plain_forwards=20)
    page = panels.verdict(report, "Lossy: a bit <less>.")
    assert '<p class="gain">2.4x faster</p>' in page and "a bit &lt;less&gt;" in page and "One run of each" in page
    assert "--to:100.0%" in page and "--to:41.7%" in page, "bars are as long as the runs"
    slower = panels.verdict(Report(["a"], False, wall_seconds=2.0, baseline_seconds=1.0), "")
    assert '<p class="gain none">2.0x slower</p>' in slower
    alone = panels.verdict(Report(["a"], False, wall_seconds=2.0, forwards=10, plain_forwards=20), "")
    assert "2.00 s" in alone and "10 passes of the model instead of 20" in alone and "No speed-up is claimed" in alone
    assert "faster" not in alone and "accelerated" not in alone
    assert ratio(1.04, 1.0) == ratio(1.0, 1.04) == "as fast" and ratio(1.05, 1.0) == "1.1x faster"


def test_words_that_need_a_statistician_are_gone():
    said = [
        panels.PRESET_NOTE,
        panels.ONE_RUN_EACH,
        *board.SAID.values(),
        *(_cost(e, s, "") for e in (0, 1) for s in (0, 1)),
    ]
    assert not re.search(r"\b(law|nats?|surprise)\b", " ".join(said))
    assert "very same picture" in _cost(True, 1.0, "") and "another picture" in _cost(True, 0.5, "")
    assert _cost(False, 0.5, "x").startswith("Lossy: 50%")


def test_pictures_appear_at_the_pace_of_their_runs():
    picture, seconds = Image.new("RGB", (8, 8), "red"), [0.1, 0.2, 0.3, 0.4]
    page = film([(PLAIN, picture, seconds), (ACCELERATED, picture, [s / 2 for s in seconds])], 2)
    assert re.findall(r"--at:([\d.]+)s", page) == ["0.10", "0.20", "0.30", "0.40", "0.05", "0.10", "0.15", "0.20"]
    assert "--columns:2" in page and page.count("data:image/webp") == 2
    assert film([(PLAIN, picture, None), (ACCELERATED, picture, seconds)], 2) == ""
    assert film([(PLAIN, picture, [0.1] * (board.MOST_CELLS + 1))], 2) == "", "a page of thousands of cells"


def handler(frame, work, lanes=(ACCELERATED,)):
    """What a button calls, with a request of a visitor."""
    held = {}
    with gr.Blocks():
        outputs = [gr.HTML(), gr.HTML()]
        frame.connect([lambda work, **more: held.update(work=work, **more)], work, [], outputs, lanes)
    return lambda: held["work"](types.SimpleNamespace(session_hash="a"))


def failing(run):
    raise PromptError("no <b>")


def test_an_error_is_said_under_its_own_heading():
    *_, (board, rest) = handler(Frame(), failing)()
    assert board == notice("This cannot be done", "no &lt;b&gt;") and "<h3>This cannot be done</h3>" in board
    assert rest == gr.skip()

    def broken(run):
        raise RuntimeError("/secret")

    *_, (board, _) = handler(Frame(), broken)()
    assert "<h3>This failed</h3>" in board and "secret" not in board


def test_the_board_is_live_while_work_is_busy():
    frame, go = Frame(), threading.Event()

    def work(run):
        with run.stage(PLAIN):
            run.tell(1, 2)
            go.wait(10)
        yield ["half", "a"]
        yield ["all", "b"]

    steps = handler(frame, work, (PLAIN, ACCELERATED))()
    board, rest = next(steps)
    assert 'class="race"' in board and rest == gr.skip()
    go.set()
    *_, first, last = (step for step in steps if "race" not in step[0])
    assert (first, last) == (["half", "a"], ["all", "b"])
    assert frame.runs.count() == 0


@pytest.mark.parametrize("leave", ("stop", "close"))
def test_who_stops_or_leaves_ends_the_work(leave):
    frame, ended = Frame(), threading.Event()

    def work(run):
        try:
            while True:
                run.check()
                threading.Event().wait(0.01)
        finally:
            ended.set()

    steps = handler(frame, work)()
    next(steps)
    if leave == "stop":
        frame.runs.stop("a")
        assert "Stopped" in list(steps)[-1][0]
    else:
        steps.close()
    assert ended.wait(10), "the work of a visitor who is gone goes on"


@pytest.mark.parametrize(
    ("tab", "model", "cards"),
    [
        (image_tab, "tiny-janus", image_tab.SAMPLES),
        (video_tab, "tiny-wan", video_tab.SAMPLES),
        (video_tab, "tiny-unet", video_tab.DRAWN),
    ],
)
def test_cards_are_cut_where_the_pictures_of_the_sheet_begin(tab, model, cards, monkeypatch):
    cut = []
    monkeypatch.setattr(tab, "sample", lambda name, *place: cut.append((name, place)) or "data:,")
    tab._cards()
    places = [place for name, place in cut if name == model]
    with Image.open(zoo.path(model) / "samples.png") as sheet:
        pixels = np.asarray(sheet.convert("RGB")).astype(int)
    assert len(places) == len(cards)
    for left, top, side in places:
        above, first = (pixels[row, left : left + side] for row in (top - 1, top))
        assert (above == above[0]).all() and (first != above[0]).any(), (left, top)


def test_cards_show_what_the_sheets_of_samples_show():
    assert all(model_card.PROMPTS[place] == prompt for prompt, place in image_tab.SAMPLES.items())
    assert all(unet_recipe.PROMPTS[place] == prompt for prompt, place in video_tab.DRAWN.items())
    cards = [*image_tab._cards(), *video_tab._cards()]
    assert len({card.picture for card in cards}) == len(cards) >= 12
    assert all(card.values == (card.text,) for card in cards)


def test_a_card_fills_the_fields_it_stands_for():
    with gr.Blocks() as blocks:
        fields = [gr.Textbox(), gr.Textbox()]
        gallery([Card("<one>", "data:,", ("a", "b")), Card("two", "data:,", ("c", "d"))], fields)
    (shown,) = (block for block in blocks.blocks.values() if isinstance(block, gr.HTML))
    assert "&lt;one&gt;" in shown.value and 'data-card="1"' in shown.value
    (event,) = blocks.fns.values()
    assert event.fn(types.SimpleNamespace(index=1)) == ["c", "d"]


def test_a_model_has_its_own_cards_and_its_first_takes_the_place_of_another_s():
    cards = [Card("a", "data:,a", ("a",)), Card("b", "data:,b", ("b",), "own"), Card("c", "data:,c", ("c",), "own")]
    with gr.Blocks() as blocks:
        field, model = gr.Textbox("a"), gr.Dropdown(["any", "own"], value="any")
        gallery(cards, [field], model)
    (shown,) = (block for block in blocks.blocks.values() if isinstance(block, gr.HTML))
    assert re.findall("data:,(.)", shown.value) == ["a"]
    pick, choose = sorted(blocks.fns.values(), key=lambda event: len(event.inputs))
    assert pick.fn(types.SimpleNamespace(index=2)) == "c", "cards keep their numbers"
    faces, filled = choose.fn("own", "a")
    assert re.findall('data-card="(.)"', faces) == ["1", "2"] and filled == "b"
    for name, now in (("own", "c"), ("any", "a"), ("any", "my own words"), ("own", "my own words")):
        assert choose.fn(name, now)[1] == gr.skip(), "what was typed stays"
    faces, filled = choose.fn("any", "c")
    assert re.findall("data:,(.)", faces) == ["a"] and filled == "a"


def test_waves_follow_the_sound():
    sound = np.concatenate([np.zeros(100), np.ones(100)])
    heights = [int(height) for height in re.findall(r"height='(\d+)' rx", waves(sound, 4))]
    assert heights == [6, 6, 90, 90]
    assert "rect" in waves(np.zeros(10), 4)


def test_a_verdict_alone_has_no_bars():
    assert "lane" not in Scoreboard("2 s", "").page()
