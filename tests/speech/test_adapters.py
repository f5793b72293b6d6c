"""Adapters of Whisper and Moonshine: the model's own encoder and tokens, prompts, times of words."""

import functools
import importlib.util
import threading
import types
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from mmaccel import accelerate
from mmaccel.cache.argument import cached
from mmaccel.errors import AudioError, MissingExtraError, SettingError, UnknownNameError, UnsupportedTargetError
from mmaccel.speech import examples
from mmaccel.speech.audio.audio import read_audio
from mmaccel.speech.decoding import loops
from mmaccel.speech.decoding.merge_audio_tokens import MergeAudioTokens
from mmaccel.speech.decoding.projections import watched_projections
from mmaccel.speech.decoding.redecode import Hypothesis, decode
from mmaccel.speech.families import encoder_decoder, weights, whisper
from mmaccel.speech.families.adapter import Encoded, Word
from mmaccel.speech.families.moonshine import MoonshineAdapter
from mmaccel.speech.families.moonshine_streaming import MoonshineStreamingAdapter
from mmaccel.speech.families.whisper import WhisperAdapter, shortened
from mmaccel.speech.policies import alignment
from mmaccel.speech.stream.recognizer import StreamingRecognizer
from mmaccel.speech.stream.transcribe import transcribe_samples
from mmaccel.testing.contract import snapshot

MODELS = {
    "moonshine": (MoonshineAdapter, examples.moonshine, examples.moonshine_processor),
    "whisper": (WhisperAdapter, examples.whisper, examples.whisper_processor),
}
BECKETT = "Ever tried. Ever failed. No matter. Try again. Fail again. Fail better."
TWO_CITIES = (
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness,"
    " it was the epoch of belief, it was the epoch of incredulity, it was the season of light, it was the season of"
    " darkness"
)

# "This morning we all went to the beach together", and what they did there and later
TAMIL = (
    "இன்று காலை நாங்கள் எல்லோரும் ஒன்றாகச் சேர்ந்து கடற்கரைக்குச் சென்றோம், அங்கே நீண்ட நேரம் நடந்துவிட்டு பின்னர்"
    " வீட்டிற்குத் திரும்பி வந்தோம். மாலையில் நண்பர்கள் சிலர் எங்களைப் பார்க்க வந்தார்கள், நாங்கள் அவர்களுடன்"
    " பேசிக்கொண்டிருந்தோம்."
)
THAI = (
    "วันนี้ตอนเช้าพวกเราไปเดินเล่นที่ชายหาดด้วยกัน แล้วก็กลับมาบ้านเพื่อทำอาหารกลางวันกินกัน"
    " หลังจากนั้นเพื่อนของเราก็มาเยี่ยมและเราก็นั่งคุยกันจนถึงตอนเย็นก่อนที่พวกเขาจะกลับบ้านไป"
)


@pytest.fixture(params=MODELS)
def tiny(request):
    """A tiny adapter that pads nothing away, and the arguments of `generate`."""
    adapter_class, build, processor = MODELS[request.param]
    model, arguments = build()
    adapter = adapter_class(model) if request.param == "moonshine" else adapter_class(model, context_frames=None)
    adapter.processor = processor()
    return adapter, arguments


def _greedy(adapter, encoded, count, prompt=None):
    """Tokens one by one, each by a forward of everything, as `generate` would choose them."""
    prompt = adapter.prompt() if prompt is None else prompt
    tokens = []
    with torch.no_grad():
        for step in range(count):
            hidden = adapter._decoded(encoded, [*prompt, *tokens])[-1:]
            logits = adapter.target.get_output_embeddings()(hidden)[0].float()
            logits[list(adapter.banned(step))] = -torch.inf
            best = int(logits.argmax())
            if best in adapter.end_tokens:
                break
            tokens.append(best)
    return tokens


def test_encoder_states_are_the_models_own(tiny):
    adapter, arguments = tiny
    for samples in (9_000, 16_000):
        call = arguments(1, samples)
        inputs = {key: call[key] for key in ("input_values", "input_features", "attention_mask") if key in call}
        with torch.no_grad():
            expected = adapter.target.get_encoder()(**inputs).last_hidden_state
        encoded = adapter.encode(examples.sound(1, samples)[0])
        assert torch.equal(encoded.hidden_states, expected) and encoded.seconds == samples / 16_000


