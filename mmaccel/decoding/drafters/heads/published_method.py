"""What methods share that draft with a head which is published, and named by its folder or repository."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any, ClassVar

from mmaccel.report import Report

from .draft_head import DraftHead
from .head_method import HeadMethod


@dataclass(frozen=True)
class PublishedHeadMethod(HeadMethod):
    """A session's `generate` with the guesses of a published head; without one, with the other guesses alone.

    Subclasses say in :meth:`check` and :meth:`read` how it is published.
    """

    head: str | PathLike[str] = ""

    example: ClassVar[str] = ""  # a repository

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(isinstance(self.head, str), "head", "a folder or a repository of the Hub")

    @property
    def uses_files(self) -> bool:
        """Whether there is a head."""
        return bool(self.head)

    @property
    def has_head(self) -> bool:
        return bool(self.head)

    def require_fit(self, model: Any) -> None:
        """Refuse a model that the head was not trained for."""
        super().require_fit(model)
        if self.head:
            self.check(fspath(self.head), model)

    def load(self, model: Any) -> DraftHead:
        return self.read(fspath(self.head), model)

    def check(self, path: str, model: Any) -> None:
        """Refuse a head that was not trained for a model."""
        raise TypeError(f"{type(self).__name__} does not say how its head is published")  # pragma: no cover

    def read(self, path: str, model: Any) -> DraftHead:
        """The head in a folder or repository, for a model."""
        raise TypeError(f"{type(self).__name__} does not say how its head is published")  # pragma: no cover

    def tell(self, report: Report, given: Any) -> None:
        """Say where no head was named."""
        super().tell(report, given)
        if not self.head:
            name = type(self).__name__
            report.warnings.append(f'no head guesses: name one, as in {name}(head="{self.example}")')
