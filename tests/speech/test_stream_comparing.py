"""`compare speech` of streams: what verified drafts save, for equal events, beside a stream that looks less often."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from mmaccel.cli import main as cli
from mmaccel.comparison.ranks import Ranks
from mmaccel.errors import AudioError, SettingError
from mmaccel.plan import Plan
from mmaccel.speech import examples
from mmaccel.speech.audio.endpoint import EnergyEndpoint
from mmaccel.speech.stream import stream_comparing
from mmaccel.speech.stream.events import Final
from mmaccel.speech.stream.stats import StreamStats
from mmaccel.speech.stream.stream_comparing import (
    PlainStreams,
    Streamed,
    StreamTrial,
    VerifiedDrafts,
    _can_pack,
    compare_streams,
)
from mmaccel.testing.contract import snapshot

pytest.importorskip("jiwer")
RATE = 16_000


@pytest.fixture(scope="module")
def model():
    return examples.moonshine()[0], examples.moonshine_processor()


def said(seconds=2.0, seed=0):
    """Tones loud enough for pauses to be found by energy, between silence; the tiny model makes words of them."""
    time = torch.arange(round(seconds * RATE)) / RATE
    tone = 0.5 * torch.sin(2000 * time + (40 + seed) * torch.sin(7 * time))
    return torch.cat([torch.zeros(RATE // 2), tone, torch.zeros(RATE // 2)])


def trial(model, audio):
    return StreamTrial(PlainStreams(*model, endpoint=EnergyEndpoint()), audio, None)


def test_drafts_save_passes_and_change_nothing(model):
    before = snapshot(model[0])
    found = compare_streams(*model, [said()], rounds=1, simple=False, endpoint=EnergyEndpoint())
    assert snapshot(model[0]).keys() == before.keys()
    plain, drafted, packed = found.rows
    assert drafted["method"] == packed["method"] == "speech.StreamingRecognizer"
    assert drafted["exact"] and drafted["equal"] and drafted["work_ratio"] < 1 and not drafted["idle"]
    assert packed["label"].endswith("(packed=True)") and not packed["exact"], "equal but for rounding"
    assert plain["label"] == "plain" and plain["quality"] > 0, "words come late"
    assert [metric.key for metric in found.metrics] == ["lag", "changed", "same"]
    assert "plain is a stream that decodes each hypothesis from its start" in str(found)


def test_the_plain_stream_knows_no_hypothesis_before(model):
    made = trial(model, [said()])
    plain = made.run(made.target, 0)
    with made.accelerated(Plan((VerifiedDrafts(),), "speech stream")) as session:
        drafted = made.run(session, 0)
        report = made.report(session, drafted)
    again = made.run(made.target, 0)
    assert sum(one.accepted for one in plain.stats) == 0 < sum(one.accepted for one in drafted.stats)
    assert again.calls == plain.calls > drafted.calls, "the drafts stay when the session is over"
    assert made.equal(plain, drafted) and made.equal(plain, again)
    assert (report["forwards"], report["plain_forwards"]) == (drafted.calls, plain.calls) and report["engaged"]


def test_the_simple_alternative_looks_less_often(model):
    made = trial(model, [said()])
    assert (made.count, made.least) == (6, 1)
    whole, fewer = made.run(made.target, 0), made.run(made.target, 0, fewer=3)
    assert (whole.stats[0].partial_decodes, fewer.stats[0].partial_decodes) == (5, 3)
    assert made.plain_calls == whole.calls, "what methods are held against is the whole"
    assert made.judge(whole, fewer)["lag"] > 0 and whole.texts == fewer.texts


def test_several_recordings_with_what_is_said(model):
    audio = [said(), said(1.0, 4)]
    made = trial(model, audio)
    texts = made.run(made.target, 0).texts
    reference = [f"{texts[0]} more", texts[1]]
    found = compare_streams(*model, audio, reference, rounds=1, simple=False, endpoint=EnergyEndpoint())
    assert found.rows[0]["metrics"]["errors"] > 0 and found.pairs[0].plain.texts == texts
    assert found.pairs[0].plain.names == ["recording 1, 3.0 s", "recording 2, 2.0 s"]
    assert found.result["header"]["call"]["update_interval"] == 0.5


def test_words_count_by_the_language_that_the_finals_tell(model):
    made = trial(model, [said()])
    made.references = ["um, I'm sure"]

    def errors(language):
        heard = Streamed([[Final("I am sure", (), 0.0, 1.0, language=language)]], [StreamStats()])
        return made.judge(heard, heard)["errors"]

    assert errors("en") == 0 < errors("de") == errors("")
    made.target.adapter.task = "translate"
    assert errors("de") == 0, "a translation is English"
    made.target.adapter.task = "transcribe"
    made.target.adapter.target = SimpleNamespace(name_or_path="moonshine-tiny")
    assert errors("") == 0, "it has no other language"


def test_each_stream_counts_by_its_own_language(model):
    made = trial(model, [said(), said()])
    made.references = ["um, I'm sure", "um die Ecke"]
    finals = (Final("I am sure", (), 0.0, 1.0, language="en"), Final("die Ecke", (), 0.0, 1.0, language="de"))
    heard = Streamed([[final] for final in finals], [StreamStats()] * 2)
    assert made.judge(heard, heard)["errors"] == 1 / 6


@pytest.mark.parametrize(
    ("audio", "reference", "error", "hint"),
    (
        (["missing.wav"], None, AudioError, "missing.wav does not exist"),
        ([torch.zeros(10)], None, AudioError, "10 samples"),
        ([said(), torch.zeros(RATE)], None, AudioError, "no speech in recording 2, 1.0 s"),
        ([said()], ["one", "two"], SettingError, "each of 1 recordings"),
    ),
)
def test_bad_input_before_anything_runs(model, audio, reference, error, hint):
    with pytest.raises(error, match=hint):
        compare_streams(*model, audio, reference, endpoint=EnergyEndpoint())


def test_what_is_asked_for_is_what_is_measured(model, monkeypatch):
    asked = []
    monkeypatch.setattr(stream_comparing, "measured", lambda *args: asked.append(args))
    compare_streams(*model, [said()], endpoint=EnergyEndpoint())
    more = {"rounds": 7, "simple": False, "ranks": True}
    compare_streams(*model, [said()], ["a b"], endpoint=EnergyEndpoint(silence=0.7), **more)
    (trial, entries, *rest), (other, _, *more) = asked
    assert rest == [[0], 3, True, None] and more == [[0], 7, False, Ranks()]
    assert [entry.label for entry in entries] == [
        "plain",
        "speech.StreamingRecognizer()",
        "speech.StreamingRecognizer(packed=True)",
    ]
    assert trial.target.endpoint.silence == 0.44 and other.target.endpoint.silence == 0.7
    assert other.references == ["a b"] and [one.key for one in other.metrics] == ["lag", "errors", "changed", "same"]
    half = torch.nn.Linear(1, 1).bfloat16()
    assert _can_pack(torch.nn.Linear(1, 1)) and not _can_pack(half) and not _can_pack(torch.nn.Identity())


def test_no_stream_looks_less_often_than_it_may(model, monkeypatch):
    monkeypatch.setattr(stream_comparing, "SLOWEST", 1.0)
    made, intervals = trial(model, [said()]), []
    assert made.least == 3
    stream = SimpleNamespace(push=lambda chunk: [], finish=list, stats=StreamStats(decoder_calls=9))
    target = SimpleNamespace(stream=lambda update_interval: intervals.append(update_interval) or nullcontext(stream))
    for fewer in (None, 4, 3, 1):
        made.run(target, 0, fewer)
    assert intervals == [0.5, 0.75, 1.0, 1.0] and made.plain_calls == 0, "of another target"


def test_figures_of_streams_by_hand(model):
    """Passes of all recordings, the median over all of their words, and no gap where a final has no text."""
    stats = [StreamStats(decoder_calls=2), StreamStats(decoder_calls=3)]
    for one, lags in zip(stats, ((1.0, 2.0), (9.0,)), strict=True):
        for lag in lags:
            one.word_lag.add(0.0, 0.0, lag)
    texts = [["sun", "", "moon"], ["sea"]]
    made = Streamed([[Final(text, (), 0.0, 1.0) for text in part] for part in texts], stats)
    assert (made.calls, made.lag, made.texts) == (5, 2.0, ["sun moon", "sea"])
    nothing = Streamed(made.events, [StreamStats(), StreamStats()])
    judged = trial(model, [said()]).judge(made, nothing)
    assert judged == {"changed": 0, "same": 1}, "no word, no lag"
    other = Streamed([made.events[0], [Final("sea sky", (), 0.0, 1.0)]], stats)
    assert trial(model, [said()]).judge(other, made) == {"lag": 2.0, "changed": 0.25, "same": 0.5}


def test_the_command_line_compares_streams_if_no_method_is_named(model, tmp_path, capsys, monkeypatch):
    wavfile = pytest.importorskip("scipy.io.wavfile")
    pytest.importorskip("av")
    wavfile.write(tmp_path / "talk.wav", RATE, (said() * 32767).to(torch.int16).numpy())
    monkeypatch.setattr("mmaccel.speech.families.weights.load", lambda *_: model)
    monkeypatch.setattr("mmaccel.speech.stream.recognizer.find_endpoint", lambda _: EnergyEndpoint())
    words = ["compare", "speech", str(tmp_path / "talk.wav"), "--rounds", "1"]
    assert cli.main([*words, "-o", str(tmp_path / "talk.html")]) == 0
    out, err = capsys.readouterr()
    assert err.startswith("compare: 0 of 6 runs, 00:00\n") and "\r" not in err and "%|" not in err, (
        "a log is no terminal"
    )
    assert "speech.StreamingRecognizer()" in out and "speech.SuffixDraft" not in out
    assert "decodes each hypothesis from its start" in (tmp_path / "talk.html").read_text()
