"""A kind of `batch` without a model: it writes texts, and fails as it is told."""

import argparse
import errno
import os
import time
from contextlib import contextmanager
from pathlib import Path

from mmaccel.batch.batching import Batching
from mmaccel.cli.arguments import whole
from mmaccel.cli.command import Command
from mmaccel.errors import PromptError


class Echo(Batching):
    field, writes, help = "text", (".txt", ".md"), "write texts"

    def add_item(self, parser):
        parser.add_argument("--times", type=whole(1, 9), default=1)

    def check(self, arguments, path):
        if arguments.text == "empty":
            raise PromptError("it is empty")

    def make(self, opened, target, arguments, path):
        text = arguments.text
        if arguments.journal:
            with Path(arguments.journal).open("a") as file:
                file.write(f"{text.replace(' ', '-')} {os.getpid()}\n")
        time.sleep(arguments.pause)
        if text == "bad":
            raise PromptError("it is\nbad")
        if text == "odd":
            raise ZeroDivisionError("odd")
        if text == "full":
            raise OSError(errno.ENOSPC, "No space left on device")
        if text == "dies":
            os._exit(9)
        path.write_text(text * arguments.times)


def usual(**changed):
    """Arguments of a batch of texts."""
    return argparse.Namespace(**{"times": 1, "model": "toy", "journal": "", "pause": 0, "device": "cpu", **changed})


class EchoCommand(Command):
    help, measured, batching = "echo", "echoing", Echo()

    def add_run(self, parser):
        """Nothing."""

    def add_call(self, parser):
        """Nothing."""

    def run(self, arguments):
        """Nothing."""

    def prepare(self, arguments):
        return None, {}

    @contextmanager
    def started(self, arguments):
        if arguments.model == "none":
            raise PromptError("there is no such model")
        yield "opened", "target"
