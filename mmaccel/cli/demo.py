"""The command `mmaccel demo`: its arguments, and its work."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import SettingError
from .arguments import whole
from .model_arguments import add_device, device_of, dtype_of


def add_parser(commands: Any) -> None:
    """Add `demo` to the command line."""
    demo = commands.add_parser("demo", help="try it in a browser")
    demo.add_argument("--port", type=whole(0, 65_535), help="default: the first free port from 7860 on")
    demo.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine alone)")
    demo.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a host name of the demo, such as demo.example.org; requests to other names are refused",
    )
    demo.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="KIND=ID_OR_PATH",
        help="another model that visitors may choose, such as image=deepseek-community/Janus-Pro-1B",
    )
    demo.add_argument("--allow-models", action="store_true", help="let visitors type any hub id (they are large)")
    add_device(demo)
    demo.set_defaults(run=run_demo)


def run_demo(arguments: argparse.Namespace) -> None:
    """Serve the demo until it is stopped."""
    with _folder_of_its_own():
        from mmaccel.demos import app  # says what to install where gradio is missing

        device, dtype = device_of(arguments), dtype_of(arguments)
        models = app.Models(_by_kind(arguments.model), arguments.allow_models, device, dtype)
        app.launch(app.Frame(models), arguments.host, arguments.port, allow_hosts=arguments.allow_host)


@contextmanager
def _folder_of_its_own() -> Iterator[None]:
    """A folder for the files of visitors, which is removed with its content at the end.

    Gradio's own folder is shared by all its apps on a machine, and each removes files of the others.
    """
    given = os.environ.get("GRADIO_TEMP_DIR")
    if given:
        Path(given).mkdir(parents=True, exist_ok=True)  # as Gradio does
    with tempfile.TemporaryDirectory(prefix="mmaccel-demo-", dir=given or None, ignore_cleanup_errors=True) as folder:
        os.environ["GRADIO_TEMP_DIR"] = folder
        try:
            yield
        finally:
            os.environ.pop("GRADIO_TEMP_DIR")
            os.environ.update({} if given is None else {"GRADIO_TEMP_DIR": given})


def _by_kind(given: list[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for text in given:
        kind, equals, name = text.partition("=")
        if not equals or not name:
            raise SettingError(f"--model {text}: write KIND=ID_OR_PATH, such as image=deepseek-community/Janus-Pro-1B")
        found.setdefault(kind, []).append(name)
    return found
