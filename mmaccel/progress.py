"""Progress: a bar on a terminal, and a plain line now and then in a file."""

from __future__ import annotations

import sys
from typing import Any

EVERY = 10.0  # seconds between two lines
LINE = "{desc}: {n_fmt} of {total_fmt} {unit}, {elapsed}"


class Lines:
    """A stream that writes each state of a tqdm bar as a line, once."""

    def __init__(self) -> None:
        self.last = ""

    def write(self, text: str) -> None:
        said = text.strip()
        if sys.stderr is not None and said not in ("", self.last):  # programs without a console have none
            sys.stderr.write(f"{said}\n")
            self.last = said

    def flush(self) -> None:
        if sys.stderr is not None:
            sys.stderr.flush()


def looks() -> dict[str, Any]:
    """Arguments of tqdm: none on a terminal, else those that print lines for work of more than one step.

    Examples
    --------
    >>> with tqdm(total=4, desc="compare", **looks()) as bar:  # doctest: +SKIP
    ...     bar.update()
    """
    if sys.stderr is not None and sys.stderr.isatty():
        return {}
    return {"file": Lines(), "delay": EVERY, "mininterval": EVERY, "bar_format": LINE}
