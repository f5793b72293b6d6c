"""What tells models apart whose caches must not be mixed up, and prompts by what they contain."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

SAMPLES = 256  # values that are looked at of each weight
SIZE = 16  # bytes of a hash
ADAPTERS = ("active_adapter", "disable_adapters", "scaling")  # of a layer of peft: which of its weights count
PLACE = ("_name_or_path", "transformers_version")  # of a configuration: where it came from, not what it is


def model_hash(model: Any) -> str:
    """The hash of a transformers model: its class, configuration, weights' names, values of each, and peft's adapters.

    The values are 256 of each weight at even distances, so that this takes milliseconds: training changes nearly all.

    Raises
    ------
    ValueError
        If a weight is not in memory.
    """
    total = hashlib.blake2b(type(model).__name__.encode(), digest_size=SIZE)
    config = {key: value for key, value in model.config.to_dict().items() if key not in PLACE}
    total.update(json.dumps(config, sort_keys=True, default=str).encode())
    for name, weight in model.named_parameters():
        if weight.is_meta:
            raise ValueError(f"{name} is not in memory")
        total.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode())
        flat = weight.detach().reshape(-1)
        total.update(tensor_bytes_of(flat[:: max(1, len(flat) // SAMPLES)]))
    for name, module in model.named_modules():
        if hasattr(module, ADAPTERS[0]):
            total.update(f"{name} {[getattr(module, key, None) for key in ADAPTERS]}".encode())
    return total.hexdigest()


def content_hash(values: Iterable[tuple[str, Any]]) -> bytes:
    """The hash of named arguments of a call; tensors, arrays and lists of them by what they hold.

    Examples
    --------
    >>> some, others = torch.zeros(2000), torch.zeros(2000)
    >>> others[999] = 1  # which its text leaves out
    >>> content_hash([("pixels", [some])]) == content_hash([("pixels", [others])])
    False
    """
    total = hashlib.blake2b(digest_size=SIZE)
    for name, value in values:
        told = name, type(value).__name__, getattr(value, "shape", ""), getattr(value, "dtype", "")
        total.update(f"{told}".encode() + _content(value))
    return total.digest()


def _content(value: Any) -> bytes:
    if isinstance(value, torch.Tensor):
        return tensor_bytes_of(value)
    if isinstance(value, list | tuple):
        return content_hash((str(place), item) for place, item in enumerate(value))
    if isinstance(value, Mapping):
        return content_hash((str(key), item) for key, item in value.items())
    return value.tobytes() if hasattr(value, "tobytes") else repr(value).encode()


def prefix_hashes(start: bytes, columns: torch.Tensor, stops: Sequence[int]) -> dict[str, int]:
    """For the hash of each prefix of a prompt, its number of tokens.

    Parameters
    ----------
    start
        What comes before the first token.
    columns : int `[rows, L]`
        What each token is: its id, and other values of it.
    stops
        Ascending numbers of tokens.

    Examples
    --------
    >>> one = prefix_hashes(b"", torch.tensor([[7, 8, 9, 1]]), [2, 4])
    >>> other = prefix_hashes(b"", torch.tensor([[7, 8, 2, 3]]), [2, 4])
    >>> [one[key] for key in one.keys() & other.keys()]
    [2]
    """
    found, last, begin = {}, start, 0
    values = columns.to("cpu", torch.int64)
    for stop in stops:
        last = hashlib.blake2b(last + tensor_bytes_of(values[:, begin:stop]), digest_size=SIZE).digest()
        found[last.hex()] = stop
        begin = stop
    return found


def tensor_bytes_of(tensor: torch.Tensor) -> bytes:
    """The bytes that a tensor holds."""
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
