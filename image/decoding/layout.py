"""Layout: the order in which an image model writes its tokens, line by line."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch


@dataclass(frozen=True)
class Line:
    """One run of consecutive tokens.

    Attributes
    ----------
    start, length
        First position and number of tokens, forced ones included.
    grid
        Lines of the same grid lie below each other; a new grid starts only after the last one is done.
    """

    start: int
    length: int
    grid: int


@dataclass(frozen=True)
class Layout:
    """Where the image tokens of one picture lie.

    Attributes
    ----------
    lines
        All lines in the order of writing.
    forced
        Position to token id, for tokens that the model does not choose (ends of line, end of image).
    """

    lines: tuple[Line, ...]
    forced: dict[int, int]

    @property
    def length(self) -> int:
        """Tokens of one picture, forced ones included."""
        return self.lines[-1].start + self.lines[-1].length

    @property
    def columns(self) -> int:
        """Tokens in the widest line."""
        return max(line.length for line in self.lines)

    @cached_property
    def forced_tokens(self) -> torch.Tensor:
        """`[length]` token ids, -1 where the model chooses."""
        tokens = torch.full((self.length,), -1)
        for position, token in self.forced.items():
            tokens[position] = token
        return tokens

    @classmethod
    def grids(cls, shapes: list[tuple[int, int]], end_of_line: int | None = None, tail: tuple[int, ...] = ()) -> Layout:
        """Grids of `(rows, columns)` one after the other, each row closed by `end_of_line` if there is one.

        `tail` holds tokens that close the whole picture.

        Examples
        --------
        >>> layout = Layout.grids([(2, 3)], end_of_line=9, tail=(7,))
        >>> layout.length, layout.forced
        (9, {3: 9, 7: 9, 8: 7})
        """
        lines: list[Line] = []
        forced: dict[int, int] = {}
        position = 0
        for grid, (rows, columns) in enumerate(shapes):
            for _ in range(rows):
                length = columns + (end_of_line is not None)
                if end_of_line is not None:
                    forced[position + columns] = end_of_line
                lines.append(Line(position, length, grid))
                position += length
        if tail:
            lines.append(Line(position, len(tail), len(shapes)))
            forced.update({position + i: token for i, token in enumerate(tail)})
        return cls(tuple(lines), forced)
