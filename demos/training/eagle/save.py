"""Write the head as it is shipped: in the format of EAGLE-3's checkpoints, without what is the model's own."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from mmaccel.decoding.drafters.heads.eagle_head import EagleHead

from ..checkpoint import write_facts


def save(head: EagleHead, folder: Path, facts: dict[str, object]) -> None:
    """Bfloat16 weights, configuration, and facts."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {
        name.replace("layers.0.", "midlayer."): value.bfloat16().contiguous()
        for name, value in head.state_dict().items()
    }
    weights["d2t"] = head.draft_tokens - torch.arange(len(head.draft_tokens))
    save_file(weights, folder / "model.safetensors")
    config = {
        name: value
        for name, value in head.config.to_diff_dict().items()
        if name not in ("layers_read", "window", "transformers_version")
    }
    config["architectures"] = ["LlamaForCausalLMEagle3"]
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    write_facts(facts, folder)
