"""Streams: what comes out follows from the audio alone, nothing is lost, and nothing grows."""

import asyncio
import contextlib
import io
import itertools
import queue
import random
import sys
import threading
import time
import types

import numpy as np
import pytest
import scripted_recognizer as scripted
import torch
from tiny_recognisers import ENCODER, moonshine_streaming

from mmaccel.errors import AudioError, SettingError, StreamFinishedError, UnsupportedTargetError
from mmaccel.speech.audio.endpoint import FRAME, EnergyEndpoint
from mmaccel.speech.audio.intake import Intake
from mmaccel.speech.audio.sample_buffer import SampleBuffer
from mmaccel.speech.decoding.redecode import decode
from mmaccel.speech.families.adapter import Word
from mmaccel.speech.policies.append_only import AppendOnly
from mmaccel.speech.policies.local_agreement import LocalAgreement
from mmaccel.speech.stream.events import Endpoint, Final, Partial
from mmaccel.speech.stream.recognizer import StreamingRecognizer
from mmaccel.speech.stream.segment import Segment
from mmaccel.speech.stream.stats import Lags, RealTimeClock, StreamStats, quantile
from mmaccel.speech.stream.transcribe import as_recognizer, pieces, transcribe, transcribe_samples, transcript
from mmaccel.speech.stream.units import last_words, units
from mmaccel.speech.stream.wrappers import BackgroundStream, stream_events

RATE, ScriptedAdapter, silence, spoken = scripted.RATE, scripted.ScriptedAdapter, scripted.silence, scripted.spoken


def recognizer(**settings):
    return StreamingRecognizer(ScriptedAdapter(), **{"endpoint": EnergyEndpoint(), **settings})


def talk():
    """Two sentences and 25 s of speech without a pause; all words differ."""
    return torch.cat(
        [silence(0.5), spoken(range(8)), silence(0.9), spoken(range(8, 86)), silence(0.7), spoken([90, 91])]
    )


WORDS = [*range(86), 90, 91]


def run(asr, samples, size=1600, **settings):
    with asr.stream(**settings) as stream:
        events = [event for chunk in samples.split(size) for event in stream.push(chunk)]
        events += stream.finish()
    return events, stream.stats


def finals(events):
    return [event for event in events if isinstance(event, Final)]


def said(events):
    return [int(word[1:]) for final in finals(events) for word in final.text.split()]


def test_every_word_is_in_one_final_in_order():
    events, _ = run(recognizer(), talk())
    assert said(events) == WORDS
    assert [word.text for final in finals(events) for word in final.words] == [f"w{word}" for word in WORDS]
    assert len(finals(events)) >= 4 and sum(isinstance(event, Endpoint) for event in events) == 2


@pytest.mark.parametrize("size", (160, 1280, 80_000, 10**9, "ragged"))
def test_chunks_of_any_size_give_the_same_events(size):
    """10 ms, 80 ms, 5 s, all at once, and 0 to 0.4 s by chance, against 0.5 s."""
    samples = talk()
    expected, _ = run(recognizer(), samples, 8000)
    if size == "ragged":
        chance, sizes = random.Random(0), []
        while sum(sizes) < samples.numel():
            sizes.append(min(chance.randrange(0, 6400), samples.numel() - sum(sizes)))
        with recognizer().stream() as stream:
            events = [event for chunk in samples.split(sizes) for event in stream.push(chunk)] + stream.finish()
    else:
        events, _ = run(recognizer(), samples, size)
    assert events == expected