def test_sound_is_prepared_outside_autocast(tiny):
    """transformers' extractors multiply matrices, and make arrays of them, which have no bfloat16."""
    adapter, _ = tiny
    samples = examples.sound(1, 9_000)[0]
    expected = adapter._features(samples)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(adapter._features(samples), expected)
        assert adapter.encode(samples).hidden_states.isfinite().all()


def test_tokens_are_those_of_generate(tiny):
    adapter, arguments = tiny
    expected = adapter.target.generate(**arguments(1, max_new_tokens=12))[0].tolist()
    tokens = _greedy(adapter, adapter.encode(examples.sound(1)[0]), 12)
    assert tokens == (expected[1:] if adapter.family == "moonshine" else expected)
    assert len(tokens) == 12 and len(set(tokens)) > 1


def test_words_leave_the_model_alone_and_follow_each_other(tiny):
    adapter, _ = tiny
    before = snapshot(adapter.target)
    encoded = adapter.encode(examples.sound(1, 30_000)[0])
    words = adapter.words(encoded, [3, 9, 8, 10, 2], adapter.prompt())
    assert [word.text.strip() for word in words] == ["w3", "w9w8", "w10"]
    times = [time for word in words for time in (word.start, word.end)]
    assert times == sorted(times) and times[0] >= 0 and times[-1] <= 30_000 / 16_000
    assert adapter.words(encoded, [], adapter.prompt()) == [] == adapter.words(encoded, [2], adapter.prompt())
    assert snapshot(adapter.target) == before


def test_words_are_looked_for_in_the_speech_alone():
    """Not in the silence that Whisper's encoder is filled up with; and no decoder changes the states it is given."""
    for build, adapter_class, frames in (
        (examples.whisper, WhisperAdapter, 50),
        (examples.moonshine_streaming, MoonshineStreamingAdapter, 50),
    ):
        adapter = adapter_class(build()[0])
        adapter.processor = examples.whisper_processor()
        encoded = adapter.encode(examples.sound(1)[0])
        kept = encoded.hidden_states.clone()
        assert adapter.attention(encoded, [5, 9, 7], [1, 3]).shape == (4, frames)
        assert torch.equal(encoded.hidden_states, kept)


def test_attention_is_what_eager_attention_returns(tiny):
    adapter, _ = tiny
    model = adapter.target
    encoded = adapter.encode(examples.sound(1)[0])
    modules = [layer.encoder_attn for layer in model.get_decoder().layers]
    with torch.no_grad(), alignment.captured_attention(modules) as maps:
        adapter._decoded(encoded, [1, 5, 9])
    model.set_attn_implementation("eager")
    with torch.no_grad():
        ids = torch.tensor([[1, 5, 9]])
        outputs = model.get_decoder()(
            input_ids=ids, encoder_hidden_states=encoded.hidden_states, output_attentions=True, use_cache=False
        )
    assert len(maps) == 3
    for found, expected in zip(maps, outputs.cross_attentions, strict=True):
        assert torch.allclose(found, expected[0], atol=1e-5)


def test_what_another_thread_hears_meanwhile_is_not_recorded(tiny):
    """Another stream projects its own audio while words get their times."""
    adapter, _ = tiny
    encoded, others = adapter.encode(examples.sound(1)[0]), torch.ones(1, 5, 32)
    modules = [layer.encoder_attn for layer in adapter.target.get_decoder().layers]
    with torch.no_grad(), alignment.captured_attention(modules) as expected:
        adapter._decoded(encoded, [1, 5, 9])
    thread = threading.Thread(target=lambda: [module.k_proj(others) for module in modules])
    with torch.no_grad(), alignment.captured_attention(modules) as maps:
        adapter._decoded(encoded, [1, 5, 9])
        thread.start()
        thread.join()
    assert len(maps) == 3 and all(map(torch.equal, maps, expected))


def test_hooks_go_when_the_decoder_raises(tiny):
    adapter, _ = tiny
    before = snapshot(adapter.target)
    with (
        pytest.raises(ZeroDivisionError),
        alignment.captured_attention([adapter.target.get_decoder().layers[0].encoder_attn]),
    ):
        raise ZeroDivisionError
    assert snapshot(adapter.target) == before


