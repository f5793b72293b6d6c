"""What all tabs stand on: runs and their messages, shared models, the server's settings, and the looks of results."""

import threading
import time
import types

import gradio as gr
import numpy as np
import pytest
from PIL import Image

from mmaccel.demos import app
from mmaccel.demos.app import Frame, Limits, Models
from mmaccel.demos.app import models as shared_models
from mmaccel.demos.app import runs as runs_module
from mmaccel.demos.app.limits import number
from mmaccel.demos.app.looks import board, panels
from mmaccel.demos.app.looks.board import ACCELERATED, PLAIN, Progress, Scoreboard, embedded
from mmaccel.demos.app.runs import LONGEST_MESSAGE, Run, Runs, Stopped, readable
from mmaccel.errors import PromptError, SettingError
from mmaccel.report import Report


def request(visitor="a"):
    return types.SimpleNamespace(session_hash=visitor)


def handler(frame, work, inputs=(), triggers=1):
    """What each of some events calls."""
    held = []
    with gr.Blocks():
        outputs = [gr.HTML(), gr.HTML()]
        listens = [lambda work, **more: held.append(work)] * triggers
        frame.connect(listens, work, list(inputs), outputs)
    return held


# Runs


def test_stages_are_timed_also_where_they_fail_and_add_up(monkeypatch):
    clock = types.SimpleNamespace(now=100.0)
    monkeypatch.setattr(runs_module.time, "perf_counter", lambda: clock.now)
    told = []
    run = Run(lambda share, name: told.append((share, name)))
    with run.stage("draw"):
        clock.now += 1
    with pytest.raises(KeyError), run.stage("draw"):
        clock.now += 2
        raise KeyError
    assert run.stages == {"draw": 3.0} and told == [(0.0, "draw"), (0.0, "draw")]
    run.stop()
    with pytest.raises(Stopped), run.stage("more"):
        raise AssertionError("it began")
    assert "more" not in run.stages


def test_progress_is_told_now_and_then(monkeypatch):
    clock = types.SimpleNamespace(now=100.0)
    monkeypatch.setattr(runs_module.time, "perf_counter", lambda: clock.now)
    told = []
    run = Run(lambda share, name: told.append((share, name)))
    with run.stage("a"):
        run.tell(1, 4)
        run.tell(2, 4)  # too soon
        clock.now += 0.2
        run.tell(1, 0)  # of how many is unknown
        run.tell(5, 4)
    with run.stage("b"):
        run.tell(3, 4)  # the first of a stage at once
    assert told == [(0.0, "a"), (0.25, "a"), (1.0, "a"), (0.0, "b"), (0.75, "b")]
    run.stop()
    with pytest.raises(Stopped):
        run.tell(1, 0)


def test_all_runs_of_a_visitor_are_stopped():
    runs = Runs()
    with runs.begin("a", lambda *_: None) as first:
        with runs.begin("a", lambda *_: None) as second:
            pass
        assert runs.count() == 1
        with runs.begin("a", lambda *_: None) as third:
            runs.stop("a")
        assert first.stopped and third.stopped and not second.stopped
    with pytest.raises(KeyError), runs.begin("a", lambda *_: None):
        raise KeyError
    assert runs.count() == 0 and not runs._live, "visitors who are gone are kept"


def test_closing_waits_until_runs_have_ended(monkeypatch):
    runs, live = Runs(), threading.Event()

    def work():
        with runs.begin("a", lambda *_: None) as run:
            live.set()
            while not run.stopped:
                time.sleep(0.01)
            time.sleep(0.2)

    thread = threading.Thread(target=work)
    thread.start()
    live.wait(10)
    runs.close()
    assert runs.count() == 0
    thread.join()


def test_messages_of_errors_are_one_short_line():
    with pytest.raises(gr.Error) as long, readable():
        raise PromptError("word\n  " * 1000)
    text = long.value.message
    assert text.startswith("word word") and len(text) == LONGEST_MESSAGE + 4 and text.endswith(" ...")
    assert long.value.title == "This cannot be done" and not long.value.print_exception
    with pytest.raises(gr.Error) as exact, readable():
        raise PromptError("x" * LONGEST_MESSAGE)
    assert exact.value.message == "x" * LONGEST_MESSAGE
    with pytest.raises(gr.Error) as short_of, readable():
        raise MemoryError
    assert "not enough memory" in short_of.value.message and short_of.value.title == "This cannot be done"
    own = gr.Error("<b>", title="Own")
    with pytest.raises(gr.Error) as same, readable():
        raise own
    assert same.value is own
    with pytest.raises(Stopped), readable():
        raise Stopped


