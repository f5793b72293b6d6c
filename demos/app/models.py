"""One shared model for each name: loaded once, used by one visitor at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mmaccel.errors import SettingError, unknown_name
from mmaccel.modality import get_modality, modalities

if TYPE_CHECKING:
    from .runs import Run

PATIENCE = 0.1  # seconds between looks at whether a visitor who waits for a model has left


@dataclass
class Shared:
    """A model that all visitors share.

    Attributes
    ----------
    loaded
        What :meth:`mmaccel.modality.Modality.open` returned.
    lock
        Held by whoever runs it: a second session on one model is an error, and two runs at once would spoil the
        times of both.
    memory
        What sessions measured about the model, by preset, so that it is measured once and not for every visitor.
    """

    loaded: Any = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    memory: dict[str, dict[str, Any]] = field(default_factory=dict)

    def warm(self, run: Run, call: Callable[[], Any]) -> None:
        """A call that is discarded, once: the first one of a process is slow, and the plain run would look so."""
        if not self.memory.setdefault("warm", {}):
            with run.stage("warm up"):
                call()
            self.memory["warm"]["done"] = True


class Models:
    """The models of one process.

    Parameters
    ----------
    more
        Hub ids and folders that visitors may choose beside the zoo, by kind.
    any_model
        Whether visitors may type hub ids of their own (default False: they download gigabytes).
    device, dtype
        As for :meth:`mmaccel.modality.Modality.open`.
    most
        Models in memory at once.
    """

    def __init__(
        self,
        more: dict[str, list[str]] | None = None,
        any_model: bool = False,
        device: str = "cpu",
        dtype: Any = None,
        most: int = 4,
    ) -> None:
        self.more, self.any_model, self.device, self.dtype, self.most = more or {}, any_model, device, dtype, most
        kinds = [modality.name for modality in modalities()]
        for kind in self.more:
            if kind not in kinds:
                raise unknown_name("kind of model", kind, kinds)
        self._shared: dict[tuple[str, str], Shared] = {}
        self._guard = threading.Lock()

    def names(self, kind: str) -> list[str]:
        """What a visitor may choose for a kind, the operator's own models first."""
        return [*self.more.get(kind, []), *get_modality(kind).tab_models()]

    def check(self, kind: str, name: Any) -> None:
        """Raise unless a visitor may use this model."""
        allowed = self.names(kind)
        if not isinstance(name, str) or not name.strip() or len(name) > 200:
            raise SettingError(f"choose a model: {', '.join(allowed)}")
        if name not in allowed and not self.any_model:
            raise unknown_name(f"model of this demo for {kind}", name, allowed)

    @contextmanager
    def borrow(self, kind: str, name: str, run: Run) -> Iterator[Shared]:
        """The model for this block, loaded if it is not yet, and used by nobody else meanwhile.

        Raises
        ------
        UnknownNameError, SettingError
            If visitors may not use it.
        Stopped
            If the visitor leaves while waiting.
        """
        self.check(kind, name)
        shared = self._find(kind, name)
        with run.stage("wait"):
            while not shared.lock.acquire(timeout=PATIENCE):
                run.check()
        try:
            if shared.loaded is None:
                with run.stage("load"):
                    shared.loaded = get_modality(kind).open(name, self.device, self.dtype)
            yield shared
        finally:
            shared.lock.release()

    def _find(self, kind: str, name: str) -> Shared:
        """The entry of a name; the one that was used longest ago makes room for a new one."""
        with self._guard:
            shared = self._shared.pop((kind, name), None) or Shared()
            self._shared[kind, name] = shared
            for key, other in list(self._shared.items()):
                if len(self._shared) > self.most and other is not shared and not other.lock.locked():
                    del self._shared[key]
            return shared
