"""Reading JSON from an untrusted source; what cannot be trusted is refused with an error of one sentence."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from ..errors import WeightsError

DEEPEST = 16  # levels of lists and objects; ours have four
# What moves the cursor of a terminal, colours it, or turns what is written around; and halves of characters.
UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def read_json(path: str | Path, most_bytes: int, advice: str) -> Any:
    """The content of a JSON file, checked by :func:`check_plain`.

    Parameters
    ----------
    most_bytes
        No more is read.
    advice
        How a good file is made, which ends every error.

    Raises
    ------
    WeightsError
        If there is no file, it is too large, no JSON, or holds what :func:`check_plain` refuses; names the path.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(most_bytes + 1)
    except OSError as error:
        raise WeightsError(f"cannot read {path} ({error.strerror}): {advice}") from error
    if len(data) > most_bytes:
        raise WeightsError(f"{path} is larger than {most_bytes >> 20} MiB: {advice}")
    try:
        found = json.loads(data)
        check_plain(found)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise WeightsError(f"{path} is not JSON ({error}): {advice}") from error
    except RecursionError as error:
        raise WeightsError(f"{path} is nested too deeply: {advice}") from error
    except WeightsError as error:
        raise WeightsError(f"{path} {error}: {advice}") from error
    except ValueError as error:  # of whole numbers
        raise WeightsError(f"{path} holds a number of thousands of digits: {advice}") from error
    return found


def check_plain(found: Any) -> None:
    """Refuse texts that a terminal would not just print, whole numbers beyond any float, and deep nesting.

    Raises
    ------
    WeightsError
        Says which; a sentence without its subject.
    """
    waiting = [(found, 0)]
    while waiting:
        value, depth = waiting.pop()
        if depth > DEEPEST:
            raise WeightsError("is nested too deeply")
        if isinstance(value, dict):
            waiting += [(item, depth + 1) for pair in value.items() for item in pair]
        elif isinstance(value, list | tuple):
            waiting += [(item, depth + 1) for item in value]
        elif isinstance(value, str) and (found_at := UNPRINTABLE.search(value)):
            raise WeightsError(f"holds a text with the control character {ascii(found_at[0])}")
        elif isinstance(value, int) and value.bit_length() > 1000:
            raise WeightsError(f"holds a number of {value.bit_length()} bits")
