"""What tells models apart whose caches must not be mixed up, and prompts by what they contain."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

SAMPLES = 256  # values of each weight that are looked at every time
SIZE = 16  # bytes of a hash
ADAPTERS = ("active_adapter", "disable_adapters", "scaling")  # of a layer of peft: which of its weights count
PLACE = ("_name_or_path", "transformers_version")  # of a configuration: where it came from, not what it is


def model_hash(model: Any) -> str:
    """The hash of a transformers model: its class, configuration, all weights with their names, and peft's adapters.

    Weights are what `state_dict` has, buffers and packed ones of quantised layers too. All their bits are added up
    once, and again where torch counts a change; 256 values at even distances are looked at every time, which takes
    milliseconds and shows what torch does not count, such as a merge into `weight.data`.

    Raises
    ------
    ValueError
        If a weight is not in memory.
    """
    total = hashlib.blake2b(type(model).__name__.encode(), digest_size=SIZE)
    config = {key: value for key, value in model.config.to_dict().items() if key not in PLACE}
    total.update(json.dumps(config, sort_keys=True, default=str).encode())
    for name, value in model.state_dict(keep_vars=True).items():
        total.update(name.encode() + _weight(name, value))
    for name, module in model.named_modules():
        if hasattr(module, ADAPTERS[0]):
            total.update(f"{name} {[getattr(module, key, None) for key in ADAPTERS]}".encode())
    return total.hexdigest()


# Of each weight: where its values lay, torch's count of its changes, and the sum of its bits.
_sums: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def _weight(name: str, value: Any) -> bytes:
    """What tells a weight from others, or the packed weights of a layer."""
    if isinstance(value, list | tuple):
        return b"".join(_weight(name, item) for item in value)
    if not isinstance(value, torch.Tensor):
        return repr(value).encode()
    if value.is_meta:
        raise ValueError(f"{name} is not in memory")
    plain = value.detach()
    told = f"{tuple(plain.shape)} {plain.dtype}"
    if plain.is_quantized:
        told, plain = f"{told} {plain.qscheme()}", plain.dequantize()
    flat = plain.reshape(-1)
    return f"{told} {_sum(value, plain)}".encode() + tensor_bytes_of(flat[:: max(1, len(flat) // SAMPLES)])


def _sum(weight: torch.Tensor, values: torch.Tensor) -> int:
    """The sum of a weight's bits, counted again where it has changed."""
    if weight.is_inference() or weight.is_quantized:  # which torch counts no changes of
        return bit_sum(values)
    now = weight.data_ptr(), weight._version
    known = _sums.get(weight)
    if known is None or known[0] != now:
        known = _sums[weight] = now, bit_sum(values)
    return int(known[1])


def bit_sum(tensor: torch.Tensor) -> int:
    """The sum of a tensor's bits, read as whole numbers of eight bytes: any flipped bit changes it.

    Examples
    --------
    >>> bit_sum(torch.zeros(2, 8)), bit_sum(torch.ones(1)) == bit_sum(-torch.ones(1))
    (0, False)
    """
    data: Any = tensor.detach().contiguous().view(-1).view(torch.uint8)
    whole = len(data) // 8 * 8
    return int(data[:whole].view(torch.int64).sum()) + int(data[whole:].sum())


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
