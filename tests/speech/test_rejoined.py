"""Finals that are decoded again with the speech before them."""

from types import SimpleNamespace

import pytest
import torch
from scripted_recognizer import FIRST, RATE, START, ScriptedAdapter, silence, spoken

from mmaccel.errors import SettingError
from mmaccel.speech import examples
from mmaccel.speech.audio.endpoint import EnergyEndpoint
from mmaccel.speech.audio.sample_buffer import SampleBuffer
from mmaccel.speech.decoding.redecode import Hypothesis
from mmaccel.speech.families.whisper import WhisperAdapter
from mmaccel.speech.stream.events import Eager, Final
from mmaccel.speech.stream.recognizer import StreamingRecognizer
from mmaccel.speech.stream.rejoined import Rejoined
from mmaccel.speech.stream.transcribe import transcribe_samples

SAID = Hypothesis((FIRST, FIRST + 1), 1, True)


class Sentences(ScriptedAdapter):
    def text(self, tokens):
        return super().text(tokens) + ("." if tokens else "")


def recognizer(rejoin, adapter=None, **settings):
    return StreamingRecognizer(adapter or ScriptedAdapter(), endpoint=EnergyEndpoint(**settings), rejoin=rejoin)


def finals(asr, samples, size=1600):
    with asr.stream() as stream:
        events = [event for chunk in samples.split(size) for event in stream.push(chunk)] + stream.finish()
    return [event for event in events if isinstance(event, Final)], stream, events


def talk(pause):
    return torch.cat([silence(0.5), spoken(range(6)), silence(pause), spoken(range(6, 10)), silence(1)])


@pytest.mark.parametrize(("pause", "together"), ((0.6, True), (0.8, True), (1.2, False)))
def test_what_a_breath_parts_is_heard_together(pause, together):
    """The same words and times as of each segment alone; the last pass hears both segments."""
    asr = recognizer(14)
    found, _, _ = finals(asr, talk(pause))
    assert found == finals(recognizer(0), talk(pause))[0] and len(found) == 2
    longest = max(asr.adapter.encoded) / RATE
    assert (longest > found[1].end - found[0].start - 0.01) == together
    assert found[1].words[0].start > found[0].end


def test_no_more_than_fits_is_heard_together():
    asr = recognizer(3.0)
    finals(asr, torch.cat([talk(0.6)[: -round(0.4 * RATE)], spoken(range(10, 14)), silence(1)]))
    assert max(asr.adapter.encoded) <= 3.0 * RATE


def test_what_is_behind_a_forced_cut_is_heard_with_what_is_before_it():
    samples = torch.cat([silence(0.5), spoken(range(30)), silence(1)])
    asr = recognizer(12, longest=5.0)
    found, _, _ = finals(asr, samples)
    assert [word.text for final in found for word in final.words] == [f"w{word}" for word in range(30)]
    assert 5.0 * RATE < max(asr.adapter.encoded) <= 12 * RATE


def test_early_ends_are_those_of_the_final_and_so_is_a_transcript():
    asr = recognizer(14, Sentences())
    found, _, events = finals(asr, talk(0.6))
    assert [event.text for event in events if isinstance(event, Eager)] == [final.text for final in found]
    assert list(transcribe_samples(talk(0.6), recognizer(14, Sentences())).segments) == found
    assert finals(recognizer(14, Sentences()), talk(0.6), 10**9)[2] == events


def test_memory_is_bounded():
    asr = recognizer(6)
    with asr.stream() as stream:
        for _ in range(12):
            stream.push(torch.cat([spoken(range(4)), silence(0.6)]))
            assert stream._buffer.end - stream._buffer.start < 9 * RATE
        stream.push(silence(2))
        assert stream._buffer.end - stream._buffer.start < RATE