def test_very_short_none_and_too_long(tiny):
    adapter, _ = tiny
    for samples in (1, 894, 895):  # of 895 Moonshine's convolutions make one frame
        assert adapter.encode(torch.zeros(samples)).hidden_states.shape[1] >= 1
    for wrong in (torch.zeros(0), torch.zeros(2, 100)):
        with pytest.raises(AudioError, match=r"pass \[samples\], at least one"):
            adapter.encode(wrong)
    with pytest.raises(AudioError, match="31.0 s in one call, where 30 s fit"):
        adapter.encode(torch.zeros(31 * 16_000))


def test_features_in_the_models_precision_and_at_its_rate(tiny):
    adapter, _ = tiny
    adapter.target.bfloat16()
    assert adapter.encode(examples.sound(1)[0]).hidden_states.dtype is torch.bfloat16
    adapter.processor.feature_extractor.sampling_rate = 8_000
    with pytest.raises(ValueError, match="sampling rate"):
        adapter.encode(examples.sound(1)[0])


def test_silence_is_put_behind_very_short_sound():
    adapter = MoonshineAdapter(examples.moonshine()[0])
    adapter.processor = examples.moonshine_processor()
    sound = examples.sound(1, 400)[0]
    filled = torch.nn.functional.pad(sound, (0, 495))
    assert torch.equal(adapter.encode(sound).hidden_states, adapter.encode(filled).hidden_states)


def test_marks_are_no_words(tiny):
    adapter, _ = tiny
    encoded = adapter.encode(examples.sound(1)[0])
    expected = adapter.words(encoded, [3, 9, 7], [1])
    assert len(expected) == 3 and adapter.words(encoded, [1, 3, 0, 9, 7, 2], [1]) == expected
    adapter.target.generation_config.eos_token_id = [2, 11]
    assert adapter.words(encoded, [3, 9, 7, 11], [1]) == expected
    assert adapter.text([3, 11, 9]) == adapter.text([3, 9]) != ""


def test_times_are_refused_while_tokens_merge(tiny):
    adapter, _ = tiny
    encoded = adapter.encode(examples.sound(1)[0])
    expected = adapter.words(encoded, [3, 9], [1])
    for keep in (0.5, 1):
        session = accelerate(adapter.target, MergeAudioTokens(keep=keep))
        if keep < 1:
            with pytest.raises(UnsupportedTargetError, match="merged tokens have no times"):
                adapter.words(encoded, [3, 9], [1])
        else:
            assert adapter.words(encoded, [3, 9], [1]) == expected, "where all are kept nothing merges"
        session.remove()
        assert adapter.words(encoded, [3, 9], [1]) == expected


def test_attention_is_that_of_the_chosen_heads(tiny):
    adapter, _ = tiny
    decoder, seen = adapter.target.get_decoder(), []
    adapter.heads = lambda: {0: [3, 1], 2: [2]}
    encoded = adapter.encode(examples.sound(1)[0])
    with torch.no_grad(), alignment.captured_attention([decoder.layers[n].encoder_attn for n in (0, 2)]) as maps:
        adapter._decoded(encoded, [1, 4, 5, 9])
    handle = decoder.register_forward_pre_hook(
        lambda _, args, kwargs: seen.append(kwargs["use_cache"]), with_kwargs=True
    )
    found = adapter.attention(encoded, [5, 9], [1, 4])
    handle.remove()
    frames = round(1 / adapter.frame_seconds)
    chosen = torch.cat([maps[0][[3, 1]], maps[1][[2]]])[:, 1:, :frames]
    assert torch.allclose(found, alignment.sharpened(chosen), atol=1e-5)
    assert seen == [False], "nothing is decoded behind it"
    assert adapter.attention(adapter.encode(torch.zeros(1)), [5], [1]).shape == (2, 1), "at least one frame"


def test_projections_are_kept_without_their_graph(tiny):
    adapter, _ = tiny
    module = adapter.target.get_encoder().layers[0].self_attn
    with watched_projections([module]) as (states,):
        module.q_proj(torch.ones(1, 2, 32))
    assert not states["q_proj"].requires_grad and module.q_proj.weight.requires_grad


def test_without_a_processor(tiny):
    adapter, _ = tiny
    adapter.processor = None
    with pytest.raises(SettingError, match="set adapter.processor = processor"):
        adapter.encode(torch.zeros(16_000))


def test_limits_and_frames():
    moonshine, whisper = MoonshineAdapter(examples.moonshine()[0]), WhisperAdapter(examples.whisper()[0])
    assert (moonshine.limit(10), whisper.limit(10)) == (134, 69), "nothing tells the language of Moonshine"
    assert moonshine.frame_seconds == 384 / 16_000 and whisper.frame_seconds == 0.02
    assert moonshine.end_tokens == whisper.end_tokens == {2}
    assert list(whisper.banned(0)) == [2, 3, 4] and list(whisper.banned(1)) == [2] == list(moonshine.banned(0))


