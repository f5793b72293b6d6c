"""A pushed stream of the cache-aware FastConformer: what the library makes of the whole audio."""

import pytest
import torch
from transformers import (
    NemotronAsrStreamingConfig,
    NemotronAsrStreamingFeatureExtractor,
    NemotronAsrStreamingForRNNT,
    NemotronAsrStreamingProcessor,
)

from mmaccel.cache.argument import cache_of
from mmaccel.cache.layers import layer_bytes
from mmaccel.demos.families.speech_models import words
from mmaccel.errors import SettingError
from mmaccel.speech.families.finding import adapter_of
from mmaccel.speech.families.nemotron import NemotronStream
from mmaccel.speech.families.transducer import StreamingTransducerAdapter
from mmaccel.stepping.tensors import count_bytes

BLANK, BLANKS, RATE = 24, 9.0, 16_000


class Processor:
    def __init__(self):
        self.feature_extractor = NemotronAsrStreamingFeatureExtractor(feature_size=16)


def build():
    encoder = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 32,
        "subsampling_conv_channels": 8,
        "num_mel_bins": 16,
        "conv_kernel_size": 5,
        "sliding_window": 15,
        "model_type": "nemotron_asr_streaming_encoder",
    }
    config = NemotronAsrStreamingConfig(
        encoder_config=encoder,
        vocab_size=BLANK + 1,
        blank_token_id=BLANK,
        decoder_hidden_size=24,
        num_decoder_layers=1,
        max_symbols_per_step=3,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = NemotronAsrStreamingForRNNT(config).eval()
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 and "encoder.layers" not in name:
                parameter.data.normal_(0.0, (3.0 if "encoder" not in name else 1.5) * parameter[0].numel() ** -0.5)
        model.decoder.embedding.weight.data.normal_(0.0, 3.0)
        model.joint.head.bias.data[BLANK] += BLANKS  # so that it neither is silent nor always says the most it may
    model.generation_config.decoder_start_token_id = BLANK
    return model


@pytest.fixture(scope="module")
def model():
    return build()


@pytest.fixture(scope="module")
def processor():
    return Processor()


def sound(seconds, seed=0):
    generator = torch.Generator().manual_seed(seed)
    loud = torch.rand(round(seconds * 10) + 1, generator=generator).repeat_interleave(1600)[: round(seconds * RATE)]
    return loud * torch.randn(len(loud), generator=generator)


def filled(samples, lookahead):
    """With silence up to the end of the last chunk."""
    first, more = 1 + 8 * lookahead, 8 * (lookahead + 1)
    mels = len(samples) // 160
    chunks = max(0, -(-(mels - first) // more))
    return torch.nn.functional.pad(samples, (0, (first + chunks * more) * 160 - len(samples)))


def offline(model, processor, samples, lookahead):
    """The library on the whole audio: encoder frames, and tokens."""
    samples = filled(samples, lookahead)
    inputs = processor.feature_extractor(samples.numpy(), sampling_rate=RATE, return_tensors="pt")
    # the library counts a last, half-empty mel frame as padding
    mels = inputs.input_features[:, : len(samples) // 160]
    with torch.no_grad():
        frames = model.get_audio_features(input_features=mels, num_lookahead_tokens=lookahead).pooler_output
        output = model.generate(input_features=mels, num_lookahead_tokens=lookahead, max_new_tokens=500)
    tokens = [token for token in output.sequences[0].tolist() if token != BLANK]
    return frames, tokens


def watched(model, processor, lookahead=1):
    """A stream, and the frames that its encoder has made."""
    stream, frames = NemotronStream(model, processor, lookahead), []
    encode = stream._encode
    stream._encode = lambda: frames.append(encode()) or frames[-1]
    return stream, frames


def tokens_of(emissions):
    return [one.token for one in emissions]


def streamed(model, processor, samples, lookahead, chunk):
    """Encoder frames and tokens."""
    stream, frames = watched(model, processor, lookahead)
    found = [one for piece in samples.split(chunk) for one in stream.hear(piece)] + stream.rest()
    return torch.cat(frames, 1), tokens_of(found)


@pytest.mark.parametrize("lookahead", (13, 6, 1, 0))
def test_pushed_is_offline(model, processor, lookahead):
    samples = sound(4.0)
    frames, tokens = offline(model, processor, samples, lookahead)
    assert len(set(tokens)) > 4, "a model that says nothing would prove nothing"
    for chunk in (333, 8000, 10**6):
        pushed, said = streamed(model, processor, samples, lookahead, chunk)
        assert pushed.shape == frames.shape
        assert float((pushed - frames).abs().max()) < 1e-4 * float(frames.abs().max())
        assert said == tokens


def test_the_lookaheads_that_the_processor_names(model):
    other = Processor()
    other.supported_num_lookahead_tokens = (2,)
    assert NemotronStream(model, other, 2).lookahead == 2
    with pytest.raises(SettingError, match="trained with 2$"):
        NemotronStream(model, other)


def test_the_lookahead_that_the_processor_was_told(model, processor):
    """Also when a recogniser is made already; one that is given to the adapter goes before it."""
    told, adapter = NemotronAsrStreamingProcessor(processor.feature_extractor, words()), adapter_of(model, processor)
    assert adapter.lookahead == model.config.encoder_config.default_num_lookahead_tokens == 13
    adapter = adapter_of(model, told)
    told.set_num_lookahead_tokens(1)
    samples = sound(4.0)
    found = torch.cat([(stream := adapter.begin()).push(samples), stream.peek()], 1)[0, :, 0].tolist()
    assert adapter.lookahead == 1 and found == offline(model, processor, samples, 1)[1]
    assert found != offline(model, processor, samples, 13)[1]
    assert adapter_of(StreamingTransducerAdapter(model, lookahead=6), told).lookahead == 6


def test_a_model_that_never_falls_silent(processor):
    """At most so many tokens at a frame, and as many at the first."""
    model = build()
    model.joint.head.bias.data[BLANK] = -1e4
    (stream, frames), found = watched(model, processor, 0), []
    for piece in sound(0.4).split(1600):
        found += stream.hear(piece)
        assert len(found) == 3 * sum(part.shape[1] for part in frames) > 0


def test_other_precisions(model, processor):
    """Samples are kept in float32, and features go to the model in its own precision."""
    (stream, frames), samples = watched(model, processor), sound(0.5)
    twice = NemotronStream(model, processor)
    assert stream.hear(samples) == twice.hear(samples.double()) and torch.equal(stream._samples, twice._samples)
    low, others = watched(build().bfloat16(), processor)
    low.hear(samples)
    assert len(others) == len(frames) > 0


def test_tokens_stay_and_come_in_time(model, processor):
    """What came out is final, and nothing waits longer than two frames of 80 ms and half a window."""
    samples = sound(2.0)
    _, tokens = streamed(model, processor, samples, 1, 10**6)
    (stream, frames), said = watched(model, processor), []
    for end in range(160, len(samples) + 1, 160):
        said += tokens_of(stream.hear(samples[end - 160 : end]))
        assert tokens[: len(said)] == said
        assert sum(part.shape[1] for part in frames) * 0.08 > (end - 256) / RATE - 0.16 - 0.01
    assert said + tokens_of(stream.rest()) == tokens


def test_two_streams_on_one_model(model, processor):
    """Unlike the library's own streaming, which keeps its place on the model."""
    before = set(vars(model))
    sounds = [sound(1.5, 1), sound(1.5, 2)]
    alone = [streamed(model, processor, samples, 0, 4000)[1] for samples in sounds]
    streams, said = [NemotronStream(model, processor, 0) for _ in sounds], [[], []]
    for pieces in zip(*(samples.split(1111) for samples in sounds), strict=True):
        for number, piece in enumerate(pieces):
            said[number] += tokens_of(streams[number].hear(piece))
    assert [tokens + tokens_of(stream.rest()) for tokens, stream in zip(said, streams, strict=True)] == alone
    assert alone[0] != alone[1] and set(vars(model)) == before


def test_memory_is_bounded(model, processor):
    stream = NemotronStream(model, processor, 1)
    sizes = []
    for seed in range(5):
        stream.hear(sound(1.6, seed))
        sizes.append(count_bytes([stream._samples]) + layer_bytes(cache_of(stream._caches).layers))
    assert sizes[1] == sizes[-1] < 100_000
    assert stream._samples.untyped_storage().nbytes() == stream._samples.nbytes, "a view holds all that was heard"
    assert not cache_of(stream._caches).layers[0].keys.requires_grad
    stream.rest()
    assert not cache_of(stream._caches).layers[0].keys.requires_grad


def test_where_a_stream_begins(model, processor, monkeypatch):
    """From the token that the generation starts with."""
    monkeypatch.setattr(model.generation_config, "decoder_start_token_id", 3)
    stream = NemotronStream(model, processor)
    assert stream._greedy.last == 3
    monkeypatch.setattr(model.generation_config, "decoder_start_token_id", None)
    assert NemotronStream(model, processor)._greedy.last == model.config.blank_token_id


def test_nothing_and_a_lookahead_that_was_not_trained(model, processor):
    assert NemotronStream(model, processor).rest() == []
    with pytest.raises(SettingError, match=r"lookahead=3\): the model was trained with 13, 6, 1, 0"):
        NemotronStream(model, processor, 3)
