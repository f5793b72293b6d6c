"""Models saved with a layer of multi-token prediction, under the names of checkpoints that are published."""

import json
import re

import torch
from draft_models import PARTS, sharp
from safetensors.torch import load_file, save_file
from transformers import (
    Exaone4Config,
    Exaone4ForCausalLM,
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    GlmMoeDsaConfig,
    GlmMoeDsaForCausalLM,
    MellumConfig,
    MellumForCausalLM,
    Qwen3_5ForCausalLM,
    Qwen3_5TextConfig,
)

from mmaccel.decoding.drafters.heads.mtp_head import MTPHead
from mmaccel.decoding.drafters.heads.mtp_weights import layer_configuration

QWEN = {"fc": "fc", "norm": "norm", "hidden_norm": "pre_fc_norm_hidden", "embedding_norm": "pre_fc_norm_embedding"}
DEEPSEEK = {"fc": "eh_proj", "norm": "shared_head.norm", "hidden_norm": "hnorm", "embedding_norm": "enorm"}


def qwen3_5():
    """Dense, with layers that have a state and positions of three axes."""
    linear = {f"linear_{name}": size for name, size in (("num_key_heads", 2), ("num_value_heads", 4))}
    linear |= {"linear_key_head_dim": 8, "linear_value_head_dim": 8}
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0, "mrope_section": [2, 1, 1]}
    kinds = ["linear_attention", "full_attention", "linear_attention"]
    return sharp(Qwen3_5ForCausalLM, Qwen3_5TextConfig, head_dim=8, layer_types=kinds, rope_parameters=rope, **linear)


def glm4_moe():
    """A mixture of experts behind a dense layer."""
    experts = {**PARTS, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
    return sharp(Glm4MoeForCausalLM, Glm4MoeConfig, head_dim=8, **experts)


def exaone4():
    """Only layers with a window turn their tokens, as the first is one."""
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    return sharp(Exaone4ForCausalLM, Exaone4Config, head_dim=8, sliding_window=16, layer_types=kinds)


def mellum():
    """Layers with a window turn their tokens otherwise, and that of multi-token prediction is one of these."""
    kinds = ["full_attention", "sliding_attention", "full_attention"]
    experts = {**PARTS, "num_experts": 4, "num_mtp_layers": 1}
    return sharp(MellumForCausalLM, MellumConfig, head_dim=8, sliding_window=16, layer_types=kinds, **experts)


def glm_moe_dsa():
    """Latent attention to tokens that a layer chooses, for the one behind it, too."""
    ranks = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
    index = {"index_topk": 8, "index_head_dim": 16, "index_n_heads": 32, "indexer_types": ["full", "shared", "full"]}
    experts = {**PARTS, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
    return sharp(GlmMoeDsaForCausalLM, GlmMoeDsaConfig, num_key_value_heads=4, **ranks, **index, **experts)


def random_head(model, is_sparse=False, seed=0):
    """An untrained head of a model's kind."""
    torch.manual_seed(seed)
    head = MTPHead(layer_configuration(model, is_sparse), model)
    for name, value in head.named_parameters():
        if value.dim() > 1:
            torch.nn.init.normal_(value, std=0.3)
        elif "norm" in name:
            torch.nn.init.uniform_(value, 0.7, 1.3)
    head.final_norm.load_state_dict(model.get_decoder().norm.state_dict())
    return head.eval()


def write(folder, model, head, layout=QWEN, sharded=False, change=lambda weights: weights):
    """Save a model with a head in its checkpoint, and load it from there."""
    model.save_pretrained(folder)
    weights = change(published(model, head, layout))
    if sharded:
        (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
        known = load_file(folder / "model-00001-of-00002.safetensors")
        save_file(weights, folder / "model-00002-of-00002.safetensors", {"format": "pt"})
        files = dict.fromkeys(known, "model-00001-of-00002.safetensors")
        files |= dict.fromkeys(weights, "model-00002-of-00002.safetensors")
        told = {"metadata": {"total_size": 0}, "weight_map": files}
        (folder / "model.safetensors.index.json").write_text(json.dumps(told))
    else:
        whole = {**load_file(folder / "model.safetensors"), **weights}
        save_file(whole, folder / "model.safetensors", {"format": "pt"})
    return type(model).from_pretrained(folder, dtype=model.dtype).eval()


def published(model, head, layout):
    """The tensors of a head under the names of a checkpoint."""
    begin = "mtp." if layout is QWEN else f"model.layers.{model.config.get_text_config().num_hidden_layers}."
    found = {}
    for name, value in head.state_dict().items():
        part, _, kind = name.rpartition(".")
        if part in layout:
            found[f"{begin}{layout[part]}.{kind}"] = value.clone()
        elif name.startswith("layer."):
            inside = "layers.0." if layout is QWEN else ""
            found |= _apart(f"{begin}{inside}{name.removeprefix('layer.')}", value)
    if layout is DEEPSEEK:
        found[f"{begin}embed_tokens.weight"] = model.get_input_embeddings().weight.detach().clone()
        found[f"{begin}shared_head.head.weight"] = model.get_output_embeddings().weight.detach().clone()
    return found


def _apart(name, value):
    """Experts one by one, as in checkpoints."""
    match = re.fullmatch(r"(.*\.experts)\.(gate_up|down)_proj", name)
    if match is None:
        return {name: value.clone()}
    parts = {}
    for number, expert in enumerate(value):
        if match[2] == "down":
            parts[f"{match[1]}.{number}.down_proj.weight"] = expert.clone()
        else:
            gate, up = expert.chunk(2)
            parts[f"{match[1]}.{number}.gate_proj.weight"] = gate.clone()
            parts[f"{match[1]}.{number}.up_proj.weight"] = up.clone()
    return parts