def test_other_languages_have_more_tokens_in_a_second():
    multilingual, _ = _multilingual()
    assert multilingual.limit(0.5) == 24 and multilingual.limit(9) == 364
    english = WhisperAdapter(examples.whisper()[0])
    assert english.limit(1) == 11 and (english.only_language, multilingual.only_language) == ("en", "")
    moonshine = MoonshineAdapter(examples.moonshine()[0])
    for name, most, language in (
        ("UsefulSensors/moonshine-tiny-ja", 134, "ja"),
        ("models/moonshine-base-uk/", 134, "uk"),
        ("UsefulSensors/moonshine-tiny", 69, "en"),
        ("moonshine-tiny-en", 69, "en"),
        ("speech/moonshine-tiny-0123456789ab", 69, "en"),
        ("runs/checkpoint-2000", 134, ""),
        ("models--UsefulSensors--moonshine-tiny-ja/snapshots/0123456789abcdef0123456789abcdef01234567", 134, ""),
    ):
        moonshine.target.name_or_path = name
        assert moonshine.limit(10) == most and moonshine.only_language == language


def test_an_old_configuration_makes_no_model_english():
    """It says neither whether there are other languages nor which; the vocabulary is OpenAI's multilingual one."""
    old = WhisperAdapter(examples.whisper(vocab_size=51_865)[0])
    assert old.limit(0.5) == 24 and old.only_language == "" and old.language_of(None) == ""
    old.instruct(task="transcribe")
    for told in ({"language": "hi"}, {"language": "en"}, {"task": "translate"}):
        with pytest.raises(SettingError, match=r"names no languages: model.generation_config = GenerationConfig"):
            old.instruct(**told)
    assert old.prompt() == [1]


def test_heads_ends_and_starts():
    moonshine, whisper = MoonshineAdapter(examples.moonshine()[0]), WhisperAdapter(examples.whisper()[0])
    every = [0, 1, 2, 3]
    assert moonshine.heads() == {2: every} and whisper.heads() == {1: every, 2: every}  # of three layers
    whisper.target.generation_config.alignment_heads = [[0, 3], [2, 1], [0, 1]]
    assert whisper.heads() == {0: [3, 1], 2: [1]}
    for teacher in ([[0, 1], [7, 0], [10, 17]], [[0, 1], [2, 4]]):  # of a larger model, kept by a distilled one
        whisper.target.generation_config.alignment_heads = teacher
        assert whisper.heads() == {1: every, 2: every}
    whisper.target.generation_config.eos_token_id = [2, 9]
    whisper.target.generation_config.decoder_start_token_id = 7
    assert whisper.end_tokens == {2, 9} and whisper.prompt() == [7]
    whisper.target.generation_config.eos_token_id = whisper.target.generation_config.decoder_start_token_id = None
    assert whisper.end_tokens == set() and whisper.prompt() == [1], "the configuration's start"
    moonshine.processor = examples.moonshine_processor()
    assert moonshine.encode(torch.zeros(30 * 16_000)).seconds == 30.0  # the longest piece just fits


def test_a_short_context_is_the_encoder_of_fewer_positions(monkeypatch):
    """The class itself, built for fewer positions with the same weights, gives the same."""
    monkeypatch.setattr(whisper, "SHORTEST_FRAMES", 400)  # the tiny model holds 5 s
    model, _ = examples.whisper()
    adapter = WhisperAdapter(model, context_frames=100)
    adapter.processor = examples.whisper_processor()
    before, sound = snapshot(model), examples.sound(1, 50_000)[0]
    encoded = adapter.encode(sound)
    assert encoded.hidden_states.shape[1] == (313 + 100 + 1) // 2
    smaller, _ = examples.whisper(max_source_positions=207)
    state = model.state_dict()
    state["model.encoder.embed_positions.weight"] = state["model.encoder.embed_positions.weight"][:207]
    smaller.load_state_dict(state)
    features = adapter.processor.feature_extractor(sound.numpy(), sampling_rate=16_000, return_tensors="pt")
    with torch.no_grad():
        expected = smaller.get_encoder()(features.input_features[:, :, :414]).last_hidden_state
    assert torch.allclose(encoded.hidden_states, expected, atol=1e-5)
    assert snapshot(model) == before
    encoder = model.get_encoder()
    assert shortened(encoder, 250) is encoder and shortened(encoder, 100).layers is encoder.layers
    # at least so many, and never more than there are
    assert adapter.encode(sound[:1_000]).hidden_states.shape[1] == 200
    adapter.context_frames = 3_000
    assert adapter.encode(sound).hidden_states.shape[1] == 250


