"""Recordings in noise and without pauses, whisper_streaming as a listener, and the page of all."""

import itertools
import json

import pytest
import scripted_recognizer as scripted
import torch

from mmaccel.comparison import results
from mmaccel.demos.speech import cuts, heard_again, listening, pushes, whisper_streaming
from mmaccel.demos.speech.altered_recordings import in_noise, without_pauses
from mmaccel.errors import MissingExtraError, SettingError
from mmaccel.speech import examples
from mmaccel.speech.audio.endpoint import EnergyEndpoint
from mmaccel.speech.audio.recordings import Recording
from mmaccel.speech.bench.listeners import MeasuredRecognizer
from mmaccel.speech.bench.playback import play
from mmaccel.speech.families import whisper
from mmaccel.speech.families.adapter import Word

pytest.importorskip("jiwer")

# The interface of whisper_streaming's processor: hears all of its buffer, and commits what it heard twice.
ONLINE = """
import numpy as np

class OnlineASRProcessor:
    def __init__(self, asr):
        self.asr, self.audio, self.said, self.before = asr, np.zeros(0, np.float32), [], []
        self.transcript_buffer = self

    def insert_audio_chunk(self, audio):
        self.audio = np.append(self.audio, audio)

    def process_iter(self):
        now = self.asr.ts_words(self.asr.transcribe(self.audio, init_prompt="before"))
        agreed = [b for a, b in zip(self.before, now) if a[2] == b[2]]
        new, self.before, self.said = agreed[len(self.said):], now, agreed
        return new[0][0] if new else None, None, self.asr.sep.join(word for _, _, word in new)

    def complete(self):
        return self.before[len(self.said):]

    def finish(self):
        return None, None, self.asr.sep.join(word for _, _, word in self.complete())
"""


def talk():
    return Recording("talk", scripted.talk(), scripted.TEXT, (Word("w0", 0, 1),))


def recognizer():
    return MeasuredRecognizer(scripted.ScriptedAdapter(), endpoint=EnergyEndpoint())


def test_noise_has_its_level_and_its_seed():
    quiet = talk()
    noisy, again, other = in_noise(quiet, 10, 0), in_noise(quiet, 10, 0), in_noise(quiet, 10, 1)
    assert torch.equal(noisy.samples, again.samples) and not torch.equal(noisy.samples, other.samples)
    noise = noisy.samples[:8000]  # nothing is said there
    loud = quiet.samples[quiet.samples.abs() > 0.01]
    assert 10 * torch.log10(loud.square().mean() / noise.square().mean()) == pytest.approx(10, abs=1.5)
    assert (noisy.text, noisy.name, noisy.words) == (quiet.text, quiet.name, ()), "its words have other times"
    assert not in_noise(Recording("none", torch.zeros(800), ""), 10, 0).samples.any()


def test_without_pauses_all_words_are_left():
    short = without_pauses(talk(), EnergyEndpoint())
    assert len(talk().samples) - len(short.samples) > 1.3 * 16_000
    with recognizer().stream() as stream:
        events = stream.push(short.samples) + stream.finish()
    assert " ".join(event.text for event in events if hasattr(event, "tokens")) == short.text


def test_whisper_streaming_is_asked_as_it_is_published(tmp_path, monkeypatch):
    assert whisper_streaming.published() is None
    (tmp_path / "whisper_online.py").write_text(ONLINE)
    monkeypatch.setenv(whisper_streaming.FOLDER, str(tmp_path))
    asr = recognizer()
    listener = whisper_streaming.WhisperStreamingListener(whisper_streaming.published(), asr)
    take = play(listener, talk().samples)
    assert take.text == talk().text and asr.adapter.contexts[-1] == "before"
    assert listener.decoder_calls == asr.adapter.target.calls > 0
    shown = [step for step in take.history if len(step[3]) > len(step[2])]
    assert shown and all(step[3][: len(step[2])] == step[2] for step in take.history)


def test_longer_audio_than_the_model_takes_is_heard_in_windows():
    asr = whisper_streaming.Recogniser(recognizer())
    samples = torch.cat([scripted.spoken([5]), scripted.silence(32.0), scripted.spoken([6])])
    words = asr.transcribe(samples.numpy())
    assert [text for _, _, text in asr.ts_words(words)] == ["w5", "w6"] and words[1].start > 32
    ends = asr.segments_end_ts([Word("One.", 0, 1), Word("two", 1, 2), Word("three", 2, 3)])
    assert ends == [1, 3] and asr.segments_end_ts([]) == []


