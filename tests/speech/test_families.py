"""Every recogniser of transformers: what `docs/speech_families.json` says of it is so, or it is refused by name."""

import json
import threading
from types import SimpleNamespace

import pytest
import torch
import transformers
from accelerate import cpu_offload
from newer_classes import exists
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, decoders, models
from transformers.models.auto import modeling_auto

import mmaccel
from mmaccel import speech, vlm
from mmaccel.adapter import adapters
from mmaccel.demos.families.speech_models import RATE, build, rows, sound
from mmaccel.demos.families.speech_table import ENDPOINT, TARGET, count_equal, recording, streamed, tried
from mmaccel.errors import SettingError, UnknownNameError, UnsupportedTargetError
from mmaccel.speech.audio.growing_audio import GrowingAudio
from mmaccel.speech.audio.upsampled import Upsampler
from mmaccel.speech.decoding.transducer_greedy import TransducerGreedy
from mmaccel.speech.families import weights
from mmaccel.speech.families.adapter import Encoded, SpeechAdapter, encode_together
from mmaccel.speech.families.finding import adapter_class
from mmaccel.speech.families.rows import CHAT, REFUSED
from mmaccel.speech.families.spelled import spread, words_of
from mmaccel.speech.families.timed import TimedToken, as_states
from mmaccel.speech.policies.append_only import AppendOnly
from mmaccel.speech.stream.events import Final, Partial
from mmaccel.speech.stream.recognizer import StreamingRecognizer
from mmaccel.testing.snapshot import snapshot

TABLE = json.loads(TARGET.read_text(encoding="utf-8"))
# One for each kind, with what differs inside of it.
RUN = (
    "HubertForCTC",
    "ParakeetForCTC",
    "ParakeetForTDT",
    "Nemotron3_5AsrForRNNT",
    "Qwen3ASRForConditionalGeneration",
    "VoxtralForConditionalGeneration",
    "GraniteSpeechForConditionalGeneration",
    "KyutaiSpeechToTextForConditionalGeneration",
    "VoxtralRealtimeForConditionalGeneration",
)
# One for each way of handing audio to a model.
OFF_LOADED = (
    "WhisperForConditionalGeneration",
    "MoonshineStreamingForConditionalGeneration",
    "ParakeetForCTC",
    "Nemotron3_5AsrForRNNT",
    "Qwen3ASRForConditionalGeneration",
    "KyutaiSpeechToTextForConditionalGeneration",
    "VoxtralRealtimeForConditionalGeneration",
)


def recognizer(name, **settings):
    return StreamingRecognizer(*build(name), endpoint=ENDPOINT, **settings)


def test_the_classes_of_the_table_are_those_of_the_adapters():
    served = {name for one in adapters() if issubclass(one, SpeechAdapter) for name in one.classes}
    assert set(TABLE) == set(rows()) == served and not set(TABLE) & set(REFUSED)
    assert all(map(exists, (*TABLE, *REFUSED)))
    assert count_equal(TABLE) == len(TABLE) >= 29
    assert all(row["words"] > 1 and row["partials"] > 1 for row in TABLE.values())


def test_each_recogniser_of_transformers_is_served_or_says_why_not():
    heads = ("CTC", "RNNT", "TDT", "SPEECH_SEQ_2_SEQ")
    named = {name for head in heads for name in getattr(modeling_auto, f"MODEL_FOR_{head}_MAPPING_NAMES").values()}
    assert named - set(TABLE) - set(REFUSED) == set()
    for name in ("CanaryForConditionalGeneration", "DiaForConditionalGeneration"):
        with pytest.raises(UnsupportedTargetError, match=f"no recogniser for {name}; {REFUSED[name]}.*speech.load"):
            adapter_class(getattr(transformers, name))


def test_only_recognisers_are_named_in_place_of_a_class_that_is_none():
    """Ovis2, which sees, has a name as much like it as some that hear."""
    with pytest.raises(UnsupportedTargetError, match="supported are Qwen3ASRForConditionalGeneration") as error:
        adapter_class(type("OmnisASRForConditionalGeneration", (), {}))
    assert "Ovis2" not in str(error.value)


