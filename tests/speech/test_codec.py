"""Block-wise decoding of codec tokens equals decoding all at once."""

from __future__ import annotations

import itertools

import pytest
import torch
from tiny_codec import TINY, same
from transformers import DynamicCache, MimiConfig, MimiModel

from mmaccel.cache.argument import cached
from mmaccel.errors import MmaccelError, SettingError, UnsupportedTargetError
from mmaccel.speech.codec import blockwise_convolution
from mmaccel.speech.codec.blockwise_convolution import BlockwiseConvolution
from mmaccel.speech.codec.first_byte_meter import FirstByteMeter
from mmaccel.speech.codec.growing_blocks import growing_blocks
from mmaccel.speech.codec.streaming_codec_decoder import StreamingCodecDecoder
from mmaccel.speech.examples import audible
from mmaccel.speech.families import private
from mmaccel.testing.contract import snapshot


def build(**sizes) -> MimiModel:
    torch.manual_seed(0)
    return audible(MimiModel(MimiConfig(**sizes)).eval())


def codes_of(model, frames, batch=1, codebooks=4):
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, model.config.codebook_size, (batch, codebooks, frames), generator=generator)


@pytest.fixture(scope="module")
def tiny():
    return build(**TINY)


def in_blocks(model, codes, sizes):
    with StreamingCodecDecoder(model).stream(batch=len(codes)) as stream:
        audio = [stream.push(block) for block in codes.split(sizes, -1)]
        return torch.cat([*audio, stream.finish()], -1)


@pytest.mark.parametrize("size", (1, 2, 4, 8, [1, 7, 2, 30, 5, 1, 4]))
def test_blocks_of_any_size_equal_all_at_once(tiny, size):
    codes = codes_of(tiny, 50, batch=3)
    with torch.no_grad():
        whole = tiny.decode(codes).audio_values
    audio = in_blocks(tiny, codes, size)
    assert whole.std() > 0.1 and same(audio, whole)


def test_long_past_the_sliding_window(tiny):
    codes = codes_of(tiny, 300)  # 600 positions of the transformer, whose window is 40
    with torch.no_grad():
        whole = tiny.decode(codes).audio_values
    assert same(in_blocks(tiny, codes, 7), whole)


def test_the_models_own_cache_is_wrong_at_the_seams(tiny):
    codes, cache, audio = codes_of(tiny, 6), DynamicCache(config=tiny.config), []
    with torch.no_grad():
        whole = tiny.decode(codes).audio_values
        for block in codes.split(1, -1):
            audio.append(tiny.decode(block, **cached(cache, "decoder_")).audio_values)
    assert (torch.cat(audio, -1) - whole).norm() > 0.1 * whole.norm()


@pytest.mark.parametrize("size", (1, 2, 4, 8))
def test_the_default_size(default, size):
    model, codes, whole = default
    audio = in_blocks(model, codes, size)
    assert same(audio, whole)


@pytest.fixture(scope="module")
def default():
    model = build()
    codes = codes_of(model, 16, codebooks=8)
    with torch.no_grad():
        return model, codes, model.decode(codes).audio_values


@pytest.mark.parametrize(
    "more",
    (
        {"pad_mode": "replicate"},
        {"use_conv_shortcut": True, "num_residual_layers": 2},
        {"kernel_size": 9, "residual_kernel_size": 5},
        {"upsample_groups": 1},
    ),
)
def test_other_layers(more):
    model = build(**{**TINY, **more})
    codes = codes_of(model, 9)
    with torch.no_grad():
        whole = model.decode(codes).audio_values
    assert same(in_blocks(model, codes, [1, 2, 6]), whole)


def test_half_precision(tiny):
    model = build(**TINY).bfloat16()
    codes = codes_of(model, 8)
    with torch.no_grad():
        whole = model.decode(codes).audio_values.float()
    audio = in_blocks(model, codes, 1)
    assert StreamingCodecDecoder(model).stream().finish().dtype == torch.bfloat16
    assert audio.dtype == torch.bfloat16 and (audio.float() - whole).norm() < 0.05 * whole.norm()


