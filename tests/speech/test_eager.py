"""Ends that are told before the pause is over: equal to the final, or taken back as soon as speech goes on."""

import io

import pytest
import torch
from scripted_recognizer import FIRST, FRAME, RATE, ScriptedAdapter, silence, spoken

from mmaccel.speech.audio.endpoint import EnergyEndpoint
from mmaccel.speech.families.adapter import Word
from mmaccel.speech.families.timed import TimedAdapter, TimedToken, as_states
from mmaccel.speech.policies.append_only import AppendOnly
from mmaccel.speech.stream.events import Eager, Endpoint, Final, Partial, Resumed
from mmaccel.speech.stream.live_text import LiveText
from mmaccel.speech.stream.recognizer import StreamingRecognizer
from mmaccel.speech.stream.transcribe import transcribe_samples
from mmaccel.speech.stream.units import ends_sentence


class Sentences(ScriptedAdapter):
    """Writes a mark behind what it hears."""

    mark = "."

    def text(self, tokens):
        return super().text(tokens) + (self.mark if tokens else "")


def heard(samples, size=1600, mark=".", partials=True, update_interval=0.5, **settings):
    adapter = Sentences()
    adapter.mark = mark
    asr = StreamingRecognizer(adapter, endpoint=EnergyEndpoint(**settings))
    with asr.stream(update_interval=update_interval) as stream:
        events = [event for chunk in samples.split(size) for event in stream.push(chunk, partials=partials)]
        events += stream.finish()
    return events, stream.stats


def ends(events):
    return [event for event in events if not isinstance(event, Partial)]


def one(pause=0.9):
    return torch.cat([silence(0.5), spoken(range(5)), silence(pause), spoken(range(5, 9)), silence(0.9)])


def test_the_text_is_there_before_the_final_and_equal():
    events, stats = heard(one())
    kinds = [type(event) for event in ends(events)]
    assert kinds == [Eager, Endpoint, Final] * 2
    eager, pause, final = ends(events)[:3]
    assert eager.text == final.text == "w0 w1 w2 w3 w4." and eager.time == pause.time
    assert stats.eagers == len(stats.eager.heard) == 2
    early = [late - soon for late, soon in zip(stats.finalisation.heard, stats.eager.heard, strict=True)]
    assert all(0.15 <= seconds <= 0.35 for seconds in early), "silence less tail is 0.25 s, in chunks of 0.1 s"
    assert "told early" in str(stats) and "2 of 2 final" in str(stats)


def test_it_costs_no_pass_of_the_model():
    """The hypothesis of a pause is made all the same: with a mark and without, the model is asked as often."""
    assert heard(one())[1].decoder_calls == heard(one(), mark="")[1].decoder_calls


def test_words_get_their_times_in_the_pause():
    """The final of what was told early waits for nothing; of what was not, its words are found with it."""
    for mark, is_early in ((".", True), ("", False)):
        adapter, asked, found = Sentences(), [], {}
        adapter.mark = mark
        asr = StreamingRecognizer(adapter, endpoint=EnergyEndpoint())
        words = asr.words
        asr.words = lambda *of: asked.append(of) or words(*of)  # noqa: B023  (called in this round)
        with asr.stream() as stream:
            for chunk in one().split(160):
                before = len(asked)
                found |= {event: len(asked) - before for event in stream.push(chunk) if isinstance(event, Final)}
        assert [*found.values()] == [0 if is_early else 1] * 2 and len(asked) == 2
        assert [[word.text for word in final.words][:1] for final in found] == [["w0"], ["w5"]]


def test_speech_that_goes_on_is_told():
    events, stats = heard(one(pause=0.35))
    first, resumed, second, pause, final = ends(events)
    assert (type(first), type(resumed), type(second)) == (Eager, Resumed, Eager)
    assert first.text == "w0 w1 w2 w3 w4." and second.text == final.text == "w0 w1 w2 w3 w4 w5 w6 w7 w8."
    assert first.time < resumed.time < second.time == pause.time
    assert (stats.eagers, len(stats.eager.heard)) == (2, 1)


def test_what_does_not_end_like_a_sentence_waits():
    for mark in (",", "...", ""):
        events, stats = heard(one(), mark=mark)
        assert {type(event) for event in ends(events)} == {Endpoint, Final} and stats.eagers == 0


@pytest.mark.parametrize("size", (160, 10**9))
def test_chunks_of_any_size(size):
    samples = torch.cat([one(pause=0.35), one()])
    assert heard(samples, size)[0] == heard(samples)[0]


def test_a_stream_that_ends_in_the_pause():
    samples = torch.cat([silence(0.5), spoken(range(5)), silence(0.35)])
    eager, final = ends(heard(samples)[0])
    assert isinstance(eager, Eager) and isinstance(final, Final) and eager.text == final.text


def test_an_end_is_told_early_of_all_samples_of_its_final_alone():
    """Not of the silence that fills the last frame of a stream up, which the final does not have."""
    samples = torch.cat([silence(0.5), spoken(range(5)), silence(1)])
    early = ends(heard(samples)[0])[0]
    settled = round((early.time + EnergyEndpoint().tail) * RATE)
    for total, kinds in ((settled, [Eager, Final]), (settled - 1, [Final])):
        assert [type(event) for event in ends(heard(samples[:total])[0])] == kinds


def test_a_cut_in_the_pause_takes_it_back_before_its_final():
    """Speech as long as a segment, then a pause that does not end it: the cut leaves part of the text behind it."""
    samples = torch.cat([silence(0.5), spoken(range(8)), silence(0.2), spoken(range(8, 10)), silence(1.2)])
    events = ends(heard(samples, silence=1.0, longest=4.1, padding=0.3, tail=0.3)[0])
    assert [type(event) for event in events] == [Eager, Resumed, Final, Eager, Endpoint, Final]
    assert events[0].text.rstrip(".").split() == (events[2].text.rstrip(".") + " " + events[5].text[:-1]).split()
    assert events[3].text == events[5].text


