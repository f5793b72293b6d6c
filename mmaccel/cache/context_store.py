"""Keys and values of prompts kept on disk, found again by what the prompts contain."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from mmaccel.files.output import replacing
from mmaccel.stepping.tensors import count_bytes

FORMAT = "2"
NAMES = "context-*.safetensors"
UNFINISHED = ".mmaccel-*.safetensors"  # what a writer that was killed has left
ABANDONED = 3600  # seconds after which nobody writes to such a file any more
GIGA = 10**9
PIECE = 1024  # tokens whose bits have a sum of their own: so many are read at once, and checked

State = tuple[torch.Tensor, torch.Tensor]  # keys and values of one layer, `[heads, tokens, dim]`


@dataclass(frozen=True)
class StoredPrompt:
    """A prompt in the store.

    Attributes
    ----------
    path
        Its file.
    model
        The model whose states it holds, by :func:`~mmaccel.cache.model_hash.model_hash`.
    stops
        For the hash of each prefix that the prompt can be cut to, its number of tokens.
    tokens
        All tokens.
    sums
        Of the bits of each tensor, by its name: one for each piece of it.
    """

    path: Path
    model: str
    stops: dict[str, int]
    tokens: int
    sums: dict[str, list[int]]


class ContextStore:
    """Prompts' keys and values in one folder: a safetensors file each, of a bounded size together.

    A file appears only when it is complete: a process may be killed at any time, and several may use one folder. When
    the store is full, what was not used for longest is deleted. A broken file is deleted when it is met.

    Parameters
    ----------
    folder
        Where; it is made when something is first written, for this user alone.
    gigabytes
        Most gigabytes of all files together, above 0.

    Attributes
    ----------
    troubles : list of str
        What went wrong since the list was last cleared, a line each. Nothing that happens in the folder is raised.

    Examples
    --------
    >>> import tempfile
    >>> store = ContextStore(Path(tempfile.mkdtemp()), gigabytes=1)
    >>> store.write("model", {"1f0c": 4}, [(torch.ones(2, 4, 8), torch.ones(2, 4, 8))])
    512
    >>> entry, tokens = store.find("model", {"1f0c": 4, "9b2e": 9})
    >>> tokens, store.read(entry)[0][0].shape
    (4, torch.Size([2, 4, 8]))
    """

    def __init__(self, folder: Path, gigabytes: float) -> None:
        if not gigabytes > 0:
            raise ValueError(f"ContextStore(gigabytes={gigabytes}): gigabytes must be above 0")
        self.folder, self.limit = folder, int(gigabytes * GIGA)
        self.troubles: list[str] = []
        # By name, inode, size and time, since a new file may have the inode of one that is gone.
        self._known: dict[tuple[str, int, int, int], StoredPrompt | None] = {}

    def find(self, model: str, stops: dict[str, int]) -> tuple[StoredPrompt, int] | None:
        """The smallest entry of a model that shares most tokens with a prompt, and how many; None if none does.

        Parameters
        ----------
        stops
            For the hash of each prefix that the prompt can be cut to, its number of tokens.
        """
        entries = self.entries()
        ours = [entry for entry in entries if entry.model == model]
        if entries and not ours:
            self.troubles.append(
                f"all {len(entries)} contexts in {self.folder} are of other models: none of them was used"
            )
        shared = [(max((stops[key] for key in entry.stops.keys() & stops.keys()), default=0), entry) for entry in ours]
        most, found = max(shared, key=lambda pair: (pair[0], -pair[1].tokens), default=(0, None))
        return None if found is None or not most else (found, most)

    def entries(self) -> list[StoredPrompt]:
        """All entries that can be read."""
        known = {}
        for path in sorted(self.folder.glob(NAMES)):
            with contextlib.suppress(OSError):  # deleted by another process, or not ours to read
                stat = path.stat()
                key = path.name, stat.st_ino, stat.st_size, stat.st_mtime_ns
                known[key] = self._known[key] if key in self._known else self._entry(path)
        self._known = known
        return [entry for entry in known.values() if entry is not None]

    def _entry(self, path: Path) -> StoredPrompt | None:
        try:
            with _opened(path) as file:
                told = file.metadata() or {}
                names = set(file.keys())
            if told.get("format") != FORMAT:
                self.troubles.append(f"{path.name} was written by another version of mmaccel: it was not used")
                return None
            stops = {key: int(count) for key, count in (pair.split(":") for pair in told["stops"].split())}
            pairs = (pair.split(":") for pair in told["sums"].split())
            sums = {key: [int(one) for one in pieces.split(",")] for key, pieces in pairs}
            if sums.keys() != names:
                raise ValueError("tensors are missing")
            return StoredPrompt(path, told["model"], stops, max(stops.values()), sums)
        except (SafetensorError, ValueError, KeyError) as error:
            self._broken(path, error)
            return None

    def read(
        self, entry: StoredPrompt, device: torch.device | str = "cpu", tokens: int | None = None
    ) -> list[State] | None:
        """Keys and values of each layer, `[heads, tokens, dim]`; None, and a line in `troubles`, if they are broken.

        Parameters
        ----------
        tokens
            Only the first so many are read; None (default) for all.
        """
        count = entry.tokens if tokens is None else tokens
        try:
            with _opened(entry.path) as file:
                found = {name: _first(file.get_slice(name), name, entry, count) for name in entry.sums}
        except OSError:  # deleted by another process, or not ours to read
            return None
        except (SafetensorError, ValueError) as error:
            self._broken(entry.path, error)
            return None
        with contextlib.suppress(OSError):  # a file of another user
            os.utime(entry.path)  # used: deleted last
        layers = range(len(found) // 2)
        return [(found[f"keys.{i}"].to(device), found[f"values.{i}"].to(device)) for i in layers]

    def _broken(self, path: Path, error: Exception) -> None:
        self.troubles.append(f"{path.name} is broken and was deleted ({str(error).splitlines()[0]})")
        with contextlib.suppress(OSError):
            path.unlink()

    def write(self, model: str, stops: dict[str, int], states: Sequence[State]) -> int:
        """Keep a prompt, and delete older ones if the store is full; what goes wrong is in `troubles`.

        Parameters
        ----------
        stops
            For the hash of each prefix that it can be cut to, its number of tokens; the largest is the whole.
        states
            Keys and values of each layer, `[heads, tokens, dim]`.

        Returns
        -------
        The bytes written; 0 if they were not.
        """
        tensors = {f"{kind}.{i}": part for i, pair in enumerate(states) for kind, part in zip(KINDS, pair, strict=True)}
        size, whole = count_bytes(tensors), max(stops, key=lambda key: stops[key])
        if size > self.limit:
            self.troubles.append(
                f"a context of {stops[whole]} tokens takes {size / GIGA:.2f} GB, and the store {self.limit / GIGA:g}:"
                " it was not kept; give it more gigabytes"
            )
            return 0
        path = self.folder / f"context-{model[:8]}-{whole}.safetensors"
        try:
            self.folder.mkdir(0o700, parents=True, exist_ok=True)  # what is kept tells what was asked
            self._make_room(size)
            tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
            told = {
                "format": FORMAT,
                "model": model,
                "stops": _pairs(stops),
                "sums": _pairs({name: ",".join(map(str, _sums(tensor))) for name, tensor in tensors.items()}),
            }
            with replacing(path) as temporary:
                save_file(tensors, temporary, told)
        except (OSError, SafetensorError) as error:
            self.troubles.append(f"a context was not kept: {error}")
            return 0
        return size

    def remove(self, entry: StoredPrompt) -> None:
        """Delete an entry, if it is still there."""
        with contextlib.suppress(OSError):
            entry.path.unlink()

    def _make_room(self, size: int) -> None:
        """Delete what a killed writer has left, and the entries that were not used for longest."""
        for path in self.folder.glob(UNFINISHED):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > ABANDONED:
                    path.unlink()
        found = []
        for path in self.folder.glob(NAMES):
            with contextlib.suppress(OSError):
                found.append((path.stat().st_mtime_ns, path.stat().st_size, path))
        total = size + sum(taken for _, taken, _ in found)
        for _, taken, path in sorted(found):
            if total <= self.limit:
                return
            with contextlib.suppress(OSError):
                path.unlink()
                total -= taken


KINDS = ("keys", "values")


def _opened(path: Path) -> Any:
    """An open entry; an OSError where it is gone, also between the two times that safetensors opens a file."""
    try:
        return safe_open(path, "pt")
    except RuntimeError as error:
        raise FileNotFoundError(f"{path} cannot be opened") from error


def _first(kept: Any, name: str, entry: StoredPrompt, count: int) -> torch.Tensor:
    """The first tokens of a tensor in a file, once the pieces in which they lie are what was written."""
    pieces, shape = -(-count // PIECE), kept.get_shape()
    fits = len(shape) == 3 and shape[1] == entry.tokens
    part: torch.Tensor | None = kept[:, : min(pieces * PIECE, entry.tokens)] if fits else None
    if part is None or _sums(part) != entry.sums[name][:pieces]:
        raise ValueError(f"{name} is not what was written")
    return part[:, :count]


def _sums(tensor: torch.Tensor) -> list[int]:
    """Of the bits of each piece of `[heads, tokens, dim]`."""
    return [bit_sum(piece) for piece in tensor.split(PIECE, 1)]


def _pairs(values: Mapping[str, int | str]) -> str:
    return " ".join(f"{key}:{value}" for key, value in values.items())


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