@pytest.mark.parametrize("is_compiled", (True, False))
def test_an_encoder_that_is_compiled_or_replaced_keeps_all_of_its_positions(is_compiled, monkeypatch):
    """A shorter copy would be the encoder itself, and change it."""
    monkeypatch.setattr(whisper, "SHORTEST_FRAMES", 100)
    model, _ = examples.whisper()
    adapter = WhisperAdapter(model, context_frames=100)
    adapter.processor = examples.whisper_processor()
    encoder, sound = model.get_encoder(), examples.sound(1)[0]
    assert adapter.encode(sound).hidden_states.shape[1] == 100
    expected = adapter.encode_in_full(sound).hidden_states
    if is_compiled:
        model.model.encoder = torch.compile(encoder, backend="eager")
    else:
        encoder.forward = functools.wraps(encoder.forward)(functools.partial(encoder.forward))  # as accelerate does
    with torch.compiler.set_stance("force_eager"):
        assert torch.equal(adapter.encode(sound).hidden_states, expected) and adapter.encode_in_full(sound) is None
    assert encoder.config.max_source_positions == encoder.embed_positions.num_embeddings == 250


def test_what_is_in_a_loop_is_heard_again_in_full(monkeypatch):
    monkeypatch.setattr(whisper, "SHORTEST_FRAMES", 100)
    model, _ = examples.whisper()
    sound, decoded = examples.sound(1, 16_000)[0], []
    recognizer = StreamingRecognizer(WhisperAdapter(model, context_frames=100), examples.whisper_processor())
    decode = recognizer._decode

    def spied(encoded, prompt, draft, cache):
        found = decode(encoded, prompt, draft, cache)
        decoded.append((encoded.hidden_states.shape[1], replace(found, ended=found.ended or ends)))
        return decoded[-1][1]

    monkeypatch.setattr(recognizer, "_decode", spied)
    prompt, ends = recognizer.adapter.prompt(), False
    encoded, hypothesis = recognizer.hear(sound, prompt)
    assert [positions for positions, _ in decoded] == [100, 250] and encoded.hidden_states.shape[1] == 250
    assert hypothesis.forwards == sum(found.forwards for _, found in decoded) > decoded[1][1].forwards
    assert hypothesis.tokens == decoded[1][1].tokens and recognizer.adapter.context_frames == 100
    decoded.clear()
    ends = True
    assert recognizer.hear(sound, prompt)[0].hidden_states.shape[1] == 100 and len(decoded) == 1
    decoded.clear()
    recognizer.adapter.context_frames, ends = None, False
    recognizer.hear(sound, prompt)
    assert [positions for positions, _ in decoded] == [250], "there is no more to be given"


def test_what_repeats_itself_is_heard_again_in_full_also_where_it_ends(monkeypatch):
    monkeypatch.setattr(whisper, "SHORTEST_FRAMES", 100)
    model, _ = examples.whisper()
    recognizer = StreamingRecognizer(WhisperAdapter(model, context_frames=100), examples.whisper_processor())
    said = {100: tuple([5, 6] * 20), 250: (5, 6, 7)}
    monkeypatch.setattr(
        recognizer, "_decode", lambda encoded, *_: Hypothesis(said[encoded.hidden_states.shape[1]], 1, True)
    )
    sound, prompt = examples.sound(1, 16_000)[0], recognizer.adapter.prompt()
    encoded, hypothesis = recognizer.hear(sound, prompt)
    assert hypothesis.tokens == (5, 6, 7) and hypothesis.forwards == 2 and encoded.hidden_states.shape[1] == 250
    said[100] = tuple(range(5, 20))
    assert recognizer.hear(sound, prompt)[1].tokens == said[100]
    moonshine = StreamingRecognizer(examples.moonshine()[0], examples.moonshine_processor())
    monkeypatch.setattr(moonshine, "_decode", lambda *_: Hypothesis(tuple([5, 6] * 20), 1, True))
    assert moonshine.hear(sound, moonshine.adapter.prompt())[1].forwards == 1, "it has no fuller encoding"


