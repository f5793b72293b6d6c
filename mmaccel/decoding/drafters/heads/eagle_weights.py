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

from .draft_head import dense
from .eagle_head import KINDS, EagleHead, layers_read

TO_SAFE = (
    "; if it is published as pytorch_model.bin alone, which may run code and is not read, write that once as"
    ' safetensors: state = torch.load("pytorch_model.bin", weights_only=True);'
    ' safetensors.torch.save_file(state, "model.safetensors")'
)
UNUSED = ("t2d", "verifier_norm.", "verifier_lm_head.", "rotary_emb.")  # of the training
REPLACED = (  # of the configuration of a layer, which is told otherwise, or is of its file
    "architectures", "auto_map", "eagle_config", "model_type", "torch_dtype", "dtype", "_attn_implementation",
    "layer_types", "sliding_window", "use_sliding_window", "max_window_layers",
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
    config = configuration(path, model)
    try:
        with torch.device("meta"):
            head = EagleHead(config)
    except KeyError as error:
        raise WeightsError(
            f"{path}/config.json asks for rotary embeddings of kind {error}, which are not known"
        ) from error
    weights = {_renamed(name): value for name, value in load_file(_file(path, "model.safetensors")).items()}
    if "layers.0.hidden_norm.weight" not in weights:
        what = "is of an older head, EAGLE 1 or 2" if "fc.weight" in weights else "is no EAGLE head"
        raise WeightsError(f"{path}/model.safetensors {what}: give an EAGLE-3 head")
    embedding, output = weights.pop("embed_tokens.weight", None), weights.pop("lm_head.weight", None)
    shift = weights.pop("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.long)).long()
    size, vocabulary = config.hidden_size, len(model.get_input_embeddings().weight)
    shapes = {name: tuple(value.shape) for name, value in head.state_dict().items()}
    wrong = [name for name, shape in shapes.items() if name not in weights or weights[name].shape != shape]
    wrong.extend(name for name in weights if name not in shapes and not name.startswith(UNUSED))
    if embedding is not None and (embedding.shape[1] != size or len(embedding) < vocabulary):
        wrong.append("embed_tokens.weight")
    if output is not None and output.shape != (config.draft_vocab_size, size):
        wrong.append("lm_head.weight")
    if wrong or len(shift) != config.draft_vocab_size:
        raise WeightsError(f"{path}/model.safetensors is not what its config.json says: {wrong[:3] or 'd2t'}")
    head.load_state_dict({name: weights[name] for name in shapes}, assign=True)
    head.draft_tokens, head.embedding, head.output = shift + torch.arange(len(shift)), embedding, output
    _check(path, head, model)
    head.eval().requires_grad_(False).beside(model)
    return head


def _check(path: str, head: EagleHead, model: Any) -> None:
    """Refuse a model that is not the one the head was trained for, or whose matrices cannot serve it."""
    theirs, most = model.get_output_embeddings().weight, int(head.draft_tokens.max())
    if most >= len(theirs):
        raise UnsupportedTargetError(
            f"{path} drafts token {most}, which {type(model).__name__} has not: give the head that was trained for it"
        )
    fits = theirs.shape[1] == head.config.hidden_size and theirs.is_floating_point()
    if not fits and (head.embedding is None or head.output is None):
        raise WeightsError(f"{path}/model.safetensors has no embedding or output, and the model's cannot serve it")
    if head.embedding is not None:
        given = dense(model.get_input_embeddings().weight)
        if torch.equal(head.embedding.to(given.device, given.dtype), given):
            head.embedding = None  # speculators' files have a copy of it


def configuration(path: str, model: Any) -> PretrainedConfig:
    """What a head says of itself, checked against the model."""
    told = json.loads(Path(_file(path, "config.json")).read_text())
    layer = told.get("transformer_layer_config", told)
    kind, target = layer.get("model_type", "llama"), model.config.get_text_config(decoder=True)
    algorithm = told.get("speculators_model_type", "eagle3")
    if algorithm != "eagle3":
        raise WeightsError(f"{path}/config.json is of no EAGLE-3 head, but of {algorithm}: give an EAGLE-3 head")
    if kind not in KINDS:
        raise WeightsError(f"{path} has a layer of {kind}, and only those of {' and '.join(KINDS)} are known")
    size = told.get("target_hidden_size") or layer["hidden_size"]
    if size != target.hidden_size:
        raise UnsupportedTargetError(
            f"{path} was trained for a model of hidden size {size}, {type(model).__name__} has {target.hidden_size}:"
            " give the head that was trained for this model"
        )
    count = len(model.get_decoder().layers)
    reads = _layers(told, count)
    if not all(0 <= number <= count for number in reads):
        raise UnsupportedTargetError(
            f"{path} reads layers {reads} of a model, {type(model).__name__} has {count}:"
            " give the head that was trained for this model"
        )
    given: dict[str, Any] = {
        **{name: value for name, value in layer.items() if name not in REPLACED},
        **{name: bool(told.get(name, False)) for name in EagleHead.SWITCHES},
        **_rotary(layer),
        "attn_implementation": "sdpa",
        "target_hidden_size": size,
        "draft_vocab_size": told.get("draft_vocab_size") or layer.get("vocab_size", target.vocab_size),
        "layers_read": reads,
        "window": _window(path, layer),
    }
    return KINDS[kind][0](**given)


def _window(path: str, layer: dict[str, Any]) -> int | None:
    """Of tokens that its layers attend to; None for all."""
    kinds = set(layer.get("layer_types") or ())
    if len(kinds) > 1:
        raise WeightsError(f"{path} has layers with a window and without, which are not known: give another head")
    slides = kinds == {"sliding_attention"} if kinds else bool(layer.get("use_sliding_window"))
    window: int | None = layer.get("sliding_window")
    return window if slides else None


def _rotary(layer: dict[str, Any]) -> dict[str, Any]:
    """Rotary settings; those of pictures' places are the plain ones for text."""
    found = {}
    for name in ("rope_scaling", "rope_parameters"):
        told = layer.get(name)
        if isinstance(told, dict) and "mrope" in (told.get("rope_type"), told.get("type")):
            plain = {key: value for key, value in told.items() if key not in ("type", "mrope_section")}
            found[name] = {**plain, "rope_type": "default"}
    return found


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
    lacks = name.endswith(".safetensors") and "does not appear" in reason
    raise WeightsError(f"head={path!r}: {reason}{TO_SAFE if lacks else ''}")
