"""Processes of `accelerate launch` that share the runs of one measurement out among themselves."""

from __future__ import annotations

import functools
import io
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Self, TypeVar

from ..errors import MmaccelError, SettingError

T = TypeVar("T")
PATIENCE = timedelta(days=1)  # for processes that measure longer than others; the launcher ends all if one fails


class ProcessFailed(MmaccelError):
    """Another process failed, whose own error says why."""


@dataclass(frozen=True)
class Ranks:
    """The processes of a launch, as one of them sees them; each has its own copy of the model.

    Attributes
    ----------
    rank
        Number of this process; the first one, 0, prints and writes.
    count
        Of all processes; 1 shares nothing, and nothing is different from an ordinary run.
    """

    rank: int = 0
    count: int = 1

    @classmethod
    def launched(cls) -> Self:
        """Those that `accelerate launch` or torchrun started, connected; this process alone if they did not."""
        import torch

        connected = torch.distributed.is_available() and torch.distributed.is_initialized()
        if int(os.environ.get("WORLD_SIZE", "1")) == 1 and not connected:
            return cls()
        from accelerate import PartialState

        state = PartialState(cpu=not torch.cuda.is_available())
        ranks = cls(state.process_index, state.num_processes)
        ranks.gathered(lambda: None)  # the first exchange connects them, which has a shorter patience of its own
        return ranks

    def mine(self, items: Sequence[T]) -> Sequence[T]:
        """The items of this process, one after the other dealt out to all."""
        return items[self.rank :: self.count]

    def gathered(self, make: Callable[[], T]) -> list[T]:
        """What each process makes, by its number, in all of them.

        Raises
        ------
        ProcessFailed
            If another process raised; the one that raised raises its own error.
        """
        if self.count == 1:
            return [make()]
        try:
            made, failed = make(), None
        except Exception as error:
            self._exchanged((None, f"{type(error).__name__}: {error}"))
            raise
        found = self._exchanged((made, failed))
        for rank, (_, said) in enumerate(found):
            if said is not None:
                raise ProcessFailed(f"process {rank} of {self.count} failed: {said}")
        return [value for value, _ in found]

    def of_first(self, make: Callable[[], T]) -> T:
        """What the first process makes, in all of them."""
        return self.gathered(lambda: [make()] if self.rank == 0 else [])[0][0]

    def check(self, runs: int) -> None:
        """Raise if some processes would have nothing to do."""
        if runs < self.count:
            raise SettingError(
                f"{self.count} processes have only {runs} {'run' if runs == 1 else 'runs'} to share: ask for more"
                " --seeds or --rounds, or start fewer"
            )

    def _exchanged(self, told: tuple[Any, str | None]) -> list[tuple[Any, str | None]]:
        import torch

        found: list[Any] = [None] * self.count
        written = io.BytesIO()
        torch.save(told, written)
        torch.distributed.all_gather_object(found, written.getvalue(), _group(torch.distributed.group.WORLD))
        return [torch.load(io.BytesIO(one), map_location=_here, weights_only=False) for one in found]


@functools.lru_cache(maxsize=1)
def _group(world: Any) -> Any:
    """All processes, with our own patience: NCCL's usual one is ten minutes, and another run may take longer."""
    import torch

    return torch.distributed.new_group(timeout=PATIENCE)


def _here(storage: Any, location: str) -> Any:
    """What lay on the GPU of another process, on the one of this process, as its model is."""
    import torch

    return torch.serialization.default_restore_location(storage, location.partition(":")[0])
