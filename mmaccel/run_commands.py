"""What `mmaccel run` does with its arguments."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .errors import AudioError, SettingError
from .output import replacing

# Policies of `mmaccel run speech`, by module and class of `mmaccel.speech`.
POLICIES = {
    "align-att": ("align_att", "AlignAtt"),
    "append-only": ("append_only", "AppendOnly"),
    "local-agreement": ("local_agreement", "LocalAgreement"),
}


def run_image(arguments: argparse.Namespace) -> None:
    """Draw a prompt, and write the picture."""
    from .image import generation, pictures
    from .session import accelerate

    pictures.check_format(arguments.output)
    names = ("seed", "count", "guidance", "temperature", "top_k", "top_p")
    settings = generation.Settings(**{name: getattr(arguments, name) for name in names})
    with replacing(arguments.output) as temporary:  # fails now, and not after minutes of work
        chosen, preset = chosen_methods(arguments)
        drawing = painter(arguments)
        generation.check_prompts(drawing, [arguments.prompt])
        columns = []
        with accelerate(drawing.target, *chosen, preset=preset) as session:
            if arguments.compare:
                with session.baseline() as plain:
                    painted = drawing.paint(plain, [arguments.prompt], settings, "plain")
                session.report.baseline_seconds = painted.token_seconds
                columns.append(("plain", painted))
            columns.append(
                (", ".join(session.report.methods), drawing.paint(session, [arguments.prompt], settings, "fast"))
            )
            report = session.report
        pictures.save(columns, temporary, captions=arguments.compare)
    print(report)
    print(f"wrote {arguments.output}")
    if arguments.compare and report.exact:
        print("the pictures differ as two samples of one prompt do: the method keeps the law, not the noise")


def run_video(arguments: argparse.Namespace) -> None:
    """Film a prompt, and write the clip."""
    from .session import accelerate
    from .video import clips, generation, trace_of

    clips.check_format(arguments.output)
    names = ("seed", "steps", "guidance", "frames", "height", "width")
    settings = generation.Settings(**{name: getattr(arguments, name) for name in names})
    with replacing(arguments.output) as temporary:
        chosen, preset = chosen_methods(arguments)
        pipe = generation.load(arguments.model, arguments.device, dtype_of(arguments))
        runs = {}
        with accelerate(pipe, *chosen, preset=preset) as session:
            if arguments.compare:
                with session.baseline() as plain:
                    runs["plain"] = generation.film(plain, arguments.prompt, settings)
            label = ", ".join(session.report.methods)
            runs[label] = generation.film(session, arguments.prompt, settings)
            report = session.report
            if arguments.trace:
                with replacing(arguments.trace) as drawing:
                    trace_of(session).save(drawing)
        frames = [run.frames for run in runs.values()]
        labels = [f"{label}  {run.seconds:.2f} s" for label, run in runs.items()]
        clips.save(clips.side_by_side(frames, labels) if arguments.compare else frames[0], temporary)
        if arguments.compare:
            quality = f"{clips.psnr(*frames):.1f} dB PSNR, {clips.ssim(*frames):.3f} SSIM"
    print(report)
    if arguments.compare:
        print(f"  quality     {quality} to the plain clip, measured")
    print(f"wrote {arguments.output}")


def run_vlm(arguments: argparse.Namespace) -> None:
    """Answer a question about a video file."""
    from . import vlm
    from .session import accelerate
    from .vlm import answering

    chosen, preset = chosen_methods(arguments)
    frames = arguments.frames if arguments.fps is None else None
    video = vlm.read_video(arguments.video, frames=frames, fps=arguments.fps)
    model, processor = answering.load(arguments.model, arguments.device, dtype_of(arguments))
    ask = {"questions": [arguments.question], "max_new_tokens": arguments.max_new_tokens}
    with accelerate(model, *chosen, preset=preset) as session:
        plain = None
        if arguments.compare:
            with session.baseline() as target:
                plain, seconds = answering.ask(target, processor, video.frames, **ask)
            session.report.baseline_seconds = seconds
        answers, _ = answering.ask(session, processor, video.frames, **ask)
        report = session.report
        if arguments.picture:
            with replacing(arguments.picture) as temporary:
                vlm.kept(session)[0].save(video.frames, temporary)
    if plain is not None:
        print(f"plain: {plain[0]}")
    print(answers[0] if plain is None else f"fast:  {answers[0]}")
    print(report)
    if arguments.picture:
        print(f"wrote {arguments.picture}")


def run_speech(arguments: argparse.Namespace) -> None:
    """Write down what is said in a file, or on standard input while it is said."""
    from .speech.recognizer import check_update_interval
    from .speech.subtitles import FORMATS, check_format

    check_update_interval(arguments.update_interval)
    suffix = check_format(arguments.output) if arguments.output else ""
    with replacing(arguments.output) if arguments.output else contextlib.nullcontext() as temporary:
        made = _listen(arguments) if arguments.live or arguments.audio == "-" else _transcribe(arguments)
        if temporary:
            temporary.write_text(FORMATS[suffix](list(made.segments), None), encoding="utf-8")
    print(made.stats, file=sys.stderr)  # standard output is the text alone
    if arguments.output:
        print(f"wrote {arguments.output}", file=sys.stderr)


def _transcribe(arguments: argparse.Namespace) -> Any:
    from .speech.audio import read_audio
    from .speech.transcribe import transcribe_samples

    samples = read_audio(arguments.audio)  # fails before seconds of loading
    made = transcribe_samples(samples, _recognizer(arguments))
    for segment in made.segments:
        print(segment.text)
    return made


def _listen(arguments: argparse.Namespace) -> Any:
    """Print words as they become stable; interrupted, finish with what was heard."""
    from .speech.live_text import LiveText
    from .speech.transcribe import transcript

    piped, live, events = arguments.audio == "-", LiveText(sys.stdout), list[Any]()
    chunks = _standard_input(arguments) if piped else _file_chunks(arguments.audio)
    rate, channels = (arguments.rate, arguments.channels) if piped else (16_000, None)
    with _recognizer(arguments).stream(rate, arguments.update_interval, channels) as stream:
        with contextlib.suppress(KeyboardInterrupt):
            for chunk in chunks:
                new = stream.push(chunk)
                live.show(new)
                events += new
        rest = stream.finish()
        live.show(rest)
    return transcript(events + rest, stream.stats)


def _file_chunks(path: str) -> Iterator[Any]:
    from .speech.audio import read_audio

    return iter(read_audio(path).split(1600))


def _standard_input(arguments: argparse.Namespace) -> Iterator[bytes]:
    if sys.stdin.isatty():
        raise AudioError("no audio on standard input: arecord -q -t raw -f S16_LE -r 16000 | mmaccel run speech -")
    if arguments.channels < 1:
        raise SettingError(f"--channels {arguments.channels}: pass at least 1")
    return _whole_samples(2 * arguments.channels, max(arguments.rate // 10, 1))


def _whole_samples(size: int, count: int) -> Iterator[bytes]:
    """Standard input as it comes, at most `count` samples of `size` bytes at a time, whole ones."""
    source: Any = sys.stdin.buffer
    held = b""
    while data := source.read1(count * size):
        held += data
        ready = len(held) // size * size
        yield held[:ready]
        held = held[ready:]


def _recognizer(arguments: argparse.Namespace) -> Any:
    import importlib

    from . import speech
    from .speech.endpoint import find_endpoint
    from .speech.recognizer import StreamingRecognizer
    from .speech.weights import load

    endpoint = find_endpoint(arguments.endpoint)
    changes = {"silence": arguments.silence, "longest": arguments.longest}
    endpoint = dataclasses.replace(endpoint, **changes, padding=min(endpoint.padding, arguments.silence))
    module, name = POLICIES[arguments.policy]
    policy = getattr(importlib.import_module(f"{speech.__name__}.{module}"), name)()
    began = time.perf_counter()
    model, processor = load(arguments.model, arguments.device, dtype_of(arguments))
    recognizer = StreamingRecognizer(model, processor, policy=policy, endpoint=endpoint, packed=arguments.packed)
    print(f"loaded {arguments.model} in {time.perf_counter() - began:.1f} s", file=sys.stderr)
    return recognizer


def target_of(arguments: argparse.Namespace) -> Any:
    """The model or pipeline that is asked for."""
    from . import zoo

    kind = zoo.modality(arguments.model) if zoo.is_known(arguments.model) else None
    if kind == "video" or (Path(arguments.model) / "model_index.json").is_file():
        from .video import generation

        return generation.load(arguments.model, arguments.device, dtype_of(arguments))
    if kind == "vlm":
        from .vlm import answering

        return answering.load(arguments.model, arguments.device, dtype_of(arguments))[0]
    return painter(arguments).target


def painter(arguments: argparse.Namespace) -> Any:
    from .image import generation

    return generation.load(arguments.model, arguments.device, dtype_of(arguments))


def dtype_of(arguments: argparse.Namespace) -> Any:
    import torch

    return getattr(torch, arguments.dtype) if arguments.dtype else None


def chosen_methods(arguments: argparse.Namespace) -> tuple[list[Any], str | None]:
    """Methods and preset; the command's own default, a method or a preset, where nothing was asked."""
    from .plan import Plan

    chosen = [parse_method(text) for text in arguments.method]
    if arguments.plan:
        chosen.append(Plan.load(arguments.plan))
    if chosen or arguments.preset:
        return chosen, arguments.preset
    default = arguments.default
    return ([parse_method(default)], None) if "." in default else ([], default)


def parse_method(text: str) -> Any:
    """A method from ``NAME[:KEY=VALUE,...]``.

    Examples
    --------
    >>> print(parse_method("image.ZipAR:window=2,verify=true"))
    image.ZipAR(window=2, verify=True)
    """
    from .registry import get_method

    name, _, settings = text.partition(":")
    values: dict[str, Any] = {}
    for item in filter(None, settings.split(",")):
        key, equals, value = item.partition("=")
        if not equals:
            raise SettingError(f"--method {text}: write KEY=VALUE after the colon, such as {name}:window=4")
        values[key.strip()] = value_of(value)
    return get_method(name).from_settings(values)


def value_of(text: str) -> Any:
    """A setting as it is typed: a number, true, false, none or a word.

    Examples
    --------
    >>> value_of("0.5"), value_of("False"), value_of("refresh")
    (0.5, False, 'refresh')
    """
    try:
        return json.loads(text.replace("True", "true").replace("False", "false").replace("None", "null"))
    except json.JSONDecodeError:
        return text
