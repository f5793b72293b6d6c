"""Language, task and prompt: what a multilingual Whisper is told, and who cannot be told."""

import copy
import re

import pytest
import torch
from tokenizers import pre_tokenizers

from mmaccel import speech
from mmaccel.errors import SettingError, UnknownNameError
from mmaccel.speech import examples
from mmaccel.speech.decoding.redecode import decode
from mmaccel.speech.families.moonshine import MoonshineAdapter
from mmaccel.speech.families.whisper import WhisperAdapter
from mmaccel.speech.stream.transcribe import as_recognizer

MARKS = {
    "is_multilingual": True,
    "lang_to_id": {"<|en|>": 50, "<|de|>": 51},
    "task_to_id": {"transcribe": 52, "translate": 53},
    "no_timestamps_token_id": 60,
    "prev_sot_token_id": 55,
}


@pytest.fixture
def multilingual():
    model, _ = examples.whisper()
    for name, value in MARKS.items():
        setattr(model.generation_config, name, value)
    adapter = WhisperAdapter(model, context_frames=None)
    adapter.processor = examples.whisper_processor()
    adapter.processor.tokenizer._tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    return adapter


def test_what_it_is_told_stands_before_the_text(multilingual):
    assert multilingual.prompt() == [1, 50, 52, 60]
    multilingual.instruct("German", "translate", "w3 w5 ")
    hint = multilingual.processor.tokenizer(" w3 w5", add_special_tokens=False).input_ids
    assert len(hint) == 2 and multilingual.prompt() == [55, *hint, 1, 51, 53, 60]
    last = multilingual.processor.tokenizer(" w7", add_special_tokens=False).input_ids
    assert multilingual.prompt("w7") == [55, *hint, *last, 1, 51, 53, 60]
    long = multilingual.prompt("w9 " * 200 + "w7")
    assert long[:3] == [55, *hint] and long[-5:] == [*last, 1, 51, 53, 60] and len(long) == 96 // 2 + 4


def test_of_a_long_prompt_the_last_words_are_read(multilingual):
    """As OpenAI's Whisper and transformers have it, whose clients send the text before."""
    multilingual.instruct("de", prompt="w3 " * 60 + "w5 w7")
    last = multilingual.processor.tokenizer(" w5 w7", add_special_tokens=False).input_ids
    assert len(multilingual.prompt()) == 96 // 2 + 4 and multilingual.prompt()[-6:] == [*last, 1, 51, 52, 60]


@pytest.mark.parametrize("mark", ("<|startoftranscript|>", "<|de|>", "<|0.00|>"))
def test_a_mark_is_no_word_of_a_prompt(multilingual, mark):
    """The tokenizer makes a mark of it, and the language that is heard would be written behind the wrong start."""
    with pytest.raises(SettingError, match=rf"prompt='w3 {re.escape(mark)} w5': {re.escape(mark)} is a mark"):
        multilingual.instruct(prompt=f"w3 {mark} w5")


def test_several_languages_are_none(multilingual):
    with pytest.raises(SettingError, match=r"language=\['de', 'en'\]: give one.*'auto'"):
        multilingual.instruct(["de", "en"])


@pytest.mark.parametrize("told", (("de", "transcribe", ""), ("en", "translate", ""), ("de", "translate", "w3 w5")))
def test_the_tokens_are_those_of_the_model(multilingual, told):
    language, task, prompt = told
    multilingual.instruct(*told)
    samples = examples.sound()[0]
    found = decode(multilingual, multilingual.encode(samples), multilingual.prompt(), max_new_tokens=11).tokens
    more = {}
    if prompt:
        ids = multilingual.processor.tokenizer(f" {prompt}", add_special_tokens=False).input_ids
        more["prompt_ids"] = torch.tensor([55, *ids])
    extractor = multilingual.processor.feature_extractor
    features = extractor(samples.numpy(), sampling_rate=16_000, return_tensors="pt").input_features
    wanted = multilingual.target.generate(
        features, language=language, task=task, max_new_tokens=len(found), do_sample=False, **more
    )
    assert len(found) > 4 and wanted[0].tolist()[-len(found) :] == list(found)


