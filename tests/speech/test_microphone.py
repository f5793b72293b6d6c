"""The microphone, with a stand-in for the package that opens it."""

import json
import sys
import threading
from types import SimpleNamespace

import pytest
import torch

from mmaccel import speech
from mmaccel.cli import main as cli
from mmaccel.errors import AudioError, MissingExtraError
from mmaccel.speech import examples
from mmaccel.speech.audio.microphone import Microphone


class PortAudioError(Exception):
    pass


class Records:
    """A microphone that plays samples into the callback, and then Ctrl+C is pressed."""

    def __init__(self, samples, rate=16_000, fails=""):
        self.samples, self.rate, self.fails, self.opened = samples, rate, fails, []
        self.package = SimpleNamespace(
            PortAudioError=PortAudioError, query_devices=self.query, RawInputStream=self.opening
        )

    def query(self, kind):
        assert kind == "input"
        if self.fails == "none":
            raise PortAudioError("no default input")
        return {"default_samplerate": float(self.rate)}

    def opening(self, callback, **settings):
        if self.fails == "busy":
            raise PortAudioError("device unavailable")
        self.opened.append(settings)
        return Playing(self.samples, settings["blocksize"], callback, self.opened)


class Playing:
    def __init__(self, samples, size, callback, opened):
        self.samples, self.size, self.callback, self.opened = samples, size, callback, opened

    def __enter__(self):
        for chunk in self.samples.split(self.size):
            self.callback(memoryview(chunk.numpy().tobytes()), len(chunk), None, None)

    def __exit__(self, *_):
        self.opened.append("closed")


@pytest.fixture
def samples():
    return (torch.rand(16_000, generator=torch.Generator().manual_seed(0)) * 2_000).to(torch.int16)


@pytest.fixture
def records(samples, monkeypatch):
    def make(**settings):
        made = Records(samples, **settings)
        monkeypatch.setitem(sys.modules, "sounddevice", made.package)
        return made

    return make


def test_chunks_of_a_tenth_of_a_second(records, samples):
    made = records()
    chunks = iter(Microphone())
    heard = b"".join(next(chunks) for _ in range(10))
    assert heard == samples.numpy().tobytes()
    assert made.opened == [{"samplerate": 16_000, "channels": 1, "dtype": "int16", "blocksize": 1_600}]
    chunks.close()
    assert made.opened[-1] == "closed"


@pytest.mark.parametrize("fails", ("none", "busy"))
def test_without_one_a_line_says_so(records, fails, capsys):
    records(fails=fails)
    with pytest.raises(AudioError, match="no microphone|cannot be opened"):
        next(iter(Microphone()))
    if fails == "none":
        assert cli.main(["run", "speech", "--live"]) == 2
        assert "there is no microphone (no default input)" in capsys.readouterr().err


def test_without_the_package_its_install_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    with pytest.raises(MissingExtraError, match=r'pip install "mmaccel\[microphone\]"'):
        Microphone()


def test_without_a_file_live_listens_to_it(records, samples, monkeypatch, tmp_path, capsys):
    """Ctrl+C comes while the model still works on the first chunk: what waits behind that is heard too."""
    model, processor = examples.moonshine()[0], examples.moonshine_processor()
    monkeypatch.setattr("mmaccel.speech.families.weights.load", lambda *_: (model, processor))
    made, recorded = records(), threading.Event()
    handed, pushed = [], []
    hand, push = speech.BackgroundStream.push, speech.SpeechStream.push

    def note(background, chunk):
        hand(background, chunk)
        handed.append(chunk)
        if len(handed) == 10:
            recorded.set()
            raise KeyboardInterrupt

    def slow(stream, chunk, *more, **told):
        if not pushed:
            assert recorded.wait(20)
        pushed.append(bytes(chunk))
        return push(stream, chunk, *more, **told)

    monkeypatch.setattr(speech.BackgroundStream, "push", note)
    monkeypatch.setattr(speech.SpeechStream, "push", slow)
    path = tmp_path / "said.json"
    assert cli.main(["run", "speech", "--live", "--endpoint", "energy", "-o", str(path)]) == 0
    assert b"".join(pushed) == samples.numpy().tobytes()
    assert "segments" in json.loads(path.read_text()) and made.opened[-1] == "closed"


def test_nothing_to_hear_is_told(capsys):
    assert cli.main(["run", "speech"]) == 2
    assert "nothing to write down: give talk.wav" in capsys.readouterr().err