def test_streams_on_one_model_stay_apart(tiny):
    codes = codes_of(tiny, 12, batch=2)
    with torch.no_grad():
        whole = tiny.decode(codes).audio_values
    decoder = StreamingCodecDecoder(tiny)
    streams, audio = [decoder.stream(), decoder.stream()], [[], []]
    for at in range(12):
        for i in (0, 1):
            audio[i].append(streams[i].push(codes[i : i + 1, :, at : at + 1]))
    got = torch.cat([torch.cat(parts, -1) for parts in audio])
    assert same(got, whole)


def test_nothing_is_left_on_the_model(tiny):
    codes = codes_of(tiny, 4)
    tiny.decode(codes)  # keeps the codebooks' means, as any decoding does
    before, weights = snapshot(tiny), {name: x.clone() for name, x in tiny.state_dict().items()}
    in_blocks(tiny, codes, 1)
    assert snapshot(tiny) == before
    assert all(torch.equal(x, weights[name]) for name, x in tiny.state_dict().items())


def test_memory_is_flat(tiny):
    codes = codes_of(tiny, 120)
    sizes = []
    with StreamingCodecDecoder(tiny).stream() as stream:
        for block in codes.split(1, -1):
            audio = stream.push(block)
            assert audio.shape == (1, 1, 1920) and not audio.requires_grad
            sizes.append(stream.nbytes())
        assert len(set(sizes[20:])) == 1 and sizes[-1] > 0  # the window of 40 is full after 20 frames
        stream.finish()
        assert stream.nbytes() == 0


@pytest.mark.parametrize("end", ("finish", "exit"))
def test_a_stream_that_has_ended_holds_nothing(tiny, end):
    with StreamingCodecDecoder(tiny).stream(blocks=[2, 8]) as stream:
        stream.push(codes_of(tiny, 5))
        assert stream.nbytes() > 0 and stream.waiting == 3 and stream.frames == 2
        if end == "finish":
            assert stream.finish().shape[-1] == 3 * 1920 and stream.frames == 5
            assert stream.nbytes() == stream.waiting == 0
    assert stream.nbytes() == stream.waiting == 0
    with pytest.raises(MmaccelError, match=r"decoder.stream\(\)"):
        stream.push(codes_of(tiny, 1))


def test_an_error_in_the_middle_of_a_block_ends_the_stream(tiny, monkeypatch):
    """Some layers have carried on by then, and others not: what came behind would sound wrong."""
    decoder = StreamingCodecDecoder(tiny)
    compute = decoder._layer

    def interrupted(layer, *given, **more):
        if layer is decoder.layers[3]:
            raise KeyboardInterrupt
        return compute(layer, *given, **more)

    with decoder.stream() as stream, decoder.stream() as other:
        stream.push(codes_of(tiny, 3))
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(decoder, "_layer", interrupted)
            stream.push(codes_of(tiny, 2))
        assert stream.frames == 3 and stream.nbytes() == 0
        with pytest.raises(MmaccelError, match=r"broke off: begin another with decoder.stream\(\)"):
            stream.push(codes_of(tiny, 1))
        assert stream.finish().shape[-1] == 0 and other.push(codes_of(tiny, 1)).shape[-1] == 1920


