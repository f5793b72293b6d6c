"""The result of `compare`, and its files: a page, a picture, or the rows."""

from __future__ import annotations

import json
from pathlib import Path

from ..errors import SettingError
from ..files.output import replacing
from .outcome import Outcome

FORMATS = (".html", ".png", ".json")


class Comparison(Outcome):
    """Rows of all entries, the plain target first, and the pairs to show.

    Attributes
    ----------
    result
        Header and rows, as in `mmaccel bench --json`.
    pairs
        One pair for each entry except the plain target.
    metrics
        The quality metrics of the rows.
    """

    def save(self, path: str | Path) -> None:
        """Write a self-contained page (.html), a picture (.png) or the rows (.json).

        Raises
        ------
        SettingError
            If the name has another ending.
        OSError
            If the file cannot be written; the error says why.
        """
        path = Path(path)
        check_format(path)
        with replacing(path) as temporary:
            if path.suffix.lower() == ".png":
                from .picture import draw

                draw(self).save(temporary)
            else:
                temporary.write_text(self._text(path), encoding="utf-8")

    def _text(self, path: Path) -> str:
        if path.suffix.lower() == ".json":
            return json.dumps(self.to_dict(), indent=1) + "\n"
        from .page import page

        return page(self)


def check_format(path: str | Path) -> None:
    """Raise a `SettingError` for an unknown file ending, before any work is done."""
    if Path(path).suffix.lower() not in FORMATS:
        raise SettingError(f"cannot write a comparison as {Path(path).name!r}: end the name with {', '.join(FORMATS)}")
