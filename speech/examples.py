"""Tiny untrained recognisers for the contract tests: real classes, a few thousand weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import (
    MoonshineConfig,
    MoonshineForConditionalGeneration,
    MoonshineStreamingConfig,
    MoonshineStreamingForConditionalGeneration,
    PreTrainedTokenizerFast,
    Wav2Vec2FeatureExtractor,
    Wav2Vec2Processor,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)

from mmaccel.testing.example import Example
from mmaccel.testing.untrained import untrained

VOCABULARY, NEW_TOKENS, SAMPLES = 64, 24, 16_000  # so many tokens that texts repeat something
START, END = 1, 2
TOKENS = {
    "vocab_size": VOCABULARY,
    "pad_token_id": 0,
    "bos_token_id": START,
    "decoder_start_token_id": START,
    "eos_token_id": END,
    "tie_word_embeddings": False,
}
# Sharp enough that greedy decoding has no near-ties, does not stay at one token, and differs for other sounds: what
# weights are multiplied by, the first part of a name that fits counts.
MOONSHINE_SCALES = {
    "conv": 1.0,
    "encoder_attn.o_proj": 20.0,
    "self_attn.o_proj": 8.0,
    "q_proj": 16.0,
    "mlp": 10.0,
    "embed": 40.0,
    "": 4.0,
}
WHISPER_SCALES = {"conv": 20.0, "encoder.embed_positions": 1.0, "decoder.embed_positions": 60.0, "": 6.0}
MEL_BINS, POSITIONS = 16, 250  # of the tiny Whisper: 5 seconds


def examples() -> list[Example]:
    """One recogniser of each family."""
    common: dict[str, Any] = {"module": _decoder, "takes_generator": False}
    return [Example(name, build, variants=variants, **common) for name, (build, variants) in BUILDERS.items()]


def _decoder(model: Any) -> torch.nn.Module:
    return model.get_decoder()


def sharp(build: Callable[[], Any], seed: int, scales: dict[str, float]) -> Any:
    """An untrained model with sharp attention that never ends a text of itself."""
    model = untrained(build, seed)
    for name, parameter in model.named_parameters():
        if parameter.ndim >= 2:
            parameter.data.mul_(next(scale for part, scale in scales.items() if part in name))
    model.generation_config.suppress_tokens = [END]
    return model


def audible(codec: Any) -> Any:
    """An untrained codec, such as Mimi, whose codes sound different: before, its codebooks are zeros."""
    for module in codec.modules():
        if hasattr(module, "embed_sum"):
            module.embed_sum.normal_()
    return codec


def sound(batch: int = 1, samples: int = SAMPLES, seed: int = 0) -> torch.Tensor:
    """Tones that change every tenth of a second, and some noise, `[batch, samples]` at 16,000 a second."""
    generator = torch.Generator().manual_seed(seed)
    pitch = torch.rand(batch, samples // 1600 + 1, generator=generator) * 0.3 + 0.02
    phase = pitch.repeat_interleave(1600, 1)[:, :samples].cumsum(1)
    return 0.3 * torch.sin(phase) + 0.01 * torch.randn(batch, samples, generator=generator)


def tokenizer() -> PreTrainedTokenizerFast:
    """Tokens that are words of their own, `w3`, but for every fourth, which goes on with the word before."""
    from tokenizers import Tokenizer, decoders, models

    words = [f"w{number}" if number % 4 == 0 else f"▁w{number}" for number in range(3, VOCABULARY)]
    names = {name: number for number, name in enumerate(["<unk>", "<s>", "</s>", *words])}
    inner = Tokenizer(models.WordLevel(names, unk_token="<unk>"))
    inner.decoder = decoders.Metaspace()
    marks = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    return PreTrainedTokenizerFast(tokenizer_object=inner, **marks)


class Processor:
    """A feature extractor and a tokenizer, as far as adapters use a processor."""

    def __init__(self, feature_extractor: Any, tokenizer: Any) -> None:
        self.feature_extractor, self.tokenizer = feature_extractor, tokenizer


def moonshine(seed: int = 0, **sizes: Any) -> tuple[Any, Any]:
    """A `MoonshineForConditionalGeneration`, and `arguments(batch, samples, max_new_tokens, **more)` of a call."""
    config = MoonshineConfig(
        **{
            **TOKENS,
            "hidden_size": 32,
            "intermediate_size": 64,
            "encoder_num_hidden_layers": 2,
            "decoder_num_hidden_layers": 3,
            "encoder_num_attention_heads": 4,
            "decoder_num_attention_heads": 4,
            **sizes,
        }
    )

    return sharp(lambda: MoonshineForConditionalGeneration(config), seed, MOONSHINE_SCALES), _waveforms


def _waveforms(batch: int = 1, samples: int = SAMPLES, max_new_tokens: int = NEW_TOKENS, **more: Any) -> Any:
    """Arguments of a call of either Moonshine."""
    values = sound(batch, samples)
    call = {"input_values": values, "attention_mask": torch.ones(values.shape, dtype=torch.long)}
    return {**call, "max_new_tokens": max_new_tokens, "do_sample": False, **more}


def moonshine_processor() -> Any:
    """What belongs to the tiny Moonshine."""
    return Wav2Vec2Processor(Wav2Vec2FeatureExtractor(do_normalize=False, return_attention_mask=True), tokenizer())


def moonshine_streaming(seed: int = 0, **sizes: Any) -> tuple[Any, Any]:
    """A `MoonshineStreamingForConditionalGeneration`, and `arguments(batch, samples, max_new_tokens, **more)`."""
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4}
    config = MoonshineStreamingConfig(
        **{
            **TOKENS,
            "encoder_config": {"hidden_size": 24, "intermediate_size": 48, "num_hidden_layers": 2, **heads},
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 3,
            **heads,
            **sizes,
        }
    )
    scales = {"embedder": 4.0, **MOONSHINE_SCALES}
    return sharp(lambda: MoonshineStreamingForConditionalGeneration(config), seed, scales), _waveforms


def whisper(seed: int = 0, **sizes: Any) -> tuple[Any, Any]:
    """A `WhisperForConditionalGeneration` of 5 seconds, and `arguments(batch, samples, max_new_tokens, **more)`."""
    config = WhisperConfig(
        **{
            **TOKENS,
            "num_mel_bins": MEL_BINS,
            "d_model": 32,
            "encoder_layers": 2,
            "decoder_layers": 3,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 64,
            "decoder_ffn_dim": 64,
            "max_source_positions": POSITIONS,
            "max_target_positions": 96,
            "suppress_tokens": None,
            "begin_suppress_tokens": None,
            **sizes,
        }
    )
    extractor = whisper_processor().feature_extractor

    def arguments(batch: int = 1, samples: int = SAMPLES, max_new_tokens: int = NEW_TOKENS, **more: Any) -> Any:
        features = extractor(list(sound(batch, samples).numpy()), sampling_rate=16_000, return_tensors="pt")
        call = {"input_features": features.input_features, "max_new_tokens": max_new_tokens, "do_sample": False}
        return {**call, **more}

    model = sharp(lambda: WhisperForConditionalGeneration(config), seed, WHISPER_SCALES)
    model.generation_config.begin_suppress_tokens = [3, 4]
    return model, arguments


def whisper_processor() -> Any:
    """What belongs to the tiny Whisper; `WhisperProcessor` itself takes no other tokenizer than Whisper's."""
    return Processor(WhisperFeatureExtractor(feature_size=MEL_BINS, chunk_length=POSITIONS // 50), tokenizer())


# family -> how to build it, and further shapes of calls
BUILDERS: dict[str, tuple[Callable[..., tuple[Any, Any]], tuple[dict[str, Any], ...]]] = {
    "moonshine": (moonshine, ({"samples": 9_000, "max_new_tokens": 4}, {"samples": 30_000})),
    # whole frames of 80 samples, as its processor pads to
    "moonshine_streaming": (moonshine_streaming, ({"samples": 9_600, "max_new_tokens": 4}, {"samples": 30_400})),
    "whisper": (whisper, ({"samples": 9_000, "max_new_tokens": 4}, {"samples": 30_000})),
}
