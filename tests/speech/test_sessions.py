"""A recogniser on a model that a session accelerates."""

import functools
import threading

import pytest
import torch
from peft import LoraConfig

import mmaccel
from mmaccel import speech
from mmaccel.errors import SettingError, UnsupportedTargetError
from mmaccel.speech import examples
from mmaccel.speech.families.finding import adapter_of
from mmaccel.speech.stream.recognizer import StreamingRecognizer
from mmaccel.testing.contract import snapshot

MODELS = {
    "moonshine": (examples.moonshine, examples.moonshine_processor),
    "whisper": (examples.whisper, examples.whisper_processor),
}
ENDPOINT = speech.EnergyEndpoint(longest=3, silence=0.2, padding=0.2)


@pytest.fixture(params=MODELS)
def tiny(request):
    build, processor = MODELS[request.param]
    return build()[0], processor()


def _recording():
    """A second of tones between silences."""
    quiet = torch.zeros(8_000)
    return torch.cat([quiet, examples.sound(1)[0], quiet])


def _finals(recognizer):
    with recognizer.stream() as stream:
        events = stream.push(_recording()) + stream.finish()
    return [event for event in events if isinstance(event, speech.Final)]


def test_a_session_that_drafts_changes_nothing(tiny):
    model, processor = tiny
    before = snapshot(model)
    expected = _finals(StreamingRecognizer(model, processor, endpoint=ENDPOINT))
    assert len(expected) == 1 and len(expected[0].words) > 1
    with mmaccel.accelerate(model, speech.SuffixDraft()) as fast:
        assert _finals(StreamingRecognizer(fast, processor, endpoint=ENDPOINT)) == expected
        assert _finals(StreamingRecognizer(model, processor, endpoint=ENDPOINT)) == expected
    assert snapshot(model) == before


def test_merged_tokens_have_no_times(tiny):
    """A recogniser of the session is refused; one of the model runs by its own twin before, within and behind it."""
    model, processor = tiny
    recognizer = StreamingRecognizer(model, processor, endpoint=ENDPOINT)
    expected, encoded = _finals(recognizer), recognizer.adapter.encode(_recording())
    words = recognizer.adapter.words(encoded, [3, 4], recognizer.adapter.prompt())
    with mmaccel.accelerate(model, speech.MergeAudioTokens(keep=0.5)) as fast:
        with pytest.raises(UnsupportedTargetError, match=r"MergeAudioTokens.*call \.remove\(\) on that session"):
            StreamingRecognizer(fast, processor, endpoint=ENDPOINT)
        assert recognizer.adapter.words(encoded, [3, 4], recognizer.adapter.prompt()) == words
        with pytest.raises(UnsupportedTargetError, match="words would get wrong ones"):
            adapter_of(fast, processor).words(encoded, [3, 4], recognizer.adapter.prompt())
        within = StreamingRecognizer(model, processor, endpoint=ENDPOINT)
        assert _finals(recognizer) == _finals(within) == expected
    assert _finals(recognizer) == _finals(within) == expected
    with mmaccel.accelerate(model, speech.MergeAudioTokens(keep=1.0)) as fast:
        assert _finals(StreamingRecognizer(fast, processor, endpoint=ENDPOINT)) == expected


@pytest.mark.parametrize("policy", (speech.LocalAgreement(2), speech.AlignAtt()))
def test_packed_weights_say_the_same(tiny, policy):
    model, processor = tiny
    before, settings = snapshot(model), {"endpoint": ENDPOINT, "policy": policy}
    expected = _finals(StreamingRecognizer(model, processor, **settings))
    packed = StreamingRecognizer(model, processor, packed=True, **settings)
    assert _finals(packed) == expected and len(expected[0].words) > 1
    assert packed.adapter.target is not model and snapshot(model) == before
    with mmaccel.accelerate(model, speech.SuffixDraft()) as fast, pytest.raises(SettingError, match="the model itself"):
        StreamingRecognizer(fast, processor, packed=True)


def test_an_encoder_that_appends_may_be_packed():
    model = examples.moonshine_streaming()[0]
    plain, packed = (
        StreamingRecognizer(model, examples.moonshine_processor(), endpoint=ENDPOINT, packed=packed)
        for packed in (False, True)
    )
    assert _finals(packed) == _finals(plain) != []