def second_pass(tokens, ended=True, alone=(5, 6, 7), said=SAID):
    """What stays of a second pass that gives these tokens."""
    asked = []

    def hear(samples, prompt, draft):
        asked.append((len(samples), prompt, draft))
        return None, Hypothesis(tuple(tokens), 2, ended)

    rejoined = Rejoined(SimpleNamespace(rejoin=14, adapter=ScriptedAdapter(), hear=hear))
    rejoined.add(0, 1000, said)
    buffer = SampleBuffer()
    buffer.append(torch.zeros(3000))
    return rejoined.hear(buffer, 1200, 3000, Hypothesis(alone, 1, True)), asked


def test_a_second_pass_that_loses_words_or_does_not_end_is_dropped():
    found, asked = second_pass((5, 6, 8))
    assert found.tokens == (5, 6, 8) and found.forwards == 3
    assert asked == [(3000, [START, FIRST, FIRST + 1], (5, 6, 7))]
    for tokens, ended in (
        ((5, 6), True),
        ((), True),
        ((5, 6, 7, 8), False),
        ((5,) * 60, True),
        ((5, 6, 7, 8, 9), True),
    ):
        found, _ = second_pass(tokens, ended)
        assert found.tokens == (5, 6, 7) and found.forwards == 3
    assert second_pass((5,), alone=())[1] == [], "where nothing is heard, nothing is said"


@pytest.mark.parametrize("said", (Hypothesis((5, 6), 1, False), Hypothesis((5,) * 60, 1, True)))
def test_nothing_goes_on_from_a_text_in_a_loop(said):
    found, asked = second_pass((5, 6, 8), said=said)
    assert found.tokens == (5, 6, 7) and asked == []


@pytest.mark.parametrize(
    ("before", "seconds", "alone", "heard", "asked", "language"),
    (
        ("de", 3, "de", "de", 1, "de"),
        ("de", 3, "en", "de", 0, "en"),
        ("de", 3, "de", "en", 1, "de"),
        ("de", 1, "cy", "de", 1, "de"),
        ("", 3, "", "", 1, ""),
    ),
)
def test_speech_in_another_language_is_heard_alone(before, seconds, alone, heard, asked, language):
    """Else it is written in the language before it; of less than two seconds the language is not sure."""
    passes = []

    def hear(samples, prompt, draft):
        passes.append(prompt)
        return None, Hypothesis((5, 6, 8), 2, True, language=heard)

    rejoined = Rejoined(SimpleNamespace(rejoin=14, adapter=ScriptedAdapter(), hear=hear))
    rejoined.add(0, 3 * RATE, Hypothesis((FIRST, FIRST + 1), 1, True, language=before))
    buffer, end = SampleBuffer(), (3 + seconds) * RATE
    buffer.append(torch.zeros(end))
    found = rejoined.hear(buffer, 3 * RATE, end, Hypothesis((5, 6, 7), 1, True, language=alone))
    assert (len(passes), found.language) == (asked, language)
    rejoined.add(3 * RATE, end, found)
    assert len(rejoined._said) == (1 if asked == 0 else 2)


@pytest.mark.parametrize(("length", "together"), ((10, True), (45, False)))
def test_what_the_decoder_has_no_positions_for_is_heard_alone(length, together):
    """A decoder of 96 positions, behind two texts of so many tokens."""
    adapter = WhisperAdapter(examples.whisper()[0], context_frames=None)
    adapter.processor = examples.whisper_processor()
    asr = StreamingRecognizer(adapter, endpoint=EnergyEndpoint(longest=4.0), rejoin=5.0)
    rejoined, buffer = Rejoined(asr), SampleBuffer()
    for second in (0, 1):
        rejoined.add(second * RATE, (second + 1) * RATE, Hypothesis(tuple(range(3, 3 + length)), 1, True))
    buffer.append(examples.sound(1, 3 * RATE)[0])
    alone = Hypothesis((5, 6, 7), 1, True)
    found = rejoined.hear(buffer, 2 * RATE, 3 * RATE, alone)
    assert found.tokens == alone.tokens and (found.forwards > alone.forwards) == together


@pytest.mark.parametrize("rejoin", (-1, 21, float("nan"), "14"))
def test_bad_settings(rejoin):
    with pytest.raises(SettingError, match="between 0 and 20 seconds, such as 14.0"):
        recognizer(rejoin)
