"""How many bytes a cache will take, and whether they fit, before the run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import psutil
import torch

from mmaccel.errors import MemoryLimitError

CONTAINER = Path("/sys/fs/cgroup")  # where Linux tells a container its own limits (control groups, version 2)


def estimate_bytes(
    config: Any, batch: int, length: int, dtype: torch.dtype, keep: int | None = None, new: int = 0
) -> int:
    """Bytes of keys and values that a cache holds at its fullest.

    Parameters
    ----------
    config
        The model's configuration: layers, key heads and head dimension are read from it.
    batch, length
        Rows, and tokens in each: all of them, or with `keep` those of the prompt.
    dtype
        Of the states.
    keep, new
        Tokens that an :class:`EvictingCache` keeps of a prompt, and slots for new ones. Its peak is in the prefill,
        where the last layer still holds the whole prompt. None (default) for a cache that keeps all.

    Examples
    --------
    >>> from transformers import LlamaConfig
    >>> config = LlamaConfig(num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8)
    >>> estimate_bytes(config, batch=1, length=100, dtype=torch.float16)
    12800
    """
    layers = _sizes(config.get_text_config(decoder=True))
    slots = [2 * batch * heads * width * dtype.itemsize for heads, width in layers]  # a key and a value of each layer
    if keep is None:
        return sum(slots) * length
    slots = [slot + 4 * batch * heads for slot, (heads, _) in zip(slots, layers, strict=True)]
    # the last layer holds the prompt until it has copied what it keeps
    return sum(slots) * (min(keep, length) + new) + (slots[-1] * length if keep < length else 0)


def _sizes(config: Any) -> list[tuple[int, int]]:
    """Key heads and head dimension of each layer of a decoder that has keys of its own."""
    if getattr(config, "is_heterogeneous", False):  # such as Gemma 4, whose layers differ
        sizes = [_size_of_layer(layer) for layer in config.per_layer_config]
    else:
        sizes = [_size_of_layer(config)] * config.num_hidden_layers
    modes = getattr(config, "kv_sharing_modes", None) or [None] * len(sizes)
    return [size for size, mode in zip(sizes, modes, strict=True) if mode != "reuse"]


def _size_of_layer(config: Any) -> tuple[int, int]:
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return heads, getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def free_memory(device: torch.device | str) -> int | None:
    """Bytes that are free on a device, None where the system does not say."""
    device = torch.device(device)
    if device.type == "cuda":
        # what torch holds and does not use is as good as free
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + cached
    # what Linux holds of files is as good as free
    return min(psutil.virtual_memory().available, _left_to_container()) if device.type == "cpu" else None


def _left_to_container() -> int:
    """Memory up to the limit of a container; without bound where there is none.

    What it holds of files counts as free, since Linux gives that up where memory is short.
    """
    try:
        most, used = (int((CONTAINER / f"memory.{name}").read_text()) for name in ("max", "current"))
        lines = (CONTAINER / "memory.stat").read_text().splitlines()
        held = {name: int(value) for name, value in map(str.split, lines)}
        return max(0, most - used + held["active_file"] + held["inactive_file"])
    except (OSError, KeyError, ValueError):
        return sys.maxsize


def require_memory(
    bytes_needed: int,
    device: torch.device | str,
    what: str = "this run",
    advice: str = "use fewer rows or tokens, a smaller dtype, or keep fewer tokens",
) -> None:
    """Raise if that many bytes are not free; refuse nothing where the system does not say.

    Raises
    ------
    MemoryLimitError
        Says what is needed, what is free, and what to change.
    """
    free = free_memory(device)
    if free is not None and bytes_needed > free:
        raise MemoryLimitError(
            f"{what} would take {_size(bytes_needed)}, and {_size(free)} are free on {device}: {advice}"
        )


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