def test_without_hypotheses_on_the_way_nothing_is_told_early():
    for settings in ({"partials": False}, {"update_interval": None}):
        assert not any(isinstance(event, Eager | Resumed) for event in heard(one(pause=0.35), **settings)[0])


def test_a_transcript_is_of_finals_alone():
    asr = StreamingRecognizer(Sentences(), endpoint=EnergyEndpoint())
    assert transcribe_samples(one(), asr).text == "w0 w1 w2 w3 w4. w5 w6 w7 w8."


def test_an_end_on_a_terminal_is_no_longer_grey(monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr(out, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    LiveText(out, 80).show([Partial("try", " again.", "try"), Eager("try again.", 1.0), Resumed(1.2)])
    assert out.getvalue().endswith("\r\x1b[2Ktry again.\x1b[2m\x1b[0m")
    pipe = io.StringIO()
    LiveText(pipe).show([Partial("try", " again.", "try"), Eager("try again.", 1.0), Resumed(1.2)])
    assert pipe.getvalue() == "try", "what is written into a pipe cannot be taken back"


def test_ends_of_sentences():
    told = {"Try.": True, "Try?”": True, "Try!)": True, "\u4f60\u597d\u3002": True, "Try. ": True}
    told |= {"": False, "Try": False, "Try,": False, "Try...": False, "Try..": True, "Try\u2026": False, ".": True}
    told |= {"Oui ! \u00bb": True, "Oui \u00bb": False, "\u201eNein.\u201c": True, "\u00bbNein.\u00ab": True}
    told |= {f"\u0627{end}": True for end in "\u06d4\u0589\u1362\u104b\u17d4"}  # of Urdu, Amharic, Khmer and others
    assert {text: ends_sentence(text) for text in told} == told


class Late(ScriptedAdapter):
    """Draws each word a second behind its end, as Kyutai STT does: with silence in place of what follows at a pause."""

    delayed = True
    decode = TimedAdapter.decode

    def __init__(self):
        super().__init__(appends=True)

    def begin(self):
        return LateStream(self)

    def words(self, encoded, tokens, prompt):
        return [Word(self.text([token]), a / RATE, b / RATE) for token, a, b in encoded.hidden_states[0].int().tolist()]


class LateStream:
    def __init__(self, adapter):
        self.adapter, self.wave, self.told, self.samples = adapter, torch.zeros(0), 0, 0

    def push(self, samples):
        self.wave = torch.cat([self.wave, samples])
        self.samples = len(self.wave)
        heard = self._heard(self.samples - RATE)
        new, self.told = heard[self.told :], len(heard)
        return as_states(new)

    def peek(self):
        return as_states(self._heard(self.samples)[self.told :])

    def _heard(self, end):
        found = ScriptedAdapter.encode(self.adapter, self.wave).hidden_states[0].int().tolist()
        return [TimedToken(FIRST + word, a * FRAME, b * FRAME) for word, a, b in found if b * FRAME <= end]


@pytest.mark.parametrize("policy", (None, AppendOnly(hold=0)))
def test_words_of_a_pause_stay_until_a_model_with_a_delay_comes_to_them(policy):
    """None vanishes when speech goes on after a short gap, and none of them is promised by being shown again."""
    asr = StreamingRecognizer(Late(), policy=policy, endpoint=EnergyEndpoint())
    samples = torch.cat([silence(0.5), spoken(range(5)), silence(0.3), spoken(range(5, 12)), silence(0.9)])
    with asr.stream(update_interval=0.2) as stream:
        events = [event for chunk in samples.split(1600) for event in stream.push(chunk)] + stream.finish()
    (final,) = [event for event in events if isinstance(event, Final)]
    assert final.text == " ".join(f"w{word}" for word in range(12))
    shown = [event for event in events if isinstance(event, Partial)]
    texts = [event.stable + event.unstable for event in shown]
    pause = texts.index("w0 w1 w2 w3 w4")
    assert all(text.startswith("w0 w1 w2 w3 w4") for text in texts[pause:]), texts
    assert len(texts[0].split()) < 5 and all(final.text.startswith(text) for text in texts)
    stable = {event.time: len(event.stable.split()) for event in shown}
    assert all(count <= sum(word.end + 1.0 <= time for word in final.words) for time, count in stable.items())


def test_words_of_a_pause_stay_behind_a_cut_in_the_middle_of_speech():
    """The cut is in an earlier pause, and the model has not come to them in what begins there."""
    asr = StreamingRecognizer(Late(), endpoint=EnergyEndpoint(longest=5.0))
    pieces = [silence(0.5), spoken(range(10)), silence(0.3), spoken([10, 11]), silence(0.3), spoken(range(12, 20))]
    with asr.stream(update_interval=0.2) as stream:
        events = [event for chunk in torch.cat([*pieces, silence(0.9)]).split(1600) for event in stream.push(chunk)]
        events += stream.finish()
    finals, shown = [], []
    for event in events:
        if isinstance(event, Final):
            finals.append(event.text)
        if isinstance(event, Partial):
            shown.append(" ".join([*finals, event.stable + event.unstable]))
    assert finals[0] == " ".join(f"w{word}" for word in range(10)) and len(finals) == 2
    pause = " ".join(f"w{word}" for word in range(12))
    assert all(text.startswith(pause) for text in shown[shown.index(pause) :]), shown