def test_limits_name_themselves_and_read_no_texts_that_are_none():
    for name in ("waiting", "disk_bytes", "read_seconds"):
        with pytest.raises(SettingError, match=f"{name}=-1"):
            Limits(**{name: -1})
    assert Limits().prompt(3) == Limits().method(None) == "" and number("n", None, 1, 2) is None
    with pytest.raises(SettingError, match="a number from 1 to 2"):
        number("n", "9", 1, 2, whole=False)
    with pytest.raises(SettingError, match="a whole number from 1 to 2"):
        number("n", "1.5", 1, 2)


# The frame


def test_every_event_starts_the_work_with_its_values():
    seen = []
    frame = Frame()
    starts = handler(frame, lambda run, *values: seen.append(values) or ["a", "b"], triggers=2)
    assert len(starts) == 2
    for number_, start in enumerate(starts):
        assert list(start(request(), number_, "x"))[-1] == ["a", "b"]
    assert seen == [(0, "x"), (1, "x")]


def test_work_that_waits_is_never_begun_for_who_left():
    frame, go, seen = Frame(), threading.Event(), []
    (first,) = handler(frame, lambda run: go.wait(10) or ["a", "b"])
    (second,) = handler(frame, lambda run: seen.append("begun") or ["a", "b"])
    busy, waiting = first(request("a")), second(request("b"))
    next(busy)
    next(waiting)
    waiting.close()
    go.set()
    list(busy)
    frame.worker.submit(int).result(10)
    assert not seen and frame.runs.count() == 0


def test_who_stops_ends_all_that_they_run_await_or_say():
    frame, gone = Frame(), []
    frame.ends.extend((lambda who: gone.append(("one", who)), lambda who: gone.append(("two", who))))
    with frame.runs.begin("a", lambda *_: None) as run:
        frame.stop(request("a"))
    assert run.stopped and gone == [("one", "a"), ("two", "a")]


def test_a_stop_ends_what_waits_at_once_and_nobody_else_s():
    frame, go, begun = Frame(), threading.Event(), []
    (first,) = handler(frame, lambda run: go.wait(10) and run.check())
    (next_one,) = handler(frame, lambda run, who: begun.append(who) or ["a", "b"])
    running, waiting, other = first(request("a")), next_one(request("a"), "a"), next_one(request("b"), "b")
    assert [frame.runs.count() for one in (running, waiting, other) if next(one)] == [1, 2, 3]
    assert "Waiting for another run" in next(waiting)[0]
    frame.stop(request("a"))
    assert "The run was stopped." in list(waiting)[-1][0] and not go.is_set(), "it waits for its turn to end"
    assert frame.runs.count() == 2
    go.set()
    assert "The run was stopped." in list(running)[-1][0]
    assert list(other)[-1] == ["a", "b"] and begun == ["b"] and frame.runs.count() == 0


def test_only_so_many_wait():
    frame, go = Frame(limits=Limits(waiting=1)), threading.Event()
    (start,) = handler(frame, lambda run: go.wait(10) and ["a", "b"])
    one, two, three = (start(request()) for _ in range(3))
    next(one), next(two)
    ((board, rest),) = three
    assert "no more than 1 runs may wait" in board and rest == gr.skip()
    go.set()
    assert list(one)[-1] == list(two)[-1] == ["a", "b"] and list(start(request()))[-1] == ["a", "b"]


def test_a_stop_is_said_on_the_board_and_the_rest_stays(caplog):
    def stopped(run):
        raise Stopped

    (start,) = handler(Frame(), stopped)
    with caplog.at_level("INFO", logger="mmaccel.demo"):
        *_, (board, rest) = start(request())
    assert "The run was stopped." in board and rest == gr.skip() and "stopped by its visitor" in caplog.text


# Models


@pytest.fixture
def opened(monkeypatch):
    """Calls of `open` of a modality that loads nothing."""
    calls = []

    def open_(name, device, dtype):
        calls.append((name, device, dtype))
        if name == "broken":
            raise SettingError("damaged")
        return object()

    modality = types.SimpleNamespace(open=open_, tab_models=lambda: ["small"])
    monkeypatch.setattr(shared_models, "get_modality", lambda kind: modality)
    return calls


