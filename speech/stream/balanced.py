"""Cut a row of words into as few parts as fit, of about the same length."""

from __future__ import annotations

from collections.abc import Callable


def balanced(count: int, fits: Callable[[int, int], bool], length: Callable[[int, int], int]) -> list[tuple[int, int]]:
    """Cut `count` words into parts; the first word of each, and the one after its last.

    They are as few as can be. Of those the last has more than one word where that is possible, and then their lengths
    are as even as can be: the sum of their squares is least.

    Parameters
    ----------
    count
        How many words.
    fits
        Whether the words from `start` to before `end` may be one part. What holds more words than one that does not
        fit does not fit either. A single word is always one part, fitting or not.
    length
        Of the words from `start` to before `end`.

    Examples
    --------
    >>> balanced(5, lambda start, end: end - start <= 4, lambda start, end: end - start)
    [(0, 2), (2, 5)]
    """
    least: list[tuple[int, bool, int]] = [(0, False, 0)]  # parts, whether a word is left alone, squares
    begins = [0]  # where the last part begins, for each number of words
    for end in range(1, count + 1):
        found = []
        for start in range(end - 1, -1, -1):
            if start < end - 1 and not fits(start, end):
                break
            parts, _, squares = least[start]
            alone = end == count and start == end - 1 and start > 0
            found.append(((parts + 1, alone, squares + length(start, end) ** 2), start))
        best, begin = min(found)
        least.append(best)
        begins.append(begin)
    ends = [count]
    while ends[-1]:
        ends.append(begins[ends[-1]])
    return [(start, end) for end, start in zip(ends, ends[1:], strict=False)][::-1]
