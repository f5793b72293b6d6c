"""A Mimi of a few thousand weights, and when its sound counts as equal."""

TINY = {
    "hidden_size": 32,
    "num_filters": 4,
    "codebook_size": 64,
    "codebook_dim": 8,
    "vector_quantization_hidden_dimension": 8,
    "num_quantizers": 4,
    "upsample_groups": 32,
    "num_hidden_layers": 2,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "sliding_window": 40,
    "layer_scale_initial_scale": 0.7,  # at the default of 0.01 an error in the transformer would hardly be heard
}


def same(audio, whole):
    """Equal to 1e-5 of the loudest sample: untrained models are far louder than sound, which ends at 1."""
    return audio.shape == whole.shape and float((audio - whole).abs().max()) <= 1e-5 * float(whole.abs().max())
