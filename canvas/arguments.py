"""Arguments of a canvas, of one picture and of many."""

from __future__ import annotations

from typing import Any

from mmaccel.cli.arguments import TOKENS, number, whole

QUESTION = "list all things"
ONE_BY_ONE = 2.0  # a threshold that no chance reaches: the pipeline itself commits one token a step


def add_canvas(parser: Any) -> None:
    """Add the arguments of the canvas."""
    parser.add_argument(
        "--gen-length", type=whole(1, TOKENS), default=128, metavar="TOKENS", help="tokens of the canvas (default 128)"
    )
    chance = "chance above which the pipeline itself commits a token (default 2: one token a step)"
    above = number("0 or more", lambda value: value >= 0)
    parser.add_argument("--threshold", type=above, default=ONE_BY_ONE, help=chance)
