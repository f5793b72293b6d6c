"""Comparisons of recognisers: segments, word errors, what is not carried from run to run, and the bench's figures."""

import functools
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

import mmaccel
from mmaccel import speech
from mmaccel.adapter import find_adapter
from mmaccel.cli import main as cli
from mmaccel.comparison.trial import trial_of
from mmaccel.errors import AudioError, MissingExtraError, SettingError
from mmaccel.method import Method
from mmaccel.patching import override
from mmaccel.report import Report
from mmaccel.speech import examples
from mmaccel.speech.audio.endpoint import EnergyEndpoint
from mmaccel.speech.audio.recordings import word_errors
from mmaccel.speech.bench import parts as benchmark_parts
from mmaccel.speech.comparing import RecognizerTrial, Transcription, _total, cut, name_of, recording
from mmaccel.speech.families.moonshine import MoonshineAdapter
from mmaccel.testing.contract import snapshot

pytest.importorskip("jiwer")
RATE = 16_000
REPEATING = speech.SuffixDraft(block=8, shortest=1)


@pytest.fixture(scope="module")
def moonshine():
    return examples.moonshine()[0], examples.moonshine_processor()


@pytest.fixture(scope="module")
def whisper():
    return examples.whisper()[0], examples.whisper_processor()


def said(seconds=1.0, seed=0):
    return examples.sound(1, round(seconds * RATE), seed)[0]


def compare(model, *methods, **more):
    target, processor = model
    call = {"audio": said(), "endpoint": None, "rounds": 1, **more}
    return mmaccel.compare(target, *methods, processor=processor, **call)


def trial(model, **inputs):
    target, processor = model
    return trial_of(find_adapter(target), {"audio": said(), "endpoint": None, **inputs}, processor)


def test_an_exact_method_beside_a_lossy_one(moonshine):
    before = snapshot(moonshine[0])
    found = compare(moonshine, REPEATING, speech.MergeAudioTokens(keep=0.3, threshold=-1))
    assert snapshot(moonshine[0]).keys() == before.keys()
    plain, exact, lossy = found.rows
    assert exact["equal"] and exact["exact"] and exact["quality"] == 0 and exact["metrics"]["same"] == 1
    assert exact["work_ratio"] < 1 and not exact["idle"]
    assert not lossy["equal"] and lossy["quality"] > 0 and lossy["metrics"]["same"] == 0
    assert [metric.key for metric in found.metrics] == ["changed", "same"] and plain["speedup"] == 1
    headings, lines = found.table()
    assert lines[0][headings.index("words changed")] == "", "beside itself the plain text says nothing"
    assert "no simple alternative: every token of a text has to be decoded" in str(found)


def test_no_run_begins_with_the_words_of_the_run_before(moonshine):
    """SuffixDraft would know the whole text from the second run on, and no other recording has it."""
    found = compare(moonshine, REPEATING, rounds=3, max_new_tokens=40)
    made = trial(moonshine, max_new_tokens=40)
    with mmaccel.accelerate(moonshine[0], REPEATING) as session:
        fresh, again = (made.report(session, made.run(session, 0))["work_ratio"] for _ in range(2))
    assert again < fresh, "the same session knows them"
    assert found.rows[1]["work_ratio"] == pytest.approx(fresh)


def test_several_recordings_and_what_is_said_in_them(moonshine):
    texts = trial(moonshine, audio=[said(), said(0.6, 4)])
    plain = texts.texts(texts.run(moonshine[0], 0))
    reference = [plain[0], f"{plain[1]} more"]
    found = compare(moonshine, REPEATING, audio=[said(), said(0.6, 4)], reference=reference)
    missing = word_errors(reference, plain, english=False)
    assert found.rows[0]["quality"] == found.rows[1]["quality"] == missing > 0
    assert found.rows[1]["metrics"] == {"errors": missing, "changed": 0, "same": 1}
    assert found.pairs[0].plain.texts == plain
    assert found.pairs[0].plain.names == ["recording 1, 1.0 s", "recording 2, 0.6 s"]
    assert found.result["header"]["call"] == {"audio": ["recording 1, 1.0 s", "recording 2, 0.6 s"]}


@pytest.mark.parametrize(
    ("reference", "heard", "expected"),
    (
        ("Um die Straße", "die Straße", 1 / 3),
        ("मेरा घर।", "मेरी घर", 1 / 2),
        ("\u4eca\u5929\u5f88\u597d\u3002", "\u4eca\u5929\u4e0d\u597d", 1 / 4),
        ("Zażółć, GĘŚLĄ!", "zażółć gęślą", 0),
        ("cafe\u0301", "caf\u00e9", 0),
    ),
)
def test_words_of_other_languages_are_counted_whole(reference, heard, expected):
    assert word_errors([reference], [heard], english=False) == pytest.approx(expected)


