"""What `mmaccel run` does with its arguments."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import AudioError
from ..files.output import beside, check_writable, replacing
from ..progress import looks
from ..report import UNMEASURED, Report
from .model_arguments import chosen_methods, device_of, dtype_of, painter

# Policies of `mmaccel run speech`, by module and class of `mmaccel.speech`.
POLICIES = {
    "align-att": ("policies.align_att", "AlignAtt"),
    "append-only": ("policies.append_only", "AppendOnly"),
    "local-agreement": ("policies.local_agreement", "LocalAgreement"),
}


def told(report: Report) -> str:
    """A report for the command line, whose advice is an option and no line of Python."""
    return str(report).replace(UNMEASURED, "not measured: say --compare")


def run_image(arguments: argparse.Namespace) -> None:
    """Draw a prompt, and write the picture; with ``--compare`` also both side by side."""
    from ..files.pictures import check_format

    check_format(arguments.output)
    both = _checked(arguments)
    from mmaccel.image import generation, pictures
    from mmaccel.image.comparing import verdict

    from ..session import accelerate

    names = ("seed", "count", "guidance", "temperature", "top_k", "top_p")
    settings = generation.Settings(**{name: getattr(arguments, name) for name in names})
    chosen, preset = chosen_methods(arguments)
    drawing = painter(arguments)
    generation.check_prompts(drawing, [arguments.prompt])
    runs = []
    with accelerate(drawing.target, *chosen, preset=preset) as session:
        if arguments.compare:
            with session.baseline() as plain:
                painted = drawing.paint(plain, [arguments.prompt], settings, "plain")
            session.report.baseline_seconds = painted.token_seconds
            runs.append(("plain", painted))
        label = ", ".join(session.report.methods)
        runs.append((label, drawing.paint(session, [arguments.prompt], settings, "fast")))
        report = session.report
    with replacing(arguments.output) as temporary:
        pictures.save(runs[-1][1], temporary)
    if both:
        with replacing(both) as temporary:
            pictures.save_side_by_side(runs, temporary)
    print(told(report))
    _tell_written(arguments, both)
    if arguments.compare and report.exact:
        plain_tokens, tokens = (painted.tokens for _, painted in runs)
        print(verdict(plain_tokens, tokens, session.plan))


def run_video(arguments: argparse.Namespace) -> None:
    """Film a prompt, and write the clip; with ``--compare`` also both side by side."""
    from mmaccel.video import clips, generation, trace_of

    from ..session import accelerate

    clips.check_format(arguments.output)
    _check_picture(arguments.trace, "--trace")
    both = _checked(arguments)
    names = ("seed", "steps", "guidance", "frames", "height", "width")
    settings = generation.Settings(**{name: getattr(arguments, name) for name in names})
    generation.check_memory(settings)
    chosen, preset = chosen_methods(arguments)
    pipe = generation.load(arguments.model, device_of(arguments), dtype_of(arguments))
    runs = {}
    with accelerate(pipe, *chosen, preset=preset) as session:
        if arguments.compare:
            pipe.set_progress_bar_config(desc="plain", unit="steps", **looks())
            with session.baseline() as plain:
                runs["plain"] = generation.film(plain, arguments.prompt, settings)
        pipe.set_progress_bar_config(desc="fast", unit="steps", **looks())
        label = ", ".join(session.report.methods)
        runs[label] = generation.film(session, arguments.prompt, settings)
        report, frames = session.report, [run.frames for run in runs.values()]
        with replacing(arguments.output) as temporary:  # before the trace, which not every method keeps
            clips.save(frames[-1], temporary)
        if arguments.trace:
            with replacing(arguments.trace) as drawing:
                trace_of(session).save(drawing)
    if both:
        labels = [f"{label}: {run.seconds:.2f} s" for label, run in runs.items()]
        with replacing(both) as temporary:
            clips.save(clips.side_by_side(frames, labels), temporary)
    print(told(report))
    if both:
        quality = f"{clips.psnr(*frames):.1f} dB PSNR, {clips.ssim(*frames):.3f} SSIM"
        print(f"  quality     {quality} to the plain clip, measured")
    _tell_written(arguments, both)


def _check_picture(path: Path | None, option: str) -> None:
    """Raise if a picture that is also asked for cannot be written there."""
    if path is not None:
        from ..files.pictures import check_format

        check_format(path)
        check_writable(path, option)


def _checked(arguments: argparse.Namespace) -> Path | None:
    """Where both runs go side by side, None if nobody asked; raises if that or the result cannot be written."""
    both = beside(arguments.output, "compare") if arguments.compare else None
    check_writable(arguments.output)
    check_writable(both)
    return both


def _tell_written(arguments: argparse.Namespace, both: Path | None) -> None:
    print(f"wrote {arguments.output}" + (f", and {both} with the plain one beside it" if both else ""))


def run_vlm(arguments: argparse.Namespace) -> None:
    """Answer a question about a video file."""
    _check_picture(arguments.picture, "--picture")
    from mmaccel.vlm import answering

    from .. import vlm
    from ..session import accelerate

    chosen, preset = chosen_methods(arguments)
    video = clip_of(arguments)
    model, processor = answering.load(arguments.model, device_of(arguments), dtype_of(arguments))
    ask = {"questions": [arguments.question], "max_new_tokens": arguments.max_new_tokens}
    with accelerate(model, *chosen, preset=preset) as session:
        plain = None
        if arguments.compare:
            with session.baseline() as target:
                plain, seconds = answering.ask(target, processor, video.frames, **ask)
            session.report.baseline_seconds = seconds
        answers, _ = answering.ask(session, processor, video.frames, **ask)
        if plain is not None:
            print(f"plain: {plain[0]}")
        print(answers[0] if plain is None else f"fast:  {answers[0]}")
        print(told(session.report), flush=True)
        if arguments.picture:  # last, since not every method leaves out patches
            with replacing(arguments.picture) as temporary:
                vlm.kept(session)[0].save(video.frames, temporary)
            print(f"wrote {arguments.picture}")


def clip_of(arguments: argparse.Namespace) -> Any:
    """The frames of a video file that are asked for, or all of them where it has fewer."""
    from .. import vlm

    if getattr(arguments, "fps", None) is not None:
        return vlm.read_video(arguments.video, fps=arguments.fps)
    there = vlm.read_video(arguments.video, frames=1).total_frames
    return vlm.read_video(arguments.video, frames=min(arguments.frames, there))


def run_speech(arguments: argparse.Namespace) -> None:
    """Write down what is said in a file, or on standard input while it is said."""
    from mmaccel.speech.stream.subtitles import FORMATS, check_format

    suffix = check_format(arguments.output) if arguments.output else ""
    check_writable(arguments.output)
    made = _listen(arguments) if arguments.live or arguments.audio == "-" else _transcribe(arguments)
    if arguments.output:
        with replacing(arguments.output) as temporary:
            temporary.write_text(FORMATS[suffix](list(made.segments), None), encoding="utf-8")
    print(made.stats, file=sys.stderr)  # standard output is the text alone
    if arguments.output:
        print(f"wrote {arguments.output}", file=sys.stderr)


def _transcribe(arguments: argparse.Namespace) -> Any:
    from mmaccel.speech.audio.audio import read_audio
    from mmaccel.speech.stream.transcribe import transcribe_samples

    samples = read_audio(arguments.audio)  # fails before seconds of loading
    made = transcribe_samples(samples, _recognizer(arguments))
    for segment in made.segments:
        print(segment.text)
    return made


def _listen(arguments: argparse.Namespace) -> Any:
    """Print words as they become stable; interrupted, finish with what was heard."""
    from mmaccel.speech.stream.live_text import LiveText
    from mmaccel.speech.stream.transcribe import transcript

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
    from mmaccel.speech.audio.audio import read_audio

    return iter(read_audio(path).split(1600))


def _standard_input(arguments: argparse.Namespace) -> Iterator[bytes]:
    if sys.stdin.isatty():
        raise AudioError("no audio on standard input: arecord -q -t raw -f S16_LE -r 16000 | mmaccel run speech -")
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

    from mmaccel.speech.audio.endpoint import find_endpoint
    from mmaccel.speech.families.weights import load
    from mmaccel.speech.stream.recognizer import StreamingRecognizer

    from .. import speech

    endpoint = find_endpoint(arguments.endpoint)
    changes = {"silence": arguments.silence, "longest": arguments.longest}
    endpoint = dataclasses.replace(endpoint, **changes, padding=min(endpoint.padding, arguments.silence))
    module, name = POLICIES[arguments.policy]
    policy = getattr(importlib.import_module(f"{speech.__name__}.{module}"), name)()
    began = time.perf_counter()
    model, processor = load(arguments.model, device_of(arguments), dtype_of(arguments))
    recognizer = StreamingRecognizer(model, processor, policy=policy, endpoint=endpoint, packed=arguments.packed)
    print(f"loaded {arguments.model} in {time.perf_counter() - began:.1f} s", file=sys.stderr)
    return recognizer