@pytest.mark.parametrize(
    "own",
    (
        {"language": "de"},
        {"language": "<|de|>", "task": "translate"},
        {"task": "translate"},
        {"forced_decoder_ids": [[1, 51], [2, 53], [3, 60]]},
        {"forced_decoder_ids": [[1, None], [2, 53]]},
        {"forced_decoder_ids": [[1, 51], [2, 53]], "lang_to_id": None},
    ),
)
def test_a_checkpoint_s_own_language_and_task_are_those_of_its_generate(multilingual, own):
    model, samples = multilingual.target, examples.sound()[0]
    for name, value in own.items():
        if value is None:
            delattr(model.generation_config, name)
        else:
            setattr(model.generation_config, name, value)
    adapter = WhisperAdapter(model, context_frames=None)
    asr = speech.StreamingRecognizer(adapter, multilingual.processor, endpoint=speech.EnergyEndpoint(longest=4.0))
    prompts = []
    model.get_decoder().register_forward_pre_hook(
        lambda _, __, given: prompts.append(given["input_ids"][0].tolist()), with_kwargs=True
    )
    found = asr.hear(samples, asr.adapter.prompt())[1].tokens
    heard = next(ids for ids in prompts if len(ids) > 1)  # the start alone asks for the language
    prompts.clear()
    extractor = multilingual.processor.feature_extractor
    features = extractor(samples.numpy(), sampling_rate=16_000, return_tensors="pt").input_features
    wanted = model.generate(features, max_new_tokens=len(found), do_sample=False)
    assert len(found) > 4 and wanted[0].tolist()[-len(found) :] == list(found)
    assert heard == next(ids for ids in prompts if len(ids) > 1) and heard not in ([1, 50, 52, 60], [1, 60])
    if "lang_to_id" not in own:
        assert asr.told("en", "transcribe").adapter.prompt() == [1, 50, 52, 60]
        assert asr.told("auto").adapter.language is None


def test_other_languages_are_other_texts(multilingual):
    encoded, found = multilingual.encode(examples.sound()[0]), set()
    for told in (("en", "transcribe"), ("de", "transcribe"), ("de", "translate"), ("de", "translate", "w3 w5")):
        multilingual.instruct(*told)
        found.add(tuple(decode(multilingual, encoded, multilingual.prompt()).tokens))
    assert len(found) > 1


def test_a_recogniser_hands_it_on(multilingual):
    found = speech.StreamingRecognizer(
        multilingual, endpoint=speech.EnergyEndpoint(longest=4.0), language="de", task="translate", prompt="w3"
    )
    assert (found.adapter.language, found.adapter.task, found.adapter.hint) == ("de", "translate", "w3")
    for told, expected in (
        ({}, ("de", "translate", "w3")),
        ({"language": "en"}, ("en", "translate", "w3")),
        ({"task": "transcribe", "prompt": "w5"}, ("de", "transcribe", "w5")),
        ({"prompt": ""}, ("de", "translate", "")),
    ):
        other = found.told(**told)
        assert (other.adapter.language, other.adapter.task, other.adapter.hint) == expected, "what is not told stays"
        assert (other.language, other.task, other.prompt) == expected
        assert other.told().adapter.task == expected[1]


@pytest.mark.parametrize("told", (None, "auto", "de"))
@pytest.mark.parametrize("heard", ("en", "de"))
def test_each_segment_is_written_in_the_language_that_it_is_heard_in(multilingual, told, heard):
    """As `generate` does without a language; the final says which, and has the tokens of a model that was told so."""
    samples = torch.nn.functional.pad(examples.sound()[0], (3200, 0))
    assert multilingual.language_of(multilingual.encode(samples)) in ("en", "de")
    listening = copy.copy(multilingual)
    listening.detect_language = lambda _: heard
    asr = speech.StreamingRecognizer(listening, endpoint=speech.EnergyEndpoint(longest=4.0), language=told)
    with asr.stream() as stream:
        final = next(event for event in stream.push(samples) + stream.finish() if isinstance(event, speech.Final))
    assert final.language == ("de" if told == "de" else heard)
    assert f'"language": "{final.language}"' in speech.to_json([final])
    multilingual.instruct(final.language)
    piece = multilingual.encode(samples[round(final.start * 16_000) : round(final.end * 16_000)])
    assert final.tokens == decode(multilingual, piece, multilingual.prompt()).tokens


@pytest.mark.parametrize(
    ("told", "error", "message"),
    (
        ({"language": "dee"}, UnknownNameError, "unknown language 'dee': did you mean 'de'"),
        ({"task": "sing"}, UnknownNameError, "unknown task 'sing'"),
    ),
)
def test_what_a_multilingual_model_lacks(multilingual, told, error, message):
    with pytest.raises(error, match=message):
        multilingual.instruct(**told)
    assert multilingual.prompt() == [1, 50, 52, 60], "nothing was changed"


@pytest.mark.parametrize("told", ({"language": "de"}, {"task": "translate"}))
def test_an_english_whisper_says_what_it_is(told):
    adapter = WhisperAdapter(examples.whisper()[0])
    for language in ("english", "en-US", "en_GB"):
        adapter.instruct(language)
    assert adapter.prompt() == [1] and adapter.language_of(None) == ""
    with pytest.raises(SettingError, match="knows English only, take a multilingual one"):
        adapter.instruct(**told)