def test_what_leads_to_a_model_is_no_model_and_the_error_says_the_way():
    model, processor = build("HubertForCTC")
    wrapped = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"]))
    for given, message in (
        (wrapped, "PeftModel; give the model inside, model.get_base_model"),
        (torch.compile(model, backend="eager"), "OptimizedModule; compile it in place, with model.compile"),
        (SimpleNamespace(model=model), "SimpleNamespace; give its .model"),
        ((model, processor), "tuple; give the model alone"),
    ):
        with pytest.raises(UnsupportedTargetError, match=f"no recogniser for {message}") as error:
            StreamingRecognizer(given, processor)
        assert len(str(error.value)) < 150, "nobody reads a list of all classes"


def test_a_language_model_beside_the_recogniser_is_not_left_out_in_silence():
    """A `Wav2Vec2ProcessorWithLM` has one as its `decoder`; as a recogniser hears without it, that is to be said."""
    model, processor = build("HubertForCTC")
    with_one = SimpleNamespace(**vars(processor), decoder="a beam search with an n-gram model")
    with pytest.raises(SettingError, match=r"pass Wav2Vec2Processor\(processor.feature_extractor, processor.token"):
        StreamingRecognizer(model, with_one)


@pytest.mark.parametrize("name", OFF_LOADED)
def test_a_recogniser_may_be_off_loaded(name):
    """Between passes accelerate leaves its weights on "meta", where audio would lose what it holds."""
    model, processor = build(name)
    expected = texts_of(model, processor)
    cpu_offload(model, execution_device=torch.device("cpu"))
    assert model.device.type == "meta" and texts_of(model, processor) == expected != []


def texts_of(model, processor):
    """The finals of a stream."""
    events = streamed(StreamingRecognizer(model, processor, endpoint=ENDPOINT), recording(), 4000, 0.5)
    return [(event.text, event.tokens) for event in events if isinstance(event, Final)]


@pytest.mark.parametrize("part", ("tokenizer", "feature_extractor"))
def test_a_part_of_a_processor_is_no_processor(part):
    """A tokenizer has a `decoder` too, which is no language model."""
    model, processor = build("Qwen3ASRForConditionalGeneration")
    given = getattr(processor, part)
    with pytest.raises(SettingError, match=f"{type(given).__name__} is a part of a processor: pass all of it"):
        StreamingRecognizer(model, given)


@pytest.mark.parametrize("name", [name for name in RUN if name.startswith(("Nemotron", "Qwen3", "VoxtralRealtime"))])
def test_sound_is_prepared_outside_autocast(name, monkeypatch):
    model, processor = build(name)
    extractor, on = type(processor.feature_extractor), []
    own = extractor.__call__
    noted = lambda *given, **more: on.append(torch.is_autocast_enabled("cpu")) or own(*given, **more)  # noqa: E731
    monkeypatch.setattr(extractor, "__call__", noted)
    with torch.autocast("cpu", torch.bfloat16):
        StreamingRecognizer(model, processor, endpoint=ENDPOINT).adapter.encode(sound(1.0))
    assert on and not any(on)


@pytest.mark.parametrize("name", RUN)
def test_what_the_table_says_is_so(name):
    assert tried(name) == TABLE[name]


def test_loading_takes_the_same_classes(tmp_path, monkeypatch):
    """A class that cannot be streamed is refused before its weights are looked for."""
    config = transformers.Speech2TextConfig(architectures=["Speech2TextForConditionalGeneration"])
    config.save_pretrained(tmp_path)
    monkeypatch.setattr(weights, "load_pretrained", lambda *_: pytest.fail("read weights"))
    with pytest.raises(UnsupportedTargetError, match="Speech2TextForConditionalGeneration; nobody has run it"):
        weights.load(tmp_path)
    chat = build("Qwen3ASRForConditionalGeneration")[0].config
    assert weights._class_of("there", chat).__name__ == "Qwen3ASRForConditionalGeneration"


