"""The speech benchmark: its figures on scripted results, and its page from made-up rows."""

import json
from types import SimpleNamespace

import pytest
import scripted_recognizer as scripted
import torch
from scripted_recognizer import TEXT, talk
from tiny_codec import TINY
from tiny_recognisers import moonshine_streaming
from transformers import DynamicCache

from mmaccel.bench import pages
from mmaccel.cache.argument import cached
from mmaccel.comparison import results
from mmaccel.errors import SettingError
from mmaccel.speech import examples
from mmaccel.speech.audio.endpoint import EnergyEndpoint
from mmaccel.speech.audio.recordings import Recording, own_recordings, word_errors
from mmaccel.speech.bench import benchmark, page
from mmaccel.speech.bench import drafts as benchmark_drafts
from mmaccel.speech.bench import parts as benchmark_parts
from mmaccel.speech.bench.judged import described, judged
from mmaccel.speech.bench.listeners import (
    ChunkListener,
    Listener,
    MeasuredRecognizer,
    MoonshineVoiceListener,
    StreamListener,
)
from mmaccel.speech.bench.playback import listen, play
from mmaccel.speech.families.adapter import Word
from mmaccel.speech.families.moonshine import MoonshineAdapter
from mmaccel.speech.families.moonshine_streaming import MoonshineStreamingAdapter
from mmaccel.speech.stream.events import Endpoint, Final
from mmaccel.testing.untrained import untrained

pytest.importorskip("jiwer")


def recordings():
    words = (Word("w0", 0.5, 0.74), Word("w1", 0.82, 1.06))
    return [Recording("talk", talk(), TEXT, words)]


def recognizer(**settings):
    return MeasuredRecognizer(scripted.ScriptedAdapter(), endpoint=EnergyEndpoint(), **settings)


def streamed(**settings):
    asr = recognizer(**settings)
    return asr, listen({"ours": lambda: StreamListener(asr.stream())}, recordings())["ours"]


