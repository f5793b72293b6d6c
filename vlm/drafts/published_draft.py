"""Base of the methods that draft with a head which is published in a folder or repository of its own."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any

from mmaccel.decoding.drafters.heads.draft_head import DraftHead
from mmaccel.method import Held

from .fused_draft import FusedDraft
from .head_draft import HeadDraft, require_readable


@dataclass(frozen=True)
class PublishedDraft(HeadDraft):
    """:class:`HeadDraft` with a published head; without one, :class:`FusedDraft`.

    Subclasses say in :meth:`check` and :meth:`read` how heads are published.
    """

    head: str | PathLike[str] = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(isinstance(self.head, str), "head", "a folder or a repository of the Hub")

    @property
    def uses_files(self) -> bool:
        """Whether there is a head."""
        return self.has_head

    @property
    def has_head(self) -> bool:
        """Whether a head is named."""
        return bool(self.head)

    def held(self) -> tuple[Held, ...]:
        """What :class:`FusedDraft` learns, and the head."""
        return super().held() if self.head else FusedDraft.held(self)

    def require_fit(self, model: Any) -> None:
        """Refuse a model that the head was not trained for."""
        super().require_fit(model)
        if self.head:
            require_readable(model)
            self.check(fspath(self.head), model)

    def load(self, model: Any) -> DraftHead | None:
        return self.read(fspath(self.head), model) if self.head else None

    def check(self, path: str, model: Any) -> None:
        """Refuse a head that was not trained for a model."""
        raise TypeError(f"{type(self).__name__} does not say how its head is published")  # pragma: no cover

    def read(self, path: str, model: Any) -> DraftHead:
        """The head in a folder or repository, for a model."""
        raise TypeError(f"{type(self).__name__} does not say how its head is published")  # pragma: no cover
