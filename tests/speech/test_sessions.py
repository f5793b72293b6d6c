"""A recogniser on a model that a session accelerates."""

import pytest
import torch

import mmaccel
from mmaccel import speech
from mmaccel.errors import SettingError, UnsupportedTargetError
from mmaccel.speech import examples
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
    """Before, within and behind the session; a session that keeps all tokens merges none."""
    model, processor = tiny
    recognizer = StreamingRecognizer(model, processor, endpoint=ENDPOINT)
    expected, encoded = _finals(recognizer), recognizer.adapter.encode(_recording())
    stream = recognizer.stream()
    with mmaccel.accelerate(model, speech.MergeAudioTokens(keep=0.5)) as fast:
        with pytest.raises(UnsupportedTargetError, match=r"MergeAudioTokens.*call \.remove\(\) on that session"):
            StreamingRecognizer(fast, processor, endpoint=ENDPOINT)
        with pytest.raises(UnsupportedTargetError, match="words would get wrong ones"):
            recognizer.adapter.words(encoded, [3, 4], recognizer.adapter.prompt())
        with pytest.raises(UnsupportedTargetError):
            stream.push(_recording())
        with fast.baseline():
            assert _finals(recognizer) == expected
    events = stream.push(torch.zeros(0)) + stream.finish()  # the stream goes on where it stopped
    assert [event for event in events if isinstance(event, speech.Final)] == expected
    with mmaccel.accelerate(model, speech.MergeAudioTokens(keep=1.0)):
        assert _finals(recognizer) == expected


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