def test_equal_letters_stay_two_where_a_blank_is_between_them():
    found = recognizer("Wav2Vec2ForCTC").adapter
    assert found.text([2, 2, 3, 1, 2]) == "eet e"
    found._frames = lambda _: [2, 2, 0, 2, 1, 3, 3]
    encoded = found.encode(torch.zeros(700))
    words = [(word.text, word.start, word.end) for word in found.words(encoded, (), ())]
    assert words == [
        ("ee", 0.0, pytest.approx(4 / 7 * 0.05, abs=1e-4)),
        ("t", pytest.approx(5 / 7 * 0.05, abs=1e-4), 0.05),
    ]


def parakeet_tokenizer():
    """Parakeet's own class, made for CTC, with words for tokens."""
    inner = Tokenizer(models.WordLevel({"<pad>": 0, "\u2581very": 1, "\u2581good": 2}, unk_token="<pad>"))
    inner.decoder = decoders.Metaspace()
    return transformers.ParakeetTokenizer(tokenizer_object=inner, pad_token="<pad>", unk_token="<pad>")


@pytest.mark.parametrize(
    "name", ["ParakeetForTDT", "ParakeetForRNNT", "NemotronAsrStreamingForRNNT", "Nemotron3_5AsrForRNNT"]
)
def test_a_word_that_a_transducer_tells_twice_stays_two(name):
    found = recognizer(name).adapter
    assert found.text([4, 5]) == found._processor().tokenizer.decode([4, 5]), "others know of no groups"
    found.processor = SimpleNamespace(tokenizer=parakeet_tokenizer())
    assert found.text([1, 1, 2]) == "very very good"
    tokens = as_states(TimedToken(token, 800 * place, 800 * place + 800) for place, token in enumerate([1, 1, 2]))
    assert [word.text for word in found.words(Encoded(tokens, 0.15), (), ())] == ["very", "very", "good"]


def test_a_tokenizer_that_refuses_other_words_is_told_none():
    """As that of mistral-common does."""

    class Strict:
        def decode(self, tokens, skip_special_tokens=False):
            return f" {tokens} {skip_special_tokens} "

    found = recognizer("VoxtralRealtimeForConditionalGeneration").adapter
    found.processor = SimpleNamespace(tokenizer=Strict())
    assert found.text((1, 1)) == "[1, 1] True"


def test_a_processor_that_warns_at_each_look_without_a_rate_is_told_it(monkeypatch):
    found, warned = recognizer("Qwen2AudioForConditionalGeneration").adapter, []
    logger = "transformers.models.whisper.feature_extraction_whisper.logger.warning"
    monkeypatch.setattr(logger, lambda text, *_: warned.append(text))
    found.encode(sound(1.0))
    assert not warned
    found.processor(text=["<|audio|>"], audio=[sound(1.0).numpy()], return_tensors="pt")
    assert len(warned) == 1


@pytest.mark.parametrize("name", ["ParakeetForTDT", "ParakeetForRNNT"])
def test_a_window_of_frames_changes_nothing(name, monkeypatch):
    """The joint network asked about one frame at a time, or frames that come one by one."""
    model, processor = build(name)
    adapter = adapter_class(type(model))(model)
    adapter.processor = processor
    frames = model.get_audio_features(**adapter._features(sound(3.0))).pooler_output.detach()
    whole = TransducerGreedy(model).say(frames)
    assert len(whole) > 3
    one = TransducerGreedy(model)
    assert [token for frame in frames.split(1, 1) for token in one.say(frame)] == whole
    monkeypatch.setattr("mmaccel.speech.decoding.transducer_greedy.WINDOW", 1)
    assert TransducerGreedy(model).say(frames) == whole


@pytest.mark.parametrize("name", ["NemotronAsrStreamingForRNNT", "KyutaiSpeechToTextForConditionalGeneration"])
def test_a_look_ahead_changes_nothing(name):
    """What would follow if the audio ended now is heard on a copy; a policy for words that stay suits such models."""
    found = recognizer(name, policy=AppendOnly(hold=0))
    samples, audio = sound(2.0), GrowingAudio(found.adapter)
    for end in range(3000, len(samples), 3000):
        audio.encode(samples[:end])
    assert torch.equal(audio.encode(samples).hidden_states, found.adapter.encode(samples).hidden_states)
    events = streamed(found, recording(), 4000, 0.5)
    assert any(isinstance(event, Partial) and event.stable for event in events)


