"""Untrained recognisers of the real classes, a few thousand weights; a test passes what it wants otherwise."""

from transformers import (
    MoonshineConfig,
    MoonshineForConditionalGeneration,
    MoonshineStreamingConfig,
    MoonshineStreamingForConditionalGeneration,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

from mmaccel.testing.untrained import untrained

START, END = 1, 2
SHARED = {
    "vocab_size": 64,
    "bos_token_id": START,
    "eos_token_id": END,
    "pad_token_id": 0,
    "decoder_start_token_id": START,
}
WHISPER = {
    **SHARED,
    "num_mel_bins": 8,
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_source_positions": 50,
    "max_target_positions": 64,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
}
MOONSHINE = {
    **SHARED,
    "hidden_size": 32,
    "intermediate_size": 64,
    "encoder_num_hidden_layers": 1,
    "decoder_num_hidden_layers": 2,
    "encoder_num_attention_heads": 4,
    "decoder_num_attention_heads": 4,
}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 4}
ENCODER = {"hidden_size": 24, "intermediate_size": 48, **HEADS}  # of Moonshine v2
MOONSHINE_STREAMING = {
    **SHARED,
    **HEADS,
    "encoder_config": ENCODER,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
}


def whisper(seed=1, scale=24.0, **sizes):
    config = WhisperConfig(**{**WHISPER, **sizes})
    return untrained(lambda: WhisperForConditionalGeneration(config), seed, scale)


def moonshine(seed=2, scale=24.0, **sizes):
    config = MoonshineConfig(**{**MOONSHINE, **sizes})
    return untrained(lambda: MoonshineForConditionalGeneration(config), seed, scale)


def moonshine_streaming(seed=1, scale=24.0, **sizes):
    config = MoonshineStreamingConfig(**{**MOONSHINE_STREAMING, **sizes})
    return untrained(lambda: MoonshineStreamingForConditionalGeneration(config), seed, scale)
