"""What is read of a head that is published: the files of its folder or repository, and its weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers.utils.hub import cached_file

from mmaccel.errors import UnsupportedTargetError, WeightsError

from .draft_head import DraftHead, dense

Head = TypeVar("Head", bound=DraftHead)
TO_SAFE = (
    "; if it is published as pytorch_model.bin alone, which may run code and is not read, write that once as"
    ' safetensors: state = torch.load("pytorch_model.bin", weights_only=True);'
    ' safetensors.torch.save_file(state, "model.safetensors")'
)
UNUSED = ("t2d", "verifier_norm.", "verifier_lm_head.", "rotary_emb.")  # of the training


def told_of(path: str) -> dict[str, Any]:
    """What the configuration of a head says."""
    told: dict[str, Any] = json.loads(Path(file_of(path, "config.json")).read_text())
    return told


def weights_of(path: str) -> dict[str, Tensor]:
    """The tensors of a head, by name."""
    return load_file(file_of(path, "model.safetensors"))


def require_fit(path: str, model: Any, size: int, reads: tuple[int, ...]) -> None:
    """Refuse a model of another hidden size than the head was trained for, or without the layers that it reads."""
    name, theirs = type(model).__name__, model.config.get_text_config(decoder=True).hidden_size
    if size != theirs:
        raise UnsupportedTargetError(
            f"{path} was trained for a model of hidden size {size}, {name} has {theirs}:"
            " give the head that was trained for this model"
        )
    count = len(model.get_decoder().layers)
    if not all(0 <= number <= count for number in reads):
        raise UnsupportedTargetError(
            f"{path} reads layers {reads} of a model, {name} has {count}: give the head that was trained for this model"
        )


def made(path: str, make: Callable[[], Head], weights: dict[str, Tensor], model: Any) -> Head:
    """The head that `make` makes, with weights by its own names, on the device and in the type of the model."""
    try:
        with torch.device("meta"):
            head = make()
    except KeyError as error:
        raise WeightsError(
            f"{path}/config.json asks for rotary embeddings of kind {error}, which are not known"
        ) from error
    config: Any = head.config
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


def _check(path: str, head: DraftHead, model: Any) -> None:
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


def plain_rotary(layer: dict[str, Any]) -> dict[str, Any]:
    """Rotary settings of a configuration; those of pictures' places are the plain ones for text."""
    found = {}
    for name in ("rope_scaling", "rope_parameters"):
        told = layer.get(name)
        if isinstance(told, dict) and "mrope" in (told.get("rope_type"), told.get("type")):
            plain = {key: value for key, value in told.items() if key not in ("type", "mrope_section")}
            found[name] = {**plain, "rope_type": "default"}
    return found


def file_of(path: str, name: str, given: str = "head=") -> str:
    """A file of a head, in the folder or the cache of the Hub, or downloaded."""
    try:
        found = cached_file(path, name)
    except OSError as error:
        reason = str(error).splitlines()[0]
    else:
        if found is not None:
            return str(found)
        reason = f"there is no {name}"
    lacks = name.endswith(".safetensors") and "does not appear" in reason
    raise WeightsError(f"{given}{path!r}: {reason}{TO_SAFE if lacks else ''}")
