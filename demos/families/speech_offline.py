"""What transformers itself makes of a recording, for each kind of recogniser: the measure of what streams say."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import Any

import torch

from mmaccel.speech.audio.upsampled import Upsampler
from mmaccel.speech.families.adapter import SpeechAdapter
from mmaccel.speech.families.timed import features_of

from .speech_models import RATE


@torch.no_grad()
def offline(adapter: SpeechAdapter, kind: str, samples: torch.Tensor) -> list[int]:
    """Tokens of samples `[n]` by the model's own call, without blanks and marks."""
    return _KINDS[kind](adapter, samples)


def _ctc(adapter: Any, samples: torch.Tensor) -> list[int]:
    features = features_of(adapter.processor.feature_extractor, samples, RATE, adapter.target)
    blank = adapter.target.config.pad_token_id
    ids = adapter.target(**features).logits[0].argmax(-1)
    mask = features.get("attention_mask")
    if mask is not None and "encoder_config" in adapter.target.config.to_dict():  # what its `generate` leaves out
        ids[~adapter.target._get_output_attention_mask(mask, target_length=len(ids))[0]] = blank
    return [token for token, _ in groupby(ids.tolist()) if token != blank]


def _transducer(adapter: Any, samples: torch.Tensor) -> list[int]:
    features, more = features_of(adapter.processor.feature_extractor, samples, RATE, adapter.target), {}
    if adapter.appends:
        features, more = _filled(adapter, samples), {"num_lookahead_tokens": adapter.lookahead}
    blank, limit = adapter.target.config.blank_token_id, 8 * features["input_features"].shape[1]
    ids = adapter.target.generate(**features, **more, max_new_tokens=limit).sequences[0]
    return [token for token in ids.tolist() if token != blank]


def _filled(adapter: Any, samples: torch.Tensor) -> dict[str, Any]:
    """Features with silence up to the end of the last chunk, as a stream ends; the last, half-empty one left out."""
    first, more = 1 + 8 * adapter.lookahead, 8 * (adapter.lookahead + 1)
    chunks = max(0, -(-(len(samples) // 160 - first) // more))
    samples = torch.nn.functional.pad(samples, (0, (first + chunks * more) * 160 - len(samples)))
    features = features_of(adapter.processor.feature_extractor, samples, RATE, adapter.target)
    return {"input_features": features["input_features"][:, : len(samples) // 160]}


def _chat(adapter: Any, samples: torch.Tensor) -> list[int]:
    inputs = adapter._inputs(samples)
    limit = adapter.limit(len(samples) / RATE)
    ids = adapter.target.generate(**inputs, max_new_tokens=limit, do_sample=False)[0]
    return [token for token in ids[inputs["input_ids"].shape[1] :].tolist() if token not in adapter.end_tokens]


def _codec(adapter: Any, samples: torch.Tensor) -> list[int]:
    wave = Upsampler().push(torch.cat([samples, torch.zeros(32)]))
    inputs = features_of(adapter.processor.feature_extractor, wave, 24_000, adapter.target)
    return _spoken(adapter, adapter.target.generate(**inputs, do_sample=False)[0, 1:])


def _mel(adapter: Any, samples: torch.Tensor) -> list[int]:
    processor = adapter.processor
    parts = [processor.num_left_pad_tokens * 1280, -len(samples) % 1280 + processor.num_right_pad_tokens * 1280]
    padded = torch.nn.functional.pad(samples, tuple(parts))
    features = features_of(processor.feature_extractor, padded, RATE, adapter.target)
    given = processor(None, is_streaming=True, is_first_audio_chunk=True, return_tensors="pt")
    ids = adapter.target.generate(**given, input_features=features["input_features"], do_sample=False)[0]
    return _spoken(adapter, ids[given["input_ids"].shape[1] :])


def _spoken(adapter: Any, ids: torch.Tensor) -> list[int]:
    return [token for token in ids.tolist() if token not in adapter.processor.tokenizer.all_special_ids]


def _written(adapter: Any, samples: torch.Tensor) -> list[int]:
    options = {"padding": "max_length"} if adapter.family == "whisper" else {}
    inputs = features_of(adapter.processor.feature_extractor, samples, RATE, adapter.target, **options)
    if adapter.family == "moonshine_streaming":
        padding = -len(samples) % 80  # as its processor pads to whole frames
        values = torch.nn.functional.pad(samples[None], (0, padding))
        mask = torch.nn.functional.pad(torch.ones(1, len(samples), dtype=torch.long), (0, padding))
        inputs = {"input_values": values, "attention_mask": mask}
    limit = adapter.limit(len(samples) / RATE)
    ids = adapter.target.generate(**inputs, max_new_tokens=limit, do_sample=False)[0].tolist()
    return ids if adapter.family == "whisper" else ids[1:]


_KINDS: dict[str, Callable[[Any, torch.Tensor], list[int]]] = {
    "ctc": _ctc,
    "transducer": _transducer,
    "chat": _chat,
    "codec": _codec,
    "mel": _mel,
    "written": _written,
}