@pytest.mark.parametrize("rate", (8_000, 44_100, 48_000))
def test_other_rates(rate):
    pytest.importorskip("soxr")
    import soxr

    samples = torch.from_numpy(soxr.resample(talk()[: 20 * RATE].numpy(), RATE, rate)).clamp(-1, 1)
    small, _ = run(recognizer(), samples, rate // 100, sample_rate=rate)
    large, _ = run(recognizer(), samples, rate * 5, sample_rate=rate)
    assert said(small)[:8] == list(range(8))
    assert small == large


def test_committed_text_only_grows():
    """Also across the cuts of speech that is longer than a segment."""
    events, stats = run(recognizer(endpoint=EnergyEndpoint(tail=0.3)), talk())
    stable, before = "", ""
    for event, following in zip(events, [*events[1:], None], strict=True):
        if isinstance(event, Partial):
            assert event.stable == stable + event.delta and not event.stable.startswith(" ")
            stable, seen = event.stable, f"{before} {event.stable}{event.unstable}".split()
        if isinstance(event, Final):
            before, stable = f"{before} {event.text}".strip(), ""
            if isinstance(following, Partial):  # what was shown behind a cut is still shown
                assert len(f"{before} {following.stable}{following.unstable}".split()) >= len(seen)
        shown = f"{before} {stable}".strip().split()
        assert shown == [f"w{word}" for word in WORDS[: len(shown)]]
    assert stats.retracted == 0 and stats.committed >= len(WORDS) - 6


def test_finals_are_what_one_decode_of_their_audio_gives():
    asr, samples = recognizer(), talk()
    events, _ = run(asr, samples)
    for final in finals(events):
        piece = samples[round(final.start * RATE) : round(final.end * RATE)]
        plain = decode(asr.adapter, asr.adapter.encode(piece), asr.adapter.prompt())
        assert plain.tokens == final.tokens


def test_without_partials_the_finals_are_the_same():
    """Also where some pushes leave out hypotheses to catch up."""
    expected, stats = run(recognizer(), talk())
    plain, offline = run(recognizer(), talk(), update_interval=None)
    assert finals(plain) == finals(expected) and not any(isinstance(event, Partial) for event in plain)
    assert offline.partial_decodes == 0 and offline.decoder_calls < stats.decoder_calls
    with recognizer().stream() as stream:
        chunks = enumerate(talk().split(1600))
        mixed = [event for place, chunk in chunks for event in stream.push(chunk, partials=place % 3 == 0)]
        mixed += stream.finish()
    assert finals(mixed) == finals(expected)
    with recognizer().stream() as stream:
        none = [event for chunk in talk().split(1600) for event in stream.push(chunk, partials=False)]
        assert none and not any(isinstance(event, Partial) for event in none) and stream.stats.partial_decodes == 0


def test_words_have_times_of_the_stream():
    events, _ = run(recognizer(), talk())
    words = [word for final in finals(events) for word in final.words]
    for place, word in enumerate(words[:8]):
        begin = 0.5 + place * (scripted.WORD + scripted.GAP)
        assert abs(word.start - begin) < 0.03 and abs(word.end - begin - scripted.WORD) < 0.03
    assert all(a.end <= b.start + 1e-6 for a, b in zip(words, words[1:], strict=False))


def test_words_stay_within_their_segment():
    asr = recognizer()
    asr.adapter.words = lambda *_: [Word("a", -1.0, 0.5), Word("b", 0.5, 99.0), Word("c", 98.0, 99.0)]
    (final,) = finals(run(asr, torch.cat([silence(1), spoken(range(4)), silence(1)]))[0])
    times = [(word.start, word.end) for word in final.words]
    assert times == [(final.start, final.start + 0.5), (final.start + 0.5, final.end), (final.end, final.end)]


def test_silence_and_noise_are_never_decoded():
    asr = recognizer()
    noise = 0.02 * torch.randn(5 * RATE, generator=torch.Generator().manual_seed(0))
    for samples in (silence(5), noise):
        events, stats = run(asr, samples)
        assert events == [] and stats.decoded_seconds == 0
    assert asr.adapter.target.calls == 0 and asr.adapter.encoded == []


def test_a_pause_is_decoded_once_and_its_final_for_nothing():
    """When the pause suffices for the final, it is decoded; the final itself takes no call."""
    asr = recognizer()
    with asr.stream() as stream:
        events = stream.push(torch.cat([silence(0.5), spoken(range(6)), silence(0.35)]))
        calls = asr.adapter.target.calls
        assert events[-1].unstable or events[-1].stable
        (end, final) = stream.push(silence(20))
    assert isinstance(end, Endpoint) and final.text == "w0 w1 w2 w3 w4 w5"
    assert asr.adapter.target.calls == calls > 0


def test_drafts_save_calls():
    """Ten words anew every half second: a call each, and not one for each word."""
    _, stats = run(recognizer(), talk())
    assert stats.accepted > stats.tokens / 2
    assert stats.decoder_calls < stats.tokens / 3


def test_ten_streams_on_one_model_stay_apart():
    asr = recognizer()
    talks = [torch.cat([silence(0.1 * n), spoken(range(10 * n, 10 * n + 10)), silence(0.8)]) for n in range(10)]
    alone = [run(recognizer(), samples)[0] for samples in talks]
    streams = [asr.stream() for _ in talks]
    mixed = [[] for _ in talks]
    for place in range(0, max(map(len, talks)), 1600):
        for stream, events, samples in zip(streams, mixed, talks, strict=True):
            events += stream.push(samples[place : place + 1600])
    for stream, events in zip(streams, mixed, strict=True):
        events += stream.finish()
    assert mixed == alone


def test_a_chunk_of_one_sample_has_as_many_channels_as_those_before_it():
    samples = torch.stack([talk(), -talk() / 2], 1)
    with recognizer().stream() as stream, recognizer().stream() as whole:
        events = [event for chunk in samples.split([8_000, 1, 1, len(samples) - 8_002]) for event in stream.push(chunk)]
        assert finals(events + stream.finish()) == finals(whole.push(samples) + whole.finish())
    with recognizer().stream() as mono:
        with pytest.raises(AudioError, match="shape"):
            mono.push(torch.zeros(320, 160))  # is as if it had not been pushed
        mono.push(torch.zeros(1, 160))
        assert mono.time == 0.01
    with recognizer().stream() as mono:
        mono.push(torch.zeros(1, 1_600))
        assert mono.time == 0.1


@pytest.mark.parametrize("is_second", (True, False))
@pytest.mark.parametrize("channels", (2, 4))
@pytest.mark.parametrize("last", (1, 3, 5, 8))
def test_a_short_last_block_has_as_many_channels_as_those_before_it(channels, last, is_second):
    levels = torch.arange(1, channels + 1) / 10
    intake = Intake(RATE)
    for count in (160, last, last, 160, last):
        block = levels.expand(count, channels) * torch.arange(1, count + 1)[:, None] / 160
        got = intake.push(block if is_second else block.T)
        assert torch.allclose(got, levels.mean() * torch.arange(1, count + 1) / 160)


def test_a_square_block_is_only_taken_as_it_would_be_read():
    first, second = Intake(RATE), Intake(RATE)
    second.push(torch.zeros(160, 2))
    assert second.push(torch.tensor([[0.1, 0.3], [0.5, 0.7]])).tolist() == pytest.approx([0.2, 0.6])
    first.push(torch.zeros(2, 160))
    for intake, shape in ((first, (2, 2)), (second, (3, 4)), (Intake(RATE), (5, 2))):
        with pytest.raises(AudioError, match="shape"):
            intake.push(torch.zeros(shape))
    assert second.push(torch.zeros(2)).shape == (2,), "a row is of one channel"


def test_a_stream_goes_in_and_out_of_inference_mode():
    expected, _ = run(recognizer(), torch.cat([talk(), silence(0.1)]))
    with recognizer().stream() as stream:
        with torch.inference_mode():
            events = stream.push(talk())
        events += stream.push(silence(0.1)) + stream.finish()
    assert finals(events) == finals(expected)


def test_a_stream_does_not_depend_on_the_default_kind_of_numbers():
    expected, _ = run(recognizer(), talk())
    try:
        torch.set_default_dtype(torch.float64)
        assert finals(run(recognizer(), talk().float())[0]) == finals(expected)
    finally:
        torch.set_default_dtype(torch.float32)


def test_threads_take_turns_with_the_model():
    asr, running, most = recognizer(), [0], [0]
    encode = asr.adapter.encode

    def watched(samples):
        running[0] += 1
        most[0] = max(most[0], running[0])
        result = encode(samples)
        threading.Event().wait(0.001)
        running[0] -= 1
        return result

    asr.adapter.encode = watched
    samples, results = torch.cat([spoken(range(20)), silence(1)]), [None] * 4

    def one(place):
        results[place] = run(asr, samples)[0]

    threads = [threading.Thread(target=one, args=(place,), daemon=True) for place in range(4)]
    [thread.start() for thread in threads]
    [thread.join(60) for thread in threads]
    assert most == [1] and all(result == results[0] and result for result in results)


class NotingLock:
    """A lock that tells whether it is held."""

    def __init__(self):
        self.held = 0

    def __enter__(self):
        self.held += 1

    def __exit__(self, *_):
        self.held -= 1


def test_the_model_is_held_by_whoever_asks_it():
    """The encoder, the words' times, and a policy, which may ask the model; and no gradients are kept."""
    asr, noted = recognizer(), {"encode": [], "words": [], "update": []}
    asr.lock = NotingLock()

    def watched(name, function):
        def watch(*values):
            noted[name].append((asr.lock.held > 0, torch.is_grad_enabled()))
            return function(*values)

        return watch

    asr.adapter.encode, asr.adapter.words = watched("encode", asr.adapter.encode), watched("words", asr.adapter.words)
    begin = asr.policy.begin

    def watched_begin(*words):
        commitment = begin(*words)
        commitment.update = watched("update", commitment.update)
        return commitment

    asr.policy = types.SimpleNamespace(begin=watched_begin)
    run(asr, torch.cat([spoken(range(6)), silence(1)]))
    assert set(noted["encode"]) == set(noted["words"]) == {(True, False)} and asr.lock.held == 0
    assert noted["update"] and all(held for held, _ in noted["update"])


def test_memory_is_bounded_over_ten_minutes():
    """Speech, silence and noise by turns; what a stream holds does not grow, and no word is lost."""
    asr = recognizer(context=50)
    noise = 0.005 * torch.randn(3 * RATE, generator=torch.Generator().manual_seed(0))
    block = torch.cat([spoken(range(60)), silence(3), noise, silence(2)])
    held, capacity, words = [], [], 0
    with asr.stream(update_interval=2.0) as stream:
        for _ in range(round(600 * RATE / block.numel())):
            for chunk in block.split(8000):
                words += len(said(stream.push(chunk)))
                held.append(stream._buffer.end - stream._buffer.start)
                capacity.append(len(stream._buffer._samples))
                assert len(stream._work) == 0 and len(stream._events) == 0 and len(stream._history) <= 50
        assert stream.time >= 580
        words += len(said(stream.finish()))
    assert max(held) <= 16.5 * RATE and max(capacity) <= 2 * 17.5 * RATE
    assert max(capacity) == max(capacity[: len(capacity) // 4])
    assert words == 60 * round(600 * RATE / block.numel())
    assert max(asr.adapter.encoded) <= 16 * RATE


def test_context_is_the_last_words_of_the_same_speech():
    """As many whole words as fit, where speech was cut; nothing behind a pause."""
    asr = recognizer(context=20)
    events, _ = run(asr, talk(), update_interval=None)
    before = [final.text for final in finals(events)]
    assert asr.adapter.contexts[:3] == ["", "", " ".join(before[1].split()[-5:])]
    assert asr.adapter.contexts[-1] == "" and len(before) == 5
    apart = recognizer(context=0)
    run(apart, talk(), update_interval=None)
    assert set(apart.adapter.contexts) == {""}
    assert last_words("it was the best of times", 15) == "best of times"


BAD = {
    "nan": np.array([0.1, np.nan] * 80, np.float32),
    "infinite": torch.tensor([0.1, torch.inf] * 80),
    "shape": np.zeros((2, 3, 4), np.float32),
    "kind": np.zeros(160, np.complex64),
    "words": ["a", "b"],
    "another scale": 3000 * np.ones(160, np.float32),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_chunk_is_refused_and_nothing_is_lost(kind):
    samples = talk()[: 10 * RATE]
    expected, _ = run(recognizer(), samples)
    events = []
    with recognizer().stream() as stream:
        for place, chunk in enumerate(samples.split(1600)):
            if place % 7 == 3:
                with pytest.raises(AudioError):
                    stream.push(BAD[kind])
            events += stream.push(chunk)
        events += stream.finish()
    assert events == expected


def test_int16_bytes_stereo_and_empty_chunks():
    samples = (talk()[: 8 * RATE] * 32767).to(torch.int16)
    expected, _ = run(recognizer(), samples)
    with recognizer().stream(channels=2) as stream:
        events = stream.push(b"")
        for chunk in samples.split(1600):
            events += stream.push(torch.stack([chunk, chunk], 1).numpy().tobytes())
        events += stream.finish()
    assert expected and events == expected


def test_an_error_of_the_model_loses_nothing():
    """The push that failed is taken up by the next one, at a final too."""
    samples = talk()[: 12 * RATE]
    expected, _ = run(recognizer(), samples)
    asr, events, errors = recognizer(), [], 0
    with asr.stream() as stream:
        for place, chunk in enumerate(samples.split(1600)):
            asr.adapter.target.fail = int(place % 5 == 0)
            try:
                events += stream.push(chunk)
            except RuntimeError:
                errors += 1
        asr.adapter.target.fail = 1
        with pytest.raises(RuntimeError, match="out of memory"):
            stream.finish()
        with pytest.raises(StreamFinishedError):
            stream.push(silence(1))
        events += stream.finish()
    assert errors > 3
    assert finals(events) == finals(expected)


def test_after_the_end():
    stream = recognizer().stream()
    stream.push(talk()[:RATE])
    stream.finish()
    assert stream.finish() == [] and stream.time == 1.0
    with pytest.raises(StreamFinishedError, match="recognizer.stream()"):
        stream.push(silence(1))
    with recognizer().stream() as closed:
        closed.push(talk()[: 3 * RATE])
    assert closed.finish() == [] and closed.time == 3.0
    assert closed._buffer.end == 0 and closed._segment is None, "the sound and what was made of it are let go"
    with pytest.raises(StreamFinishedError):
        closed.push(silence(1))


def test_a_push_that_failed_is_in_the_statistics():
    times = iter(range(10**6))
    asr = recognizer(timer=lambda: 0.01 * next(times))
    asr.adapter.target.fail = 1
    with asr.stream() as stream:
        with pytest.raises(RuntimeError, match="out of memory"):
            stream.push(spoken(range(8)))
        assert stream.stats.audio_seconds == stream.time > 2 and stream.stats.compute_seconds == pytest.approx(0.01)


def test_nothing_and_very_little_audio():
    for samples in (torch.empty(0), torch.zeros(1), spoken([3])[:200]):
        events, stats = run(recognizer(), samples)
        assert events == [] and str(stats).count("\n") < 8


def test_the_rate_may_change():
    pytest.importorskip("soxr")
    import soxr

    first, second = torch.cat([spoken(range(6)), silence(1)]), torch.cat([spoken(range(6, 12)), silence(1)])
    with recognizer().stream() as stream:
        events = stream.push(first)
        faster = soxr.resample(second.numpy(), RATE, 48_000).clip(-1, 1)
        for chunk in np.array_split(faster, 50):
            events += stream.push(chunk, sample_rate=48_000)
        assert stream.sample_rate == 48_000
        with pytest.raises(SettingError):
            stream.push(first, sample_rate=0)
        events += stream.finish()
    assert said(events) == list(range(12))


def test_no_sample_is_lost_where_the_rate_changes():
    """A resampler holds back the last hundredths of a second; they come out before the first sample of the next."""
    pytest.importorskip("soxr")
    tone = torch.sin(2 * torch.pi * 440 * torch.arange(2 * 48_000) / 48_000) / 2
    with recognizer().stream(sample_rate=48_000) as stream:
        stream.push(tone[:48_000])
        stream.push(tone[::2][24_000:], sample_rate=24_000)
        assert stream.time < 2.0
        stream.push(torch.zeros(0), sample_rate=16_000)
        assert stream.time == pytest.approx(2.0, abs=2 / RATE)
        stream.push(tone[:48_000], sample_rate=48_000)
        stream.finish()
        assert stream.time == pytest.approx(3.0, abs=3 / RATE), "and where the stream ends"


def test_a_final_takes_back_what_was_wrong():
    """Half words are promised under a policy that commits at once; their finals correct them, and it is counted."""
    events, stats = run(recognizer(policy=LocalAgreement(1)), talk())
    assert said(events) == WORDS
    assert 0 < stats.retracted < stats.committed
    assert stats.retracted_share == stats.retracted / stats.committed


def test_words_of_several_characters_take_back_none_that_was_promised():
    class Characters(ScriptedAdapter):
        def text(self, tokens):
            return "".join(chr(0x4E00 + 2 * token) + chr(0x4E01 + 2 * token) for token in tokens)

        def words(self, encoded, tokens, prompt):
            found = super().words(encoded, tokens, prompt)
            return [Word(self.text([token]), one.start, one.end) for token, one in zip(tokens, found, strict=False)]

    asr = StreamingRecognizer(Characters(), endpoint=EnergyEndpoint())
    _, stats = run(asr, torch.cat([silence(0.5), spoken(range(10)), silence(1)]))
    assert stats.retracted == 0 < stats.committed and stats.words == 10


def test_when_each_word_was_promised():
    """Also where speech was cut between the promise and the final: the clock of a word stops once."""
    promised, expected, words = {}, [], []
    with recognizer(policy=LocalAgreement(2)).stream() as stream:
        for chunk in [*talk().split(1600), None]:
            events = stream.finish() if chunk is None else stream.push(chunk)
            for event in events:
                if isinstance(event, Partial):
                    for word in event.delta.split():
                        promised.setdefault(word, stream.time)
                if isinstance(event, Final):
                    words += event.words
                    expected += [promised.get(word.text, stream.time) - word.end for word in event.words]
    stats = stream.stats
    assert len(words) == len(WORDS) and list(stats.word_lag.heard) == pytest.approx(expected)
    assert stats.committed == len(promised) and 0 < max(stats.word_lag.heard) < 2
    assert len(stats.first_partial.heard) == 3, "once for each time that somebody began to speak"
    assert len(stats.finalisation.heard) == 3, "for two pauses, and the end of the stream"


@pytest.mark.parametrize("before", ([silence(0.2)], [silence(2)], [spoken(range(4)), silence(0.5)]))
def test_the_first_text_is_counted_from_where_speech_began(before):
    """Also where the segment has less audio before it than its padding, at the start or soon behind another."""
    endpoint = EnergyEndpoint(silence=0.5, tail=0.5, padding=0.5)
    events, stats = run(recognizer(endpoint=endpoint), torch.cat([*before, spoken(range(10, 18)), silence(1)]), 160)
    begins = sum(map(len, before)) / RATE
    shown = [event.time for event in events if isinstance(event, Partial) and "w10" in event.stable + event.unstable]
    assert stats.first_partial.heard[-1] == pytest.approx(shown[0] - begins, abs=2 * FRAME / RATE)


def test_a_draft_goes_on_behind_a_cut():
    """Only where speech begins there is nothing to draft from; sound without words is heard, and no text comes."""
    asr, drafts = recognizer(), []
    hear = asr.hear
    asr.hear = lambda samples, prompt, draft=(), audio=None: drafts.append(draft) or hear(samples, prompt, draft, audio)
    assert len(finals(run(asr, talk())[0])) == 5 and sum(draft == () for draft in drafts) == 3
    hum = 0.03 * torch.sin(torch.arange(RATE) * 0.6)
    events, stats = run(recognizer(), torch.cat([silence(1), hum, silence(1)]))
    assert [type(event) for event in events] == [Endpoint] and stats.finals == 1
    assert events[0].time == pytest.approx(2.0, abs=0.04)
    events, stats = run(recognizer(), torch.cat([silence(1), hum, spoken(range(4)), silence(1)]))
    assert said(events) == [0, 1, 2, 3] and stats.first_partial.heard[0] > 1.0, "from the start of speech to its text"


def test_behind_a_cut_no_word_of_its_final_is_told_again():
    """The last words of the final may not have been promised; what was is carried over, as before."""
    before = Segment((), LocalAgreement(2).begin(units("it was the best of")))
    before.commitment.tail = [" times", " it", " was"]
    before.times = [(0.0, 0.0)] * 5
    for final, stable, unstable in (
        ("it was the best of times", "", "it was"),
        ("it was the best of", "", "times it was"),
        ("it was the best", "of", " times it was"),
        ("It was the best of times. It was", None, None),
    ):
        carried = before.carried(final)
        segment = Segment((), LocalAgreement(2).begin(before.last(carried)))
        segment.follow(before, carried, (), final)
        told = segment.partial(1.0)
        assert (told and told.stable, told and told.unstable) == (stable, unstable)
    assert before.commitment.tail == [" times", " it", " was"]


def test_a_stream_tells_no_word_of_a_final_again_at_once():
    """Under a policy that promises late, a final has many words that were not."""
    events, _ = run(recognizer(policy=LocalAgreement(4)), talk(), update_interval=2.0)
    pairs = itertools.pairwise(events)
    cuts = [(one, two) for one, two in pairs if isinstance(one, Final) and isinstance(two, Partial)]
    assert cuts and all(not set(one.text.split()) & set((two.stable + two.unstable).split()) for one, two in cuts)


def test_text_that_was_shown_is_taken_back_by_its_final():
    asr = recognizer()
    encode = asr.adapter.encode
    asr.adapter.encode = lambda samples: encode(samples if samples.numel() < 1.5 * RATE else 0 * samples)
    events, _ = run(asr, torch.cat([silence(1), spoken(range(4)), silence(1)]))
    assert [final.text for final in finals(events)] == [""] and isinstance(events[0], Partial)


def test_what_the_last_frame_brings_is_told():
    """A pause that is long enough only with the silence that fills the last frame up."""
    for extra in range(0, 1024, 128):
        samples = torch.cat([silence(0.5), spoken(range(4)), silence(0.4), torch.zeros(extra)])
        events, _ = run(recognizer(), samples)
        assert said(events) == [0, 1, 2, 3]


def test_statistics_by_hand():
    """Half a second of computing for each reading of the timer, which a stream does at its steps."""
    times = iter(range(10**6))
    asr = recognizer(timer=lambda: 0.01 * next(times))
    events, stats = run(asr, torch.cat([silence(1), spoken(range(10)), silence(1)]), 1600)
    assert stats.words == 10 and stats.finals == 1 and stats.tokens >= 10
    assert stats.audio_seconds == pytest.approx(5.2, abs=0.01)
    (since,) = stats.finalisation.heard
    assert 0.44 <= since <= 0.44 + 0.032 + 0.1 + 0.03  # silence, a frame, a chunk, the script's grid
    assert 0.5 <= stats.first_partial.heard[0] <= 0.8
    assert len(stats.word_lag.heard) == 10
    pairs = zip(stats.word_lag.heard, stats.word_lag.ready, strict=True)
    assert all(0 < heard < ready for heard, ready in pairs)
    assert stats.real_time_factor == stats.compute_seconds / stats.audio_seconds > 0
    assert 0.01 * stats.partial_decodes < stats.compute_seconds < 0.01 * next(times)
    whole, read = StreamingRecognizer(ScriptedAdapter(), endpoint=EnergyEndpoint(), timer=asr.timer), next(times)
    assert run(whole, talk(), 10**9)[1].compute_seconds < 0.01 * (next(times) - read), "no second counts twice"
    assert stats.decoded_seconds == pytest.approx(sum(final.end - final.start for final in finals(events)))
    assert str(stats).count("\n") + 1 <= 8
    assert stats.to_dict()["word_lag"]["heard_p50"] == quantile(stats.word_lag.heard, 0.5)
    assert isinstance(events[0], Partial)


def test_times_of_events_are_those_of_the_stream():
    """A second and a half of silence: words begin at 1.5 s, and a partial tells how much had come."""
    events, came = [], []
    with recognizer().stream() as stream:
        for chunk in torch.cat([silence(1.5), spoken(range(6)), silence(1)]).split(512):
            new = stream.push(chunk)
            events, came = events + new, came + [stream.time] * len(new)
    partials = [(event.time, at) for event, at in zip(events, came, strict=True) if isinstance(event, Partial)]
    assert partials and all(told == at for told, at in partials)
    final, end = finals(events)[0], 1.5 + 6 * 0.32 - 0.08
    assert final.start == pytest.approx(1.2, abs=0.04) and final.end == pytest.approx(end + 0.2, abs=0.04)
    assert final.words[0].start == pytest.approx(1.5, abs=0.02) and final.words[-1].end == pytest.approx(end, abs=0.02)


def test_what_is_refused_changes_no_rate_and_loses_no_sound():
    pytest.importorskip("soxr")
    tone = torch.sin(2 * torch.pi * 440 * torch.arange(48_000) / 48_000) / 2
    whole, refused = recognizer().stream(sample_rate=48_000), recognizer().stream(sample_rate=48_000)
    for stream in (whole, refused):
        stream.push(tone)
        before = stream.time
        if stream is refused:
            with pytest.raises(AudioError):
                stream.push(BAD["nan"], sample_rate=8_000)
            with pytest.raises(SettingError):
                stream.push(tone, sample_rate=0)
            assert refused.sample_rate == 48_000 and refused.time == before
        stream.push(tone)
    heard = [stream._buffer.read(stream._buffer.start, stream._buffer.end) for stream in (whole, refused)]
    assert torch.equal(*heard)


def test_figures_of_a_stream_by_hand():
    stats = StreamStats(20.0, 15.0, 5.0, 1, 2, 30, 40, 25, 12, 8, 2)
    for place, lags in enumerate((stats.first_partial, stats.word_lag, stats.finalisation), 1):
        lags.add(1.0, 1.0 + place, 1.25 + place)
    made = stats.to_dict()
    assert (made["real_time_factor"], made["retracted_share"], made["accepted"]) == (0.25, 0.25, 25)
    assert made["word_lag"] == {"heard_p50": 2, "heard_p90": 2, "ready_p50": 2.25, "ready_p90": 2.25}
    assert str(stats) == (
        "stream of 20.0 s, 15.0 s of it in 2 segments\n"
        "  computing     5.00 s, real-time factor 0.250\n"
        "  decoder       30 calls for 40 tokens, 25 from drafts\n"
        "  words         12, 8 promised early, 25.0% taken back\n"
        "  first partial p50 1.00 s, p90 1.00 s (with computing 1.25 s, 1.25 s)\n"
        "  word lag      p50 2.00 s, p90 2.00 s (with computing 2.25 s, 2.25 s)\n"
        "  finalisation  p50 3.00 s, p90 3.00 s (with computing 3.25 s, 3.25 s)"
    )
    assert str(StreamStats(finals=1)).startswith("stream of 0.0 s, 0.0 s of it in 1 segment\n")
    assert StreamStats().real_time_factor == StreamStats().retracted_share == 0


def test_the_compute_aware_clock_waits_for_work_before():
    clock = RealTimeClock()
    assert [clock.spend(1.0, 0.5), clock.spend(1.2, 0.5), clock.spend(5.0, 0.25)] == [1.5, 2.0, 5.25]


def test_lags_are_bounded():
    lags = Lags()
    assert str(lags) == "none" and lags.to_dict()["heard_p50"] is None
    for place in range(11_000):
        lags.add(0.0, float(place), float(place))
    assert len(lags.heard) == len(lags.ready) == 10_000
    figures = lags.to_dict()
    assert figures["heard_p90"] == figures["ready_p90"] == pytest.approx(figures["heard_p50"] + 4_000, abs=1)
    assert quantile([4.0], 0.9) == 4.0 and quantile([0.0, 10.0], 0.9) == pytest.approx(9.0)
    assert str(StreamStats())


def test_bad_settings():
    with pytest.raises(SettingError, match="update_interval"):
        recognizer().stream(update_interval=0)
    with pytest.raises(SettingError, match="sample_rate"):
        recognizer().stream(sample_rate=-1)
    for channels in (0, -1, 2.5, True):
        with pytest.raises(SettingError, match="channels=.*such as 2, or None"):
            recognizer().stream(channels=channels)
    for context in (-1, 10_001):
        with pytest.raises(SettingError, match="context"):
            recognizer(context=context)
    with pytest.raises(SettingError, match="update_interval=0.09"):
        recognizer().stream(update_interval=0.09)
    allowed = recognizer(context=10_000).stream(update_interval=0.1, channels=64)
    assert allowed.channels == 64 and recognizer().stream(update_interval=60).channels is None
    with pytest.raises(SettingError, match="LocalAgreement"):
        recognizer(policy="local agreement")
    with pytest.raises(SettingError, match=r"EnergyEndpoint\(longest=29.56\)"):
        recognizer(endpoint=EnergyEndpoint(longest=40))
    assert recognizer(endpoint=EnergyEndpoint(longest=29.56)).endpoint.longest == 29.56, "as the message says"
    with pytest.raises(SettingError, match=r"EnergyEndpoint\(longest=29.56\)"):
        recognizer(endpoint=EnergyEndpoint(longest=29.8))
    for model, name in ((torch.nn.Linear(1, 1), "Linear"), ("moonshine-tiny", "str"), (None, "NoneType")):
        with pytest.raises(UnsupportedTargetError, match=f"no recogniser for {name}; .*Model families.*speech.load"):
            StreamingRecognizer(model)
    adapter = ScriptedAdapter()
    adapter.processor = None
    with pytest.raises(SettingError, match="processor"):
        StreamingRecognizer(adapter)
    assert StreamingRecognizer(adapter, "letters").adapter.processor == "letters"
    with pytest.raises(SettingError, match="packed=True with a ScriptedAdapter"):
        StreamingRecognizer(adapter, packed=True)
    adapter.processor, adapter.sample_rate = "letters", 24_000
    with pytest.raises(UnsupportedTargetError, match="16000 samples a second, this model 24000"):
        StreamingRecognizer(adapter)


def test_transcribe_is_the_stream(tmp_path):
    wavfile = pytest.importorskip("scipy.io.wavfile")
    path = tmp_path / "talk.wav"
    samples = (talk() * 32767).to(torch.int16)
    wavfile.write(path, RATE, samples.numpy())
    made = transcribe(path, recognizer(), progress=False)
    events, stats = run(recognizer(), samples)
    assert list(made.segments) == finals(events)
    assert made.text.split() == [f"w{word}" for word in WORDS] == [word.text for word in made.words]
    assert made == transcript(events, stats) == transcribe_samples(samples.numpy(), recognizer(), progress=False)
    assert stats.word_lag.heard and not made.stats.word_lag.heard and not made.stats.finalisation.heard
    assert len(str(made.stats).splitlines()) == 4, "nobody waited for a recording: nothing is told of lags"
    made.save(tmp_path / "talk.srt")
    assert "w91" in (tmp_path / "talk.srt").read_text()


def test_a_recogniser_from_what_is_given():
    processor = Letters()
    made = as_recognizer(moonshine_streaming(**ENCODER), processor, "energy", 77)
    assert made.adapter.processor is processor and made.context == 77 and isinstance(made.endpoint, EnergyEndpoint)
    assert as_recognizer(made, None, "auto", 200) is made


@pytest.mark.parametrize(
    "given", ({"processor": "letters"}, {"endpoint": "energy"}, {"context": 0}, {"rejoin": 14.0}), ids=str
)
def test_a_recogniser_has_its_own_settings(monkeypatch, given):
    monkeypatch.setattr("mmaccel.speech.stream.transcribe.read_audio", lambda path: silence(1))
    ((name, value),) = given.items()
    with pytest.raises(SettingError, match=f"{name}={value!r}: .*StreamingRecognizer"):
        transcribe("talk.wav", recognizer(), **given)


def test_a_bar_is_drawn_if_asked_for(capsys):
    for progress in (False, None, True):
        assert torch.equal(torch.cat(list(pieces(talk(), progress))), talk())
        assert bool(capsys.readouterr().err) == (progress is True)


def test_a_bar_counts_the_seconds_of_long_recordings(monkeypatch):
    """From a minute on by default; one that was asked for comes at once."""
    bars = []

    class Bar:
        def __init__(self, **settings):
            bars.append({**settings, "moved": []})
            self.update = bars[-1]["moved"].append

        def __enter__(self):
            return self

        def __exit__(self, *_):
            bars[-1]["closed"] = True

    monkeypatch.setattr("mmaccel.speech.stream.transcribe.tqdm", Bar)
    for seconds, progress in ((60, None), (61, None), (61, False), (1, True)):
        assert sum(map(len, pieces(torch.zeros(seconds * RATE), progress))) == seconds * RATE
    assert [bar["disable"] for bar in bars] == [True, False, True, False]
    assert bars[1]["total"] == sum(bars[1]["moved"]) == 61 and bars[1]["moved"][:2] == [5, 5] and bars[1]["closed"]
    assert bars[3]["delay"] == 0 != bars[1]["delay"] and (bars[1]["unit"], bars[1]["desc"]) == ("s", "transcribe")


def test_what_transcribe_is_told_reaches_the_recogniser(monkeypatch):
    seen = []
    module = "mmaccel.speech.stream.transcribe"
    monkeypatch.setattr(f"{module}.read_audio", lambda path: f"sound of {path}")
    monkeypatch.setattr(f"{module}.transcribe_samples", lambda *args: seen.append(args))
    monkeypatch.setattr(f"{module}.as_recognizer", lambda *args, **told: seen.append((*args, told)) or "asr")
    transcribe("talk.wav")
    transcribe("talk.wav", "whisper", "letters", "energy", 7, True, "de", "translate", "Molloy", 14.0)
    usual = {"language": None, "task": None, "prompt": "", "rejoin": 0.0}
    assert seen[0] == ("moonshine-tiny", None, "auto", 200, usual) and seen[1] == ("sound of talk.wav", "asr", None)
    other = {"language": "de", "task": "translate", "prompt": "Molloy", "rejoin": 14.0}
    assert seen[2] == ("whisper", "letters", "energy", 7, other) and seen[3] == ("sound of talk.wav", "asr", True)


def test_a_name_brings_a_processor_unless_another_is_given(monkeypatch):
    named, adapter = [], ScriptedAdapter()
    monkeypatch.setattr(
        "mmaccel.speech.stream.transcribe.load", lambda name: named.append(name) or (adapter, "letters")
    )
    for given, used in ((None, "letters"), ("another", "another")):
        made = as_recognizer("moonshine-tiny", given, "energy", 7)
        assert type(made.adapter) is type(adapter) and made.adapter.processor == used
    assert named == ["moonshine-tiny"] * 2


def test_a_recording_that_is_missing_is_noticed_before_a_model_is_loaded(monkeypatch):
    monkeypatch.setattr("mmaccel.speech.stream.transcribe.load", lambda name: pytest.fail("loaded"))
    for given in (np.zeros(16_000, np.float32), io.BytesIO(b"RIFF")):
        with pytest.raises(AudioError, match=rf"{type(given).__name__} is no path: speech.transcribe_samples\("):
            transcribe(given)
    with pytest.raises(AudioError, match="missing.wav does not exist"):
        transcribe("missing.wav")


def test_finals_without_text_leave_no_gap():
    segments = [Final(text, (), 0.0, 1.0) for text in ("one", "", "two")]
    assert transcript(segments, StreamStats()).text == "one two"


def test_finals_are_joined_as_their_scripts_are():
    segments = [Final(text, (), 0.0, 1.0) for text in ("\u4f60\u597d", "\u4e16\u754c\u3002", "GPT", "says")]
    assert transcript(segments, StreamStats()).text == "\u4f60\u597d\u4e16\u754c\u3002GPT says"
    thai = "\u0e44\u0e1b\u0e41\u0e25\u0e49\u0e27", "\u0e21\u0e32"  # phrases have spaces between them
    assert transcript([Final(text, (), 0.0, 1.0) for text in thai], StreamStats()).text == " ".join(thai)


def test_an_async_source():
    async def chunks(samples):
        for chunk in samples.split(1600):
            yield chunk
            await asyncio.sleep(0)

    async def collect(asr, samples):
        return [event async for event in stream_events(asr.stream(), chunks(samples))]

    async def stop_early(asr):
        stream = asr.stream()
        events = stream_events(stream, chunks(talk()))
        await anext(events)
        await events.aclose()
        return stream

    assert asyncio.run(collect(recognizer(), talk())) == run(recognizer(), talk())[0]
    with pytest.raises(StreamFinishedError):
        asyncio.run(stop_early(recognizer())).push(silence(1))
    with pytest.raises(AudioError):
        asyncio.run(collect(recognizer(), torch.full((16_000,), torch.nan)))


@pytest.fixture
def in_background():
    """Opens streams in threads, and lets none of them outlive the test, whatever fails in it."""
    opened = []

    def start(*values, **settings):
        opened.append(BackgroundStream(*values, **settings))
        return opened[-1]

    yield start
    for background in opened:
        background._dropped = True
        with contextlib.suppress(queue.Full):
            background._chunks.put(None, timeout=1)
        background._thread.join(10)


class SlowStream:
    """A stream whose first push waits until it is let go; notes what it is given, in chunks of so many seconds."""

    def __init__(self, seconds=1.0):
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.pushed, self.ended, self.seconds = [], [], seconds

    @property
    def time(self):
        return self.seconds * len(self.pushed)

    def push(self, chunk, sample_rate=None, partials=True):
        self.pushed.append((chunk, sample_rate, partials))
        self.begun.set()
        assert self.go_on.wait(10)
        return [chunk]

    def finish(self):
        self.ended.append("finish")
        return []

    def close(self):
        self.ended.append("close")


def let_go_at_join(background):
    """The stream goes on once its thread is waited for."""
    join = background._thread.join
    background._thread.join = lambda *_: (background.stream.go_on.set(), join(10))


def test_a_thread_calls_back(in_background):
    events = []
    with in_background(recognizer().stream(), events.append) as background:
        for chunk in talk().split(1600):
            background.push(chunk)
    assert finals(events) == finals(run(recognizer(), talk())[0])
    with pytest.raises(StreamFinishedError):
        background.push(silence(1))


@pytest.mark.parametrize("is_on", (True, False))
def test_threads_hear_under_the_autocast_of_who_opened_them(in_background, is_on):
    async def source():
        yield silence(1)

    async def collect(stream):
        return [event async for event in stream_events(stream, source())]

    told = [torch.is_autocast_enabled, torch.get_autocast_dtype]
    for dtype in (torch.bfloat16, torch.float16):
        stream, heard = AutocastStream(told), []
        with torch.autocast("cpu", dtype, enabled=is_on):
            expected = [one("cpu") for one in told]
            with in_background(stream, heard.append) as background:
                background.push(silence(1))
            found = asyncio.run(collect(stream))
        assert [one[: 1 + is_on] for one in (*heard, *found)] == [expected[: 1 + is_on]] * 4


class AutocastStream:
    """A stream whose events say what holds where it is pushed to."""

    time = 0.0

    def __init__(self, told):
        self.told = told

    def push(self, *_, **__):
        return [[one("cpu") for one in self.told]]

    def finish(self):
        return self.push()

    def close(self):
        pass


def test_a_thread_has_a_copy_of_each_chunk(in_background):
    """A device writes its next samples into the same memory."""
    events, memory = [], np.zeros(1600, np.float32)
    background = in_background(recognizer().stream(), events.append)
    for chunk in talk().split(1600):
        memory[: len(chunk)] = chunk
        background.push(memory[: len(chunk)])
        memory[:] = np.nan
    background.finish()
    assert finals(events) == finals(run(recognizer(), talk())[0])


@pytest.mark.parametrize("end", ("finish", "close"))
def test_a_callback_may_end_its_thread(in_background, end):
    events = []

    def heard(event):
        events.append(event)
        getattr(background, end)()

    background = in_background(recognizer().stream(), heard)
    background.push(torch.cat([spoken(range(4)), silence(1)]))
    background._thread.join(10)
    assert not background._thread.is_alive() and events and background._errors.empty()


def test_a_thread_is_told_the_rate(in_background):
    events = []
    with in_background(recognizer().stream(), events.append) as background:
        background.push(talk().repeat_interleave(2), 2 * RATE)
    assert background.stream.time == pytest.approx(talk().numel() / RATE, abs=0.01)


def test_a_thread_leaves_out_partials_when_behind(in_background):
    """All chunks wait while the model is held: only finals are decoded, and they are the same."""
    asr, events = recognizer(), []
    with asr.lock:
        background = in_background(asr.stream(), events.append)
        for chunk in talk().split(1600):
            background.push(chunk)
    background.finish()
    assert finals(events) == finals(run(recognizer(), talk())[0])
    assert background.stream.stats.partial_decodes <= 4 < run(recognizer(), talk())[1].partial_decodes


def test_a_thread_is_behind_where_more_than_one_waits(in_background):
    stream, events = SlowStream(), []
    background = in_background(stream, events.append)
    background.push(1)
    assert stream.begun.wait(10)
    for chunk in (2, 3, 4):
        background.push(chunk)
    let_go_at_join(background)
    background.finish()
    assert stream.pushed == [(1, None, True), (2, None, False), (3, None, False), (4, None, True)]
    assert events == [1, 2, 3, 4] and stream.ended == ["finish", "close"]


def test_a_thread_is_not_behind_where_a_moment_waits(in_background):
    """Calls come in chunks of 20 ms: several wait behind each look, and the next pause is still told early."""
    stream = SlowStream(seconds=0.02)
    background = in_background(stream, print)
    background.push(1)
    assert stream.begun.wait(10)
    for chunk in range(2, 13):
        background.push(chunk)
    let_go_at_join(background)
    background.finish()
    assert [partials for *_, partials in stream.pushed] == [True, *[False] * 4, *[True] * 7], "0.16 s and more is late"


@pytest.mark.parametrize("end", ("close", "exit"))
def test_a_thread_that_is_closed_drops_what_waits(in_background, end):
    stream, events = SlowStream(), []
    background = in_background(stream, events.append, waiting=5)
    background.push(1)
    assert stream.begun.wait(10)
    for chunk in (2, 3):
        background.push(chunk)
    let_go_at_join(background)
    background.close() if end == "close" else background.__exit__(KeyError)
    assert [chunk for chunk, *_ in stream.pushed] == [1] and stream.ended == ["close"]
    assert not background._thread.is_alive() and background._chunks.maxsize == 5
    with pytest.raises(StreamFinishedError):
        background.push(4)


def test_errors_in_a_thread_are_told(in_background):
    told, events = [], []
    with in_background(recognizer().stream(), events.append, told.append) as background:
        background.push(torch.full((160,), torch.nan))
        background.push(torch.cat([spoken(range(4)), silence(1)]))
    assert [type(error) for error in told] == [AudioError] and said(events) == [0, 1, 2, 3]
    background = in_background(recognizer().stream(), events.append, told.append)
    background.push(value for value in (0.0, 1.0))
    background.finish()
    assert [type(error) for error in told[1:]] == [AudioError]
    background = in_background(recognizer().stream(), events.append)
    background.push(torch.full((160,), torch.nan))
    with pytest.raises(AudioError, match="NaN"):
        background.finish()

    def broken(event):
        raise ValueError("no screen")

    background = in_background(recognizer().stream(), broken)
    background.push(torch.cat([spoken(range(4)), silence(1)]))
    with pytest.raises(ValueError, match="no screen"):
        background.finish()


def test_a_callback_that_fails_is_called_for_the_next_event(in_background):
    told, calls = [], []

    def broken(event):
        calls.append(event)
        raise ValueError("no screen")

    samples = torch.cat([spoken(range(4)), silence(1)])
    with in_background(recognizer().stream(), broken, told.append) as background:
        background.push(samples)
    assert calls == run(recognizer(), samples)[0] and len(told) == len(calls) > 1


def test_a_push_tells_an_earlier_error_and_is_not_lost(in_background):
    events = []
    background = in_background(recognizer().stream(), events.append)
    background.push(torch.full((160,), torch.nan))
    began = time.monotonic()
    while background._errors.empty() and time.monotonic() < began + 10:
        time.sleep(0.001)
    with pytest.raises(AudioError, match="NaN"):
        background.push(torch.cat([spoken(range(4)), silence(1)]))
    background.push(silence(1))
    background.finish()
    assert said(events) == [0, 1, 2, 3]


def test_a_thread_that_is_closed_stops(in_background):
    asr, events = recognizer(), []
    with (
        pytest.raises(KeyError),
        in_background(asr.stream(), events.append, waiting=100_000) as background,
    ):
        raise KeyError
    assert not background._thread.is_alive() and events == []
    with pytest.raises(SettingError):
        BackgroundStream(asr.stream(), print, waiting=0)


def test_an_error_of_what_is_told_of_errors_is_raised_too(in_background):
    """And the thread lives on, so that nothing waits for it."""
    told, stream = [], SlowStream()
    stream.go_on.set()

    def wrong(*_):
        told.append(1)
        raise KeyError("of the handler")

    stream.push = wrong
    background = in_background(stream, print, wrong, waiting=1)
    with pytest.raises(KeyError, match="of the handler"):
        for _ in range(50):
            background.push(silence(0.1))
            time.sleep(0.01)
    assert background._thread.is_alive() and told


def leaving(*_):
    sys.exit("enough")


@pytest.mark.parametrize("on_error", (None, lambda error: None))
def test_a_callback_that_leaves_is_heard_of(in_background, on_error):
    """Whoever pushes does not wait for the thread, and neither goes on nor ends as if all was well."""
    background = in_background(recognizer().stream(), leaving, on_error, waiting=1)
    with pytest.raises(SystemExit, match="enough"):
        for chunk in [*talk().split(1600), *talk().split(1600)]:
            background.push(chunk)
    for again in (lambda: background.push(silence(0.1)), background.finish):
        with pytest.raises(SystemExit, match="enough"):
            again()
    assert not background._thread.is_alive()
    with pytest.raises(StreamFinishedError):
        background.stream.push(silence(1))


def test_a_callback_that_leaves_at_the_end_is_heard_of(in_background):
    background = in_background(recognizer().stream(), lambda event: isinstance(event, Final) and leaving())
    background.push(spoken(range(4)))
    with pytest.raises(SystemExit, match="enough"):
        background.finish()
    assert not background._thread.is_alive()


@pytest.mark.parametrize("end", ("close", "finish"))
def test_a_thread_that_has_ended_leaves_a_closed_stream(in_background, end):
    stream = recognizer().stream()
    background = in_background(stream, print)
    getattr(background, end)()
    for ended in (background, stream):
        with pytest.raises(StreamFinishedError):
            ended.push(silence(1))


def test_the_buffer():
    buffer, chance = SampleBuffer(), random.Random(1)
    numbers = torch.arange(200_000.0)
    place = 0
    while place < 200_000:
        count = chance.randrange(0, 3000)
        buffer.append(numbers[place : place + count])
        place += count
        buffer.drop_before(buffer.end - 5000)
        assert torch.equal(buffer.read(buffer.start, buffer.end), numbers[buffer.start : buffer.end])
    assert buffer.end == 200_000 and buffer.start == 195_000 and len(buffer._samples) <= 32_000
    buffer.drop_before(100)
    assert buffer.start == 195_000, "what was let go does not come back"
    buffer.read(195_000, 195_010).zero_()
    assert torch.equal(buffer.read(195_000, 195_010), numbers[195_000:195_010]), "it gives copies"
    with pytest.raises(IndexError):
        buffer.read(199_000, 200_001)
    buffer.drop_before(300_000)
    assert buffer.start == buffer.end == 200_000
    fresh = SampleBuffer()
    fresh.append(numbers[:20_000])
    assert len(fresh._samples) == 40_000, "room for as much again"
    buffer.append(numbers[:3])
    buffer.drop_before(200_001)
    with pytest.raises(IndexError):
        buffer.read(0, 10)


class Letters:
    """A processor of a model that was never trained: each token is a word."""

    all_special_ids: tuple[int, ...] = ()

    @property
    def tokenizer(self):
        return self

    def decode(self, tokens, skip_special_tokens=True):
        return "".join(self.convert_ids_to_tokens(tokens)).replace("▁", " ")

    def convert_ids_to_tokens(self, tokens):
        return [f"▁{token}" for token in tokens]


def test_an_encoder_that_appends_hears_each_frame_once():
    """Moonshine v2 with random weights: finals are those of a plain decode, chunks do not matter, text only grows."""
    model = moonshine_streaming(**ENCODER)
    samples = torch.cat([spoken(range(12)), silence(0.8), spoken(range(4)), silence(0.8)])
    asr = StreamingRecognizer(model, Letters(), policy=AppendOnly(), endpoint=EnergyEndpoint())
    encode, whole = asr.adapter.encode, []
    asr.adapter.encode = lambda piece: whole.append(piece) or encode(piece)
    events, stats = run(asr, samples)
    assert whole == [] and stats.partial_decodes > 6  # only ever by GrowingAudio
    assert run(asr, samples, 160)[0] == run(asr, samples, 80_000)[0] == events
    run(StreamingRecognizer(asr.adapter, policy=AppendOnly(), endpoint=EnergyEndpoint(longest=2)), samples)
    assert whole == [], "nor behind a cut"
    assert len(finals(events)) == 2
    for final in finals(events):
        piece = samples[round(final.start * RATE) : round(final.end * RATE)]
        assert decode(asr.adapter, encode(piece), asr.adapter.prompt()).tokens == final.tokens
    stable = ""
    for event in events:
        if isinstance(event, Partial):
            assert event.stable == stable + event.delta
        stable = event.stable if isinstance(event, Partial) else ""