def test_a_folder_without_it_and_packages_that_it_lacks(tmp_path, monkeypatch):
    monkeypatch.setenv(whisper_streaming.FOLDER, str(tmp_path))
    with pytest.raises(SettingError, match="ufal/whisper_streaming"):
        whisper_streaming.published()
    (tmp_path / "whisper_online.py").write_text("import librosa_of_another_planet")
    with pytest.raises(MissingExtraError, match="pip install librosa soundfile"):
        whisper_streaming.published()


def test_rows_and_their_page(tmp_path, monkeypatch):
    (tmp_path / "whisper_online.py").write_text(ONLINE)
    monkeypatch.setenv(whisper_streaming.FOLDER, str(tmp_path))
    made = [{**row, "condition": "clean"} for row in listening._model_rows("scripted", recognizer(), [talk()])]
    assert [row["method"] for row in made] == ["offline", "LocalAgreement", "whisper_streaming"]
    assert all(row["errors"] == {"talk": 0.0} for row in made)
    text = listening.page(json.loads(json.dumps(results.result(made))))
    assert "## Clean" in text and "## Noise" not in text and "| scripted | whisper_streaming |" in text
    assert "`talk` of a folder that is not shipped" in text


def test_seconds_of_decoding_are_ours_alone(tmp_path, monkeypatch):
    """On a clock that goes on by one when it is asked, each hypothesis takes one."""

    def decoding():
        asr = recognizer()
        asr.timer = itertools.count().__next__
        made = listening._model_rows("scripted", asr, [talk()])
        return next(row["decoding_seconds"] for row in made if row["method"] == "LocalAgreement")

    alone = decoding()
    (tmp_path / "whisper_online.py").write_text(ONLINE)
    monkeypatch.setenv(whisper_streaming.FOLDER, str(tmp_path))
    assert decoding() == alone > 0


def test_every_cut_that_fits_is_measured_on_both_sets():
    chosen = {"others": [talk()], "benchmark": [talk(), talk()]}
    made = list(cuts.rows(scripted.ScriptedAdapter(), None, chosen, EnergyEndpoint()))
    assert len(made) == 2 * len(cuts.settings()) and all(s["tail"] <= s["silence"] for s in cuts.settings())
    usual = [row for row in made if (row["silence"], row["tail"], row["rejoin"]) == (0.44, 0.19, 0)]
    assert [(row["set"], row["segments"], row["word_error_rate"]) for row in usual] == [
        ("others", 2, 0),
        ("benchmark", 4, 0),
    ]
    text = cuts.page(json.loads(json.dumps(results.result(made))))
    assert "defaults are 0.44 s and 0.19 s" in text and "| 0.3 s | " in text and "0.0% (2, " in text
    assert "14 words" in text and "28 words" in text


@pytest.mark.parametrize(("way", "positions"), (("once", 100), ("loops again", 250)))
def test_what_is_heard_once_is_not_heard_again_where_it_does_not_end(way, positions, monkeypatch):
    monkeypatch.setattr(whisper, "SHORTEST_FRAMES", 100)  # the tiny model holds 5 s
    kind, _ = heard_again.WAYS[way]
    asr = kind(whisper.WhisperAdapter(examples.whisper()[0], context_frames=100), examples.whisper_processor())
    encoded, hypothesis = asr.hear(examples.sound()[0], asr.adapter.prompt())
    assert encoded.hidden_states.shape[1] == positions and not hypothesis.ended


def test_lags_by_the_length_of_a_push():
    """The same is heard, and later by up to a push."""
    made = [*pushes.rows(recognizer(), [talk()])]
    assert [row["push"] for row in made] == [*pushes.PUSHES] and len({row["quality"] for row in made}) == 1
    final = [row["finalisation"]["heard_p90"] for row in made]
    assert final[0] < final[-1] == max(final)
    assert all(lag <= min(final) + push for lag, push in zip(final, pushes.PUSHES, strict=True))
    text = pushes.page(json.loads(json.dumps(results.result(made))))
    assert "| 0.032 s | 0.0% | +0.0 |" in text and "**" not in text
