"""`mmaccel run speech`, and real speech through all of it."""

import contextlib
import importlib.util
import io
import json
import os
import re
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import scripted_recognizer as scripted
import torch

from mmaccel import speech
from mmaccel.cli import main as cli
from mmaccel.cli.command import Command
from mmaccel.speech import command as run_commands
from mmaccel.speech.decoding.redecode import decode
from mmaccel.speech.modality import Speech
from mmaccel.speech.stream.events import Endpoint, Final, Partial
from mmaccel.speech.stream.live_text import CLEAR, LiveText
from mmaccel.speech.stream.stream import SpeechStream

wavfile = pytest.importorskip("scipy.io.wavfile")
pytest.importorskip("av")

TEXT = "Ever tried. Ever failed. No matter. Try again. Fail again. Fail better."


@pytest.fixture
def samples():
    talk = [scripted.spoken(range(6)), scripted.silence(0.9), scripted.spoken(range(6, 12))]
    return (torch.cat(talk) * 32767).to(torch.int16)


@pytest.fixture
def wav(tmp_path, samples):
    wavfile.write(tmp_path / "talk.wav", scripted.RATE, samples.numpy())
    return tmp_path / "talk.wav"


@pytest.fixture
def model(monkeypatch):
    """The scripted recogniser in the place of a checkpoint."""
    adapter = scripted.ScriptedAdapter()
    monkeypatch.setattr("mmaccel.speech.families.weights.load", lambda *_: (adapter, adapter))
    return adapter


FIRST, SECOND = "w0 w1 w2 w3 w4 w5", "w6 w7 w8 w9 w10 w11"


def pipe(monkeypatch, data, terminal=False):
    fake = SimpleNamespace(buffer=io.BufferedReader(io.BytesIO(data)), isatty=lambda: terminal)
    monkeypatch.setattr(run_commands.sys, "stdin", fake)


@pytest.mark.parametrize("live", ((), ("--live",)))
def test_a_file(model, wav, capsys, live):
    assert cli.main(["run", "speech", str(wav), "--endpoint", "energy", *live]) == 0
    out, err = capsys.readouterr()
    assert out == f"{FIRST}\n{SECOND}\n"
    assert "real-time factor" in err and "loaded moonshine-tiny" in err


@pytest.mark.parametrize("options", ((), ("--packed",)))
def test_packed_weights_are_asked_for(model, wav, monkeypatch, options):
    asked = []

    class Recognizer(speech.StreamingRecognizer):
        def __init__(self, *args, packed, **settings):
            asked.append(packed)
            super().__init__(*args, **settings)

    monkeypatch.setattr("mmaccel.speech.stream.recognizer.StreamingRecognizer", Recognizer)
    assert cli.main(["run", "speech", str(wav), "--endpoint", "energy", *options]) == 0
    assert asked == [bool(options)]


@pytest.mark.parametrize(("batch", "is_batched"), (("4", True), ("1", False)))
def test_a_server_s_streams_share_passes(model, monkeypatch, batch, is_batched):
    asked = []

    def serve(endpoint, *_):
        asked.append(endpoint.opened.gathering is not None)

    monkeypatch.setattr("mmaccel.serve.run.serve", serve)
    assert cli.main(["serve", "speech", "--port", "0", "--endpoint", "energy", "--batch", batch]) == 0
    assert asked == [is_batched]


@pytest.mark.parametrize(
    ("options", "silence", "longest", "tail"),
    (
        ((), 0.44, 15.0, 0.19),
        (("--silence", "2"), 2.0, 15.0, 0.19),
        (("--silence", "0.1"), 0.1, 15.0, 0.1),  # a segment cannot hold more silence than ends it
        (("--longest", "4"), 0.44, 4.0, 0.19),
    ),
)
def test_options_of_the_endpoint_leave_each_other_alone(model, wav, monkeypatch, options, silence, longest, tail):
    made = []

    class Recognizer(speech.StreamingRecognizer):
        def __init__(self, *args, endpoint, **settings):
            made.append(endpoint)
            super().__init__(*args, endpoint=endpoint, **settings)

    monkeypatch.setattr("mmaccel.speech.stream.recognizer.StreamingRecognizer", Recognizer)
    assert cli.main(["run", "speech", str(wav), "--endpoint", "energy", *options]) == 0
    assert made == [speech.EnergyEndpoint(silence=silence, longest=longest, tail=tail)]