def test_compression_ratios():
    assert loops.compression_ratio("") == 0.0
    assert loops.compression_ratio("w" * 1_000) > 50 and loops.repeats("Try again. " * 20)
    assert not any(map(loops.repeats, (BECKETT, TWO_CITIES, "no, no, no, no", "\u4f60\u597d" * 5, TAMIL, THAI)))
    assert all(map(loops.repeats, (TAMIL[:15] * 8, THAI[:15] * 8, "\u4f60\u597d" * 40)))


@pytest.mark.parametrize("frames", (-1, 2.5, True, "200"))
def test_bad_contexts(frames):
    with pytest.raises(SettingError, match=r"context_frames=.*such as 200, or None"):
        WhisperAdapter(None, context_frames=frames)


def _multilingual():
    model, arguments = examples.whisper()
    settings = model.generation_config
    settings.is_multilingual, settings.no_timestamps_token_id, settings.prev_sot_token_id = True, 63, 41
    settings.lang_to_id = {"<|en|>": 20, "<|de|>": 21, "<|fr|>": 22}
    settings.task_to_id = {"transcribe": 30, "translate": 31}
    adapter = WhisperAdapter(model, context_frames=None)
    adapter.language, adapter.processor = "de", examples.whisper_processor()
    return adapter, arguments


def test_prompts():
    assert MoonshineAdapter(examples.moonshine()[0]).prompt("text before") == [1]
    assert WhisperAdapter(examples.whisper()[0]).prompt() == [1]
    adapter, _ = _multilingual()
    assert adapter.prompt() == [1, 21, 30, 63]
    assert adapter.prompt("  ") == adapter.prompt()
    adapter.language = "xx"
    with pytest.raises(UnknownNameError, match="language 'xx': choose from 'en', 'de', 'fr'"):
        adapter.prompt()


def test_the_text_before_is_cut_between_words():
    """Also where words are many tokens, as in Telugu: they fill half of 96 positions, less the mark."""
    adapter, _ = _multilingual()
    adapter.processor.tokenizer = lambda text, add_special_tokens: types.SimpleNamespace(input_ids=list(text.encode()))
    word = "\u0c30\u0c47\u0c2a\u0c41"
    assert adapter.prompt(f"{word} " * 5) == [41, *(f" {word}" * 3).encode(), 1, 21, 30, 63]
    assert adapter.prompt(word * 5) == adapter.prompt(), "not even its last word has room"
    unspaced = "\u4f60\u597d" * 20
    assert adapter.prompt(unspaced) == [41, *f" {unspaced[-15:]}".encode(), 1, 21, 30, 63]


def test_a_text_may_have_as_many_tokens_as_there_are_positions():
    """As `generate` has it, where seconds of a language of many tokens a word are more than half of them."""
    adapter, arguments = _multilingual()
    encoded, prompt = replace(adapter.encode(examples.sound(1)[0]), seconds=9.0), adapter.prompt()
    expected = adapter.target.generate(**arguments(1, max_new_tokens=92), language="de")[0].tolist()
    hypothesis = decode(adapter, encoded, prompt, expected[:-5])
    assert list(hypothesis.tokens) == expected[-92:] and not hypothesis.ended
    assert len(decode(adapter, encoded, prompt, max_new_tokens=200).tokens) == 92
    assert adapter.has_room([1] * 52, 9.0) and not adapter.has_room([1] * 53, 9.0), "for half of the positions"


def test_multilingual_tokens_and_the_language_are_those_of_transformers():
    adapter, arguments = _multilingual()
    encoded = adapter.encode(examples.sound(1)[0])
    call = arguments(1, max_new_tokens=8)
    expected = adapter.target.generate(**call, language="de", task="transcribe")[0].tolist()
    assert _greedy(adapter, encoded, 8) == expected
    detected = adapter.target.detect_language(
        call["input_features"], generation_config=adapter.target.generation_config
    )
    known = adapter.target.generation_config.lang_to_id
    assert known[f"<|{adapter.detect_language(encoded)}|>"] == int(detected)


def test_times_of_timestamp_tokens():
    adapter, _ = _multilingual()
    adapter.target.generation_config.no_timestamps_token_id = 40
    assert [adapter.timestamp(token) for token in (39, 40, 41, 42, 63)] == [None, None, 0.0, 0.02, pytest.approx(0.44)]
    assert adapter.text([5, 41, 6, 42, 2]).split() == adapter.text([5, 6]).split()


