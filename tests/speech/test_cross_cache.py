"""Cross-attention keys and values that grow: those of a full projection, for only the new frames."""

import pytest
import torch
from tiny_recognisers import moonshine_streaming, whisper
from transformers import DynamicCache, EncoderDecoderCache

from mmaccel.adapter import find_adapter
from mmaccel.cache.argument import cached
from mmaccel.speech.audio.growing_audio import GrowingAudio
from mmaccel.speech.decoding.cross_cache import CrossCache
from mmaccel.speech.decoding.redecode import EncoderStates, decode
from mmaccel.speech.families.adapter import Encoded
from mmaccel.speech.families.moonshine_streaming import MoonshineStreamingAdapter
from mmaccel.speech.families.whisper import WhisperAdapter

RATE = 16_000


class Counted(CrossCache):
    """Counts the positions that it projects."""

    projected = 0

    def _append(self, adapter, hidden_states, start):
        super()._append(adapter, hidden_states, start)
        self.projected += hidden_states.shape[1]


def adapters():
    yield MoonshineStreamingAdapter(moonshine_streaming())
    # the sizes of encoder and decoder are equal: no projection
    yield MoonshineStreamingAdapter(moonshine_streaming(hidden_size=24))
    yield WhisperAdapter(whisper(d_model=24))


ADAPTERS = list(adapters())


def states(frames, seed=0):
    return torch.randn(1, frames, 24, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def full(adapter, hidden_states):
    """What the model itself puts into its cache."""
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    given = EncoderStates(last_hidden_state=hidden_states.clone())
    adapter.target(decoder_input_ids=torch.tensor([[1]]), encoder_outputs=given, **cached(cache), use_cache=True)
    return cache.cross_attention_cache


def difference(one, two):
    assert len(one.layers) == len(two.layers)
    pairs = [
        (a, b) for x, y in zip(one.layers, two.layers, strict=True) for a, b in ((x.keys, y.keys), (x.values, y.values))
    ]
    assert all(a.shape == b.shape for a, b in pairs)
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)


@pytest.mark.parametrize("adapter", ADAPTERS, ids=("moonshine_streaming", "equal_sizes", "whisper"))
@pytest.mark.parametrize("ends", ((40,), (1, 2, 3, 40), (13, 13, 25, 40)), ids=str)
def test_grown_is_full(adapter, ends):
    hidden, cache = states(40), Counted()
    for end in ends:
        grown = cache.update(adapter, hidden[:, :end])
        assert difference(grown, full(adapter, hidden[:, :end])) < 1e-6
        assert cache.length == end
    assert cache.projected == 40, "each frame is projected once"


@pytest.mark.parametrize("adapter", ADAPTERS, ids=("moonshine_streaming", "equal_sizes", "whisper"))
def test_frames_that_changed_are_projected_again(adapter):
    """The last frames, while their lookahead is missing; a shorter piece; another one."""
    hidden, cache = states(40), Counted()
    before = hidden[:, :30].clone()
    before[:, 25:] += 1.0
    cache.update(adapter, before)
    assert difference(cache.update(adapter, hidden), full(adapter, hidden)) < 1e-6
    assert cache.projected == 30 + 15
    assert difference(cache.update(adapter, hidden[:, :10]), full(adapter, hidden[:, :10])) < 1e-6
    assert cache.projected == 45
    other = states(20, 1)
    assert difference(cache.update(adapter, other), full(adapter, other)) < 1e-6
    assert cache.projected == 65 and cache.length == 20


@pytest.mark.parametrize("adapter", ADAPTERS, ids=("moonshine_streaming", "equal_sizes", "whisper"))
def test_after_an_error_between_two_layers_all_is_projected_again(adapter):
    """The first layers have more positions than the last then."""
    hidden, cache = states(40), CrossCache()
    before = hidden[:, :30].clone()
    before[:, 25:] += 1.0
    cache.update(adapter, before)
    handle = adapter.target.get_decoder().layers[-1].encoder_attn.v_proj.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cache.update(adapter, hidden)
    handle.remove()
    assert difference(cache.update(adapter, hidden), full(adapter, hidden)) < 1e-6