class Scripted(Listener):
    """Shows word `n` after `n` chunks, and promises it two later; takes no time."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def push(self, chunk):
        self.count += 1
        self.shown = [f"w{n}" for n in range(self.count)]
        self.promised = self.shown[:-2]
        self.ended += [(0.25, False)] if self.count == 5 else []

    def finish(self):
        self.promised = self.shown


def test_lags_on_a_script():
    """Words end at 0.1, 0.2, ... and are shown then; promised 0.2 s later, the last two at the end."""
    words = tuple(Word(f"w{n}", 0.1 * n, 0.1 * n + 0.1) for n in range(5))
    take = play(Scripted(), torch.zeros(8000))
    found = benchmark.lags([Recording("made up", torch.zeros(8000), "", words)], [take])
    assert found["shown_lag"]["heard_p50"] == pytest.approx(0) and found["shown_lag"]["heard_p90"] == pytest.approx(0)
    # 0.2 for w0, w1, w2, then 0.1 and 0 at the end
    assert found["promised_lag"]["heard_p50"] == pytest.approx(0.2)
    assert found["first_text"]["heard"] == pytest.approx(0.1)
    # w2 began last before the pause at 0.25 and ended at 0.3; its final came at 0.5
    assert found["finalisation"]["heard_p50"] == pytest.approx(0.2)
    assert found["finalisation"]["ready_p50"] >= 0.2


class Early(Scripted):
    """Tells a text early after three chunks and takes it back, tells it again after five, and ends after seven."""

    def push(self, chunk):
        super().push(chunk)
        self.ended = [(0.25, True)] if self.count == 7 else []
        self.is_early = self.count in (3, 5, 6)


def test_early_ends_on_a_script():
    words = tuple(Word(f"w{n}", 0.1 * n, 0.1 * n + 0.1) for n in range(5))
    take = play(Early(), torch.zeros(16_000))
    assert take.tellings == 2
    found = benchmark.lags([Recording("made up", torch.zeros(16_000), "", words)], [take])
    assert found["eager"]["heard_p50"] == pytest.approx(0.2) and found["finalisation"]["heard_p50"] == pytest.approx(
        0.4
    )
    assert (found["eager"]["early"], found["eager"]["finals"], found["eager"]["tellings"]) == (1, 1, 2)


def test_a_stream_tells_its_listener_of_early_ends():
    class Sentences(scripted.ScriptedAdapter):
        def text(self, tokens):
            return super().text(tokens) + "."

    asr = MeasuredRecognizer(Sentences(), endpoint=EnergyEndpoint())
    heard = listen({"ours": lambda: StreamListener(asr.stream())}, recordings())["ours"]
    found = benchmark.lags(recordings(), heard.playbacks)
    assert found["eager"]["early"] == found["eager"]["tellings"] >= 1
    assert found["eager"]["heard_p50"] < found["finalisation"]["heard_p50"]


def test_the_pause_of_a_noise_is_not_that_of_the_words_behind_it():
    """A cough had no words; the speech behind it is cut by its length, and only then ends at a pause."""
    final = Final("w1", (), 2.0, 17.0)
    told = iter([[Endpoint(1.0)], [final], [Endpoint(20.0), final]])
    listener = StreamListener(SimpleNamespace(push=lambda chunk: next(told), finish=list))
    ended = []
    for _ in range(3):
        listener.push(torch.zeros(800))
        ended.append(list(listener.ended))
    assert ended == [[], [], [(20.0, False)]]


def test_rows_of_streams():
    asr, heard = streamed()
    row = benchmark.stream_row(
        "scripted", "LocalAgreement", recordings(), heard, 0.0, {}, **benchmark.streamed(heard, asr)
    )
    assert row["quality"] == 0 and row["texts"] == [TEXT] and row["retracted_share"] == 0
    assert row["decoder_calls"] == asr.adapter.target.calls > 0
    assert row["real_time_factor"] == pytest.approx(row["cpu_seconds"] / row["audio_seconds"])
    assert json.loads(json.dumps(row)) == row and set(results.COLUMNS) <= set(row)


def test_each_model_runs_as_in_the_recogniser_of_a_user(monkeypatch):
    """A twin, whose layers take the fastest way for the few rows of a draft."""
    models = {
        "moonshine-tiny": (examples.moonshine()[0], examples.moonshine_processor()),
        "whisper-tiny.en": (examples.whisper()[0], examples.whisper_processor()),
    }
    measured = []
    monkeypatch.setattr(benchmark, "load", models.get)
    monkeypatch.setattr(benchmark, "_model_rows", lambda _, adapter, *__, **___: measured.append(adapter) or [])
    for name in ("encoder_rows", "codec_rows", "generate_rows"):
        monkeypatch.setattr(benchmark, name, lambda *_, **__: [])
    monkeypatch.setattr(benchmark, "moonshine_voice_row", lambda _: {})
    assert list(benchmark._all([], full=False)) == [{}]
    assert [adapter.family for adapter in measured] == ["moonshine", "whisper", "whisper"]
    assert not any(adapter.target is model for adapter in measured for model, _ in models.values())


def test_drafts_save_calls_and_change_nothing():
    drafted, heard = streamed(drafts=True)
    plain, plainly = streamed(drafts=False)
    row = benchmark_drafts.draft_row("scripted", "drafts in the stream", heard, drafted, plainly, plain)
    assert row["refused"] is None and row["work_ratio"] < 0.6
    assert row["decoder_calls"] == drafted.adapter.target.calls
    assert row["baseline_decoder_calls"] == plain.adapter.target.calls


def test_a_row_whose_check_fails_has_no_figures():
    drafted, heard = streamed()
    plain, plainly = streamed(drafts=False)
    plainly.listeners[0].events.pop()
    row = benchmark_drafts.draft_row("scripted", "drafts in the stream", heard, drafted, plainly, plain)
    assert "refused" in row["refused"] and row["speedup"] is None and row["cpu_seconds"] is None
    part = benchmark_parts.part_row(1.0, 2.0, 1e-3, table="codec", model="m", method="c")
    assert "1.0e-03" in part["refused"] and part["speedup"] is None
    for error in (float("nan"), float("inf")):
        assert benchmark_parts.part_row(1.0, 2.0, error, table="codec", model="m", method="c")["refused"]


def test_one_growing_segment(monkeypatch):
    asr = recognizer()
    samples = scripted.spoken(range(20))
    row = benchmark_drafts.growing_row("scripted", asr.adapter, samples)
    assert row["refused"] is None and row["work_ratio"] < 0.5
    assert row["decoder_calls"] + row["baseline_decoder_calls"] == asr.adapter.target.calls
    plain = benchmark_drafts.decode

    def wrong(adapter, encoded, prompt, draft):
        found = plain(adapter, encoded, prompt, draft)
        return type(found)((*found.tokens, 3), found.forwards, True) if draft else found

    monkeypatch.setattr(benchmark_drafts, "decode", wrong)
    row = benchmark_drafts.growing_row("scripted", asr.adapter, samples)
    assert "other tokens" in row["refused"] and row["speedup"] is None and "decoder_calls" not in row


def test_fixed_chunks_decode_pieces_apart():
    adapter = scripted.ScriptedAdapter()
    listener = ChunkListener(adapter, 1.0)
    take = play(listener, talk())
    assert adapter.encoded[:-1] == [16_000] * (len(adapter.encoded) - 1)
    assert sum(adapter.encoded) == len(talk()) and listener.decoder_calls == adapter.target.calls
    assert take.text != TEXT  # words at the seams are lost


def test_moonshine_voice_lines_become_words():
    class Stream:
        def add_listener(self, listener):
            self.tell = listener

        def start(self):
            self.count = 0

        def add_audio(self, samples, rate):
            assert rate == 16_000 and isinstance(samples, list)
            self.count += 1
            if self.count == 1:
                self.tell(event("LineTextChanged", "hello", False))
            if self.count == 3:
                self.tell(event("LineCompleted", "hello world", True))

        def stop(self):
            pass

        close = stop

    def event(kind, text, complete):
        line = SimpleNamespace(line_id=7, text=text, is_complete=complete, start_time=0.0, duration=0.15)
        return type(kind, (), {"line": line})()

    take = play(MoonshineVoiceListener(SimpleNamespace(create_stream=lambda interval: Stream())), torch.zeros(6400))
    assert [(round(step[0], 3), step[2], step[3]) for step in take.history] == [
        (0.1, [], ["hello"]),
        (0.3, ["hello", "world"], ["hello", "world"]),
    ]
    assert take.text == "hello world" and [end for end, *_ in take.finals] == [0.15]


def test_word_errors_ignore_case_and_punctuation():
    assert word_errors(["Try again.", "Fail better."], ["try again", "Fell better"]) == 0.25


def test_encoder_and_generate_on_small_models():
    v2, samples = moonshine_streaming(scale=1.0), examples.sound(1, 16_000)[0]
    with torch.no_grad():
        row = benchmark_parts.compare_encoders(MoonshineStreamingAdapter(v2), samples, [8000, 16_000], 1)
    assert row["refused"] is None and row["error"] < 1e-5

    adapter = MoonshineAdapter(examples.moonshine()[0])
    adapter.processor = examples.moonshine_processor()
    pieces = [[samples, samples], [samples[:8000]]]
    before = set(vars(adapter.target))
    exact, lossy = benchmark_parts.generate_rows("tiny", adapter, pieces, ["a b", "c"], word_errors)
    assert exact["refused"] is None and exact["quality"] == exact["baseline_quality"]
    # the second piece is the first again
    assert exact["decoder_calls"] < exact["baseline_decoder_calls"] and not lossy["exact"]
    assert set(vars(adapter.target)) == before


def test_codec_blocks():
    from transformers import MimiConfig, MimiModel

    model = untrained(lambda: examples.audible(MimiModel(MimiConfig(**TINY))))
    codes = torch.randint(0, 64, (1, 4, 8), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        whole = model.decode(codes, **cached(DynamicCache(config=model.config), "decoder_")).audio_values
        row = benchmark_parts.compare_codecs(model, codes, whole, 2)
    assert row["refused"] is None and row["error"] < 1e-5 < 0.01 < row["baseline_error"]


@pytest.fixture
def result():
    drafted, heard = streamed()
    plain, plainly = streamed(drafts=False)
    more = benchmark.streamed(heard, drafted)
    rows = [
        benchmark.offline_row("scripted", recognizer(), recordings()),
        benchmark.stream_row("scripted", "LocalAgreement", recordings(), heard, 0.0, {"n": 2}, **more),
        benchmark.stream_row("scripted", "fixed chunks", recordings(), heard, 0.0, {"seconds": 3.0}),
        benchmark_drafts.draft_row("scripted", "drafts in the stream", heard, drafted, plainly, plain),
        benchmark_parts.part_row(
            1.0, 4.0, 1e-7, table="encoder", model="v2", method="cached encoder", settings={"seconds": 8, "updates": 16}
        ),
        *(
            benchmark_parts.part_row(
                0.04,
                0.05,
                0.0 if block == 1 else 1.0,
                table="codec",
                model="Mimi, untrained",
                method="blocks",
                settings={"block": block},
                baseline_error=0.5,
            )
            for block in (1, 2)
        ),
    ]
    return results.result(rows)


def test_the_page_says_what_was_measured_and_hides_nothing(result, tmp_path):
    pytest.importorskip("matplotlib")
    assert json.loads(json.dumps(result)) == result
    benchmark.BENCHMARK.write_page(result, tmp_path / "speech.md")
    text = (tmp_path / "speech.md").read_text()
    assert (tmp_path / "speech.png").stat().st_size > 1000
    assert "| v2 | 1.00 | 4.00 | 4.00x | 1.0e-07 |" in text and "| 1 | 40 ms | 50 ms | 1.25x |" in text
    refused = [line for line in text.splitlines() if "refused: " in line]
    reason = "refused: differs by 1.0e+00 of the largest value, where 1e-05 is allowed"
    assert refused == [f"| Mimi, untrained | {reason} |  |  |  |  |"]
    assert "scripted | LocalAgreement | 6 s | 0.0% | +0.0" in text and "fixed chunks of 3 s" in text
    assert "one word is 7.1 points" in text  # 14 words
    assert "## As the streams count" in text and "| 0 of " in text
    assert pages.table(result)  # the command line's own table takes the rows


def test_a_folder_of_sentences_is_a_recording_for_each_voice(tmp_path, monkeypatch):
    wavfile = pytest.importorskip("scipy.io.wavfile")
    texts = {"ann1.wav": "one two", "bob.wav": "five", "ann2.wav": "three"}
    for number, name in enumerate(texts, 1):
        wavfile.write(tmp_path / name, 16_000, torch.full((1600 * number,), 0.1).numpy())
    (tmp_path / "texts.json").write_text(json.dumps(texts))
    monkeypatch.setenv("MMACCEL_RECORDINGS", str(tmp_path))
    ann, bob = own_recordings()
    assert (ann.name, ann.text, bob.name, bob.text) == ("ann", "one two three", "bob", "five")
    assert len(ann.samples) == 1600 + 16_000 + 4800 and not ann.samples[1600:17_600].any() and len(bob.samples) == 3200
    for wrong, hint in (
        ("[]", "no texts"),
        ("{}", "no texts"),
        ('{"bob.wav": 5}', "no texts"),
        ("{", "cannot be read"),
        (f'{{"bob.wav": "{"x" * 2**20}"}}', "cannot be read"),
        ('{"eve.wav": "x"}', "names eve.wav"),
    ):
        (tmp_path / "texts.json").write_text(wrong)
        with pytest.raises(SettingError, match=hint):
            own_recordings()
    monkeypatch.delenv("MMACCEL_RECORDINGS")
    assert own_recordings() == []


def test_a_short_recording_counts_in_the_mean_and_can_be_the_worst():
    said = [Recording("long", torch.zeros(16_000), "a b c d e f g h"), Recording("short", torch.zeros(8000), "i j")]
    row = judged(said, ["a b c d e f g h", "i k"])
    assert (row["quality"], row["quality_mean"], row["quality_worst"]) == (0.1, 0.25, 0.5)
    assert row["errors"] == {"long": 0.0, "short": 0.5}
    lengths = [{"name": "long", "seconds": 1.0, "words": 8}, {"name": "short", "seconds": 0.5, "words": 2}]
    assert described(said) == {"recordings": lengths, "said": 10}


def test_the_page_says_how_much_was_heard_and_what_is_not_shipped(result):
    text = benchmark.BENCHMARK.page(result, "speech.json", "speech.png")
    assert "on 6 s of human speech, 14 words in 1 recordings" in text
    assert "`talk` of a folder that is not shipped" in text
    assert "| model | way | mean | talk, 6 s, 14 words |" in text
    packaged = [{"name": name, "seconds": 1.0, "words": 7} for name in ("beckett.wav", "two_cities.wav")]
    row = {**result["rows"][0], "recordings": packaged}
    assert page.facts([row])["heard"] == "`beckett.wav` and `two_cities.wav` of the wheel `moonshine-voice`"