def judge(found, references, texts):
    """Word errors as a trial counts them that heard these texts."""
    found.references, found.texts = references, lambda output: texts
    return found.judge(Transcription(), Transcription())["errors"]


def test_english_is_counted_as_leaderboards_do_where_it_is_english(moonshine, whisper):
    def is_english(model, **call):
        return judge(trial(model, **call), ["um, I'm sure"], ["I am sure"]) == 0

    target, processor = examples.moonshine()[0], moonshine[1]
    assert not is_english((target, processor)), "nobody says which language"
    for name, expected in (("moonshine-tiny", True), ("UsefulSensors/moonshine-tiny-ja", False)):
        target.name_or_path = name
        assert is_english((target, processor)) == expected
    assert is_english(whisper), "it has no other"
    multilingual = examples.whisper()[0]
    marks = {"is_multilingual": True, "lang_to_id": {"<|en|>": 20, "<|de|>": 21}, "task_to_id": {"transcribe": 30}}
    for name, value in marks.items():
        setattr(multilingual.generation_config, name, value)
    told = [is_english((multilingual, whisper[1]), language=language) for language in ("english", "de")]
    assert told == [True, False]
    assert is_english((multilingual, whisper[1]), language="de", task="translate"), "a translation is English"
    adapter = find_adapter(multilingual)
    adapter.processor = whisper[1]
    assert is_english((multilingual, whisper[1])) == (adapter.detect_language(adapter.encode(said())) == "en")
    multilingual.generation_config.task = "translate"
    assert is_english((multilingual, whisper[1])), "nor is another the checkpoint's own"


def test_each_recording_counts_by_its_own_language(moonshine, monkeypatch):
    """One of another language does not take the leaderboards' normaliser from the others."""
    languages = iter(("en", "de"))
    monkeypatch.setattr(MoonshineAdapter, "language_of", lambda self, encoded: next(languages))
    found = trial(moonshine, audio=[said(), said(0.6, 4)])
    assert found.languages == ["en", "de"]
    assert judge(found, ["um, I'm sure", "um die Ecke"], ["I am sure", "die Ecke"]) == 1 / 6


def test_only_a_model_that_detects_its_language_hears_a_recording_before_the_runs(moonshine, monkeypatch):
    heard = []
    encode = MoonshineAdapter.encode
    monkeypatch.setattr(MoonshineAdapter, "encode", lambda self, samples: heard.append(1) or encode(self, samples))
    trial(moonshine)
    assert not heard
    monkeypatch.setattr(MoonshineAdapter, "detects", True)
    trial(moonshine)
    assert heard


def test_the_report_of_a_run_adds_up_its_calls(moonshine):
    one, other = said(), said(0.6, 4)
    together = trial(moonshine, audio=[one, other])
    with mmaccel.accelerate(moonshine[0], REPEATING) as session:
        output = together.run(session, 0)
        total = together.report(session, output)
    assert total["forwards"] == sum(report.forwards for report in output.reports) and len(output.reports) == 2
    assert total["tokens"] == sum(report.tokens for report in output.reports) and total["engaged"]
    assert total["work_ratio"] == total["forwards"] / total["plain_forwards"]


