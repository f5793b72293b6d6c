"""Rows of `mmaccel bench speech` about parts: the cached encoder, Mimi in blocks, and methods of `generate`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from mmaccel.bench import result as bench
from mmaccel.method import Method
from mmaccel.session import accelerate
from mmaccel.testing.untrained import untrained

from ..audio.endpoint import RATE
from ..audio.growing_audio import GrowingAudio
from ..codec.streaming_codec_decoder import StreamingCodecDecoder
from ..decoding.merge_audio_tokens import MergeAudioTokens
from ..decoding.suffix_draft import SuffixDraft
from ..families.adapter import SpeechAdapter
from ..families.moonshine_streaming import MoonshineStreamingAdapter

CLOSE = 1e-5  # largest error of what is equal up to rounding, of the largest value
BLOCKS = (1, 2, 4, 8)  # frames of Mimi, 80 ms each
SECONDS, UPDATE = 8, 0.5  # of audio for the encoder
Errors = Callable[[list[str], list[str]], float]


def speech_row(**values: Any) -> dict[str, Any]:
    """A row of speech, for which no seed is drawn."""
    return bench.row(modality="speech", seeds=[], **{"cpu_seconds": None, "refused": None, "settings": {}, **values})


def part_row(cpu: float, baseline: float, error: float | None, **values: Any) -> dict[str, Any]:
    """A row of something that is equal to its baseline up to rounding; refused if it is not."""
    identity = {"modality": "speech", "seeds": [0], "exact": True, "settings": {}, "refused": None, **values}
    if error is not None and not error <= CLOSE:
        reason = f"refused: differs by {error:.1e} of the largest value, where {CLOSE:.0e} is allowed"
        return bench.row(**{**identity, "refused": reason, "cpu_seconds": None})
    measured = {"cpu_seconds": cpu, "baseline_cpu_seconds": baseline, "speedup": baseline / cpu, "error": error}
    return bench.row(**identity, **measured)


def encoder_rows(rounds: int) -> Iterator[dict[str, Any]]:
    """Moonshine v2's encoder as audio grows: cached, against all of it anew at every update; untrained weights."""
    adapter = MoonshineStreamingAdapter(untrained(_moonshine_v2))
    generator = torch.Generator().manual_seed(0)
    samples = 0.1 * torch.randn(SECONDS * RATE, generator=generator)
    ends = range(round(UPDATE * RATE), len(samples) + 1, round(UPDATE * RATE))
    with torch.no_grad():
        yield compare_encoders(adapter, samples, list(ends), rounds)


def compare_encoders(
    adapter: MoonshineStreamingAdapter, samples: torch.Tensor, ends: list[int], rounds: int
) -> dict[str, Any]:
    """States of samples `[n]` up to each of `ends`, both ways."""

    def cached(_: int) -> tuple[list[torch.Tensor], float]:
        audio = GrowingAudio(adapter)
        return timed(lambda: [audio.encode(samples[:end]).hidden_states for end in ends])

    def full(_: int) -> tuple[list[torch.Tensor], float]:
        return timed(lambda: [adapter.encode(samples[:end]).hidden_states for end in ends])

    full(0)  # the first run is slower
    found = bench.alternate({"cached": cached, "full": full}, rounds)
    pairs = zip(found["cached"][0][0], found["full"][0][0], strict=True)
    error = max(relative(got, whole) for got, whole in pairs)
    cpu, baseline = (bench.median([seconds for _, seconds in found[name]]) for name in ("cached", "full"))
    settings = {"seconds": len(samples) / RATE, "updates": len(ends)}
    return part_row(
        cpu,
        baseline,
        error,
        table="encoder",
        model="moonshine_streaming, default size, untrained",
        method="cached encoder",
        settings=settings,
    )


def _moonshine_v2() -> Any:
    from transformers import MoonshineStreamingConfig, MoonshineStreamingForConditionalGeneration

    # the default asks for no number of key and value heads, and cannot be built without
    given: dict[str, Any] = {"num_key_value_heads": 8}
    return MoonshineStreamingForConditionalGeneration(MoonshineStreamingConfig(**given))


def codec_rows(frames: int) -> Iterator[dict[str, Any]]:
    """Mimi in blocks, against the model's own decoding of the same blocks; untrained weights."""
    model = untrained(_mimi)
    generator = torch.Generator().manual_seed(1)
    codes = torch.randint(0, model.config.codebook_size, (1, 8, frames), generator=generator)
    with torch.no_grad():
        whole = model.decode(codes).audio_values
        for size in BLOCKS:
            yield compare_codecs(model, codes, whole, size)