def test_recognisers_of_one_model_run_at_once_beside_its_own_generate(tiny):
    """Each watches what passes through its own twin."""
    model, processor = tiny
    arguments = MODELS[model.config.model_type][0]()[1](1, max_new_tokens=4)
    both = [StreamingRecognizer(model, processor, endpoint=ENDPOINT) for _ in range(2)]
    expected, before = _finals(both[0]), snapshot(model)
    heard, stop = [], threading.Event()

    def generate():
        while not stop.is_set():
            model.generate(**arguments)

    def hear(recognizer):
        try:
            heard.extend(_finals(recognizer) for _ in range(6))
        except Exception as error:
            heard.append(error)

    threads = [threading.Thread(target=hear, args=(one,)) for one in both]
    beside = threading.Thread(target=generate)
    for thread in (beside, *threads):
        thread.start()
    for thread in threads:
        thread.join(60)
    stop.set()
    beside.join(60)
    assert heard == [expected] * 12 and snapshot(model) == before


def test_a_model_that_cannot_have_a_twin_has_one_lock(tiny):
    model, processor = tiny
    expected = _finals(StreamingRecognizer(model, processor, endpoint=ENDPOINT))
    decoder = model.get_decoder()
    decoder.forward = functools.wraps(decoder.forward)(functools.partial(decoder.forward))  # as accelerate does
    one, other = (StreamingRecognizer(model, processor, endpoint=ENDPOINT) for _ in range(2))
    assert one.adapter.target is other.adapter.target is model and one.lock is other.lock
    assert _finals(one) == _finals(other) == expected


@pytest.mark.parametrize("packed", (False, True))
def test_a_model_that_was_in_training_is_heard_without_dropout(packed):
    """As behind `Trainer.train()`; the model itself stays in its mode."""
    model, processor = MODELS["moonshine"][0]()[0], MODELS["moonshine"][1]()
    for part in model.modules():
        part.attention_dropout = 0.5
    expected = _finals(StreamingRecognizer(model, processor, endpoint=ENDPOINT, packed=packed))
    recognizer = StreamingRecognizer(model.train(), processor, endpoint=ENDPOINT, packed=packed)
    assert _finals(recognizer) == expected and all(part.training for part in model.modules())


def test_a_model_in_training_that_can_have_no_twin_is_refused():
    """As where `Trainer.train()` in half precision left its own `forward`."""
    model, processor = MODELS["moonshine"][0]()[0], MODELS["moonshine"][1]()
    model.forward = functools.partial(model.forward)
    with pytest.raises(SettingError, match=f"{type(model).__name__} is in training mode.*call .eval"):
        StreamingRecognizer(model.train(), processor, endpoint=ENDPOINT)
    StreamingRecognizer(model.eval(), processor, endpoint=ENDPOINT)


@pytest.mark.parametrize("packed", (False, True))
def test_other_modules_take_another_recogniser(tiny, packed):
    """As adapters put in; its twin would go on with the old ones."""
    model, processor = tiny
    recognizer = StreamingRecognizer(model, processor, endpoint=ENDPOINT, packed=packed)
    recognizer.stream().close()
    head = model.get_output_embeddings()
    model.set_output_embeddings(torch.nn.Linear(head.in_features, head.out_features, bias=False))
    with pytest.raises(SettingError, match=f"of this {type(model).__name__} were replaced.*make another"):
        recognizer.told().stream()
    StreamingRecognizer(model, processor, endpoint=ENDPOINT).stream().close()


def test_another_lora_takes_another_recogniser(tiny):
    model, processor = tiny
    config = LoraConfig(target_modules=["q_proj"], r=2)
    for name in ("one", "other"):
        model.add_adapter(config, name)
    recognizer = StreamingRecognizer(model, processor, endpoint=ENDPOINT)
    model.set_adapter("one")
    with pytest.raises(SettingError, match="were replaced"):
        recognizer.stream()
    model.set_adapter("other")
    recognizer.stream().close()


def test_a_given_adapter_is_not_changed(tiny):
    model, processor = tiny
    adapter = adapter_of(model, processor)
    StreamingRecognizer(adapter, examples.moonshine_processor(), endpoint=ENDPOINT)
    assert adapter.processor is processor