def test_recordings_are_cut_where_a_stream_cuts_them(moonshine):
    tone = 0.5 * torch.sin(torch.arange(RATE) * 0.3)
    talk = torch.cat([torch.zeros(RATE // 2), tone, torch.zeros(RATE), tone, torch.zeros(RATE // 2)])
    policy = EnergyEndpoint()
    parts = cut(talk, policy)
    with speech.StreamingRecognizer(*moonshine, endpoint=policy).stream(update_interval=None) as stream:
        events = stream.push(talk) + stream.finish()
    finals = [event for event in events if isinstance(event, speech.Final)]
    assert len(parts) == 2 and [len(part) for part in parts] == [round((f.end - f.start) * RATE) for f in finals]
    made = trial(moonshine, audio=talk, endpoint=policy)
    assert len(made.calls) == 1 and len(made.calls[0]) == 2
    assert len(made.texts(made.run(moonshine[0], 0))) == 1


def test_the_arguments_of_generate_in_a_batch(moonshine):
    target, processor = moonshine
    call = examples.moonshine()[1](batch=3)
    found = mmaccel.compare(target, REPEATING, rounds=1, processor=processor, **call)
    assert found.rows[1]["equal"] and not found.rows[1]["idle"]
    assert found.pairs[0].plain.names == ["row 1", "row 2", "row 3"] and len(set(found.pairs[0].plain.texts)) == 3


def test_a_shorter_window_of_whisper(whisper):
    target, _ = whisper
    made = trial(whisper)
    assert (made.count, made.least) == (5, 3), "1 s of speech and 2 s behind it, of 5 s"
    whole, short = made.run(target, 0), made.run(target, 0, fewer=3)
    heard = []
    handle = target.get_decoder().register_forward_pre_hook(
        lambda _, args, kwargs: heard.append(kwargs["encoder_hidden_states"].shape[1]), with_kwargs=True
    )
    made.run(target, 0, fewer=3)
    handle.remove()
    assert set(heard) == {150}, "50 positions a second"
    assert made.run(target, 0, fewer=5).tokens == whole.tokens != short.tokens
    assert trial(whisper, audio=said(4.0)).least > 5
    own = trial_of(find_adapter(target), examples.whisper()[1](), whisper[1])
    assert own.count == 0 and "give audio=" in own.no_simple


def test_a_warning_of_some_calls_says_how_many(moonshine, register):
    @register("speech")
    @dataclass(frozen=True)
    class Once(Method):
        """Engages in the first call of a session."""

        paper = "Nobody, 2026"

        def attach(self, session, stack: ExitStack) -> None:
            original, calls = session.target.generate, []

            def generate(*args, **kwargs):
                session.report.start()
                calls.append(1)
                session.report.engaged = len(calls) == 1
                session.report.warnings += [] if len(calls) == 1 else ["this was the second"]
                return original(*args, **kwargs)

            override(stack, session.target, "generate", generate)

    found = compare(moonshine, Once(), audio=[said(), said(0.6, 4), said(0.5, 2)])
    assert found.rows[1]["warnings"] == ["in 2 of 3 calls this was the second"] and not found.rows[1]["idle"]


@pytest.mark.parametrize("family", ("moonshine", "whisper"))
def test_the_figures_of_the_benchmark(family, request, monkeypatch):
    """The same work there and here: everything but time agrees exactly."""
    target, processor = request.getfixturevalue(family)
    monkeypatch.setattr(type(processor), "__call__", lambda self, *a, **k: self.feature_extractor(*a, **k))
    adapter = find_adapter(target)
    adapter.processor = processor
    recordings, texts = [said(), said(0.6, 4)], ["w5 w6 w7", "w20 w21"]
    errors = functools.partial(word_errors, english=adapter.only_language == "en")
    table = benchmark_parts.generate_rows("tiny", adapter, [[r] for r in recordings], texts, errors)
    drafted, merged = table
    methods = (speech.SuffixDraft(), speech.MergeAudioTokens())
    found = compare((target, processor), *methods, audio=recordings, reference=texts, simple=False)
    plain, ours, lossy = found.rows
    assert plain["quality"] == ours["baseline_quality"] == drafted["baseline_quality"]
    for name in ("method", "settings", "exact", "work_ratio", "quality"):
        assert ours[name] == drafted[name], name
    for name in ("method", "settings", "exact", "quality"):
        assert lossy[name] == merged[name], name
    assert ours["equal"] and drafted["refused"] is None and drafted["work_ratio"] < 1
    counted = trial((target, processor), audio=recordings)
    tokens = [row for recording in counted.run(target, 0).tokens for row in recording]
    written = benchmark_parts.Segments(adapter, [[r] for r in recordings]).run(target, 0)
    assert tokens == [row for recording in written.tokens for row in recording]


@pytest.mark.parametrize(
    ("inputs", "error", "hint"),
    (
        ({"audio": []}, AudioError, "at least one recording"),
        ({"audio": torch.zeros(0)}, AudioError, "recording 1 holds 0 samples"),
        ({"audio": torch.full((800,), torch.nan)}, AudioError, "800 of 800 samples are NaN"),
        ({"audio": "missing.wav"}, AudioError, "missing.wav does not exist"),
        ({"audio": torch.zeros(RATE), "endpoint": EnergyEndpoint()}, AudioError, "no speech in recording 1, 1.0 s"),
        ({"audio": said(31.0)}, AudioError, r"31.0 s in one call, where 30 s fit: leave out endpoint=None"),
        ({"reference": ["one", "two"]}, SettingError, "each of 1 recordings"),
        ({"reference": " "}, SettingError, "as words"),
        ({"audio": None}, SettingError, "nothing to transcribe"),
        ({"endpoint": "loud"}, ValueError, "unknown endpoint 'loud'"),
    ),
)
def test_bad_input(moonshine, inputs, error, hint):
    with pytest.raises(error, match=hint):
        compare(moonshine, REPEATING, **inputs)


def test_words_need_a_processor(moonshine):
    with pytest.raises(SettingError, match="processor= is missing"):
        mmaccel.compare(moonshine[0], REPEATING, audio=said())


def test_calls_are_greedy_and_no_longer_than_speech_unless_asked_for(moonshine, whisper):
    (call,) = trial(moonshine).calls[0]
    assert call["max_length"] == 1 + find_adapter(moonshine[0]).limit(1.0) and call["do_sample"] is False
    assert trial(whisper).calls[0][0]["max_length"] == find_adapter(whisper[0]).limit(1.0), "its prompt does not count"
    for limit in ({"max_new_tokens": 3}, {"max_length": 3}, {"generation_config": moonshine[0].generation_config}):
        (call,) = trial(moonshine, **limit).calls[0]
        assert {name: call.get(name) for name in limit} == limit
        assert "max_length" in limit or "max_length" not in call


def test_seeds_count_where_tokens_are_drawn(moonshine):
    plain, drawn = trial(moonshine), trial(moonshine, do_sample=True)
    assert (plain.draws, plain.seedless) == (False, "without do_sample=True nothing is drawn")
    assert (drawn.draws, drawn.seedless) == (True, "") and drawn.calls[0][0]["do_sample"] is True
    first, again, other = (drawn.run(moonshine[0], seed).tokens for seed in (0, 0, 1))
    assert first == again != other


def test_outputs_with_more_than_tokens(moonshine):
    asked = trial(moonshine, return_dict_in_generate=True)
    assert asked.run(moonshine[0], 0).tokens == trial(moonshine).run(moonshine[0], 0).tokens


def test_audio_has_the_precision_of_the_model(moonshine):
    (call,) = trial((examples.moonshine()[0].bfloat16(), moonshine[1])).calls[0]
    assert call["input_values"].dtype == torch.bfloat16


def test_the_window_holds_the_longest_of_the_recordings(whisper):
    made = trial(whisper, audio=(said(2.0), said(1.0)))
    assert made.least == 4 and made.names == ["recording 1, 2.0 s", "recording 2, 1.0 s"]
    assert "fills the window" in made.no_simple
    short = made._shorter(made.calls[0][0], 4)["encoder_outputs"].last_hidden_state
    assert not short.requires_grad


def test_no_window_is_cut_of_an_encoder_that_is_compiled_or_replaced():
    model, processor = examples.whisper()[0], examples.whisper_processor()
    assert trial((model, processor)).count == 5
    model.model.encoder = torch.compile(model.model.encoder, backend="eager")
    made = trial((model, processor))
    assert made.count == 0 and "compiled or replaced" in made.no_simple


def test_words_are_judged_against_the_plain_text_and_the_reference(moonshine):
    made = trial(moonshine, audio=[said(), said(0.6, 4)], reference=["a b", "c"])
    made.texts = lambda output: output
    found = made.judge(["a b", "c d"], ["a", "c d"])
    assert found == {"errors": pytest.approx(2 / 3), "changed": 0.25, "same": 0.5}


def test_segments_without_words_leave_no_gap(moonshine):
    made = trial(moonshine)
    made.recogniser = SimpleNamespace(text=lambda tokens: "".join(tokens))
    assert made.texts(Transcription([["one", "", "two"], [""], ["\u4f60", "\u597d"]])) == [
        "one two",
        "",
        "\u4f60\u597d",
    ]


def test_figures_of_calls_are_added_up_by_hand():
    one = Report(["a"], False, forwards=2, plain_forwards=3, keys=4, plain_keys=5, tokens=6, wall_seconds=1.0)
    two = Report(["a"], False, forwards=10, plain_forwards=20, keys=30, plain_keys=40, tokens=50, wall_seconds=2.0)
    one.peak_extra_bytes, two.peak_extra_bytes, one.engaged, two.engaged = 70, 60, True, True
    one.warnings, two.warnings = ["first", "both"], ["both", "last"]
    total = _total([one, two])
    assert (total.methods, total.exact, total.engaged, total.peak_extra_bytes) == (["a"], False, True, 70)
    assert (total.forwards, total.plain_forwards, total.keys, total.plain_keys) == (12, 23, 34, 45)
    assert (total.tokens, total.wall_seconds) == (56, 3.0) and total.warnings == ["first", "both", "last"]
    one.engaged, one.warnings = False, []
    assert _total([one]).warnings == ["it did not engage"] and not _total([one]).engaged
    one.warnings = ["too short"]
    assert _total([one, two]).engaged and _total([one, two]).warnings == ["both", "last", "in 1 of 2 calls too short"]


def test_the_shortest_recording():
    assert recording(torch.zeros(1600), 3)[0] == "recording 3, 0.1 s"
    with pytest.raises(AudioError, match="holds 1599 samples, too few for a word: give at least 1600"):
        recording(torch.zeros(1599), 1)


def test_speech_until_the_last_sample_is_kept():
    tone = 0.5 * torch.sin(torch.arange(RATE + 100) * 0.3)
    (part,) = cut(torch.cat([torch.zeros(RATE), tone]), EnergyEndpoint())
    assert torch.equal(part[-len(tone) :], tone)


def test_a_converted_model_has_the_name_that_loads_it():
    names = {"/home/x/moonshine-tiny-0123abcd": "moonshine-tiny", "someone/else-0123": "", "moonshine-tiny": ""}
    assert {path: name_of(SimpleNamespace(name_or_path=path)) for path in names} == names
    assert name_of(object()) == ""


def test_word_errors_need_their_package(moonshine, monkeypatch):
    monkeypatch.setitem(sys.modules, "jiwer", None)
    with pytest.raises(MissingExtraError, match=r'pip install "mmaccel\[metrics\]"'):
        trial(moonshine)


def test_samples_can_be_numbers_and_arrays(moonshine):
    sound = said(0.3)
    calls = [trial(moonshine, audio=one).calls[0][0]["input_values"] for one in (sound, sound.numpy(), sound.tolist())]
    assert torch.equal(calls[0], calls[1]) and torch.equal(calls[0], calls[2])
    assert isinstance(trial(moonshine), RecognizerTrial)


@pytest.fixture
def files(tmp_path):
    wavfile = pytest.importorskip("scipy.io.wavfile")
    pytest.importorskip("av")
    tone = (0.5 * torch.sin(torch.arange(RATE) * 0.3) * 32767).to(torch.int16)
    gap = torch.zeros(RATE // 2, dtype=torch.int16)
    talk = torch.cat([gap, tone, gap]).numpy()
    wavfile.write(tmp_path / "talk.wav", RATE, talk)
    wavfile.write(tmp_path / "silence.wav", RATE, 0 * talk)
    (tmp_path / "empty.wav").touch()
    (tmp_path / "text.wav").write_text("no sound " * 99)
    return tmp_path


@pytest.fixture
def loaded(moonshine, monkeypatch):
    """The tiny model in the place of a checkpoint, and pauses by energy, which a tone is loud enough for."""
    monkeypatch.setattr("mmaccel.speech.families.weights.load", lambda *_: moonshine)
    monkeypatch.setattr("mmaccel.speech.comparing.find_endpoint", lambda _: EnergyEndpoint())


def test_the_command_line(files, loaded, capsys):
    talk, page = files / "talk.wav", files / "talk.html"
    words = ["compare", "speech", str(talk), str(talk), "--rounds", "1", "--method", "speech.SuffixDraft"]
    assert cli.main([*words, "--reference", "w3 w5", "--reference", "w3", "-o", str(page)]) == 0
    out = capsys.readouterr().out
    assert "speech.SuffixDraft()" in out and "word errors" in out and f"wrote {page}" in out
    text = page.read_text()
    assert "talk.wav, 2.0 s" in text and str(files) not in text, "where a file lies is nobody's business"


@pytest.mark.parametrize(
    ("words", "hint"),
    (
        (["missing.wav"], "missing.wav does not exist"),
        (["empty.wav"], "empty.wav is empty"),
        (["text.wav"], "not an audio file"),
        (["silence.wav"], "no speech in silence.wav, 2.0 s"),
        (["talk.wav", "--reference", "one", "--reference", "two"], "each of 1 recordings"),
        (["talk.wav", "--method", "video.EasyCache"], "does not work on moonshine"),
        (["talk.wav", "-o", "talk.mp3"], ".html"),
    ),
)
def test_what_cannot_be_compared_is_one_line(files, loaded, capsys, monkeypatch, words, hint):
    monkeypatch.chdir(files)
    before = sorted(files.iterdir())
    assert cli.main(["compare", "speech", *words]) == 2
    error = capsys.readouterr().err
    assert hint in error and len(error.strip().splitlines()) == 1 and sorted(files.iterdir()) == before