def compare_codecs(model: Any, codes: torch.Tensor, whole: torch.Tensor, size: int) -> dict[str, Any]:
    """Codes `[1, Q, T]` in blocks of `size` frames, both ways; `whole` is what all at once give."""
    blocks = codes.split(size, -1)

    def ours(_: int) -> tuple[torch.Tensor, float]:
        with StreamingCodecDecoder(model).stream() as stream:
            return timed(lambda: torch.cat([stream.push(block) for block in blocks], -1))

    def stock(_: int) -> tuple[torch.Tensor, float]:
        from transformers import DynamicCache

        cache = DynamicCache(config=model.config)
        return timed(
            lambda: torch.cat([model.decode(b, decoder_past_key_values=cache).audio_values for b in blocks], -1)
        )

    found = bench.alternate({"ours": ours, "stock": stock}, 2)
    cpu, baseline = (bench.median([seconds for _, seconds in found[name]]) for name in ("ours", "stock"))
    frames = codes.shape[-1]
    return part_row(
        cpu / frames,
        baseline / frames,
        relative(found["ours"][0][0], whole),
        table="codec",
        model="MimiModel, default size, untrained",
        method="StreamingCodecDecoder",
        settings={"block": size},
        baseline_error=relative(found["stock"][0][0], whole),
    )


def _mimi() -> Any:
    from transformers import MimiConfig, MimiModel

    model = MimiModel(MimiConfig())
    for module in model.modules():
        if hasattr(module, "embed_sum"):  # zeros in an untrained model: every code would sound the same
            torch.nn.init.normal_(module.get_buffer("embed_sum"))
    return model


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """What some work gives, and its CPU seconds."""
    began = time.process_time()
    result = work()
    return result, time.process_time() - began


def relative(got: torch.Tensor, whole: torch.Tensor) -> float:
    """Largest error, of the largest value; untrained models are louder than sound, which ends at 1."""
    return float((got - whole).abs().max() / whole.abs().max()) if got.shape == whole.shape else float("inf")


def generate_rows(
    name: str, adapter: SpeechAdapter, recordings: list[list[torch.Tensor]], texts: list[str], errors: Errors
) -> Iterator[dict[str, Any]]:
    """`SuffixDraft` and `MergeAudioTokens` against the model's own `generate`, on the segments of recordings."""
    plain = Generated(adapter, recordings)
    baseline = errors(texts, plain.texts)
    for method in (SuffixDraft(), MergeAudioTokens()):
        fast = Generated(adapter, recordings, method)
        row = part_row(
            fast.cpu_seconds,
            plain.cpu_seconds,
            None if fast.tokens == plain.tokens or not method.exact else float("inf"),
            table="generate",
            model=name,
            method=method.name,
            settings=method.settings(),
            exact=method.exact,
        )
        if row["refused"] is None:
            row |= {"decoder_calls": fast.calls, "baseline_decoder_calls": plain.calls}
            row |= {"work_ratio": fast.calls / plain.calls, "baseline_quality": baseline}
            row |= {"quality": errors(texts, fast.texts), "quality_metric": "word error rate"}
        yield row


class Generated:
    """What `generate` made of segments, plainly or with a method."""

    def __init__(
        self, adapter: SpeechAdapter, recordings: list[list[torch.Tensor]], method: Method | None = None
    ) -> None:
        self.calls, self.cpu_seconds = 0, 0.0
        self.tokens: list[list[int]] = []
        self.texts: list[str] = []
        model = adapter.target
        target = model if method is None else accelerate(model, method)
        try:
            with self._counting(model):
                for segments in recordings:
                    parts = [self._generate(target, adapter, samples) for samples in segments]
                    self.texts.append(" ".join(parts))
        finally:
            if method is not None:
                target.remove()

    @contextmanager
    def _counting(self, model: Any) -> Iterator[None]:
        def count(*_: Any) -> None:
            self.calls += 1

        handle = model.get_decoder().register_forward_hook(count)
        try:
            yield
        finally:
            handle.remove()

    def _generate(self, target: Any, adapter: SpeechAdapter, samples: torch.Tensor) -> str:
        inputs = adapter.processor(samples.numpy(), sampling_rate=RATE, return_tensors="pt")
        limit = adapter.limit(len(samples) / RATE)
        tokens, seconds = timed(lambda: target.generate(**inputs, max_new_tokens=limit, do_sample=False))
        self.cpu_seconds += seconds
        self.tokens.append(tokens[0].tolist())
        return adapter.text(self.tokens[-1])