def test_a_model_is_loaded_once_and_as_the_operator_says(opened):
    models, run = Models({"image": ["own"]}, device="mps", dtype="half"), Run()
    with models.borrow("image", "own", run) as one:
        assert models._shared["image", "own"].lock.locked()
    with models.borrow("image", "own", Run()) as two:
        pass
    assert one is two and opened == [("own", "mps", "half")] and list(run.stages) == ["wait", "load"]
    with pytest.raises(KeyError), models.borrow("image", "own", Run()):
        raise KeyError
    assert not one.lock.locked() and models.names("image") == ["own", "small"]
    with models.borrow("image", "small", Run()) as other:
        assert other is not one and other.memory is not one.memory


def test_a_model_that_cannot_be_loaded_blocks_nobody(opened):
    models = Models(any_model=True)
    for _ in range(2):
        with pytest.raises(SettingError, match="damaged"), models.borrow("image", "broken", Run()):
            raise AssertionError("it was loaded")
    assert len(opened) == 2 and not models._shared["image", "broken"].lock.locked()
    models.check("image", "x" * 200)
    for name in ("x" * 201, " ", None):
        with pytest.raises(SettingError, match="choose a model"):
            models.check("image", name)
    with pytest.raises(SettingError), models.borrow("image", " ", Run()):
        raise AssertionError("it was not checked")


# The server


@pytest.fixture
def launched(monkeypatch):
    """What Gradio is asked for where the app is served."""
    asked = {}

    def launch(self, **more):
        asked.update(more)
        if asked["server_port"] == 1:
            raise OSError("in use")
        return None, "http://here/", None

    monkeypatch.setattr(app, "modalities", lambda: ())
    monkeypatch.setattr(gr.Blocks, "launch", launch)
    monkeypatch.setattr(gr.Blocks, "block_thread", lambda self: asked.update(waited=True))
    return asked


def test_the_server_keeps_to_its_limits(launched, capsys, monkeypatch):
    frame, closed = Frame(limits=Limits(upload_bytes=5, sessions=6)), []
    monkeypatch.setattr(Runs, "close", lambda self: closed.append(self))
    app.launch(frame, "10.0.0.1", 99, wait=False, allow_hosts=["demo.example.org"])
    assert (launched["server_name"], launched["server_port"]) == ("10.0.0.1", 99)
    assert (launched["max_file_size"], launched["state_session_capacity"]) == (5, 6)
    assert launched["_app"].hosts == ("10.0.0.1", "demo.example.org") and launched["_app"].limits is frame.limits
    assert not any(launched[name] for name in ("share", "show_error", "run_history", "enable_monitoring"))
    assert not launched["mcp_server"] and launched["footer_links"] == ["settings"]
    assert "arrow" in launched["js"].lower() and ".lane" in launched["css"] and launched["theme"] is not None
    assert "http://here/" in capsys.readouterr().out and "waited" not in launched and not closed
    app.launch(frame)
    assert launched["waited"] and closed == [frame.runs] and launched["server_name"] == "127.0.0.1"
    with pytest.raises(OSError, match="cannot listen on 127.0.0.1, port 1: .*--port"):
        app.launch(frame, port=1)


def test_runs_are_ended_where_the_server_is_interrupted(launched, monkeypatch):
    def interrupted(self):
        self.is_running = True  # Gradio returns where it is interrupted, and leaves that as it is

    closed = []
    monkeypatch.setattr(Runs, "close", lambda self: closed.append(self))
    monkeypatch.setattr(gr.Blocks, "block_thread", interrupted)
    with pytest.raises(KeyboardInterrupt):
        app.launch(frame := Frame())
    assert closed == [frame.runs]


def test_threads_share_two_heaps_where_the_library_can(monkeypatch):
    told = []
    library = types.SimpleNamespace(mallopt=lambda *given: told.append(given))
    monkeypatch.setattr(app.ctypes, "CDLL", lambda name: library)
    monkeypatch.setattr(app.sys, "platform", "linux")
    app._share_memory()
    assert told == [(-8, 2)]
    monkeypatch.setattr(app.sys, "platform", "darwin")
    app._share_memory()
    monkeypatch.setattr(app.sys, "platform", "linux")
    monkeypatch.setattr(app.ctypes, "CDLL", lambda name: object())
    app._share_memory()
    assert len(told) == 1


# Looks