@pytest.mark.parametrize(
    "name", ["KyutaiSpeechToTextForConditionalGeneration", "VoxtralRealtimeForConditionalGeneration"]
)
def test_passes_of_all_frames_are_counted(name):
    """Also those of the silence behind the audio, which is read where a pause begins, and not at each look."""
    found, passes = recognizer(name), []
    found.adapter.target.register_forward_hook(lambda *_: passes.append(1))
    samples = torch.cat([recording(), sound(3.0)])
    finals = [event for event in streamed(found, samples, 8000, None) if isinstance(event, Final)]
    alone = len(passes)
    passes.clear()
    with found.stream(update_interval=0.2) as stream:
        events = [event for piece in samples.split(1600) for event in stream.push(piece)] + stream.finish()
    assert [event for event in events if isinstance(event, Final)] == finals
    assert stream.stats.decoder_calls == len(passes) == alone and stream.stats.partial_decodes > 15


@pytest.mark.parametrize("name", ["NemotronAsrStreamingForRNNT", "VoxtralRealtimeForConditionalGeneration"])
def test_an_error_in_the_middle_of_a_frame_loses_no_audio(name, monkeypatch):
    found, samples = recognizer(name), recording()
    expected = [event for event in streamed(found, samples, 8000, None) if isinstance(event, Final)]
    part = found.adapter.target.joint if name.startswith("Nemotron") else found.adapter.target.lm_head
    forward, calls, events = part.forward, [], []

    def failing(*args, **kwargs):
        calls.append(1)
        if len(calls) == 5:
            raise RuntimeError("out of memory")
        return forward(*args, **kwargs)

    monkeypatch.setattr(part, "forward", failing)
    with found.stream() as stream:
        for piece in samples.split(8000):
            try:
                events += stream.push(piece)
            except RuntimeError:
                events.append("failed")
        events += stream.finish()
    assert "failed" in events and [event for event in events if isinstance(event, Final)] == expected


def test_drafts_save_passes_of_a_language_model():
    found = recognizer("Qwen2AudioForConditionalGeneration").adapter
    encoded, prompt = found.encode(sound(1.5)), found.prompt()
    plain = found.decode(encoded, prompt)
    wrong = [5, *plain.tokens[2:9], 7, *plain.tokens[9:]]
    drafted = found.decode(encoded, prompt, wrong)
    assert drafted.tokens == plain.tokens and drafted.forwards < plain.forwards / 2
    assert found.limit(30) > 30 * 18, "a fast speaker of Hindi, five or six tokens a word and three words a second"


@pytest.mark.parametrize("name", CHAT)
def test_answers_to_questions_about_sound_are_drafted(name):
    """By methods of language models, in `generate` of the model itself; its streams are another thing."""
    model, processor = build(name)
    found = StreamingRecognizer(model, processor, endpoint=ENDPOINT).adapter
    asked = {**found._inputs(sound(1.5)), "max_new_tokens": 60, "do_sample": False}
    plain, before = model.generate(**asked), snapshot(model)
    with mmaccel.accelerate(model, vlm.FusedDraft(always=True)) as fast:
        for _ in range(2):
            assert torch.equal(fast.generate(**asked), plain)
        assert fast.report.forwards < fast.report.plain_forwards / 2 and not fast.report.warnings
        assert streamed(StreamingRecognizer(fast, processor, endpoint=ENDPOINT), recording(), 4000, None)
    assert snapshot(model) == before


def test_a_stored_prompt_tells_sounds_apart(tmp_path):
    model, processor = build("Qwen2AudioForConditionalGeneration")
    found = StreamingRecognizer(model, processor, endpoint=ENDPOINT).adapter
    asked = [{**found._inputs(sound(1.5, seed)), "max_new_tokens": 20, "do_sample": False} for seed in (0, 1)]
    assert torch.equal(*(one["input_ids"] for one in asked))
    plain = [model.generate(**one) for one in asked]
    assert not torch.equal(*plain)
    with mmaccel.accelerate(model, vlm.StoredContext(str(tmp_path), least=4)) as fast:
        for place in (0, 1, 0, 1):
            assert torch.equal(fast.generate(**asked[place]), plain[place])
        assert fast.report.engaged