def test_warping_is_that_of_transformers():
    from transformers.models.whisper.generation_whisper import _dynamic_time_warping

    for rows, frames, seed in ((5, 17, 0), (12, 40, 1), (7, 7, 2), (1, 9, 3), (9, 4, 4)):
        scores = np.random.default_rng(seed).standard_normal((rows, frames))
        row, frame = _dynamic_time_warping(-scores)
        jumps = np.pad(np.diff(row), (1, 0), constant_values=1).astype(bool)
        assert alignment.warp(scores).tolist() == frame[jumps].tolist()


def test_sharpened_maps_are_those_of_transformers():
    from transformers.models.whisper.generation_whisper import _median_filter

    attention = torch.softmax(torch.randn(3, 6, 40, generator=torch.Generator().manual_seed(0)) * 3, -1)
    deviation, mean = torch.std_mean(attention, dim=-2, keepdim=True, unbiased=False)
    expected = _median_filter((attention - mean) / deviation, 7).mean(0)
    assert torch.allclose(alignment.sharpened(attention), expected, atol=1e-6)
    assert alignment.sharpened(attention[:, :, :3]).shape == (6, 3)  # too short for the filter


def test_words_end_before_their_punctuation(tiny):
    adapter, _ = tiny
    names = {10: "▁Yes", 11: ",", 12: "▁in", 13: "deed", 14: "."}
    texts = {number: name.replace("▁", " ") for number, name in names.items()}
    tokenizer = types.SimpleNamespace(
        convert_ids_to_tokens=lambda ids: [names[number] for number in ids],
        decode=lambda ids, **_: "".join(texts[number] for number in ids),
        all_special_ids=[0, 1, 2],
    )
    adapter.processor = types.SimpleNamespace(tokenizer=tokenizer)
    adapter._boundaries = lambda *_: [0.0, 0.4, 1.0, 1.2, 1.5, 1.9]
    words = adapter.words(Encoded(torch.zeros(1, 1, 1), 2.0), [10, 11, 12, 13, 14], [1])
    assert words == [Word("Yes,", 0.0, 0.4), Word("indeed.", 1.0, 1.5)]
    names |= {15: "ĠYes", 16: "Ġ", 17: "Ġ-"}  # as byte-level tokenizers write spaces
    texts |= {15: " Yes", 16: " ", 17: " -"}
    words = adapter.words(Encoded(torch.zeros(1, 1, 1), 2.0), [15, 16, 17, 15], [1])
    assert words == [Word("Yes", 0.0, 0.4), Word("-", 1.0, 1.2), Word("Yes", 1.2, 1.5)], "a space is no word"
    names |= {15: "Try", 16: " ag", 17: "ain"}  # as Mistral's tokenizers
    texts |= {number: names[number] for number in (15, 16, 17)}
    words = adapter.words(Encoded(torch.zeros(1, 1, 1), 2.0), [15, 16, 17], [1])
    assert [word.text for word in words] == ["Try", "again"]


def test_characters_of_scripts_without_spaces_begin_words(tiny):
    """Also where the bytes of one are in two tokens."""
    adapter, _ = tiny
    world = "\u4e16".encode()
    pieces = {10: "\u4f60\u597d".encode(), 11: "\u3002".encode(), 12: world[:2], 13: world[2:], 14: b"GPT"}
    tokenizer = types.SimpleNamespace(
        convert_ids_to_tokens=lambda ids: [f"<{number}>" for number in ids],
        decode=lambda ids, **_: b"".join(pieces[number] for number in ids).decode(errors="replace"),
        all_special_ids=[0, 1, 2],
    )
    adapter.processor = types.SimpleNamespace(tokenizer=tokenizer)
    adapter._boundaries = lambda *_: [0.0, 0.4, 0.6, 0.8, 1.0, 1.4]
    words = adapter.words(Encoded(torch.zeros(1, 1, 1), 2.0), [10, 11, 12, 13, 14], [1])
    assert words == [Word("\u4f60\u597d\u3002", 0.0, 0.4), Word("\u4e16", 0.6, 1.0), Word("GPT", 1.0, 1.4)]


