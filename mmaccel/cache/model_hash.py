"""What tells models apart whose caches must not be mixed up, and prompts by what they contain."""

from __future__ import annotations

import hashlib
import json
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.weak import WeakTensorKeyDictionary

from mmaccel import private
from mmaccel.errors import shown

from .hook_state import VALUES, hook_state
from .private import changers, keeps_its_own_way, kept_tensors

SAMPLES = 256  # values of each weight that are looked at every time
SIZE = 16  # bytes of a hash
WHOLE = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}  # whole numbers, by their bytes
ADAPTERS = ("active_adapter", "disable_adapters", "scaling")  # of a layer of peft: which of its weights count
PLACE = ("_name_or_path", "transformers_version")  # of a configuration: where it came from, not what it is


def model_hash(model: Any) -> str:
    """The hash of a transformers model: its class, configuration, all weights with their names, and peft's adapters.

    All bits of parameters and buffers are looked at once, and again where torch counts a change; 256 values of each, at
    even distances, every time, which takes milliseconds and shows what torch does not count, such as a merge into
    `weight.data`. What modules keep in ways of their own, such as packed weights of quantised ones, is looked at once.
    Hooks of others on its layers and other parts count with their code and what they carry, and so do the type of
    `torch.autocast` and another attention than SDPA, by its name and where it is; not plain attributes of modules that
    are set after the model was built.

    Raises
    ------
    ValueError
        If a weight is not in memory.
    TypeError
        If a hook cannot be compared, as :func:`.hook_state.why_incomparable` tells.
    """
    total = hashlib.blake2b(type(model).__name__.encode(), digest_size=SIZE)
    config = {key: value for key, value in model.config.to_dict().items() if key not in PLACE}
    total.update(json.dumps(config, sort_keys=True, default=str).encode())
    samples: list[torch.Tensor] = []
    adapters = adapters_of(model)
    for name, module in model.named_modules():
        for key, value in kept_tensors(module):
            total.update(f"{name}.{key}".encode() + _weight(f"{name}.{key}", value, samples))
        if keeps_its_own_way(module) and not _is_in_four_bits(getattr(module, "weight", None)):
            total.update(_own_state(module))
        if name in adapters:
            total.update(f"{name} {adapters[name]}".encode())
    asked = [(name, private.attention_name(private.plain_config(module.config))) for name, module in _attending(model)]
    if others := [each for each in asked if each[1] != "sdpa"]:
        total.update(f"attention {others}".encode())
    kind = model.device.type
    if torch.is_autocast_enabled(kind):
        total.update(f"autocast {torch.get_autocast_dtype(kind)}".encode())
    for name, hook in changers(model):
        total.update(content_hash([(name, hook_state(hook))]))
    for device in dict.fromkeys(sample.device for sample in samples):  # to read each by itself would wait for each
        total.update(tensor_bytes_of(torch.cat([sample for sample in samples if sample.device == device])))
    return total.hexdigest()


def adapters_of(model: torch.nn.Module) -> dict[str, str]:
    """Which of peft's adapters count, by the names of the layers that have some."""
    found = ((name, module) for name, module in model.named_modules() if hasattr(module, ADAPTERS[0]))
    return {name: str([getattr(module, key, None) for key in ADAPTERS]) for name, module in found}


def _attending(model: Any) -> Iterator[tuple[str, Any]]:
    """The modules, with their names, whose attention goes by a name in their configuration."""
    for name, module in model.named_modules():
        if private.uses_attention_interface(module) and hasattr(module, "config"):
            yield name, module


# Of each weight: where its values lay, torch's count of its changes, and the hash of all of them.
_hashes: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
_own_states: weakref.WeakKeyDictionary[Any, bytes] = weakref.WeakKeyDictionary()


