"""Layers of multi-token prediction in a checkpoint, which transformers leaves there."""

from __future__ import annotations

import copy
import re
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PretrainedConfig

from mmaccel.errors import UnsupportedTargetError, WeightsError

from .draft_head import QUANTIZED, dense, has_values
from .mtp_head import MTPHead
from .published import files_of, tensors_of, why_quantized

GIVEN = "the layer of multi-token prediction is read from "
PARTS = {  # as DeepSeek, GLM and others call them, and as Qwen, EXAONE and others do
    "enorm": "embedding_norm", "pre_fc_norm_embedding": "embedding_norm",
    "hnorm": "hidden_norm", "pre_fc_norm_hidden": "hidden_norm",
    "eh_proj": "fc", "fc": "fc",
    "shared_head.norm": "norm", "norm": "norm",
}  # fmt: skip
SLIDING = "sliding_attention"
SHARED = ("embed_tokens.", "shared_head.head.", "lm_head.")  # the model's own once more
OTHER = re.compile(r"\bmtp")  # names of layers that are laid out otherwise, as those of Ernie and Inkling
EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(gate|up|down)_proj\.weight")


def find_layers(path: str, model: Any) -> dict[str, str]:
    """Tensors of the first layer of multi-token prediction in a folder or repository, and the files they are in.

    Raises
    ------
    WeightsError
        If there are no safetensors, or they cannot be had.
    UnsupportedTargetError
        If there is such a layer with names that are not known.
    """
    number = model.config.get_text_config(decoder=True).num_hidden_layers
    known = re.compile(rf"(.*?\b)(mtp\.|layers\.{number}\.)")
    files = files_of(path, GIVEN)
    first = next((name for name in files if known.match(name) and _own(name).startswith("fc.")), "")
    begin = known.match(first)
    if begin is not None:
        return {name: file for name, file in files.items() if name.startswith(begin[0]) and _own(name)}
    other = next((name for name in files if OTHER.search(name)), None)
    if other is not None:
        raise UnsupportedTargetError(
            f"the layers of multi-token prediction of {path} have names that are not known, as {other}:"
            " use vlm.FusedDraft()"
        )
    return {}


def load_mtp(path: str, names: dict[str, str], model: Any) -> MTPHead:
    """The head that is made of tensors of :func:`find_layers`, for a model that is loaded.

    Raises
    ------
    WeightsError
        If the layer is not one of the model's kind, or is quantized.
    UnsupportedTargetError
        If the model's layers are called otherwise than a head can, or are off-loaded, or its embedding or lm_head is
        quantized.
    """
    size, name = model.config.get_text_config(decoder=True).hidden_size, type(model).__name__
    for matrix, kept in ((model.get_input_embeddings(), "embedding"), (model.get_output_embeddings(), "lm_head")):
        if not has_values(matrix.weight, size):
            raise UnsupportedTargetError(f"{name} {QUANTIZED.format(kept)}")
    weights = {_own(name): value for name, value in tensors_of(path, names, GIVEN).items()}
    if why := why_quantized(weights):
        raise WeightsError(
            f"the MTP layer of {path} is quantized ({why}), and is read in bfloat16, float16 or float32 only: give"
            " checkpoint= of the model that it was made from"
        )
    weights = _stacked(weights)
    config = layer_configuration(model, is_sparse=any(".experts." in name for name in weights))
    try:
        with torch.device("meta"):
            head = MTPHead(config, model)
        final = dense(model.get_decoder().norm.weight)
        if final.device.type == "meta":
            raise UnsupportedTargetError(
                f"{type(model).__name__} has its last norm off-loaded, which the layer reads: keep it on a device in"
                " its device_map"
            )
    except (AttributeError, TypeError) as error:
        raise UnsupportedTargetError(
            f"{type(model).__name__} has no layers of the kind whose MTP layer is known ({error}): use vlm.FusedDraft()"
        ) from error
    weights["final_norm.weight"] = final.to("cpu", weights["fc.weight"].dtype)
    state = head.state_dict()
    wrong = [name for name, value in state.items() if name not in weights or weights[name].shape != value.shape]
    wrong.extend(name for name in weights if name not in state)
    if wrong:
        raise WeightsError(
            f"the MTP layer of {path} is not one of {type(model).__name__}: {wrong[:3]}; if it was loaded from another"
            " checkpoint, give that as checkpoint=, else use vlm.FusedDraft()"
        )
    head.load_state_dict(weights, assign=True)
    head.draft_tokens = torch.arange(len(model.get_output_embeddings().weight))
    head.eval().requires_grad_(False).beside(model)
    _try(head, model)
    return head


