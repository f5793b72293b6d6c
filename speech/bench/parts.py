"""Rows of `mmaccel bench speech` about parts: the cached encoder, Mimi in blocks, and methods of `generate`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from mmaccel.cache.argument import cached
from mmaccel.comparison import results
from mmaccel.comparison.entry import PLAIN, Entry
from mmaccel.comparison.runner import Runner
from mmaccel.comparison.trial import Workload, counted
from mmaccel.testing.untrained import untrained

from ..audio.endpoint import RATE
from ..audio.growing_audio import GrowingAudio
from ..codec.streaming_codec_decoder import StreamingCodecDecoder
from ..decoding.merge_audio_tokens import MergeAudioTokens
from ..decoding.suffix_draft import SuffixDraft
from ..examples import audible
from ..families.adapter import SpeechAdapter
from ..families.moonshine_streaming import MoonshineStreamingAdapter

CLOSE = 1e-5  # largest error of what is equal up to rounding, of the largest value
BLOCKS = (1, 2, 4, 8)  # frames of Mimi, 80 ms each
SECONDS, UPDATE = 8, 0.5  # of audio for the encoder
Errors = Callable[[list[str], list[str]], float]


def speech_row(**values: Any) -> dict[str, Any]:
    """A row of speech, for which no seed is drawn."""
    return results.row(modality="speech", seeds=[], **{"cpu_seconds": None, "refused": None, "settings": {}, **values})


def part_row(cpu: float, baseline: float, error: float | None, **values: Any) -> dict[str, Any]:
    """A row of something that is equal to its baseline up to rounding; refused if it is not."""
    identity = {"modality": "speech", "seeds": [0], "exact": True, "settings": {}, "refused": None, **values}
    if error is not None and not error <= CLOSE:
        reason = f"refused: differs by {error:.1e} of the largest value, where {CLOSE:.0e} is allowed"
        return results.row(**{**identity, "refused": reason, "cpu_seconds": None})
    measured = {"cpu_seconds": cpu, "baseline_cpu_seconds": baseline, "speedup": baseline / cpu, "error": error}
    return results.row(**identity, **measured)


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

    def encoding(encoder: Any) -> AbstractContextManager[Any]:
        return nullcontext(lambda: [encoder.encode(samples[:end]).hidden_states for end in ends])

    ours = Entry("cached", "method", setup=lambda _: encoding(GrowingAudio(adapter)))
    plain = Entry(PLAIN, PLAIN, setup=lambda _: encoding(adapter))
    Runner(Making(), [ours, plain], range(rounds)).run()
    pairs = zip(ours.metrics[0]["made"], plain.metrics[0]["made"], strict=True)
    error = max(relative(got, whole) for got, whole in pairs)
    settings = {"seconds": len(samples) / RATE, "updates": len(ends)}
    return part_row(
        results.median(ours.seconds),
        results.median(plain.seconds),
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

    @contextmanager
    def streaming(_: Any) -> Iterator[Any]:
        with StreamingCodecDecoder(model).stream() as stream:
            yield lambda: torch.cat([stream.push(block) for block in blocks], -1)

    def stock(_: Any) -> AbstractContextManager[Any]:
        from transformers import DynamicCache

        cache = DynamicCache(config=model.config)
        return nullcontext(
            lambda: torch.cat([model.decode(b, **cached(cache, "decoder_")).audio_values for b in blocks], -1)
        )

    ours, plain = Entry("ours", "method", setup=streaming), Entry(PLAIN, PLAIN, setup=stock)
    Runner(Making(), [ours, plain], range(2)).run(warm_up=False)
    frames = codes.shape[-1]
    return part_row(
        results.median(ours.seconds) / frames,
        results.median(plain.seconds) / frames,
        relative(ours.metrics[0]["made"], whole),
        table="codec",
        model="MimiModel, default size, untrained",
        method="StreamingCodecDecoder",
        settings={"block": size},
        baseline_error=relative(plain.metrics[0]["made"], whole),
    )


def _mimi() -> Any:
    from transformers import MimiConfig, MimiModel

    return audible(MimiModel(MimiConfig()))


class Making(Workload):
    """Each entry is a function, whose results are kept and whose time is that of the processor."""

    timer = staticmethod(time.process_time)

    def run(self, target: Any, seed: int, fewer: int | None = None) -> Any:
        return target()

    def judge(self, plain: Any, other: Any) -> dict[str, Any]:
        return {"made": other}


def relative(got: torch.Tensor, whole: torch.Tensor) -> float:
    """Largest error, of the largest value; untrained models are louder than sound, which ends at 1."""
    return float((got - whole).abs().max() / whole.abs().max()) if got.shape == whole.shape else float("inf")


def generate_rows(
    name: str, adapter: SpeechAdapter, recordings: list[list[torch.Tensor]], texts: list[str], errors: Errors
) -> Iterator[dict[str, Any]]:
    """`SuffixDraft` and `MergeAudioTokens` against the model's own `generate`, on the segments of recordings."""
    writing, methods = Segments(adapter, recordings), (SuffixDraft(), MergeAudioTokens())
    plain, *entries = Entry(PLAIN, PLAIN), *(Entry.of(adapter.target, method) for method in methods)
    Runner(writing, [plain, *entries], [0]).run(warm_up=False)
    base: Written = plain.metrics[0]["written"]
    for entry in entries:
        made: Written = entry.metrics[0]["written"]
        row = part_row(
            entry.seconds[0],
            plain.seconds[0],
            float("inf") if entry.exact and made.tokens != base.tokens else None,
            table="generate",
            model=name,
            **entry.identity(),
        )
        if row["refused"] is None:
            row |= {"decoder_calls": made.calls, "baseline_decoder_calls": base.calls}
            row |= {"work_ratio": made.calls / base.calls, "baseline_quality": errors(texts, writing.texts(base))}
            heard = writing.texts(made)
            row |= {"quality": errors(texts, heard), "quality_metric": "word error rate"}
            row["quality_worst"] = max(errors([text], [found]) for text, found in zip(texts, heard, strict=True))
        yield row


@dataclass
class Written:
    """Tokens of each segment of each recording, and passes of the decoder."""

    tokens: list[list[list[int]]]
    calls: int


class Segments(Workload):
    """Segments of recordings that `generate` writes down one after the other; preparing them is not timed."""

    timer = staticmethod(time.process_time)

    def __init__(self, adapter: SpeechAdapter, recordings: list[list[torch.Tensor]]) -> None:
        self.adapter, self.target = adapter, adapter.target
        self.calls = [[self._prepared(samples) for samples in segments] for segments in recordings]

    def _prepared(self, samples: torch.Tensor) -> dict[str, Any]:
        inputs = self.adapter.processor(samples.numpy(), sampling_rate=RATE, return_tensors="pt")
        return {**inputs, "max_new_tokens": self.adapter.limit(len(samples) / RATE), "do_sample": False}

    def run(self, target: Any, seed: int, fewer: int | None = None) -> Written:
        with counted(self.target.get_decoder()) as passes:
            tokens = [[target.generate(**call)[0].tolist() for call in calls] for calls in self.calls]
        return Written(tokens, len(passes))

    def judge(self, plain: Written, other: Written) -> dict[str, Any]:
        return {"written": other}

    def texts(self, written: Written) -> list[str]:
        """The text of each recording."""
        return [" ".join(map(self.adapter.text, segments)) for segments in written.tokens]