def test_silence_before_the_first_word_is_not_part_of_it():
    later = [Word("b", 2.0, 2.3), Word("c", 2.3, 2.5)]
    trimmed = encoder_decoder.without_leading_silence([Word("a", 0.0, 2.0), *later])
    assert trimmed == [Word("a", pytest.approx(1.7), 2.0), *later]
    slow = [Word("a", 0.0, 6.0), Word("b", 6.0, 8.0), Word("c", 8.0, 10.0)]
    assert encoder_decoder.without_leading_silence(slow)[0] == Word("a", pytest.approx(5.3), 6.0), "0.7 s at most"
    kept = [Word("a", 1.5, 2.0), *later]
    assert encoder_decoder.without_leading_silence(kept) == kept and encoder_decoder.without_leading_silence([]) == []


@pytest.fixture(scope="module", params=weights.names())
def real(request, tmp_path_factory):
    """A model of the extra, converted anew, and its adapter."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MMACCEL_CACHE", str(tmp_path_factory.mktemp("cache")))
        try:
            model, processor = weights.load(request.param)
        except MissingExtraError:
            pytest.skip("needs the speech extra")
    adapter = MoonshineAdapter(model) if request.param == "moonshine-tiny" else WhisperAdapter(model)
    adapter.processor = processor
    return adapter


def _recording(name, seconds):
    found = importlib.util.find_spec("moonshine_voice")
    if found is None:
        pytest.skip("needs the speech extra")
    path = Path(found.submodule_search_locations[0]) / "assets" / name
    return read_audio(path)[: int(seconds * 16_000)]


def _error_rate(reference, text):
    jiwer = pytest.importorskip("jiwer")
    from transformers.models.whisper.english_normalizer import EnglishTextNormalizer

    normalise = EnglishTextNormalizer({})
    return jiwer.wer(normalise(reference), normalise(text))


@pytest.mark.parametrize(
    ("name", "seconds", "reference"), [("beckett.wav", 10, BECKETT), ("two_cities.wav", 16.9, TWO_CITIES)]
)
def test_human_speech(real, name, seconds, reference):
    samples = _recording(name, seconds)
    encoded = real.encode(samples)
    inputs = real.processor(samples.numpy(), sampling_rate=16_000, return_tensors="pt")
    with torch.no_grad():
        expected = real.target.generate(**inputs)[0].tolist()
    if real.family == "whisper":  # a short context first, then the whole one, which is exact
        assert _error_rate(reference, real.text(_words_of(real, encoded, reference))) == 0
        full = WhisperAdapter(real.target, context_frames=None)
        full.processor = real.processor
        real, encoded = full, full.encode(samples)
    tokens = _words_of(real, encoded, reference)
    assert tokens == [token for token in expected if token not in (*real.end_tokens, 1)]
    # Moonshine tiny hears "a season" for "the season", twice in 48 words
    assert _error_rate(reference, real.text(tokens)) < 0.05
    assert real.text(tokens) == real.processor.decode(expected, skip_special_tokens=True).strip()


def _words_of(adapter, encoded, reference):
    """Greedy tokens with a cache, and their words checked: all of them, one after the other, inside the file."""
    from transformers import DynamicCache, EncoderDecoderCache

    tokens, ids = [], adapter.prompt()
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    with torch.no_grad():
        while len(tokens) < adapter.limit(encoded.seconds):
            hidden = adapter.target.get_decoder()(
                input_ids=torch.tensor([ids]),
                encoder_hidden_states=encoded.hidden_states,
                **cached(cache),
                use_cache=True,
            ).last_hidden_state
            logits = adapter.target.get_output_embeddings()(hidden[0, -1])
            logits[list(adapter.banned(len(tokens)))] = -torch.inf
            ids = [int(logits.argmax())]
            if ids[0] in adapter.end_tokens:
                break
            tokens += ids
    words = adapter.words(encoded, tokens, adapter.prompt())
    assert len(words) == len(reference.split())
    assert " ".join(word.text for word in words) == adapter.text(tokens)
    times = [time for word in words for time in (word.start, word.end)]
    assert times == sorted(times) and times[0] >= 0 and times[-1] <= encoded.seconds
    return tokens


def test_single_phrases_do_not_loop(real):
    """Each of the six phrases is a segment of about 1.4 s."""
    pytest.importorskip("silero_vad")
    made = transcribe_samples(_recording("beckett.wav", 10), StreamingRecognizer(real))
    assert [len(segment.text.split()) for segment in made.segments] == [2] * 6
    assert _error_rate(BECKETT, made.text) < 0.1  # Moonshine tiny hears "Fell better"