@pytest.mark.parametrize(
    ("method", "message"),
    (
        (vlm.FastV(), "FastV leaves out visual tokens, and Qwen2Audio.* is shown no pictures"),
        (speech.SuffixDraft(), "take speech.StreamingRecognizer for what is said, and vlm.FusedDraft for answers"),
    ),
    ids=str,
)
def test_what_does_not_fit_a_language_model_that_hears_says_what_does(method, message):
    with pytest.raises(UnsupportedTargetError, match=message):
        mmaccel.plan(build("Qwen2AudioForConditionalGeneration")[0], method)


def test_a_language_model_is_not_stopped_in_the_middle_of_a_call_of_another_thread():
    class Decoder(torch.nn.Module):
        def forward(self, inputs_embeds):
            return inputs_embeds

    class Model:
        def get_decoder(self):
            return decoder

        def __call__(self):
            thread.start()
            thread.join(20)
            decoder(inputs_embeds="ours")

    decoder, heard = Decoder(), []
    thread = threading.Thread(target=lambda: heard.append(decoder(inputs_embeds="theirs")))
    adapter = recognizer("Qwen2AudioForConditionalGeneration").adapter
    adapter.target = Model()
    assert adapter._read({}) == "ours" and heard == ["theirs"]


def test_granite_hears_with_its_lora_also_once_it_was_asked_about_a_text():
    """Its `generate` turns the LoRA off for a text alone, and on for audio; the user's own model stays as it is."""
    model, processor = build("GraniteSpeechForConditionalGeneration")

    @torch.no_grad()
    def heard():
        adapter = StreamingRecognizer(model, processor, endpoint=ENDPOINT).adapter
        return adapter.passes(adapter.encode(sound(1.5))).logits(adapter.prompt())

    without = heard()
    model.add_adapter(LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False))
    expected = heard()
    model.disable_adapters()
    assert torch.equal(heard(), expected) and not torch.equal(expected, without)
    assert model.get_decoder().layers[0].self_attn.q_proj.disable_adapters


def test_instructions_of_a_language_model():
    """A language and hotwords go to the processor where it takes them, and are refused where it does not."""
    model, processor = build("Qwen3ASRForConditionalGeneration")
    asked = []
    request = processor.apply_transcription_request
    processor.apply_transcription_request = lambda audio, **told: asked.append(told) or request(audio)
    told = StreamingRecognizer(model, processor, endpoint=ENDPOINT, language="de", prompt="Ada, Grace")
    told.adapter.prompt()
    assert asked[-1] == {"language": "de", "prompt": "Ada, Grace"}
    processor.apply_transcription_request = lambda audio, **told: asked.append(told) or request(audio, **told)
    for language, spelling in (("German", "German"), ("pt-BR", "pt"), ("<|de|>", "de")):
        found = StreamingRecognizer(model, processor, endpoint=ENDPOINT, language=language)
        assert asked[-1] == {"language": spelling}, "as it was told where the processor knows that, else its code"
        assert found.adapter.language_of(None) == spelling.replace("German", "de")
    processor.apply_transcription_request = request
    with pytest.raises(SettingError, match="language='xx', prompt='': "):
        StreamingRecognizer(model, processor, endpoint=ENDPOINT, language="xx")
    with pytest.raises(SettingError, match="prompt='Ada': VoxtralForConditionalGeneration takes none"):
        recognizer("VoxtralForConditionalGeneration", prompt="Ada")
    with pytest.raises(SettingError, match="language='de': HubertForCTC takes none"):
        recognizer("HubertForCTC", language="de")
    with pytest.raises(SettingError, match="task='translate'"):
        recognizer("GlmAsrForConditionalGeneration", task="translate")
    with pytest.raises(SettingError, match=r"rejoin=14.0: HubertForCTC goes on from no text"):
        recognizer("HubertForCTC", rejoin=14.0)


