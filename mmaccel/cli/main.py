"""The command line: `mmaccel env | methods | presets | plan | run | compare | tune | batch | bench | demo | serve`."""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ..errors import MmaccelError, lacks_memory
from ..version import __version__
from .arguments import Parser, in_options
from .batch import add_parser as add_batch
from .bench import add_parser as add_bench
from .compare import add_parser as add_compare
from .demo import add_parser as add_demo
from .env import add_parser as add_env
from .listing import add_parser as add_lists
from .plan import add_parser as add_plan
from .run import add_parser as add_run
from .serve import add_parser as add_serve
from .tune import add_parser as add_tune

STOPPED, NO_READER = 128 + signal.SIGINT, 128 + 13  # as in shells: after SIGINT, and after SIGPIPE
SHARED = "compare", "tune", "bench", "batch"  # whose measurement several processes can share, and what refuses several
EXAMPLES = """examples:
  mmaccel run image "red heart" -o heart.png --compare
  mmaccel run image "small pizza on green" -o pizza.png --method image.ZipAR:window=2
  mmaccel run video "rocket moves up, blue background" -o clip.mp4 --compare
  mmaccel run vlm clip.mp4 "what moves up?" --compare --picture kept.png
  mmaccel compare video "rocket moves up, blue background" --method video.EasyCache -o rocket.html
  mmaccel run speech talk.wav -o talk.srt
  mmaccel compare speech talk.wav -o talk.html
  mmaccel run speech --live talk.wav
  arecord -q -t raw -f S16_LE -r 16000 | mmaccel run speech -
  mmaccel plan --model tiny-janus --preset fast -o plan.json
  mmaccel tune video "rocket moves up" --method video.HeterogeneousSteps --target-speedup 1.8 -o plan.json
  mmaccel batch image prompts.jsonl -o pictures
  mmaccel bench image --json > image.json
  mmaccel demo --port 7860
  mmaccel serve image --port 8000
  mmaccel serve image --ray --replicas 1-4
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code.

    0, 1 (a requested check failed), 2 (the request cannot be carried out), 130 (interrupted) or 141 (the reader of the
    output is gone). SIGTERM and SIGHUP end it by `SystemExit`, so that temporary files are removed.
    """
    _open_closed_streams()
    _accept_all_letters()
    words = sys.argv[1:] if argv is None else argv
    try:
        arguments = build_parser().parse_args(words)
        with _ended_by_signals():
            if arguments.loads_models:
                _quiet_libraries()
            code: int | None = arguments.run(arguments)
            sys.stdout.flush()
    except BrokenPipeError:  # as with `| head`, which closes the pipe early
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more at its end
        return NO_READER
    except (MmaccelError, OSError) as error:
        if isinstance(error, OSError) or not _is_said_by_another(words):
            print(f"mmaccel: {_one_line(error)}", file=sys.stderr)
        return 2
    except UnicodeEncodeError as error:
        if error.object not in words:
            raise
        print(f"mmaccel: {error.object!r} is not in UTF-8: write it in a terminal or a script that is", file=sys.stderr)
        return 2
    except (MemoryError, RuntimeError) as error:
        if not lacks_memory(error):
            raise
        reason = _one_line(error).partition(" GPU ")[0] or type(error).__name__
        said = "there is not enough memory: ask for fewer or smaller outputs, or for --dtype bfloat16"
        print(f"mmaccel: {said} ({reason})", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("mmaccel: stopped", file=sys.stderr)
        return STOPPED
    return code or 0


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="mmaccel",
        description="Make existing multimodal models faster, without retraining or forking them.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=__version__)
    parser.set_defaults(loads_models=True)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    for add in (
        add_env,
        add_lists,
        add_plan,
        add_run,
        add_compare,
        add_tune,
        add_batch,
        add_bench,
        add_demo,
        add_serve,
    ):
        add(commands)
    return parser


def _open_closed_streams() -> None:
    """Read and write nothing where a stream is closed, as `>&-` closes it and some that start programs."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            nothing = open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8")  # noqa: SIM115
            setattr(sys, name, nothing)


def _accept_all_letters() -> None:
    """Write UTF-8 to files and pipes, which on Windows have fewer letters, and `?` where a terminal lacks one."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding=None if sys.stdout.isatty() else "utf-8", errors="replace")


def _is_said_by_another(words: Sequence[str]) -> bool:
    """Whether this process is one of several: all of them raise what is wrong with the request, one says it."""
    shares = next(iter(words), "") in SHARED and os.environ.get("WORLD_SIZE", "1") != "1"
    return shares and os.environ.get("RANK", "0") != "0"


def _one_line(error: BaseException) -> str:
    return in_options(" ".join(str(error).split()))


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let SIGTERM, and SIGHUP when a terminal closes, unwind the block like an exception.

    Temporary files and folders are removed then. What is ignored, as SIGHUP is under `nohup`, stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():  # Python handles signals in the main thread only
        yield
        return

    def end(number: int, _: object) -> None:
        sys.exit(128 + number)

    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    heeded = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, end) for number in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _quiet_libraries() -> None:
    """Silence diffusers and transformers, whose progress bars and advice would bury our output."""
    from transformers.utils import logging as transformers_logging

    warnings.filterwarnings("ignore", "The `local_dir_use_symlinks` argument")  # which diffusers gives to the hub
    if "diffusers" in sys.modules:
        from diffusers.utils import logging as diffusers_logging

        diffusers_logging.set_verbosity_error()
    else:  # commands on models of transformers never import it, which takes seconds
        os.environ["DIFFUSERS_VERBOSITY"] = "error"
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
