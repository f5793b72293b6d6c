"""The cached encoder of Moonshine v2: what the whole encoder makes of the whole audio."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import MoonshineStreamingConfig, MoonshineStreamingForConditionalGeneration

from mmaccel.speech.decoding.cached_encoder import EncoderStream
from mmaccel.speech.families.private import sliding_window

DEFAULT = ((16, 4), (16, 4), (16, 0), (16, 0), (16, 4), (16, 4))
RATE = 16_000


def build(windows=DEFAULT, size=24, heads=4, **more):
    encoder = {
        "hidden_size": size,
        "intermediate_size": 2 * size,
        "num_hidden_layers": len(windows),
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "sliding_windows": windows,
        **more,
    }
    config = MoonshineStreamingConfig(
        encoder_config=encoder,
        hidden_size=size,
        intermediate_size=2 * size,
        num_hidden_layers=1,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        vocab_size=32,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = MoonshineStreamingForConditionalGeneration(config).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.mul_(4.0)  # so that attention is sharp, and a wrong mask shows
    return model.get_encoder()


@pytest.fixture(scope="module")
def encoder():
    return build()


def noise(samples, seed=0):
    return 0.1 * torch.randn(samples, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def whole(encoder, samples):
    """As the processor pads and masks it."""
    padding = -len(samples) % 80
    mask = torch.ones(1, len(samples), dtype=torch.long)
    padded, mask = (torch.nn.functional.pad(x, (0, padding)) for x in (samples[None], mask))
    output = encoder(padded, attention_mask=mask)
    return output.last_hidden_state[:, output.attention_mask[0].bool()]


def streamed(encoder, samples, chunk):
    stream = EncoderStream(encoder)
    frames = [stream.push(piece) for piece in samples.split(chunk)]
    frames.append(stream.peek())
    assert stream.samples == len(samples)
    return torch.cat(frames, 1)


@pytest.mark.parametrize("chunk", (37, 80, 160, 500, 4000, 8000, 99_999))
def test_any_chunks_are_the_whole(encoder, chunk):
    samples = noise(RATE * 2 if chunk > 100 else RATE)
    frames = streamed(encoder, samples, chunk)
    expected = whole(encoder, samples)
    assert frames.shape == expected.shape
    assert float((frames - expected).abs().max()) < 1e-5


def test_chunks_of_all_sizes_in_turn(encoder):
    samples = noise(30_011)
    sizes = [0, 1, 79, 80, 81, 0, 5000, 3, 12_345, 7]
    stream, pieces = EncoderStream(encoder), [*samples.split([*sizes, 30_011 - sum(sizes)])]
    frames = torch.cat([*(stream.push(piece) for piece in pieces), stream.peek()], 1)
    assert float((frames - whole(encoder, samples)).abs().max()) < 1e-5


def test_all_lengths_of_the_end(encoder):
    """A frame that is cut off by the end, and convolutions that are."""
    for length in (80, 81, 159, 160, 161, 240, 319, 320, 321, 400, 641, 4001, 4079):
        samples = noise(length)
        expected = whole(encoder, samples)
        frames = streamed(encoder, samples, 100)
        assert frames.shape == expected.shape, length
        assert float((frames - expected).abs().max()) < 1e-5, length


def test_nothing_and_next_to_nothing(encoder):
    for length in (0, 1, 79):
        assert streamed(encoder, noise(length), 100).shape == (1, 0, 24)


@pytest.mark.parametrize(
    ("windows", "lookahead"),
    ((DEFAULT, 12), (((16, 0),) * 3, 0), (((16, 1),) * 3, 0), (((3, 2), (1, 6)), 6), (((40, 9), (2, 0)), 8)),
)
def test_lookahead_comes_from_the_windows(windows, lookahead):
    encoder = build(windows)
    samples = noise(RATE)
    stream = EncoderStream(encoder)
    assert stream.lookahead == lookahead
    first = stream.push(samples)
    expected = whole(encoder, samples)
    assert first.shape[1] == expected.shape[1] - lookahead, "frames come out as early as can be"
    frames = torch.cat([first, stream.peek()], 1)
    assert float((frames - expected).abs().max()) < 1e-5


@pytest.mark.parametrize("windows", (((8, 3),), ((8, 3), (4, 0)), ((8, 3), (4, 2))))
def test_what_came_out_stays_and_no_more_could_come(windows):
    """Other audio behind them changes no frame that came out, but the next one."""
    encoder = build(windows)
    samples, stream = noise(RATE), EncoderStream(encoder)
    stable = stream.push(samples[:8000])
    other = whole(encoder, torch.cat([samples[:8000], noise(8000, 1)]))
    count = stable.shape[1]
    assert float((stable - other[:, :count]).abs().max()) < 1e-5
    same = whole(encoder, samples)
    assert float((same[:, count] - other[:, count]).abs().max()) > 1e-3, "the lookahead is longer than it must be"


def test_the_window_mask_matters(encoder):
    """Without a mask the encoder of transformers attends to everything: that would be another result."""
    samples = noise(RATE)
    with torch.no_grad():
        unmasked = encoder(samples[None]).last_hidden_state
    assert float((unmasked - whole(encoder, samples)).abs().max()) > 1e-2


def test_peek_is_the_whole_so_far(encoder):
    samples, stream, stable = noise(RATE), EncoderStream(encoder), []
    for end in range(3777, RATE, 3777):
        stable.append(stream.push(samples[end - 3777 : end]))
        now = torch.cat([*stable, stream.peek()], 1)
        expected = whole(encoder, samples[:end])
        assert now.shape == expected.shape and float((now - expected).abs().max()) < 1e-5
    stable.append(stream.push(samples[end:]))
    frames = torch.cat([*stable, stream.peek()], 1)
    assert float((frames - whole(encoder, samples)).abs().max()) < 1e-5, "peeking has changed the stream"


def stored(stream):
    """Bytes between two pushes; a view would hold more than it shows."""
    of_layers = [held for part in stream._layers for held in (part.key, part.value, part.waiting)]
    held = [stream._rest, *(part.context for part in stream._convolutions), *of_layers]
    return sum(tensor.untyped_storage().nbytes() for tensor in held)


def test_memory_is_bounded(encoder):
    stream = EncoderStream(encoder)
    stream.push(noise(RATE))
    first = stored(stream)
    for seed in range(30):
        stream.push(noise(RATE, seed))
    assert stored(stream) == first < 200_000


def test_grouped_heads_and_other_sizes():
    encoder = build(((8, 3), (8, 0)), size=48, heads=4, num_key_value_heads=2, head_dim=20)
    samples = noise(12_000)
    assert float((streamed(encoder, samples, 1000) - whole(encoder, samples)).abs().max()) < 1e-5


def test_two_streams_and_the_model_stay_apart(encoder):
    before = {name: id(value) for module in encoder.modules() for name, value in vars(module).items()}
    one, two = EncoderStream(encoder), EncoderStream(encoder)
    a, b = noise(8000, 1), noise(8000, 2)
    frames = [[], []]
    for first, second in zip(a.split(900), b.split(900), strict=True):
        frames[0].append(one.push(first))
        frames[1].append(two.push(second))
    for stream, parts, samples in ((one, frames[0], a), (two, frames[1], b)):
        got = torch.cat([*parts, stream.peek()], 1)
        assert float((got - whole(encoder, samples)).abs().max()) < 1e-5
    assert before == {name: id(value) for module in encoder.modules() for name, value in vars(module).items()}


def test_half_precision():
    encoder = build().to(torch.bfloat16)
    frames = streamed(encoder, noise(8000), 1000)
    assert frames.dtype == torch.bfloat16 and frames.shape == (1, 25, 24) and not frames.isnan().any()


def test_a_fraction_of_the_work():
    """8 s in updates of 0.5 s, at the depth of the real tiny model."""
    encoder, samples = build(size=64, heads=8), noise(8 * RATE)
    stream = EncoderStream(encoder)
    with FlopCounterMode(display=False) as cached:
        frames = [*map(stream.push, samples.split(8000)), stream.peek()]
    with FlopCounterMode(display=False) as again:
        for end in range(8000, len(samples) + 1, 8000):
            whole(encoder, samples[:end])
    assert sum(part.shape[1] for part in frames) == 400
    assert again.get_total_flops() > 6 * cached.get_total_flops() > 0


def test_the_private_mask_is_the_documented_one():
    """`(left, right)`: the frame itself and `left - 1` before it, and `right - 1` ahead."""
    frames = torch.arange(12)
    seen = sliding_window((3, 4), frames[5:6, None], frames)[0]
    assert seen.nonzero().squeeze(1).tolist() == [3, 4, 5, 6, 7, 8]


def test_a_quantized_encoder_streams():
    """Whose linear layers keep no weight of the type that they compute in."""
    encoder, samples = build(), noise(4000)
    plain = streamed(encoder, samples, 800)
    torch.ao.quantization.quantize_dynamic(encoder, {torch.nn.Linear}, dtype=torch.qint8, inplace=True)
    found = streamed(encoder, samples, 800)
    assert found.shape == plain.shape and torch.allclose(found, plain, atol=0.3 * float(plain.std()))
