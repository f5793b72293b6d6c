"""EAGLE-3's heads as they are published: what a folder or a repository says of one, and its weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import PretrainedConfig
from transformers.utils.hub import cached_file

from mmaccel.errors import UnsupportedTargetError, WeightsError

from .eagle_head import KINDS, EagleHead, layers_read

TO_SAFE = (
    "a pytorch_model.bin, which may run code, is not read: write it once as safetensors, state ="
    ' torch.load("pytorch_model.bin", weights_only=True); safetensors.torch.save_file(state, "model.safetensors")'
)
UNUSED = ("t2d", "verifier_norm.", "verifier_lm_head.", "rotary_emb.")  # of the training
ENTRIES = (  # of its configuration, which mean nothing here or are told otherwise
    "architectures", "auto_map", "eagle_config", "model_type", "torch_dtype", "dtype", "layer_types",
    "_attn_implementation",
)  # fmt: skip


def load_head(path: str, model: Any) -> EagleHead:
    """The head in a folder or a repository, for a model that is loaded, on its device and in its type.

    Raises
    ------
    WeightsError
        If it cannot be had, or is no EAGLE-3 head in safetensors.
    UnsupportedTargetError
        If it was trained for a model of other sizes.
    """
    head = EagleHead(configuration(path, model))
    weights = {_renamed(name): value for name, value in load_file(_file(path, "model.safetensors")).items()}
    head.own = {name: weights.pop(f"{name}.weight", None) for name in ("embed_tokens", "lm_head")}
    shift = weights.pop("d2t", torch.zeros(head.config.draft_vocab_size, dtype=torch.long)).long()
    shapes = {name: value.shape for name, value in head.state_dict().items()}
    wrong = [name for name, shape in shapes.items() if name not in weights or weights[name].shape != shape]
    wrong.extend(name for name in weights if name not in shapes and not name.startswith(UNUSED))
    if wrong or len(shift) != head.config.draft_vocab_size:
        raise WeightsError(f"{path}/model.safetensors is not what its config.json says: {wrong[:3] or 'd2t'}")
    head.load_state_dict({name: weights[name] for name in shapes})
    head.draft_tokens = shift + torch.arange(len(shift))
    size, most = model.get_output_embeddings().weight.shape[1], int(head.draft_tokens.max())
    if most >= len(model.get_output_embeddings().weight):
        raise UnsupportedTargetError(
            f"{path} drafts token {most}, which {type(model).__name__} has not: give the head that was trained for it"
        )
    fits = size == head.config.hidden_size and model.get_output_embeddings().weight.is_floating_point()
    if not fits and None in head.own.values():
        raise WeightsError(f"{path}/model.safetensors has no embedding or output, and the model's cannot serve it")
    return head.eval().requires_grad_(False).beside(model)


def configuration(path: str, model: Any) -> PretrainedConfig:
    """What a head says of itself, checked against the model."""
    told = json.loads(Path(_file(path, "config.json")).read_text())
    layer = told.get("transformer_layer_config", told)
    kind, target = layer.get("model_type", "llama"), model.config.get_text_config(decoder=True)
    if kind not in KINDS or not told.get("draft_vocab_size"):
        raise WeightsError(f"{path}/config.json is of no EAGLE-3 head with layers of {' or '.join(KINDS)}")
    size = told.get("target_hidden_size") or layer["hidden_size"]
    if size != target.hidden_size:
        raise UnsupportedTargetError(
            f"{path} was trained for a model of hidden size {size}, {type(model).__name__} has {target.hidden_size}:"
            " give the head that was trained for this model"
        )
    given: dict[str, Any] = {
        **{name: value for name, value in layer.items() if name not in ENTRIES},
        **{name: bool(told.get(name, False)) for name in EagleHead.SWITCHES},
        "attn_implementation": "sdpa",
        "target_hidden_size": size,
        "draft_vocab_size": told["draft_vocab_size"],
        "reads": _layers(told, len(model.get_decoder().layers)),
    }
    return KINDS[kind][0](**given)


def _layers(told: dict[str, Any], count: int) -> tuple[int, ...]:
    """Numbers of the layers whose inputs are read: as vLLM counts them, or, inside `eagle_config`, as SGLang does."""
    name = "eagle_aux_hidden_state_layer_ids"
    if told.get(name):
        return tuple(told[name])
    after = (told.get("eagle_config") or {}).get(name)
    return tuple(number + 1 for number in after) if after else layers_read(count)


def _renamed(name: str) -> str:
    return name.removeprefix("model.").replace("midlayer.", "layers.0.")


def _file(path: str, name: str) -> str:
    """A file of the head, in the folder or the cache of the Hub, or downloaded."""
    try:
        found = cached_file(path, name)
    except OSError as error:
        reason = str(error).splitlines()[0]
    else:
        if found is not None:
            return str(found)
        reason = f"there is no {name}"
    pickled = f"; {TO_SAFE}" if name.endswith(".safetensors") else ""
    raise WeightsError(f"head={path!r}: {reason}{pickled}")