def test_each_of_many_streams_is_heard_as_it_was_told():
    """Where the prompt of a language model says so, though pieces of audio are encoded together."""
    model, processor = build("Qwen3ASRForConditionalGeneration")
    asked = []
    request = processor.apply_transcription_request
    processor.apply_transcription_request = lambda audio, **told: asked.append(told.get("language")) or request(audio)
    base = StreamingRecognizer(model, processor, endpoint=ENDPOINT, language="de", batched=True)
    adapters = [base.told(language).adapter for language in (None, "en", "auto")]
    asked.clear()
    encode_together([(adapter, sound(0.5), None) for adapter in adapters])
    assert asked == ["de", "en", None]


def test_languages_of_a_transducer():
    model, processor = build("Nemotron3_5AsrForRNNT")
    processor.prompt_dictionary = {"en": 0, "de": 1}
    base = StreamingRecognizer(model, processor, endpoint=ENDPOINT, language="de")
    assert [base.told(language).adapter.language for language in (None, "en", "auto")] == ["de", "en", ""]
    said = [
        StreamingRecognizer(model, processor, endpoint=ENDPOINT, language=language).adapter.encode(sound(1.0))
        for language in (None, "auto", "de")
    ]
    assert torch.equal(said[0].hidden_states, said[1].hidden_states)
    assert not torch.equal(said[0].hidden_states, said[2].hidden_states)
    processor.prompt_dictionary |= {"zh-CN": 0, "zh-TW": 0, "pt-BR": 1, "pt": 1}
    for language, spelling in (
        ("de-AT", "de"),
        ("German", "de"),
        ("zh", "zh-CN"),
        ("zh-TW", "zh-TW"),
        ("zh_TW", "zh-TW"),
        ("PT", "pt"),
        ("pt_BR", "pt-BR"),
        ("pt-br", "pt-BR"),
        ("pt-AO", "pt"),
    ):
        assert base.told(language).adapter.language == spelling
    with pytest.raises(UnknownNameError, match="language 'xx'"):
        StreamingRecognizer(model, processor, language="xx")


def test_three_samples_for_each_two():
    """However they come, and so that tones stay what they are."""
    low = torch.sin(torch.arange(RATE) / RATE * 2 * torch.pi * 1000)
    whole = Upsampler().push(low)
    stream = Upsampler()
    # some processors round a convolution by where its output lies
    torch.testing.assert_close(torch.cat([stream.push(piece) for piece in low.split(333)]), whole, atol=1e-6, rtol=0)
    high = torch.sin(torch.arange(len(whole)) / 24_000 * 2 * torch.pi * 1000)
    assert float((whole - high)[200:].abs().max()) < 1e-3


def test_a_word_ends_with_its_vowel_sign_and_without_its_comma():
    tokenizer = SimpleNamespace(convert_ids_to_tokens=list)
    (word,) = words_of("".join, tokenizer, ["मे", "र", "ी", ","], [0.0, 1.0, 2.0, 3.0], [1.0, 2.0, 3.0, 4.0])
    assert (word.text, word.start, word.end) == ("मेरी,", 0.0, 3.0)


def test_words_without_times_are_spread():
    assert spread("", 2.0) == []
    assert [(word.text, word.start, word.end) for word in spread("so long", 7.0)] == [
        ("so", 0.0, 2.0),
        ("long", 3.0, 7.0),
    ]
    assert [(word.text, word.start, word.end) for word in spread("\u4f60\u597d\u3002", 3.0)] == [
        ("\u4f60", 0.0, 1.0),
        ("\u597d\u3002", 1.0, 3.0),
    ]


def test_nothing_said():
    """Noise that is no speech, less than a frame, and an empty stream."""
    for name in ("ParakeetForTDT", "Wav2Vec2ForCTC", "KyutaiSpeechToTextForConditionalGeneration"):
        found = recognizer(name)
        assert found.adapter.encode(torch.zeros(1)).seconds == 1 / RATE
        with found.stream() as stream:
            assert [
                event for event in stream.push(torch.zeros(100)) + stream.finish() if isinstance(event, Final)
            ] == []