@torch.no_grad()
def _try(head: MTPHead, model: Any) -> None:
    """Refuse a layer that wants more than it is given, as one that chooses which tokens it attends to."""
    ids, cache = torch.zeros(1, 2, dtype=torch.long, device=head.device), DynamicCache()
    hidden = head.embedded(ids, head.fc.weight)
    seen = torch.ones(1, 1, 2, 2, dtype=torch.bool, device=head.device).tril()
    try:
        head(ids, hidden, ids, seen, cache)
        head(ids[:, :1], hidden[:, :1], ids[:, :1], None, cache)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise UnsupportedTargetError(
            f"the MTP layer of {type(model).__name__} needs more than a head is given ({error}): use vlm.FusedDraft()"
        ) from error


def _own(name: str) -> str:
    """What the head calls a tensor of a checkpoint; empty for those that it has from the model, or of later layers."""
    told = re.sub(r"^.*?(?:\bmtp\.layers\.|\bmtp\.|\blayers\.)(?=.)", "", name)
    number, _, rest = told.partition(".")
    if not number.isdigit():
        rest = told
    elif "mtp." in name and number != "0":
        return ""
    if rest.startswith(SHARED):
        return ""
    part, _, kind = rest.rpartition(".")
    return f"{PARTS[part]}.{kind}" if part in PARTS else f"layer.{rest}"


def _stacked(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Experts of a layer in one tensor, as the classes of transformers have them."""
    experts: dict[str, dict[int, dict[str, Tensor]]] = {}
    found = {}
    for name, value in weights.items():
        match = EXPERT.fullmatch(name)
        if match is None:
            found[name] = value
        else:
            experts.setdefault(match[1], {}).setdefault(int(match[2]), {})[match[3]] = value
    for name, parts in experts.items():
        ordered = [parts[number] for number in sorted(parts)]
        found[f"{name}.gate_up_proj"] = torch.stack([torch.cat([each["gate"], each["up"]]) for each in ordered])
        found[f"{name}.down_proj"] = torch.stack([each["down"] for each in ordered])
    return found


def layer_configuration(model: Any, is_sparse: bool) -> PretrainedConfig:
    """Of one layer of the model's kind."""
    config = copy.deepcopy(model.config.get_text_config(decoder=True))
    count = config.num_hidden_layers
    first = list(getattr(config, "layer_types", None) or ())[:1]  # whose kind EXAONE 4.5 means, which does not say
    kinds = getattr(config, "mtp_layer_types", None) or (first if first == [SLIDING] else ["full_attention"])
    told: dict[str, Any] = {
        "layer_types": kinds[:1],
        "mlp_layer_types": ["sparse" if is_sparse else "dense"],
        "first_k_dense_replace": 0 if is_sparse else 1,
        "mlp_only_layers": [] if is_sparse else [0],
        "decoder_sparse_step": 1,
    }
    for name, value in told.items():
        if getattr(config, name, None) is not None:
            setattr(config, name, value)
    config.num_hidden_layers, config._attn_implementation = 1, "sdpa"
    config.layers_read = (count,)
    config.window = config.sliding_window if kinds[0] == SLIDING else None
    config.hidden_first = bool(getattr(config, "mtp_hidden_states_first", False))
    return config