def test_growing_blocks_change_when_but_not_what(tiny):
    codes = codes_of(tiny, 20)
    with torch.no_grad():
        whole = tiny.decode(codes).audio_values
    decoder = StreamingCodecDecoder(tiny)
    with decoder.stream(blocks=growing_blocks()) as stream:
        audio = [stream.push(block) for block in codes.split(1, -1)]
        assert stream.waiting == 5 and stream.frames == 15
        audio.append(stream.finish())
    frames = [part.shape[-1] // decoder.frame_samples for part in audio]
    assert [count for count in frames if count] == [1, 2, 4, 8, 5]
    assert same(torch.cat(audio, -1), whole)
    assert decoder.sample_rate == 24_000


def test_a_schedule_that_ends_decodes_the_rest_as_it_comes(tiny):
    with StreamingCodecDecoder(tiny).stream(blocks=[2, 3]) as stream:
        sizes = [stream.push(block).shape[-1] // 1920 for block in codes_of(tiny, 10).split(1, -1)]
    assert sizes == [0, 2, 0, 0, 3, 1, 1, 1, 1, 1]


def test_schedules():
    assert list(itertools.islice(growing_blocks(2, 3, 20), 5)) == [2, 6, 18, 20, 20]
    assert list(itertools.islice(growing_blocks(3, 1, 9), 3)) == [3, 3, 3]
    for bad in ({"first": 0}, {"factor": 1.5}, {"largest": True}, {"first": 9}):
        with pytest.raises(SettingError, match=r"^growing_blocks\("):
            growing_blocks(**bad)


def test_bad_codes_leave_the_stream_as_it_was(tiny):
    codes = codes_of(tiny, 4)
    with torch.no_grad():
        whole = tiny.decode(codes).audio_values
    with StreamingCodecDecoder(tiny).stream() as stream:
        first = stream.push(codes[..., :2])
        for bad, says in (
            (codes[0], "push \\[batch=1"),
            (codes.expand(2, -1, -1), "push \\[batch=1"),
            (codes.repeat(1, 2, 1), "at most 4 codebooks"),
            (codes.float(), "codes.long"),
            (codes > 9, "codes.long"),
            (codes[:, :0], "at most 4 codebooks"),
            (codes + 64, "from 0 to 63"),
            (torch.where(codes == codes.max(), 64, codes), "codes from . to 64: .*from 0 to 63"),
            (torch.where(codes == codes.max(), -1, codes), "codes from -1 to"),
            (codes - 64, "from 0 to 63"),
        ):
            with pytest.raises(SettingError, match=says):
                stream.push(bad)
        assert stream.push(codes[..., :0]).shape == (1, 1, 0)
        rest = stream.push(codes[..., 2:])
        assert same(torch.cat([first, rest], -1), whole)
        assert stream.finish().shape == (1, 1, 0)
        with pytest.raises(MmaccelError, match=r"decoder.stream\(\)"):
            stream.push(codes)
    with StreamingCodecDecoder(tiny).stream(blocks=[9]) as stream:
        stream.push(codes)
        with pytest.raises(SettingError, match="3 codebooks after 4"):
            stream.push(codes[:, :3])
        assert stream.waiting == 4
    with pytest.raises(SettingError, match="batch=0"):
        StreamingCodecDecoder(tiny).stream(batch=0)


def test_models_that_do_not_fit():
    with pytest.raises(UnsupportedTargetError, match="no block-wise decoding for Linear"):
        StreamingCodecDecoder(torch.nn.Linear(1, 1))
    for more, says in (
        ({"use_causal_conv": False}, "use_causal_conv=False"),
        ({"trim_right_ratio": 0.5}, "trim_right_ratio=0.5"),
        ({"pad_mode": "reflect"}, "pad_mode='reflect'"),
    ):
        with pytest.raises(UnsupportedTargetError, match=says):
            StreamingCodecDecoder(MimiModel(MimiConfig(**{**TINY, **more})))


def test_layers_that_do_not_fit():
    """Also inside a block, and before the transformer."""

    for change, says in (
        (lambda layers: setattr(layers[3].block[1], "pad_mode", "reflect"), "pad_mode='reflect'"),
        (lambda layers: setattr(layers[0].conv, "stride", (2,)), "stride 2"),
        (lambda layers: setattr(layers[1], "__class__", torch.nn.Tanh), "a Tanh in the decoder"),
    ):
        model = MimiModel(MimiConfig(**TINY))
        change(private.mimi_decoder_parts(model)[2])
        with pytest.raises(UnsupportedTargetError, match=says):
            StreamingCodecDecoder(model)
    model = MimiModel(MimiConfig(**TINY))
    private.mimi_decoder_parts(model)[0].__class__ = torch.nn.Tanh
    with pytest.raises(UnsupportedTargetError, match="a Tanh in the decoder"):
        StreamingCodecDecoder(model)
    model.decoder = None
    with pytest.raises(UnsupportedTargetError, match="has no decoder"):
        StreamingCodecDecoder(model)

    class Own(MimiModel):
        pass

    assert StreamingCodecDecoder(Own(MimiConfig(**TINY))).sample_rate == 24_000


def blocks_of(conv, x, sizes, **more):
    """A signal `[B, C, T]` block by block, and the last carry."""
    convolution, carry, out = BlockwiseConvolution(conv, **more), None, []
    for block in x.transpose(1, 2).split(sizes, 1):
        y, carry = convolution(block, carry)
        out.append(y)
    return torch.cat(out, 1).transpose(1, 2), carry


@pytest.mark.parametrize("wide", (0, 1 << 30))
@pytest.mark.parametrize("kernel, stride, groups", ((8, 4, 1), (7, 3, 1), (4, 2, 6), (9, 2, 1), (3, 3, 1), (9, 2, 2)))
@torch.no_grad()
def test_transposed_convolutions(kernel, stride, groups, wide, monkeypatch):
    monkeypatch.setattr(blockwise_convolution, "WIDE", wide)
    torch.manual_seed(0)
    conv, x = torch.nn.ConvTranspose1d(6, 12, kernel, stride, groups=groups), torch.randn(2, 6, 60)
    out, carry = blocks_of(conv, x, [1, 2, 57])
    assert torch.allclose(out, conv(x)[..., : x.shape[-1] * stride], atol=1e-5)
    assert kernel == stride or carry.shape == (2, -(-kernel // stride) - 1, 6)
    assert kernel == stride or carry.untyped_storage().nbytes() == carry.nbytes, "no block is kept alive by its end"


@pytest.mark.parametrize("wide", (0, 1 << 30))
@pytest.mark.parametrize(
    "kernel, dilation, groups, bias", ((3, 1, 1, True), (3, 3, 1, True), (5, 1, 2, False), (1, 1, 1, True))
)
@torch.no_grad()
def test_blockwise_convolutions(kernel, dilation, groups, bias, wide, monkeypatch):
    monkeypatch.setattr(blockwise_convolution, "WIDE", wide)
    torch.manual_seed(0)
    conv = torch.nn.Conv1d(4, 6, kernel, dilation=dilation, groups=groups, bias=bias)
    x, context = torch.randn(2, 4, 9), (kernel - 1) * dilation
    for mode in ("constant", "replicate"):
        out, _ = blocks_of(conv, x, [1, 2, 6], pad_mode=mode)
        assert torch.allclose(out, conv(torch.nn.functional.pad(x, (context, 0), mode=mode)), atol=1e-5)


def test_the_parts_of_the_installed_transformers(tiny):
    upsample, transformer, layers = private.mimi_decoder_parts(tiny)
    assert type(upsample).__name__ == "MimiConvTranspose1d" and type(transformer).__name__ == "MimiTransformerModel"
    assert [type(layer).__name__ for layer in layers][:4] == [
        "MimiConv1d",
        "ELU",
        "MimiConvTranspose1d",
        "MimiResnetBlock",
    ]


def test_the_meter():
    times = iter([1.0, 2.0, 2.25, 2.5, 3.25, 9.0])
    meter = FirstByteMeter(sample_rate=10, clock=lambda: next(times))
    assert meter.first_byte is None and meter.real_time_factor is None and str(meter) == "no sound yet"
    assert meter.add(torch.zeros(1, 1, 0)) is None
    meter.add(torch.zeros(1, 1, 5))  # heard from 1.0 to 1.5 after the start
    assert meter.add([0.0] * 5).gap == 0  # ready at 1.25, heard from 1.5 to 2.0
    meter.add([0.0] * 2)  # ready at 1.5, heard to 2.2
    last = meter.add([0.0] * 10)  # ready at 2.25
    assert last.gap == pytest.approx(0.05) and last.real_time_factor == pytest.approx(0.75)
    assert meter.first_byte == 1 and meter.gap_seconds == pytest.approx(0.05)
    assert meter.real_time_factor == pytest.approx(2.25 / 2.2)
    assert "4 blocks" in str(meter)
    with meter as again:  # at 9.0
        assert again is meter and not meter.blocks
    times = iter([9.5, 10.0])
    assert meter.add([0.0]).ready == 0.5 and meter.blocks[0].gap == 0, "counted anew"
    assert meter.add([0.0]).gap == pytest.approx(0.4), "what played before the restart plays no longer"
    with pytest.raises(SettingError, match="sample_rate=0"):
        FirstByteMeter(0)