@pytest.mark.parametrize("is_multilingual", (False, True))
def test_words_of_another_alphabet_are_for_multilingual_models(multilingual, is_multilingual):
    multilingual.target.generation_config.is_multilingual = is_multilingual
    multilingual.instruct(prompt="Zoë, Łódź 3")
    if is_multilingual:
        multilingual.instruct(prompt="Zoë, Ελλάδα")
    else:
        with pytest.raises(SettingError, match="prompt='Zoë, Ελλάδα': this Whisper writes Latin letters only, not 'Ε'"):
            multilingual.instruct(prompt="Zoë, Ελλάδα")
    assert multilingual.hint == ("Zoë, Ελλάδα" if is_multilingual else "Zoë, Łódź 3")


def test_a_whisper_without_the_mark_takes_no_prompt():
    with pytest.raises(SettingError, match="has no prev_sot_token_id"):
        WhisperAdapter(examples.whisper()[0]).instruct(prompt="Molloy")


@pytest.mark.parametrize("told", ({"language": "en"}, {"task": "translate"}, {"prompt": "Molloy"}))
def test_other_models_say_which_do(told):
    adapter = MoonshineAdapter(examples.moonshine()[0])
    adapter.instruct()
    with pytest.raises(SettingError, match="MoonshineForConditionalGeneration takes none; a multilingual Whisper does"):
        adapter.instruct(**told)


def test_a_model_takes_the_language_that_it_has():
    """As every client says it, with or without a country."""
    model = examples.moonshine()[0]
    model.name_or_path = "UsefulSensors/moonshine-tiny-uk"
    adapter = MoonshineAdapter(model)
    for language in ("uk", "uk-UA", "Ukrainian"):
        adapter.instruct(language)
    for language in ("en", "de-DE"):
        with pytest.raises(SettingError, match=f"language='{language}': MoonshineForConditionalGeneration takes none"):
            adapter.instruct(language)


def test_the_country_of_a_language_makes_no_other(multilingual):
    multilingual.instruct("de-AT")
    assert multilingual.prompt() == [1, 51, 52, 60]
    with pytest.raises(UnknownNameError, match="unknown language 'pt': choose from 'en', 'de'"):
        multilingual.instruct("pt-BR")


CODES = (("nb-NO", "no"), ("fil", "tl"), ("jv", "jw"), ("iw", "he"), ("nn", "nn"))


@pytest.mark.parametrize(("told", "known"), CODES)
def test_a_language_of_several_codes_is_known_by_each(multilingual, told, known):
    multilingual.target.generation_config.lang_to_id = {"<|en|>": 50, f"<|{known}|>": 51}
    multilingual.instruct(told)
    assert multilingual.prompt() == [1, 51, 52, 60] and multilingual.language == known


@pytest.mark.parametrize("told", (None, "de"))
def test_passes_that_ask_for_the_language_are_counted(multilingual, told):
    endpoint, passes, timed = speech.EnergyEndpoint(longest=4.0), [], []
    asr = speech.StreamingRecognizer(multilingual, endpoint=endpoint, language=told)
    boundaries = asr.adapter._boundaries
    asr.adapter._boundaries = lambda *given: timed.append(given) or boundaries(*given)
    asr.adapter.target.get_decoder().register_forward_hook(lambda *_: passes.append(1))
    with asr.stream(update_interval=0.2) as stream:
        stream.push(torch.nn.functional.pad(examples.sound()[0], (3200, 0)))
        stream.finish()
    assert stream.stats.partial_decodes > 1 and timed
    assert stream.stats.decoder_calls + len(timed) == len(passes)


def test_a_recogniser_is_told_what_transcribe_is(multilingual):
    """For this recording: it stays as it was."""
    made = speech.StreamingRecognizer(
        multilingual, endpoint=speech.EnergyEndpoint(longest=4.0), language="de", prompt="w3"
    )
    usual = {"language": None, "task": None, "prompt": "", "rejoin": 0.0}
    other = as_recognizer(made, None, "auto", 200, **{**usual, "language": "en", "task": "translate"})
    assert (other.language, other.task, other.prompt) == ("en", "translate", "w3")
    assert other.adapter.prompt() != made.adapter.prompt() and (made.language, made.task) == ("de", None)
    assert as_recognizer(made, None, "auto", 200, **{**usual, "prompt": "w5"}).prompt == "w5"
    with pytest.raises(UnknownNameError, match="klingon"):
        as_recognizer(made, None, "auto", 200, **{**usual, "language": "Klingon"})
