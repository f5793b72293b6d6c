"""The command line of recognisers: write down what is said."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmaccel.cli.arguments import number, whole
from mmaccel.cli.command import Command, Prepared, check_example
from mmaccel.cli.model_arguments import opened
from mmaccel.errors import AudioError, SettingError
from mmaccel.files.output import check_writable

from .batching import SpeechBatching

if TYPE_CHECKING:
    from mmaccel.comparison.comparison import Comparison

    from .stream.recognizer import StreamingRecognizer
    from .stream.stream import SpeechStream
    from .stream.transcribe import Transcript

INTERVAL = 0.5  # seconds between two decodings
WAITING = 36_000  # chunks of the microphone that a slow model lets wait, an hour
# Policies by what `--policy` calls them, with the classes of `mmaccel.speech`.
POLICIES = {"align-att": "AlignAtt", "append-only": "AppendOnly", "local-agreement": "LocalAgreement"}


class SpeechCommand(Command):
    help = "write down what is said"
    measured = "writing down what is said"
    examples = (
        "mmaccel run speech talk.wav -o talk.srt",
        "mmaccel run speech --live talk.wav",
        "mmaccel run speech --live    # what you say, until Ctrl+C",
        "arecord -q -t raw -f S16_LE -r 16000 | mmaccel run speech -",
    )
    preset = "streams"
    preset_help = "stream the words, with and without verified drafts"
    floor = "at most this word error rate"
    batching = SpeechBatching()

    def add_run(self, parser: Any) -> None:
        what = "audio or video file, or - for raw 16-bit samples on standard input; with --live none for the microphone"
        parser.add_argument("audio", nargs="?", help=what)
        parser.add_argument("-o", "--output", type=Path, help="subtitles to write (.srt, .vtt or .json)")
        parser.add_argument("--live", action="store_true", help="print words as they become stable (- always does)")
        parser.add_argument(
            "--rate", type=whole(1), default=16_000, help="sampling rate of standard input (default 16000)"
        )
        parser.add_argument("--channels", type=whole(1, 64), default=1, help="channels of standard input (default 1)")
        _add_listening(parser)
        interval = number("between 0.1 and 60 seconds", lambda value: 0.1 <= value <= 60)
        seconds = "seconds between two decodings of --live (default 0.5)"
        parser.add_argument("--update-interval", type=interval, help=seconds)

    def run(self, arguments: argparse.Namespace) -> None:
        """Write down what is said in a file, or on standard input while it is said."""
        from .stream.subtitles import check_format

        if not (arguments.audio or arguments.live):
            raise SettingError("nothing to write down: give talk.wav, - for standard input, or --live to speak")
        if arguments.output:
            check_format(arguments.output)
        check_writable(arguments.output)
        is_live = arguments.live or arguments.audio == "-"
        if arguments.update_interval and not is_live:
            raise SettingError("--update-interval is for --live: say both, or neither")
        made = _listen(arguments) if is_live else _transcribe(arguments)
        if arguments.output:  # first, since a reader such as `| head` may leave
            made.save(arguments.output)
        for segment in () if is_live else made.segments:
            print(segment.text)
        print(made.stats, file=sys.stderr)  # standard output is the text alone
        if arguments.output:
            print(f"wrote {arguments.output}", file=sys.stderr)

    def add_acceleration(self, parser: Any) -> None:
        _add_listening(parser)

    @contextlib.contextmanager
    def started(self, arguments: argparse.Namespace) -> Iterator[tuple[Any, Any]]:
        """A recogniser; drafts are verified inside its streams, so that no methods are needed."""
        recognizer = _recognizer(arguments, batched=getattr(arguments, "batch", 1) > 1)  # of `mmaccel serve`
        yield recognizer, recognizer

    def add_call(self, parser: Any) -> None:
        parser.add_argument("audio", type=Path, nargs="*", help="audio or video files")
        parser.add_argument(
            "--example", action="store_true", help="use eight shipped seconds of human speech, instead of files"
        )
        parser.add_argument(
            "--reference", action="append", metavar="TEXT", help="the words that are said; once for each file"
        )

    def prepare(self, arguments: argparse.Namespace) -> Prepared:
        audio, reference = _recordings(arguments)
        model, processor = opened(arguments)
        return model, {"audio": audio, "reference": reference, "processor": processor}

    def compare(self, arguments: argparse.Namespace) -> Comparison:
        """Without a method, compare drafts in a stream: they help speech most, and are not a method of `generate`."""
        if arguments.method or arguments.preset or arguments.plan:
            return super().compare(arguments)
        from .stream.stream_comparing import compare_streams

        model, inputs = self.prepare(arguments)
        rounds, simple = arguments.rounds, not arguments.no_simple
        return compare_streams(model, **inputs, rounds=rounds, simple=simple, ranks=True)


def _add_listening(parser: Any) -> None:
    """Arguments of a recogniser."""
    words = "the policy that decides which words are stable (default local-agreement)"
    parser.add_argument("--policy", choices=sorted(POLICIES), default="local-agreement", help=words)
    pauses = ["auto", "silero", "energy"]
    parser.add_argument("--endpoint", choices=pauses, default="auto", help="the detector of pauses (default auto)")
    pause = number("between 0.1 and 10 seconds", lambda value: 0.1 <= value <= 10)
    ends = "seconds of silence that end a segment (default 0.44)"
    parser.add_argument("--silence", type=pause, default=0.44, help=ends)
    segment = number("between 2 and 60 seconds", lambda value: 2 <= value <= 60)
    cut = "seconds after which a segment is cut (default 15)"
    parser.add_argument("--longest", type=segment, default=15.0, help=cut)
    seconds = number("between 0 and 20 seconds", lambda value: 0 <= value <= 20)
    again = "seconds that a final is decoded with, the speech before a breath included, such as 14 (default 0: alone)"
    parser.add_argument("--rejoin", type=seconds, default=0.0, help=again)
    parser.add_argument("--language", help="the language, such as de, for models with several (default: as heard)")
    task = "translate writes English (multilingual Whisper; default as the model is set, mostly transcribe)"
    parser.add_argument("--task", choices=["transcribe", "translate"], help=task)
    parser.add_argument(
        "--prompt", default="", metavar="TEXT", help="names or rare words that may occur (Whisper, Qwen3-ASR, Fun-ASR)"
    )
    packed = "keep a second copy of the weights in oneDNN's layout: in float32 faster on CPUs not made by Intel"
    parser.add_argument("--packed", action="store_true", help=packed)


def _recordings(arguments: argparse.Namespace) -> tuple[list[Any], list[str] | None]:
    """Recordings with their words: those of the command line, or one from the extra `[speech]`."""
    check_example(arguments, arguments.audio, "talk.wav")
    if not arguments.example:
        return arguments.audio, arguments.reference
    from .audio.recordings import example

    found = example()
    return [found.samples], [found.text]


def _transcribe(arguments: argparse.Namespace) -> Transcript:
    from .audio.audio import read_audio
    from .stream.transcribe import transcribe_samples

    samples = read_audio(arguments.audio)  # fails before seconds of loading
    return transcribe_samples(samples, _recognizer(arguments))


def _listen(arguments: argparse.Namespace) -> Transcript:
    """Print words as they become stable; if interrupted, finish with the audio so far."""
    from .stream.live_text import LiveText
    from .stream.transcribe import transcript
    from .stream.wrappers import BackgroundStream

    live, events = LiveText(sys.stdout), list[Any]()
    leaving = (BrokenPipeError,) if arguments.output else ()  # a reader who leaves does not end what is written to -o

    def take(new: list[Any]) -> None:
        events.extend(new)
        with contextlib.suppress(*leaving):
            live.show(new)

    chunks, rate, channels = _heard(arguments)
    opened = _recognizer(arguments).stream(rate, arguments.update_interval or INTERVAL, channels)
    with opened as stream, _kept(arguments.output, events, stream):
        if arguments.audio:
            _push_all(chunks, lambda chunk: take(stream.push(chunk)))
            take(stream.finish())
        else:  # nobody waits to speak until the model has caught up
            with BackgroundStream(stream, lambda event: take([event]), waiting=WAITING) as heard:
                _push_all(chunks, heard.push)
    return transcript(events, stream.stats)


@contextlib.contextmanager
def _kept(path: Path | None, events: list[Any], stream: SpeechStream) -> Iterator[None]:
    """At an error or a second Ctrl+C, write what was heard before to `path`: an hour of speech is not said again."""
    from .stream.transcribe import transcript

    try:
        yield
    except BaseException as error:  # of a terminal that closes, too
        if path and (made := transcript(events, stream.stats)).segments:  # else an older file is worth more
            made.save(path)
            end = "error" if isinstance(error, Exception) else "interruption"
            print(f"wrote {path}, up to the {end}", file=sys.stderr)
        raise


def _push_all(chunks: Iterable[Any], push: Callable[[Any], object]) -> None:
    """Hand over chunks until they end or Ctrl+C is pressed."""
    with contextlib.suppress(KeyboardInterrupt):
        for chunk in chunks:
            push(chunk)


def _heard(arguments: argparse.Namespace) -> tuple[Iterable[Any], int, int | None]:
    """Chunks of standard input, the microphone or a file, their rate and their channels."""
    if arguments.audio == "-":
        return _standard_input(arguments), arguments.rate, arguments.channels
    if arguments.audio:
        from .audio.audio import read_audio

        return read_audio(arguments.audio).split(1600), 16_000, None
    from .audio.microphone import Microphone

    microphone = Microphone()
    return microphone, microphone.rate, 1


def _standard_input(arguments: argparse.Namespace) -> Iterator[bytes]:
    if sys.stdin.isatty():
        raise AudioError("no audio on standard input: arecord -q -t raw -f S16_LE -r 16000 | mmaccel run speech -")
    return _whole_samples(2 * arguments.channels, max(arguments.rate // 10, 1))


def _whole_samples(size: int, count: int) -> Iterator[bytes]:
    """Standard input as it arrives, at most `count` whole samples of `size` bytes at a time."""
    source: Any = sys.stdin.buffer
    held = b""
    while data := source.read1(count * size):
        held += data
        ready = len(held) // size * size
        yield held[:ready]
        held = held[ready:]


def _recognizer(arguments: argparse.Namespace, batched: bool = False) -> StreamingRecognizer:
    from mmaccel import speech

    from .audio.endpoint import find_endpoint
    from .stream.recognizer import StreamingRecognizer

    endpoint = find_endpoint(arguments.endpoint).cutting(arguments.silence, arguments.longest)
    policy = getattr(speech, POLICIES[arguments.policy])()
    began = time.perf_counter()
    model, processor = opened(arguments)
    told = {name: getattr(arguments, name) for name in ("packed", "language", "task", "prompt", "rejoin")}
    found = StreamingRecognizer(model, processor, policy=policy, endpoint=endpoint, batched=batched, **told)
    print(f"loaded {arguments.model} in {time.perf_counter() - began:.1f} s", file=sys.stderr)
    return found