def test_the_update_interval_says_how_often_it_is_decoded(model, wav, capsys):
    def calls(seconds):
        words = ["run", "speech", str(wav), "--live", "--endpoint", "energy", "--update-interval", seconds]
        assert cli.main(words) == 0
        return int(re.search(r"(\d+) calls", capsys.readouterr().err)[1])

    assert calls("0.2") > calls("60")


@pytest.mark.parametrize(("suffix", "holds"), ((".srt", "-->"), (".vtt", "WEBVTT"), (".json", '"words"')))
def test_subtitles(model, wav, tmp_path, capsys, suffix, holds):
    path = tmp_path / f"talk{suffix}"
    assert cli.main(["run", "speech", str(wav), "-o", str(path), "--endpoint", "energy"]) == 0
    assert holds in path.read_text() and "w11" in path.read_text()
    assert f"wrote {path}" in capsys.readouterr().err


@pytest.mark.parametrize("live", ((), ("--live",)))
def test_words_that_the_encoding_of_a_pipe_lacks_are_written_as_utf_8(model, wav, tmp_path, monkeypatch, live):
    monkeypatch.setattr(model, "text", lambda tokens: "你好" * len(tokens))
    out = io.TextIOWrapper(io.BytesIO(), encoding="cp1252")  # of a pipe on Windows
    monkeypatch.setattr("sys.stdout", out)
    path = tmp_path / "talk.srt"
    assert cli.main(["run", "speech", str(wav), "-o", str(path), "--endpoint", "energy", *live]) == 0
    assert path.exists() and "你好" in out.buffer.getvalue().decode("utf-8")


@pytest.mark.parametrize("live", ((), ("--live",)))
def test_a_reader_who_leaves_takes_no_subtitles_along(model, wav, tmp_path, monkeypatch, live):
    read, write = os.pipe()
    os.close(read)
    path = tmp_path / "talk.srt"
    with open(write, "w", buffering=1) as out, monkeypatch.context() as patch:
        patch.setattr("sys.stdout", out)
        assert cli.main(["run", "speech", str(wav), "-o", str(path), "--endpoint", "energy", *live]) == cli.NO_READER
    assert "w0" in path.read_text() and "w11" in path.read_text()


def test_a_pipe(model, samples, tmp_path, capsys, monkeypatch):
    """Raw samples, and the odd byte of a writer that was stopped."""
    pipe(monkeypatch, samples.numpy().tobytes() + b"\x01")
    path = tmp_path / "talk.json"
    assert cli.main(["run", "speech", "-", "-o", str(path), "--endpoint", "energy"]) == 0
    assert capsys.readouterr().out == f"{FIRST}\n{SECOND}\n"
    assert [segment["text"] for segment in json.loads(path.read_text())["segments"]] == [FIRST, SECOND]


def test_a_pipe_of_another_rate_with_two_channels(model, samples, capsys, monkeypatch):
    pytest.importorskip("soxr")
    twice = samples.repeat_interleave(2)  # 32 kHz
    pipe(monkeypatch, torch.stack([twice, twice], 1).numpy().tobytes())
    options = ["--rate", "32000", "--channels", "2", "--endpoint", "energy"]
    assert cli.main(["run", "speech", "-", *options]) == 0
    assert len(capsys.readouterr().out.split()) == 12