def test_states_changed_in_place_are_noticed():
    adapter, hidden, cache = ADAPTERS[0], states(10), CrossCache()
    cache.update(adapter, hidden)
    hidden += 1.0
    assert difference(cache.update(adapter, hidden), full(adapter, hidden)) < 1e-6
    hidden[:, 4, 0] += 1.0  # one channel is enough
    assert difference(cache.update(adapter, hidden), full(adapter, hidden)) < 1e-6


@pytest.mark.parametrize("adapter", ADAPTERS, ids=("moonshine_streaming", "equal_sizes", "whisper"))
def test_decoding_across_updates(adapter):
    """The same tokens as without the cache and the draft, in fewer passes."""
    hidden, cache, draft, passes = states(40), Counted(), (), 0
    for end in range(4, 41, 4):
        encoded = Encoded(hidden[:, :end], end * 0.02)
        plain = decode(adapter, encoded, [1], max_new_tokens=12)
        found = decode(adapter, encoded, [1], draft, cache, max_new_tokens=12)
        assert found.tokens == plain.tokens and found.ended == plain.ended
        draft, passes = found.tokens, passes + plain.forwards - found.forwards
    assert cache.projected == 40 and passes > 0


def test_a_segment_that_grows():
    """Encoder, cross-attention and decoder go on from where they were; the tokens are those of starting anew."""
    adapter = find_adapter(moonshine_streaming())
    assert isinstance(adapter, MoonshineStreamingAdapter) and adapter.appends
    samples = 0.1 * torch.randn(RATE, generator=torch.Generator().manual_seed(0))
    audio, draft = GrowingAudio(adapter), ()
    audio.cache = Counted()
    for end in range(1000, RATE + 1, 3000):
        encoded, whole = audio.encode(samples[:end]), adapter.encode(samples[:end])
        assert encoded.seconds == whole.seconds == end / RATE
        assert encoded.hidden_states.shape == whole.hidden_states.shape
        assert torch.allclose(encoded.hidden_states, whole.hidden_states, atol=1e-4, rtol=0)
        found = decode(adapter, encoded, adapter.prompt(), draft, audio.cache, max_new_tokens=10)
        assert found.tokens == decode(adapter, whole, adapter.prompt(), max_new_tokens=10).tokens
        draft = found.tokens
    frames = encoded.hidden_states.shape[1]
    assert frames < audio.cache.projected <= frames + 5 * 12, "all but the lookahead once"
    stream, again = audio._stream, audio.encode(samples[:end])
    assert audio._stream is stream and torch.equal(again.hidden_states, encoded.hidden_states), "nothing is new"
    shorter = audio.encode(samples[:4000])
    assert audio.cache.length == 0, "the cache of the segment before is let go"
    assert torch.allclose(shorter.hidden_states, adapter.encode(samples[:4000]).hidden_states, atol=1e-4, rtol=0)


def test_the_adapter_of_moonshine_streaming():
    adapter = MoonshineStreamingAdapter(moonshine_streaming())
    assert adapter.frame_seconds == 0.02 and adapter.begin().lookahead == 12
    assert adapter.longest == pytest.approx(81.92)
    assert adapter.prompt("before") == [1] and adapter.end_tokens == {2} and adapter.limit(2.0) == 30
    adapter.target.name_or_path = "UsefulSensors/moonshine-streaming-tiny"
    assert adapter.limit(2.0) == 17, "English has fewer tokens in a second"
    samples = 0.1 * torch.randn(RATE + 33, generator=torch.Generator().manual_seed(0))
    padded = torch.nn.functional.pad(samples, (0, 47))[None]
    mask = (torch.arange(padded.shape[1]) < len(samples)).long()[None]
    out = adapter.target.generate(padded, attention_mask=mask, max_new_tokens=20, do_sample=False)[0, 1:].tolist()
    found = decode(adapter, adapter.encode(samples), adapter.prompt(), max_new_tokens=20)
    assert list(found.tokens) == [token for token in out if token != 2]
    every = [0, 1, 2, 3]
    assert adapter.heads() == {0: every, 1: every} and adapter.attention(
        adapter.encode(samples), [5, 6], [1]
    ).shape == (3, 50)


def test_the_adapter_encodes_in_the_models_precision():
    adapter = MoonshineStreamingAdapter(moonshine_streaming().bfloat16())
    assert adapter.encode(torch.zeros(RATE)).hidden_states.dtype is torch.bfloat16
