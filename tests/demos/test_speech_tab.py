"""The live speech tab: recordings, microphones of several visitors, what is shown and what is refused."""

import base64
import contextlib
import functools
import gc
import importlib.util
import io
import re
import threading
import time
import types
import weakref
from collections import namedtuple
from pathlib import Path

import av
import gradio as gr
import numpy as np
import pytest
import torch
from gradio.route_utils import delete_files_created_by_app

from mmaccel import speech
from mmaccel.demos.app.frame import Frame
from mmaccel.demos.app.limits import Limits
from mmaccel.demos.app.looks import panels
from mmaccel.demos.app.runs import Run, Stopped
from mmaccel.demos.app.tabs import live_words, microphone, speech_run, speech_tab
from mmaccel.demos.app.tabs.live_words import LiveWords
from mmaccel.demos.app.tabs.speech_run import PartialTranscript, _report
from mmaccel.demos.app.uploads.reading import read_recording
from mmaccel.errors import AudioError, PromptError, SettingError, UnknownNameError, UnsupportedTargetError

RATE = 16_000
Last = namedtuple("Last", "board words files details report seed stages code")
SETTINGS = ("local-agreement", "moonshine-tiny", "", "auto", "", "")
TEXT = "Ever tried. Ever failed. No matter."


@pytest.fixture(scope="module")
def short(recording, tmp_path_factory):
    """Its first half, as a file."""
    path = tmp_path_factory.mktemp("sounds") / "talk.wav"
    write(path, speech.read_audio(recording)[: 4 * RATE + RATE // 2])
    return path


def write(path, samples, format="wav"):
    with av.open(str(path), "w", format=format) as container:
        stream = container.add_stream("pcm_s16le", rate=RATE, layout="mono")
        values = (samples * 32767).short().numpy()[None]
        sound = av.AudioFrame.from_ndarray(values, format="s16", layout="mono")
        sound.sample_rate = RATE
        container.mux([*stream.encode(sound), *stream.encode(None)])


def end(*values, **more):
    """What the tab shows at the end: words, files, details, report, seed, stages and code."""
    with gr.Blocks():
        files, results = gr.File(), panels.results(seeded=False)
    return speech_tab.ended(files, results, *values, **more)


def transcribe(frame, path, compare=False, settings=SETTINGS, run=None):
    """The words of every step, and the last outputs."""
    steps = list(speech_tab._transcribe(frame, end, compare, run or Run(), str(path), *settings))
    return [step[1] for step in steps], Last(*steps[-1])


def said(page):
    """The text of a page without times."""
    lines = re.findall(r"<p><span class=\"time\">[\d:now]+</span> (.*?)</p>", page)
    return re.sub(r"<.*?>", "", " ".join(lines))


def test_words_of_a_recording_come_one_by_one(frame, short):
    pages, last = transcribe(frame, short)
    assert said(pages[-1]) == TEXT == speech.transcribe(short).text
    assert any('class="unstable"' in page for page in pages) and 'class="unstable"' not in pages[-1]
    lengths = [len(said(page)) for page in pages]
    assert len(pages) > 5 and lengths[0] < lengths[-1]
    assert "real-time factor" in last.report and "accelerated" in last.stages
    assert "No speed-up is claimed" in last.board and "less computing" not in last.board


def test_comparing_counts_what_drafts_save(frame, short):
    pages, last = transcribe(frame, short, compare=True)
    report = last.report
    fewer, plain = map(int, re.search(r"decoder +(\d+) calls instead of (\d+)", report).groups())
    assert fewer < plain and "the same, event for event" in report and said(pages[-1]) == TEXT
    assert {"warm up", "plain", "accelerated"} <= set(re.findall(r'scope="row">(.*?)<', last.stages))
    told = r'class="gain( none)?">(\d.*(less|more) computing|the same)</p>'  # whatever the clock says
    assert re.search(told, last.board)
    assert "the same words at the same moments" in last.board


def test_a_language_and_names_are_told_or_refused(frame, short):
    request = speech_tab.asked(Limits(), False, str(short), *SETTINGS, " de ", "Molloy")
    assert request.told() == {"language": "de", "prompt": "Molloy"}
    assert ", language='de', prompt='Molloy')" in speech_tab.speech_code(request, frame.models)
    with pytest.raises(SettingError, match="language='de': MoonshineForConditionalGeneration takes none"):
        transcribe(frame, short, settings=(*SETTINGS, "de", ""))
    with pytest.raises(PromptError, match="the prompt has 3000 characters"):
        speech_tab.asked(Limits(), False, str(short), *SETTINGS, "", "x" * 3000)


def test_a_difference_would_be_told(frame, short):
    run = Run()
    request = speech_tab.asked(Limits(), True, str(short), *SETTINGS)
    *_, (heard, saved) = speech_tab.compared(run, frame.models, read_recording(str(short), Limits()), request)
    assert "Exact" in saved.cost
    other = PartialTranscript(heard.words, heard.stats, heard.events[:-1])
    saved = _report(other, 1.0, heard, 1.0)
    assert "NOT the same" in saved.report and "but should not" in saved.cost


def test_subtitles_are_offered_from_where_they_are_deleted_by_age(frame, short, tmp_path):
    with gr.Blocks() as blocks:
        files, results = gr.File(), panels.results(seeded=False)
    ended = functools.partial(speech_tab.ended, files, results)
    *_, last = speech_tab._transcribe(frame, ended, False, Run(), str(short), *SETTINGS)
    offered = [Path(file) for file in last[2]["value"]]
    assert last[2]["visible"] and [file.suffix for file in offered] == [".srt", ".vtt", ".json"]
    assert "Ever tried." in offered[0].read_text() and offered[1].read_text().startswith("WEBVTT")
    assert set(map(str, offered)) <= files.temp_files
    delete_files_created_by_app(blocks, None)
    assert not any(file.exists() for file in offered)


def test_the_shown_code_hears_the_same(frame, short):
    _, last = transcribe(frame, short)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(last.code.replace("'talk.wav'", repr(str(short))), {})
    assert [text for text in TEXT.split(". ") if text not in printed.getvalue()] == []


def test_stop_ends_a_recording(frame, short):
    run = Run()
    steps = speech_tab._transcribe(frame, end, False, run, str(short), *SETTINGS)
    next(steps)
    run.stop()
    with pytest.raises(Stopped):
        list(steps)


def test_nothing_is_made_up_where_nothing_was_said(frame, tmp_path, recording):
    write(tmp_path / "still.wav", torch.zeros(2 * RATE))
    pages, last = transcribe(frame, tmp_path / "still.wav")
    assert "No speech was heard" in pages[-1] and not last.files["visible"]


class Browser:
    """What the script of the page does: one message after the other, each with its answer."""

    def __init__(self, frame, visitor="a", settings=SETTINGS):
        self.microphone = microphone.Microphone(frame, speech_tab.asked, end)
        request = types.SimpleNamespace(session_hash=visitor)
        self.listening, self.answer, self.page = self.microphone.begin(request, None, *settings)

    def send(self, samples, rate=RATE):
        sound = base64.b64encode((np.asarray(samples) * 32767).astype("<i2").tobytes()).decode()
        self.answer, page = self.microphone.hear({"rate": rate, "sound": sound}, self.listening)
        self.page = page if isinstance(page, str) else self.page

    def end(self):
        for values in self.microphone.finish(self.listening):
            self.page = values[0]
        return values


def test_two_visitors_who_speak_at_once_stay_apart(frame, short, recording):
    sounds = [speech.read_audio(short), speech.read_audio(recording)[6 * RATE :]]
    browsers = [Browser(frame, name) for name in "ab"]
    pieces = [sound.split(6400) for sound in sounds]
    for place in range(max(map(len, pieces))):
        for browser, own in zip(browsers, pieces, strict=True):
            if place < len(own):
                browser.send(own[place])
    ends = [browser.end() for browser in browsers]
    alone = [speech.transcribe_samples(s, speech.StreamingRecognizer(*speech.load("moonshine-tiny"))) for s in sounds]
    assert [said(browser.page) for browser in browsers] == [found.text for found in alone]
    assert said(browsers[0].page) == TEXT and said(browsers[1].page) != TEXT
    assert "real-time factor" in ends[0][3]
    assert len({id(browser.listening) for browser in browsers}) == 2
    assert len([key for key in frame.models._shared if key[0] == "speech"]) == 1, "one model for both"


def test_every_answer_is_another(frame, recording):
    browser = Browser(frame)
    answers = [browser.answer["heard"]]
    for _ in range(3):
        browser.send(np.zeros(1600))
        answers.append(browser.answer["heard"])
    browser.end()
    assert len(set(answers)) == 4, "the page would wait for ever"


def test_a_visitor_who_leaves_is_forgotten(recording):
    frame = Frame()
    browser = Browser(frame, "leaving")
    browser.send(np.zeros(1600))
    thread = browser.listening._thread
    frame.stop(types.SimpleNamespace(session_hash="leaving"))
    thread.join(60)
    assert browser.listening.over and not thread.is_alive()
    browser.send(np.zeros(1600))
    assert browser.answer["over"]
    gone = weakref.ref(browser.listening)
    browser.listening = None
    gc.collect()
    assert gone() is None and not browser.microphone.speakers


def test_who_waits_for_the_model_may_stop(monkeypatch):
    frame = Frame()
    shared = frame.models._find("speech", "moonshine-tiny")
    monkeypatch.setattr(speech_run, "names", lambda: ())  # nothing to convert
    with shared.lock:  # another visitor's run
        browser = Browser(frame)
        wait(lambda: "wait" in browser.listening.run._stage)
        frame.stop(types.SimpleNamespace(session_hash="a"))
        browser.listening._thread.join(10)
        assert not browser.listening._thread.is_alive() and browser.listening.over
    browser.send(np.zeros(1600))
    assert browser.answer["over"] and not list(browser.microphone.finish(browser.listening))


def test_a_browser_that_is_gone_holds_no_thread(monkeypatch):
    monkeypatch.setattr(microphone, "GONE", 0.05)
    recognizer = types.SimpleNamespace(stream=lambda **_: contextlib.nullcontext(types.SimpleNamespace(stats=None)))
    listening = microphone.Listening(lambda *_: recognizer, types.SimpleNamespace(update_interval=0.5), most=300)
    listening._thread.join(10)
    assert listening.over and not listening._thread.is_alive() and not listening._error


def test_a_microphone_hears_for_so_long(recording):
    browser = Browser(Frame(limits=Limits(audio_seconds=1)))
    browser.send(np.zeros(RATE // 2))
    assert not browser.answer["over"]
    browser.send(np.zeros(RATE // 2))
    assert browser.answer["over"]
    assert "No speech was heard" in browser.end()[0]


def test_only_so_many_speak_at_once(frame, recording, monkeypatch):
    monkeypatch.setattr(microphone, "MICROPHONES", 1)
    told = []
    monkeypatch.setattr(gr, "Warning", lambda text, **_: told.append(text))
    shared = Browser(frame)
    request = types.SimpleNamespace(session_hash="b")
    listening, answer, _ = shared.microphone.begin(request, None, *SETTINGS)
    assert listening is None and answer["over"] and "try again" in told[0]
    assert shared.microphone.begin(request, None, *SETTINGS)[1] != answer, "the page notices no equal answer"
    shared.end()
    listening, answer, _ = shared.microphone.begin(request, None, *SETTINGS)
    listening.close()
    assert not answer["over"]


@pytest.mark.parametrize(
    "message",
    (None, 3, {}, {"rate": 0, "sound": ""}, {"rate": RATE, "sound": "@"}, {"rate": RATE, "sound": "AAAA" * 10**6}),
)
def test_messages_that_are_no_sound_end_a_recording(frame, recording, monkeypatch, message):
    told = []
    monkeypatch.setattr(gr, "Warning", lambda text, **_: told.append(text))
    browser = Browser(frame)
    answer, _ = browser.microphone.hear(message, browser.listening)
    assert answer["over"] and browser.listening.over and "not the sound of a microphone" in told[0]


def test_an_error_of_the_model_is_said_once(frame, monkeypatch, recording):
    told = []
    monkeypatch.setattr(gr, "Warning", lambda text, **_: told.append(text))
    browser = Browser(frame, settings=("append-only", *SETTINGS[1:]))
    began = time.monotonic()
    while not browser.answer["over"] and time.monotonic() - began < 60:
        browser.send(np.zeros(160))
    browser.send(np.zeros(160))
    assert len(told) == 1 and "only appends" in told[0]


class Noted:
    """A recogniser and its stream, which notes what it is given, and says nothing."""

    def __init__(self):
        self.settings, self.pushed, self.ended, self.requests = {}, [], [], []
        self.go_on, self.stats, self.fail = threading.Event(), "these figures", None

    def stream(self, **settings):
        self.settings = settings
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.ended.append("close")

    def push(self, samples, rate, partials):
        assert self.go_on.wait(10)
        if self.fail:
            raise self.fail
        self.pushed.append((len(samples), rate, partials))
        return [speech.Partial(f"word {len(self.pushed)}", "", "")]

    def finish(self):
        self.ended.append("finish")
        return [speech.Final("all words", (), 0.0, 1.0)]


@pytest.fixture
def noted(monkeypatch):
    """In the place of the model; its threads end with the test."""
    noted = Noted()
    monkeypatch.setattr(
        microphone, "recognizer", lambda models, run, request: noted.requests.append((models, request)) or noted
    )
    yield noted
    noted.go_on.set()


def wait(holds):
    """Until something holds, at most 10 s."""
    began = time.monotonic()
    while not holds() and time.monotonic() < began + 10:
        time.sleep(0.005)
    assert holds()


def test_who_speaks_anew_ends_what_they_said_before(noted, monkeypatch):
    """Also where no other could begin."""
    monkeypatch.setattr(microphone, "MICROPHONES", 1)
    noted.go_on.set()
    browser = Browser(Frame())
    before = browser.listening
    request = types.SimpleNamespace(session_hash="a")
    after, answer, page = browser.microphone.begin(request, before, *SETTINGS)
    before._thread.join(10)
    assert before.over and not before._thread.is_alive() and not after.over and not answer["over"]
    assert microphone.FIRST_WORDS in page and browser.microphone.speakers["a"] is after
    wait(lambda: noted.ended == ["close"])
    after.close()
    after._thread.join(10)


def test_what_the_visitor_chose_reaches_the_stream(noted):
    frame = Frame(limits=Limits(audio_seconds=7))
    browser = Browser(frame, settings=("align-att", "moonshine-tiny", "0.7", "energy", "0.9", "12"))
    wait(lambda: noted.settings)
    assert noted.settings == {"update_interval": 0.7} and browser.listening.most == 7
    ((models, request),) = noted.requests
    assert models is frame.models and request is browser.listening.request
    assert request.policy == speech.AlignAtt() and not request.compare and request.file == ""
    assert request.endpoint == speech.EnergyEndpoint(silence=0.9, longest=12)
    for place in range(5):
        browser.send(np.zeros(800 + place), rate=8_000)
    noted.go_on.set()
    values = browser.end()
    assert [pushed[:2] for pushed in noted.pushed] == [(800 + place, 8_000) for place in range(5)]
    told = [partials for *_, partials in noted.pushed]
    assert told[1:] == [False, False, True, True], "two chunks and the end may wait"
    assert noted.ended == ["finish", "close"] and browser.listening.over
    assert "all words" in values[0] and values[3] == "these figures" and "AlignAtt" in values[-1]
    assert list(browser.microphone.finish(browser.listening)) == list(browser.microphone.finish(None)) == []


def test_words_are_shown_once_the_stream_is_there(noted):
    assert microphone.Microphone(Frame(), speech_tab.asked, end).hear({}, None)[0]["over"], "there is nobody"
    load, listening = threading.Event(), None
    listening = microphone.Listening(lambda *_: load.wait(10) and noted, types.SimpleNamespace(update_interval=1), 300)
    hear = microphone.Microphone(Frame(), speech_tab.asked, end).hear
    message = {"rate": RATE, "sound": ""}
    assert not isinstance(hear(message, listening)[1], str), "the model is being loaded"
    noted.go_on.set()
    load.set()
    wait(lambda: listening.words.partial)
    answer, page = hear(message, listening)
    assert "word 1" in page and not answer["over"]
    listening.close()
    listening._thread.join(10)
    assert noted.ended == ["close"], "who left is not finished"
    listening.hear(RATE, np.zeros(RATE))
    assert listening.seconds == 0.0, "what comes later is dropped"


def test_an_error_at_the_end_is_said_by_the_end(noted):
    noted.fail = RuntimeError("secret")
    browser = Browser(Frame())
    browser.send(np.zeros(800))
    noted.go_on.set()
    with pytest.raises(gr.Error) as told:
        browser.end()
    assert "secret" not in told.value.message and browser.listening.over
    assert not browser.listening._error and noted.ended == ["close"]


def test_an_error_between_ends_the_recording(noted, monkeypatch):
    told = []
    monkeypatch.setattr(gr, "Warning", lambda text, **_: told.append(text))
    noted.fail = RuntimeError("secret")
    browser = Browser(Frame())
    noted.go_on.set()
    browser.send(np.zeros(800))
    wait(lambda: browser.listening._error)
    browser.send(np.zeros(800))
    assert browser.answer["over"] and browser.listening.over and len(told) == 1 and "No speech" in browser.page


@pytest.mark.parametrize("how", ("error", "stop"))
def test_what_was_said_before_an_end_that_nobody_asked_for_is_offered(noted, monkeypatch, how):
    monkeypatch.setattr(gr, "Warning", lambda *_, **__: None)
    browser = Browser(frame := Frame())
    browser.listening.words.take([speech.Final("Try again.", (), 0.0, 1.0)])
    noted.fail = RuntimeError("secret") if how == "error" else None
    noted.go_on.set()
    browser.send(np.zeros(800))
    if how == "error":
        wait(lambda: browser.listening._error)
    else:
        wait(lambda: noted.pushed)
        frame.stop(types.SimpleNamespace(session_hash="a"))
    browser.send(np.zeros(800))
    assert browser.answer["over"]
    values = browser.end()
    assert "Try again." in values[0] and values[1]["visible"] and "all words" not in values[0]
    assert list(browser.microphone.finish(browser.listening)) == [], "once"


def test_the_visitor_is_told_where_a_recording_ends(noted, monkeypatch):
    told = []
    monkeypatch.setattr(gr, "Info", told.append)
    noted.go_on.set()
    browser = Browser(Frame(limits=Limits(audio_seconds=1)))
    for _ in range(2):
        browser.send(np.zeros(RATE // 2))
    assert len(told) == 1 and "after 1 s" in told[0] and browser.answer["over"]
    assert "all words" in browser.end()[0], "what was said until then"


def test_bounds_of_a_message_include_their_ends(monkeypatch):
    monkeypatch.setattr(microphone, "MOST_SECONDS", 1)
    for rate in (8_000, 384_000):
        sound = base64.b64encode(bytes(2 * rate)).decode()
        assert microphone._decoded({"rate": rate, "sound": sound})[0] == rate
    for message in (
        {"rate": 7_999, "sound": ""},
        {"rate": 384_001, "sound": ""},
        {"rate": 8_000, "sound": base64.b64encode(bytes(16_002)).decode()},
    ):
        with pytest.raises(AudioError, match="reload the page"):
            microphone._decoded(message)
    values = np.array([1, -2, 300], "<i2")
    told = microphone._decoded({"rate": 8_000, "sound": base64.b64encode(values.tobytes()).decode()})[1]
    assert told.tolist() == [1, -2, 300]


def test_words_of_many_lines(tmp_path, monkeypatch):
    """The page shows the last lines; text and files hold all. An empty final ends a line that was begun."""
    monkeypatch.setattr(live_words, "MOST_LINES", 2)
    words = LiveWords()
    assert "speak now" in words.page() and words.save(tmp_path) == [] == list(tmp_path.iterdir())
    for number in range(3):
        words.take([speech.Final(f"line{number}", (), 60.0 * number, 60.0 * number + 1)])
    words.take([speech.Partial("stays", " changes", "stays")])
    page = words.page()
    assert "line0" not in page and page.index("line1") < page.index("line2") < page.index("stays")
    assert '<span class="stable">stays</span><span class="unstable"> changes</span>' in page
    assert "stays" not in words.page(over=True)
    words.take([speech.Final("", (), 200.0, 201.0)])
    assert words.partial is None and words.text == "line0 line1 line2"
    words.take([speech.Final(text, (), 202.0, 203.0) for text in ("\u4f60", "\u597d")])
    assert words.text == "line0 line1 line2\u4f60\u597d"
    assert all("line0" in Path(file).read_text() and "line2" in Path(file).read_text() for file in words.save(tmp_path))


def test_policies_that_do_not_fit_are_said(frame, short):
    with pytest.raises(UnsupportedTargetError, match="LocalAgreement"):
        transcribe(frame, short, settings=("append-only", *SETTINGS[1:]))


@pytest.mark.parametrize(
    ("place", "value", "error", "words"),
    (
        (0, "none", UnknownNameError, "local-agreement"),
        (1, "whisper-huge", UnknownNameError, "whisper-tiny"),
        (2, "0", SettingError, "between looks"),
        (3, "sun", UnknownNameError, "silero"),
        (4, "long", SettingError, "silence"),
        (5, "1", SettingError, "segment"),
    ),
)
def test_wrong_settings_are_said(frame, short, place, value, error, words):
    settings = [*SETTINGS[:place], value, *SETTINGS[place + 1 :]]
    with pytest.raises(error, match=words):
        transcribe(frame, short, settings=settings)


def test_uploads_are_judged_by_what_they_hold(tmp_path):
    (tmp_path / "text.wav").write_text("no sound " * 100)
    (tmp_path / "empty.wav").touch()
    write(tmp_path / "long.wav", torch.zeros(3 * RATE))
    assert len(read_recording(str(tmp_path / "long.wav"), Limits())) == 3 * RATE
    for name, limits, words in (
        ("text.wav", Limits(), "no audio file"),
        ("empty.wav", Limits(), "is empty"),
        ("long.wav", Limits(audio_seconds=2), "lasts longer than 2 s"),
        ("long.wav", Limits(upload_bytes=1000), "allowed"),
    ):
        with pytest.raises(AudioError, match=words):
            read_recording(str(tmp_path / name), limits)


def test_texts_are_escaped():
    words = LiveWords()
    words.take([speech.Partial("<b>", "<i>", "<b>"), speech.Final("<script>", (), 61.0, 62.0)])
    assert "<script>" not in words.page() and "&lt;script&gt;" in words.page() and "1:01" in words.page()


def test_without_the_extra_the_tab_says_how_to_get_it(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "soxr" else found(name, *more))
    with gr.Blocks() as blocks:
        speech_tab.build(Frame())
    assert [block.value for block in blocks.blocks.values() if isinstance(block, gr.Markdown)] == [speech_tab.MISSING]
