"""Untrained EAGLE-3 heads on disk, in the formats in which trained ones are published."""

import json

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig

from mmaccel.decoding.drafters.heads.eagle_head import EagleHead

VOCABULARY = 32  # tokens that can be drafted


def write(folder, model, *, reads=None, layers=1, own=True, nested=False, whole=False, seed=0, **switches):
    """A head for a model, of `layers` layers, every second token of the vocabulary its own, or the `whole` of it."""
    torch.manual_seed(seed)
    source = model.config.get_text_config(decoder=True)
    sizes = {name: getattr(source, name) for name in ("vocab_size", "hidden_size")}
    vocabulary = source.vocab_size if whole else VOCABULARY
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": layers, "intermediate_size": 48}
    drafted = {
        "target_hidden_size": source.hidden_size,
        "draft_vocab_size": vocabulary,
        "layers_read": reads or (0, 1, 2),
    }
    all_switches = {**dict.fromkeys(EagleHead.SWITCHES, False), **switches}
    config = LlamaConfig(**sizes, **heads, **drafted, **all_switches)
    weights = {name: 3 * value for name, value in EagleHead(config).state_dict().items()}
    if not whole:
        weights["d2t"] = torch.arange(VOCABULARY)  # to be added to their own numbers
        weights["t2d"] = torch.arange(source.vocab_size) % 2 == 0
    if own:
        weights["embed_tokens.weight"] = torch.randn(source.vocab_size, source.hidden_size)
        weights["lm_head.weight"] = 0.05 * torch.randn(vocabulary, source.hidden_size)
    layer = {name: value for name, value in config.to_diff_dict().items() if name != "layers_read"}
    if nested:  # as speculators writes it
        told = {"speculators_model_type": "eagle3", "transformer_layer_config": layer, "draft_vocab_size": vocabulary}
        told |= switches
        if reads:
            told["eagle_aux_hidden_state_layer_ids"] = list(reads)
    else:
        told = {**layer, "architectures": ["LlamaForCausalLMEagle3"]}
        weights = {name.replace("layers.0.", "midlayer."): value for name, value in weights.items()}
        if reads:
            told["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [number - 1 for number in reads]}
    if whole:
        told.pop("draft_vocab_size")
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(told))
    return str(folder)
