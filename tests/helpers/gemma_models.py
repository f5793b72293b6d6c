"""Small models of Gemma 4 and their assistants."""

import torch
from transformers import Gemma4AssistantConfig, Gemma4AssistantForCausalLM, Gemma4ForCausalLM, Gemma4TextConfig

WORDS, WINDOW = 64, 16
SIZES = {
    "vocab_size": WORDS, "head_dim": 16, "global_head_dim": 32, "sliding_window": WINDOW,
    "max_position_embeddings": 512, "num_key_value_heads": 1, "num_global_key_value_heads": 1,
    "pad_token_id": 0, "eos_token_id": None,
}  # fmt: skip
KINDS = ["sliding_attention", "sliding_attention", "full_attention"]


def gemma(shared=0, seed=0):
    """A decoder of six layers, the last of which may share their keys, as those of E2B and E4B do."""
    torch.manual_seed(seed)
    config = Gemma4TextConfig(
        **SIZES, hidden_size=32, intermediate_size=48, num_hidden_layers=6, num_attention_heads=4,
        layer_types=KINDS * 2, num_kv_shared_layers=shared,
        hidden_size_per_layer_input=8 if shared else 0, vocab_size_per_layer_input=WORDS,
    )  # fmt: skip
    return Gemma4ForCausalLM(config).eval()


def assistant(ordered=False, backbone=32, seed=1):
    """An assistant of three layers, which may look at a part of its vocabulary only."""
    torch.manual_seed(seed)
    text = Gemma4TextConfig(
        **SIZES, hidden_size=16, intermediate_size=32, num_hidden_layers=3, num_attention_heads=2, layer_types=KINDS,
        num_kv_shared_layers=3, hidden_size_per_layer_input=0, vocab_size_per_layer_input=0,
    )  # fmt: skip
    config = Gemma4AssistantConfig(
        text_config=text, backbone_hidden_size=backbone, use_ordered_embeddings=ordered, num_centroids=8,
        centroid_intermediate_top_k=4,
    )  # fmt: skip
    model = Gemma4AssistantForCausalLM(config).eval()
    if ordered:
        model.masked_embedding.token_ordering.copy_(torch.randperm(WORDS))
    model.generation_config.num_assistant_tokens = 5
    return model


def build_as_later(monkeypatch):
    """transformers 5.23 cannot build an assistant, all of whose layers share their keys; 5.24 can."""
    before = Gemma4TextConfig.kv_sharing_modes.fget

    def modes(config):
        shares_all = config.num_kv_shared_layers == config.num_hidden_layers
        return ["reuse"] * config.num_hidden_layers if shares_all else before(config)

    monkeypatch.setattr(Gemma4TextConfig, "kv_sharing_modes", property(modes))
