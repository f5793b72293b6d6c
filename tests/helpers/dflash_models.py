"""Draft models of DFlash on disk, in the formats in which trained ones are published, and one that learned a text."""

import json

import torch
from safetensors.torch import save_file
from torch.nn import functional
from transformers import MuseGlimmerAssistantConfig, MuseGlimmerAssistantModel

READS = (0, 1, 2)  # layers of a model, by number of what they put out, whose outputs are read
BLOCK, MASK = 8, 61
FORMATS = ("z-lab", "speculators", "transformers")


def untrained(model, seed=0, layers=2, window=None, **more):
    """A draft model in transformers' own class, with random weights."""
    torch.manual_seed(seed)
    source = model.config.get_text_config(decoder=True)
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "num_hidden_layers": layers}
    kinds = ["full_attention" if window is None or number % 2 else "sliding_attention" for number in range(layers)]
    rotary = {"rope_type": "default", "rope_theta": 10_000.0}
    sizes = {"hidden_size": source.hidden_size, "intermediate_size": 48, "rope_parameters": rotary}
    own = {"block_size": BLOCK, "mask_token_id": MASK, "target_layer_ids": list(READS), "layer_types": kinds}
    named = {"sliding_window": window or 2048, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = MuseGlimmerAssistantConfig(**{**heads, **sizes, **own, **named, "rms_norm_eps": 1e-6, **more})
    found = MuseGlimmerAssistantModel(config).eval()
    for name, value in found.named_parameters():
        value.data = 1 + 0.3 * torch.randn_like(value) if "norm" in name else 8 * value.data
    return found


def save(folder, draft, model, form="z-lab", **told):
    """It, as z-lab, speculators or transformers write it."""
    folder.mkdir(parents=True, exist_ok=True)
    config = draft.config.to_dict()
    weights = {name: value.detach().contiguous() for name, value in draft.state_dict().items()}
    if form != "transformers":
        weights = {
            name.replace("encoder.fc.", "fc.").replace("encoder.output_norm_enc.", "hidden_norm."): value
            for name, value in weights.items()
        }
        own = {name: config.pop(name) for name in ("block_size", "mask_token_id", "target_layer_ids")}
        config = {
            **config,
            "model_type": "qwen3",
            "vocab_size": model.config.get_text_config(decoder=True).vocab_size,
            "use_sliding_window": "sliding_attention" in config["layer_types"],
        }
    if form == "z-lab":
        block, more = own.pop("block_size"), told.pop("dflash_config", {})
        config = {
            **config,
            "architectures": ["DFlashDraftModel"],
            "block_size": block,
            "dflash_config": {**own, **more},
        }
    if form == "speculators":
        reads = [number + 1 for number in own.pop("target_layer_ids")]
        config = {
            "speculators_model_type": "dflash",
            "architectures": ["DFlashDraftModel"],
            "transformer_layer_config": config,
            "aux_hidden_state_layer_ids": reads,
            "draft_vocab_size": model.config.get_text_config(decoder=True).vocab_size,
            **own,
        }
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**config, **told}))
    return str(folder)


def write(folder, model, form="z-lab", seed=0, layers=2, window=None, **told):
    """An untrained one."""
    return save(folder, untrained(model, seed, layers, window), model, form, **told)


def trained(model, texts, steps=400, **more):
    """One that has learned texts `[B, N]` of a model, beside its hidden states, by transformers' own forward pass."""
    draft = untrained(model, **more)
    for value in draft.parameters():
        value.data = torch.ones_like(value) if value.dim() == 1 else value.data / 8
    with torch.no_grad():
        states = model(texts, output_hidden_states=True).hidden_states
    read = torch.cat([states[number + 1] for number in READS], -1)
    learner = torch.optim.AdamW(draft.parameters())
    generator = torch.Generator().manual_seed(0)
    unmasked = dict.fromkeys(("full_attention", "sliding_attention"))
    for step in range(steps):
        learner.param_groups[0]["lr"] = 1e-2 * (1 - step / steps)
        known = int(torch.randint(20, texts.shape[1] - BLOCK, (1,), generator=generator))
        block = torch.full((len(texts), BLOCK), MASK)
        block[:, 0] = texts[:, known]
        found = draft(
            noise_embeds=model.get_input_embeddings()(block).detach(),
            context_hidden_states=read[:, :known],
            position_ids=torch.arange(known + BLOCK)[None],
            attention_mask=unmasked,
            use_cache=False,
        ).last_hidden_state[:, 1:]
        logits = functional.linear(found, model.get_output_embeddings().weight.detach())
        loss = functional.cross_entropy(logits.flatten(0, 1), texts[:, known + 1 : known + BLOCK].flatten())
        learner.zero_grad()
        loss.backward()
        learner.step()
    return draft.eval()