def test_what_a_run_saved_is_said_in_the_words_of_its_counts():
    base = {"methods": ["a"], "exact": False, "wall_seconds": 2.0}
    forwards = Report(**base, forwards=10, plain_forwards=20, visual_tokens=1, plain_visual_tokens=2)
    assert panels.saved(forwards) == "10 passes of the model instead of 20."
    assert panels.saved(Report(**base, visual_tokens=3, plain_visual_tokens=9)) == "3 visual tokens instead of 9."
    assert panels.saved(Report(**base, keys=1, plain_keys=4)) == "25% of the keys are read."
    assert panels.saved(Report(**base, warnings=["one", "two"])) == "one\ntwo"


def test_times_of_stages():
    assert panels.stage_table({}) == ""
    table = panels.stage_table({"<load>": 4.0, "draw": 1.0, "soon": 0.004, "least": 0.005})
    assert "&lt;load&gt;" in table and "width: 100%" in table and "width: 25%" in table and ">4.00<" in table
    assert "soon" not in table and "least" in table and "width: 1%" in table
    assert "width" not in panels.stage_table({"none": 0.0})


def test_results_are_hidden_until_a_run_ends():
    with gr.Blocks():
        found = panels.results()
        picture = panels.heat_map()
    assert not found.details.visible and found.seed.visible and not picture.visible
    run = Run()
    run.stages["draw"] = 1.0
    details, report, seed, stages, code = found.values(run, 7, "told", "print()", "unused")
    assert details["visible"] and (report, seed, code) == ("told", "7", "print()") and "draw" in stages
    assert found.outputs == [found.details, found.report, found.seed, found.stages, found.code]
    text = panels.report_text(Report(["a"], False, wall_seconds=1.0), "  quality  good")
    assert "not measured" not in text and text.endswith("  quality  good")


def test_a_stage_is_said_in_words(monkeypatch):
    progress = Progress()
    progress.tell(0.0, "load")
    assert board.SAID["load"] in progress.page()
    progress.tell(None, "read")
    assert "Read ..." in progress.page() and progress.share("read", 0.0) == 0
    progress.tell(0.0, ACCELERATED)
    assert '<p class="said"></p>' in progress.page(), "there is no plain run to speak of"
    both = Progress((PLAIN, ACCELERATED))
    both.tell(0.0, ACCELERATED)
    assert board.SAID[ACCELERATED] in both.page()


def test_bars_go_on_from_where_they_were(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(board.time, "perf_counter", lambda: now[0])
    progress = Progress()
    progress.tell(0.0, ACCELERATED)
    for share, start in ((0.25, 0.0), (0.75, 25.0)):
        now[0] += 1
        progress.tell(share, ACCELERATED)
        assert f"--from:{start:.1f}%;--to:{100 * share:.1f}%" in progress.page()


def test_a_scoreboard_tells_units_and_who_won():
    times = ((PLAIN, 4.0), (ACCELERATED, 3.0))
    board = Scoreboard("<gain>", "<cost>", times, "CPU s", "<said>", "<b>film</b>")
    page = board.page()
    assert all(f"&lt;{word}&gt;" in page for word in ("gain", "cost", "said")) and "<b>film</b>" in page
    assert "4.00 CPU s" in page and "3.00 CPU s" in page and "--to:75.0%" in page and board.won
    assert Scoreboard("", "", ((PLAIN, 3.0), (ACCELERATED, 3.0))).won and Scoreboard("", "").won
    assert not Scoreboard("", "", ((PLAIN, 3.0), (ACCELERATED, 3.1))).won
    assert "0.00 s" in Scoreboard("", "", ((PLAIN, 0.0),)).page()


def test_pictures_of_a_page_are_small_and_those_of_others_stay():
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (600, 600, 3), np.uint8))
    assert len(embedded(picture, 32)) < len(embedded(picture)) < len(embedded(picture, 600))
    assert picture.size == (600, 600)


def test_films_and_words_have_their_bounds():
    picture = Image.new("RGB", (8, 8))
    assert board.film([(PLAIN, picture, [0.1] * board.MOST_CELLS)], 2)
    assert board.film([(PLAIN, picture, [])], 2) == ""
    assert board.ratio(2.0, 1.0, "less", "more") == "2.0x less" and board.ratio(1.0, 2.0, "less", "more") == "2.0x more"
    assert board.ratio(1.0, 1.0, "less", "more") == "the same"
    assert board.notice("<t>", "<b>m</b>").count("&lt;t&gt;") == 1 and "<b>m</b>" in board.notice("", "<b>m</b>")


def test_the_page_asks_no_other_server_for_fonts():
    from mmaccel.demos.app.looks import style

    assert not [sheet for sheet in style.theme()._stylesheets if "//" in sheet]
    assert "//" not in style.CSS.replace("/*", "").replace("*/", "")