def _weight(name: str, value: torch.Tensor, samples: list[torch.Tensor]) -> bytes:
    """What tells a weight from others, but for bytes of some of its values, which are added to the `samples`."""
    if value.is_meta:
        raise ValueError(f"{name} is not in memory")
    if hasattr(value, "__tensor_flatten__"):  # such as torchao's, which are made of tensors and refuse to be cut
        parts, rest = value.__tensor_flatten__()
        told = repr(rest)
        if " at 0x" in told:  # a function, or an object that does not say what it is
            raise ValueError(f"{name} cannot be told from others by {shown(told)}")
        return f"{type(value).__name__} {told} ".encode() + b"".join(
            f"{part} ".encode() + _weight(f"{name}.{part}", getattr(value, part), samples) for part in parts
        )
    if _is_in_four_bits(value):
        return _four_bits(value)
    values = _strided(value)
    some = values.reshape(-1)[:: max(1, values.numel() // SAMPLES)]
    samples.append(some.contiguous().view(-1).view(torch.uint8))
    return f"{tuple(value.shape)} {value.dtype} ".encode() + _all_of(value, values)


def _is_in_four_bits(weight: Any) -> bool:
    """Whether bitsandbytes keeps a weight in 4 bits: its scales are beside it, in no buffer."""
    return getattr(weight, "quant_state", None) is not None


def _four_bits(weight: Any) -> bytes:
    """The hash of a weight in 4 bits, which is looked at once: the first pass on a CPU may lay it out otherwise.

    The `state_dict` of its layer would lay it back, in place, and leave its scales as they lie for that pass.
    """
    if weight not in _hashes:
        scales = {name: _plain(value) for name, value in weight.quant_state.as_dict().items()}
        _hashes[weight] = None, content_hash([("weight", weight.detach()), ("scales", scales)])
    found: bytes = _hashes[weight][1]
    return found


def _strided(value: torch.Tensor) -> torch.Tensor:
    """A weight as numbers that lie one after the other, whatever it keeps them as."""
    values = value.detach()
    if values.is_quantized:
        return values.dequantize()
    values = values if values.layout == torch.strided else values.to_dense()
    return values.resolve_conj().resolve_neg()


def _all_of(weight: torch.Tensor, values: torch.Tensor) -> bytes:
    """The hash of all values of a weight, computed again where torch has counted a change."""
    place = weight.data_ptr() if weight.layout == torch.strided else 0
    now = place, 0 if weight.is_inference() else weight._version, _steps.taken()
    known = _hashes.get(weight)
    if known is None or known[0] != now:
        known = _hashes[weight] = now, _hash_of_sums(values)
    return known[1]


class _Steps:
    """Counts the steps of all optimizers from its first use on: torch counts no change of what fused ones change."""

    def __init__(self) -> None:
        self._count: int | None = None

    def taken(self) -> int:
        if self._count is None:
            self._count = 0
            register_optimizer_step_post_hook(self._step)
        return self._count

    def _step(self, *_: Any) -> None:
        self._count = self.taken() + 1


_steps = _Steps()


def _hash_of_sums(values: torch.Tensor) -> bytes:
    """The hash of sums of all bits, by row and by column: fast, and another if values change, or change places."""
    if not values.numel():
        return b""
    rows = values.reshape(len(values) if values.ndim > 1 else 1, -1)
    bits = rows.clone(memory_format=torch.contiguous_format) if rows.storage_offset() else rows.contiguous()
    width = next(size for size in WHOLE if bits.shape[1] * bits.element_size() % size == 0)
    whole = bits.view(torch.uint8).view(WHOLE[width])
    total = hashlib.blake2b(digest_size=SIZE)
    for dim in (0, 1):
        total.update(tensor_bytes_of(whole.sum(dim, dtype=torch.int64)))
    return total.digest()


def _own_state(module: Any) -> bytes:
    """The hash of what a module keeps in a way of its own."""
    if module not in _own_states:
        _own_states[module] = content_hash([("state", _plain(module.state_dict()))])
    return _own_states[module]


def _plain(value: Any) -> Any:
    """What can be hashed of a state: tensors, and of what else there is numbers and texts, whose `repr` tells them."""
    if isinstance(value, torch.Tensor):
        return _strided(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value if isinstance(value, VALUES) else type(value).__name__


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