def test_interrupted_it_finishes_with_what_was_heard(model, samples, capsys, monkeypatch):
    def stopped(*_):
        yield samples[: round(4.0 * scripted.RATE)].numpy().tobytes()
        raise KeyboardInterrupt

    pipe(monkeypatch, b"")
    monkeypatch.setattr(run_commands, "_whole_samples", stopped)
    assert cli.main(["run", "speech", "-", "--endpoint", "energy"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{FIRST}\nw6 w7") and "w11" not in out and out.endswith("\n")


@pytest.mark.parametrize("source", ("-", "microphone"))
def test_what_was_heard_before_an_error_is_kept(model, samples, tmp_path, capsys, monkeypatch, source):
    def broken(*_):
        yield samples[: round(4.0 * scripted.RATE)].numpy().tobytes()
        for _ in range(500 if source == "microphone" else 0):  # until the thread has heard it
            time.sleep(0.01)
            yield b""
            if "w0" in capsys.readouterr().out:
                break
        raise OSError("the cable is out")

    monkeypatch.setattr(run_commands, "_heard", lambda _: (broken(), scripted.RATE, 1))
    path = tmp_path / "talk.srt"
    words = ["run", "speech", *(["-"] if source == "-" else ["--live"]), "-o", str(path), "--endpoint", "energy"]
    assert cli.main(words) == 2
    assert FIRST in path.read_text()
    told = capsys.readouterr().err
    assert f"wrote {path}, up to the error" in told and "the cable is out" in told


@pytest.mark.parametrize("again", (KeyboardInterrupt(), SystemExit(129)), ids=("a second Ctrl+C", "SIGHUP"))
def test_who_does_not_wait_for_the_last_words_keeps_those_before(model, samples, tmp_path, capsys, monkeypatch, again):
    def stopped(*_):
        yield samples[: round(4.0 * scripted.RATE)].numpy().tobytes()
        raise KeyboardInterrupt

    def impatient(_):
        raise again

    pipe(monkeypatch, b"")
    monkeypatch.setattr(run_commands, "_whole_samples", stopped)
    monkeypatch.setattr(SpeechStream, "finish", impatient)
    path = tmp_path / "talk.srt"
    words = ["run", "speech", "-", "-o", str(path), "--endpoint", "energy"]
    with pytest.raises(SystemExit) if isinstance(again, SystemExit) else contextlib.nullcontext():
        assert cli.main(words) == 130
    assert FIRST in path.read_text() and f"wrote {path}, up to the interruption" in capsys.readouterr().err


def test_an_error_before_anything_is_heard_leaves_the_file_alone(model, tmp_path, monkeypatch):
    path = tmp_path / "talk.srt"
    path.write_text("of yesterday")
    pipe(monkeypatch, b"")
    monkeypatch.setattr(run_commands, "_whole_samples", lambda *_: iter([torch.full((160,), torch.nan)]))
    assert cli.main(["run", "speech", "-", "-o", str(path), "--endpoint", "energy"]) == 2
    assert path.read_text() == "of yesterday"


@pytest.mark.parametrize(
    ("arguments", "says"),
    (
        (["missing.wav"], "missing.wav"),
        (["WAV", "-o", "talk.txt"], ".srt, .vtt, .json"),
        (["WAV", "--update-interval", "0"], "--update-interval 0"),
        (["WAV", "--update-interval", "2"], "--update-interval is for --live"),
        (["missing.wav", "--update-interval", "0"], "--update-interval 0"),
        (["WAV", "--silence", "0"], "--silence 0: it must be between 0.1 and 10 seconds"),
        (["WAV", "--longest", "61"], "--longest 61: it must be between 2 and 60 seconds"),
        (["WAV", "--policy", "append-only"], "say --policy local-agreement"),
        (["-", "--channels", "0"], "--channels"),
    ),
)
def test_what_cannot_be_done(model, wav, arguments, says, capsys, monkeypatch):
    pipe(monkeypatch, b"")
    assert cli.main(["run", "speech", *(str(wav) if part == "WAV" else part for part in arguments)]) == 2
    assert says in capsys.readouterr().err


def test_what_a_pipe_holds_says_nothing_of_a_file(model, wav, capsys):
    options = ["--live", "--rate", "8000", "--channels", "2", "--endpoint", "energy"]
    assert cli.main(["run", "speech", str(wav), *options]) == 0
    assert capsys.readouterr().out == f"{FIRST}\n{SECOND}\n"


def test_samples_of_a_pipe_are_never_cut_in_two(monkeypatch):
    data = bytes(range(23))
    asked, left = [], io.BytesIO(data)
    source = SimpleNamespace(read1=lambda count: asked.append(count) or left.read(3))
    monkeypatch.setattr(run_commands.sys, "stdin", SimpleNamespace(buffer=source))
    pieces = list(run_commands._whole_samples(4, 5))
    assert b"".join(pieces) == data[:20] and all(len(piece) % 4 == 0 for piece in pieces) and set(asked) == {20}
    monkeypatch.setattr(run_commands.sys, "stdin", SimpleNamespace(isatty=lambda: False))
    monkeypatch.setattr(run_commands, "_whole_samples", lambda *given: given)
    sizes = [run_commands._standard_input(SimpleNamespace(rate=rate, channels=2)) for rate in (32_000, 8)]
    assert sizes == [(4, 3200), (4, 1)], "a tenth of a second, and something at least"


def test_a_subtitle_that_cannot_be_written_is_noticed_before_anything_is_heard(wav, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("mmaccel.speech.families.weights.load", lambda *_: pytest.fail("loaded"))
    assert cli.main(["run", "speech", str(wav), "-o", str(tmp_path / "nowhere" / "talk.srt")]) == 2
    assert cli.main(["run", "speech", str(tmp_path / "missing.wav")]) == 2
    error = capsys.readouterr().err
    assert "nowhere" in error and "missing.wav does not exist" in error


def test_streams_are_compared_as_asked_unless_a_method_is_named(monkeypatch):
    asked = []
    monkeypatch.setattr("mmaccel.speech.stream.stream_comparing.compare_streams", lambda *a, **k: asked.append((a, k)))
    monkeypatch.setattr(run_commands, "opened", lambda arguments: ("model", "letters"))
    monkeypatch.setattr(Command, "compare", lambda *_: "of methods")
    plain = {"method": [], "preset": None, "plan": None, "rounds": 7, "no_simple": True}
    given = {"audio": ["a.wav", "b.wav"], "example": False, "reference": ["one", "two"]}
    run_commands.SpeechCommand().compare(SimpleNamespace(**plain, **given))
    run_commands.SpeechCommand().compare(SimpleNamespace(**{**plain, **given, "rounds": None, "no_simple": False}))
    audio = {"audio": ["a.wav", "b.wav"], "reference": ["one", "two"], "processor": "letters"}
    assert asked[0] == (("model",), {**audio, "rounds": 7, "simple": False, "ranks": True})
    assert asked[1] == (("model",), {**audio, "rounds": None, "simple": True, "ranks": True})
    for named in ({"method": ["speech.SuffixDraft"]}, {"preset": "exact"}, {"plan": "plan.json"}):
        assert run_commands.SpeechCommand().compare(SimpleNamespace(**{**plain, **given, **named})) == "of methods"


def test_models_open_where_and_as_asked(monkeypatch):
    monkeypatch.setattr("mmaccel.speech.families.weights.load", lambda *given: given)
    assert Speech().open("moonshine-tiny", "cuda", torch.bfloat16) == ("moonshine-tiny", "cuda", torch.bfloat16)
    assert Speech().open("moonshine-tiny") == ("moonshine-tiny", "cpu", None)


def test_no_pipe(model, capsys, monkeypatch):
    pipe(monkeypatch, b"", terminal=True)
    assert cli.main(["run", "speech", "-"]) == 2
    assert "| mmaccel run speech -" in capsys.readouterr().err


def test_live_text_in_a_pipe():
    out = io.StringIO()
    live = LiveText(out)
    live.show([Partial("try", " a", "try"), Partial("try again", " fell", " again")])
    assert out.getvalue() == "try again"
    live.show([Final("Try again, fail again.", (), 0, 1), Final("No matter.", (), 1, 2)])
    assert out.getvalue() == "try again fail again.\nNo matter.\n"
    live.show([Partial("fell", "", "fell"), Final("Fail better.", (), 2, 3)])
    assert out.getvalue().endswith("fell better.\n= Fail better.\n")


def test_live_text_corrects_a_word_that_differs_in_its_vowel_alone():
    out = io.StringIO()
    LiveText(out).show([Partial("मेरा", "", "मेरा"), Final("मेरी", (), 0.0, 1.0)])
    assert out.getvalue() == "मेरा\n= मेरी\n"


def test_live_text_is_there_at_once_and_a_pause_is_no_text(monkeypatch):
    out = io.StringIO()
    flushed = []
    out.flush = lambda: flushed.append(out.getvalue())
    live = LiveText(out)
    live.show([Partial("try", "", "try"), Endpoint(1.0)])
    live.show([])
    assert flushed == ["try", "try"]
    for columns in (33, 9):  # the window is made narrower on the way
        monkeypatch.setattr("shutil.get_terminal_size", lambda columns=columns: SimpleNamespace(columns=columns))
        assert live.width == columns


def test_live_text_on_a_terminal_that_cannot_redraw(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    out = io.StringIO()
    out.isatty = lambda: True
    LiveText(out).show([Partial("try", " again", "try"), Final("try again.", (), 0.0, 1.0)])
    assert out.getvalue() == "try again.\n"


def test_live_text_on_a_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    out = io.StringIO()
    out.isatty = lambda: True
    live = LiveText(out, width=12)
    live.show([Partial("a long stable text", " open", "")])
    assert out.getvalue() == f"{CLEAR}e text\x1b[2m open\x1b[0m"
    live.show([Final("A long stable text.", (), 0, 1)])
    assert out.getvalue().endswith(f"{CLEAR}A long stable text.\n")
    you = "\u4f60"  # takes two columns
    LiveText(out, width=20).show([Partial(you * 30, " no", "")])
    assert out.getvalue().endswith(f"{CLEAR}{you * 8}\x1b[2m no\x1b[0m")
    LiveText(out, width=20).show([Partial("a", you * 30, "")])
    assert out.getvalue().endswith(f"{CLEAR}\x1b[2m{you * 9}\x1b[0m"), "half of one is none"
    thai = "\u0e17\u0e35\u0e48"  # a letter with two marks
    LiveText(out, width=4).show([Partial("a", thai * 4, "")])
    assert out.getvalue().endswith(f"{CLEAR}\x1b[2m{thai * 3}\x1b[0m"), "no mark without its letter"


@pytest.fixture(scope="module")
def moonshine():
    for package in ("moonshine_voice", "silero_vad"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs the package {package}")
    return speech.load("moonshine-tiny")


@pytest.fixture(scope="module")
def voice():
    return Path(importlib.util.find_spec("moonshine_voice").origin).parent / "assets" / "beckett.wav"


def test_real_speech(moonshine, voice):
    """Six sentences; the stream's finals are those of the recording, token for token, and of a plain decode."""
    asr = speech.StreamingRecognizer(*moonshine)
    made = speech.transcribe(voice, asr)
    heard, known = (text.lower().replace(".", "").split() for text in (made.text, TEXT))
    assert len(heard) == len(known) and sum(a != b for a, b in zip(heard, known, strict=True)) <= 1
    samples = speech.read_audio(voice)
    with asr.stream() as stream:
        events = [event for chunk in samples.split(1600) for event in stream.push(chunk)] + stream.finish()
    finals = [event for event in events if isinstance(event, Final)]
    assert finals == list(made.segments)
    assert stream.stats.committed >= 6 and stream.stats.retracted <= 1
    assert stream.stats.decoder_calls < stream.stats.tokens * 1.2
    final = finals[-1]
    piece = samples[round(final.start * 16_000) : round(final.end * 16_000)]
    plain = decode(asr.adapter, asr.adapter.encode(piece), asr.adapter.prompt())
    assert plain.tokens == final.tokens
    words = made.words
    assert all(0 <= a.start <= a.end <= b.end <= 10 for a, b in zip(words, words[1:], strict=False))


def test_real_speech_by_alignment(moonshine, voice):
    asr = speech.StreamingRecognizer(*moonshine, policy=speech.AlignAtt())
    samples = speech.read_audio(voice)[: round(4.6 * 16_000)]
    with asr.stream() as stream:
        events = stream.push(samples) + stream.finish()
    assert [event.text for event in events if isinstance(event, Final)] == ["Ever tried.", "Ever failed.", "No matter."]
    assert stream.stats.committed >= 3
