"""The page of the command line, from the help of its parsers."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator

from mmaccel.cli.main import build_parser

WIDTH = "100"  # characters of a line, whatever the terminal of who builds the site

INTRO = """# Command line

They run on the shipped models at once. `--model` takes the hub id or the folder of a real checkpoint, but for `canvas`,
whose models bring code of their own. Language models, CLIP, many views of a scene and speech that is made have no
command that runs them: they are for Python. A command that cannot do what was asked says why in one line and ends with
exit code 2.

```bash
mmaccel run image "big red heart on yellow" -o heart.png --compare
mmaccel compare video "rocket moves up, blue background" --method video.EasyCache -o rocket.html
mmaccel methods --modality vlm
mmaccel presets
```"""


def command_page() -> str:
    """The help of every command."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = WIDTH  # where argparse asks for it
    try:
        parser = build_parser()
        parts = [f"## {name}\n\n```text\n{help_text}\n```" for name, help_text in _helps(parser)]
    finally:
        os.environ.pop("COLUMNS") if before is None else os.environ.update(COLUMNS=before)
    return "\n\n".join([INTRO, *parts]) + "\n"


def _helps(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    """Names and help of a parser and of those below it, without examples of the whole program."""
    parser.epilog = None if " " in parser.prog else parser.epilog
    yield parser.prog, parser.format_help().strip()
    for action in parser._actions:  # argparse has no public way to its subparsers
        if isinstance(action, argparse._SubParsersAction):
            for below in dict.fromkeys(action.choices.values()):
                yield from _helps(below)
