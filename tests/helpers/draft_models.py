"""Tiny decoders of all kinds of cache and attention, and prompts for drafts."""

import torch
from transformers import (
    DeepseekV2Config,
    DeepseekV2ForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    FalconH1Config,
    FalconH1ForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3nForCausalLM,
    Gemma3nTextConfig,
    Gemma3TextConfig,
    GptOssConfig,
    GptOssForCausalLM,
    InklingForCausalLM,
    InklingTextConfig,
    JambaConfig,
    JambaForCausalLM,
    Lfm2Config,
    Lfm2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
    RecurrentGemmaConfig,
    RecurrentGemmaForCausalLM,
    ZayaConfig,
    ZayaForCausalLM,
)

from mmaccel.vlm import examples, visual_examples

NEW = 30
PARTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}


def sharp(model, config, **more):
    return visual_examples.sharp(lambda: model(config(**{**examples.TEXT, **more})), 0, examples.WEIGHT_SCALE)


def gemma3():
    """Layers that keep a window of the past."""
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    return sharp(Gemma3ForCausalLM, Gemma3TextConfig, head_dim=8, sliding_window=16, layer_types=kinds)


def gemma3n():
    """Layers that read the keys of earlier ones: the last two of four."""
    kinds = ["sliding_attention", "full_attention"] * 2
    more = {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 64, "laurel_rank": 8}
    sizes = {**more, "num_hidden_layers": 4, "num_kv_shared_layers": 2, "layer_types": kinds}
    return sharp(Gemma3nForCausalLM, Gemma3nTextConfig, head_dim=8, sliding_window=16, **sizes)


def deepseek_v2():
    """Layers that are handed one tensor to turn keys with, no cosines and sines."""
    ranks = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
    experts = {**PARTS, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
    return sharp(DeepseekV2ForCausalLM, DeepseekV2Config, num_key_value_heads=4, **ranks, **experts)


def deepseek_v3():
    """Latent attention."""
    ranks = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
    experts = {**PARTS, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
    return sharp(DeepseekV3ForCausalLM, DeepseekV3Config, num_key_value_heads=4, **ranks, **experts)


def qwen3_next():
    """Layers with a state instead of keys."""
    linear = {f"linear_{name}": size for name, size in (("num_key_heads", 2), ("num_value_heads", 4))}
    linear |= {"linear_key_head_dim": 8, "linear_value_head_dim": 8, "shared_expert_intermediate_size": 16}
    kinds = ["linear_attention", "full_attention", "linear_attention"]
    return sharp(Qwen3NextForCausalLM, Qwen3NextConfig, num_experts=4, head_dim=8, layer_types=kinds, **PARTS, **linear)


def falcon_h1():
    """Layers with a state beside keys."""
    state = {"mamba_d_ssm": 64, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_d_state": 16}
    return sharp(FalconH1ForCausalLM, FalconH1Config, **state, mamba_chunk_size=8)


def lfm2():
    """Convolutions, of which the last tokens are the state."""
    kinds = ["conv", "full_attention", "conv"]
    return sharp(Lfm2ForCausalLM, Lfm2Config, layer_types=kinds)


def inkling():
    """Convolutions of keys and values, beside windows and without."""
    windows = {"swa_num_attention_heads": 4, "swa_num_key_value_heads": 2, "swa_head_dim": 8, "sliding_window_size": 16}
    experts = {**PARTS, "n_routed_experts": 4, "n_shared_experts": 1, "d_rel": 8, "rel_extent": 16}
    kinds = ["hybrid_sliding", "hybrid", "hybrid_sliding"]
    return sharp(InklingForCausalLM, InklingTextConfig, head_dim=8, layer_types=kinds, **windows, **experts)


def zaya():
    """Layers with a state beside windows and without."""
    kinds = ["hybrid_sliding", "hybrid", "hybrid_sliding"]
    experts = {"moe_intermediate_size": 16, "num_experts": 4, "router_hidden_size": 16}
    return sharp(ZayaForCausalLM, ZayaConfig, head_dim=8, sliding_window=16, layer_types=kinds, **experts)


def call(batch=1, pad=0, **more):
    """Prompts whose second half begins to repeat the first; every second one is padded on the left."""
    generator = torch.Generator().manual_seed(batch)
    ids = torch.randint(4, 60, (batch, 24), generator=generator)
    ids = torch.cat([ids, ids[:, :12]], 1)
    mask = torch.ones_like(ids)
    mask[(batch - 1) % 2 :: 2, :pad] = 0
    given = {"input_ids": ids.masked_fill(mask == 0, 0), "attention_mask": mask, "max_new_tokens": NEW}
    return {**given, "do_sample": False, "eos_token_id": None, "pad_token_id": 0, **more}


def gemma2():
    """Capped scores, and windows."""
    return sharp(Gemma2ForCausalLM, Gemma2Config, head_dim=8, sliding_window=16, attn_implementation="eager")


def gpt_oss():
    """Attention sinks, and windows."""
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2}
    return sharp(GptOssForCausalLM, GptOssConfig, head_dim=8, sliding_window=16, attn_implementation="eager", **experts)


def mixtral():
    """Experts."""
    return sharp(MixtralForCausalLM, MixtralConfig, num_local_experts=4, num_experts_per_tok=2)


def mistral():
    """Nothing but windows."""
    return sharp(MistralForCausalLM, MistralConfig, sliding_window=16)


def eager():
    return sharp(LlamaForCausalLM, LlamaConfig, attn_implementation="eager")


def jamba():
    """Layers with a state at which no pass of several tokens begins."""
    every = {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "num_experts": 2}
    return sharp(JambaForCausalLM, JambaConfig, use_mamba_kernels=False, mamba_d_state=8, mamba_dt_rank=4, **every)


def recurrent_gemma():
    """Layers whose state is kept in their modules."""
    return sharp(
        RecurrentGemmaForCausalLM, RecurrentGemmaConfig, lru_width=32, attention_window_size=16, num_attention_heads=4
    )
