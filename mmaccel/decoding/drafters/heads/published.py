"""What is read of a head that is published: the files of its folder or repository, and its weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import safe_open
from torch import Tensor
from transformers.utils.hub import cached_file

from mmaccel.errors import UnsupportedTargetError, WeightsError

from .draft_head import QUANTIZED, DraftHead, dense, has_values

Head = TypeVar("Head", bound=DraftHead)
TO_SAFE = (
    "; if it is published as pytorch_model.bin alone, which may run code and is not read, write that once as"
    ' safetensors: state = torch.load("pytorch_model.bin", weights_only=True);'
    ' safetensors.torch.save_file(state, "model.safetensors")'
)
UNUSED = ("t2d", "verifier_norm.", "verifier_lm_head.", "rotary_emb.")  # of the training
NUMBERS = ("d2t", "t2d")  # of tokens
CLOSE = 0.01  # share of its tokens by which a vocabulary may differ: some were added, or the spare ones cut off
ONE, INDEX = "model.safetensors", "model.safetensors.index.json"


def told_of(path: str) -> dict[str, Any]:
    """What the configuration of a head says."""
    return json.loads(Path(file_of(path, "config.json")).read_text())


def weights_of(path: str) -> dict[str, Tensor]:
    """The tensors of a head, by name."""
    weights = tensors_of(path, files_of(path))
    if why := why_quantized({name: value for name, value in weights.items() if name not in NUMBERS}):
        raise WeightsError(
            f"the head in {path} is quantized ({why}), and is read in bfloat16, float16 or float32 only: give the one"
            " that it was made from"
        )
    return weights


def files_of(path: str, given: str = "head=") -> dict[str, str]:
    """Names of all tensors of a checkpoint, and of the files they are in, of which none but an index is downloaded."""
    found = _cached(path, ONE)
    index = _cached(path, INDEX) if found is None else None
    if index is not None:
        return json.loads(Path(index).read_text())["weight_map"]
    with safe_open(found or file_of(path, ONE, given), "pt") as file:
        return dict.fromkeys(file.keys(), ONE)


def _cached(path: str, name: str) -> str | None:
    """A file of a checkpoint, downloaded where it has to be; None where there is none, or it cannot be had."""
    try:
        found: str | None = cached_file(path, name, _raise_exceptions_for_missing_entries=False)
    except OSError:  # it is asked for once more, and says why
        return None
    return found


def tensors_of(path: str, files: dict[str, str], given: str = "head=") -> dict[str, Tensor]:
    """Tensors by name, from the files they are in, each of which is opened once."""
    weights: dict[str, Tensor] = {}
    for file in sorted(set(files.values())):
        with safe_open(file_of(path, file, given), "pt") as opened:
            weights |= {name: opened.get_tensor(name) for name, place in files.items() if place == file}
    return weights


def why_quantized(weights: dict[str, Tensor]) -> str | None:
    """What shows that weights are quantized; None if they are not."""
    for name, value in weights.items():
        if not value.is_floating_point() or "scale" in name:
            return name
        if value.element_size() < 2:
            return f"{name} in {str(value.dtype).removeprefix('torch.')}"
    return None


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


def is_close(count: int, theirs: int) -> bool:
    """Whether two vocabularies may be one, with tokens added to either, or the spare ones cut off."""
    return abs(count - theirs) <= CLOSE * max(count, theirs)


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
    size, vocabulary = config.hidden_size, len(model.get_input_embeddings().weight)
    if "d2t" not in weights and config.draft_vocab_size < (1 - CLOSE) * vocabulary:
        raise WeightsError(
            f"{path}/model.safetensors has no d2t, which says which {config.draft_vocab_size} tokens it drafts"
        )
    shift = weights.pop("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.long)).long()
    shapes = {name: tuple(value.shape) for name, value in head.state_dict().items()}
    wrong = [name for name, shape in shapes.items() if name not in weights or weights[name].shape != shape]
    wrong.extend(name for name in weights if name not in shapes and not name.startswith(UNUSED))
    if embedding is not None and embedding.shape[1] != size:
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
    theirs, most, name = model.get_output_embeddings().weight, int(head.draft_tokens.max()), type(model).__name__
    if float((head.draft_tokens >= len(theirs)).float().mean()) > CLOSE:
        raise UnsupportedTargetError(
            f"{path} drafts token {most}, which {name} has not: give the head that was trained for it"
        )
    if head.embedding is not None and len(head.embedding) < (1 - CLOSE) * len(theirs):
        raise UnsupportedTargetError(
            f"{path} has embeddings of {len(head.embedding)} tokens, {name} has {len(theirs)}: give the head that was"
            " trained for it"
        )
    size, embedding = head.config.hidden_size, model.get_input_embeddings().weight
    for own, matrix, kept in ((head.embedding, embedding, "embedding"), (head.output, theirs, "lm_head")):
        if own is not None or has_values(matrix, size):
            continue
        if not has_values(matrix, matrix.shape[-1]):
            raise UnsupportedTargetError(f"{name} {QUANTIZED.format(kept)}")
        raise WeightsError(f"{path}/model.safetensors has no embedding or output, and the model's cannot serve it")
    if head.embedding is not None:
        given = dense(embedding)
        both = min(len(given), len(head.embedding))
        if torch.equal(head.embedding[:both].to(given.device, given.dtype), given[:both]):
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
    lacks = name == ONE and "does not appear" in reason
    raise WeightsError(f"{given}{path!r}: {reason}{TO_SAFE if lacks else ''}")
