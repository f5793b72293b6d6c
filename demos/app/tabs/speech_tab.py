"""The live speech tab."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gradio as gr

from mmaccel import speech
from mmaccel.errors import unknown_name
from mmaccel.speech.audio.endpoint import EndpointPolicy, find_endpoint
from mmaccel.speech.command import POLICIES
from mmaccel.speech.stream.stats import StreamStats

from ..frame import Frame
from ..limits import Limits, number
from ..looks import panels
from ..looks.board import ACCELERATED, PLAIN, Scoreboard, ratio
from ..looks.gallery import Card, gallery, waves
from ..runs import Run
from ..uploads.reading import read_recording
from .code import speech_code
from .live_words import LiveWords
from .microphone import Microphone, component
from .speech_run import Saved, SpeechRequest, compared, transcribed

PACKAGES = ("av", "soxr")  # a model whose weights are missing says so when it is asked for
MISSING = 'Speech needs packages that are not installed: `pip install "mmaccel[speech]"`, then start the demo again.'
ENDPOINTS = ("auto", "silero", "energy")
UPDATE, SILENCE, LONGEST = 0.5, EndpointPolicy.silence, EndpointPolicy.longest
OTHERS = 6  # outputs after the words
POLICY_NOTE = "which words stay: those that two decodings agree on, or those far enough from the end of the sound"
ONE_RUN_EACH = "One run of each on this machine, without drafts first; seconds of all cores, for the whole process."
FILE_NOTE = "Transcribed as fast as possible; lags are those of speech that arrives in real time."
TITLES = {"beckett.wav": "Beckett, 10 s", "two_cities.wav": "A Tale of Two Cities, 44 s"}


def build(frame: Frame) -> None:
    """Microphone or recording, policies and buttons, then the words while they come, figures, files and code."""
    if not all(map(importlib.util.find_spec, PACKAGES)):
        gr.Markdown(MISSING)
        return
    with gr.Row():
        with gr.Column(scale=1, min_width=300):
            speak = component()
            recording = gr.Audio(
                label="Or a recording", sources=["upload"], type="filepath", buttons=[], elem_classes="drop"
            )
            policy = gr.Radio(sorted(POLICIES), value="local-agreement", label="Policy", info=POLICY_NOTE)
            buttons = panels.buttons(frame)
            with gr.Accordion("Advanced", open=False):
                settings = _advanced(frame)
        with gr.Column(scale=2, min_width=300):
            board = panels.board()
            words = gr.HTML("", label="Words", elem_classes="spoken")
            picked = _gallery(recording)
            files = gr.File(label="Subtitles", interactive=False, visible=False, file_count="multiple")
            results = panels.results(seeded=False)
    inputs = [policy, *settings]
    outputs = [words, files, *results.outputs]
    end = partial(ended, files, results)
    buttons.connect(frame, partial(_transcribe, frame, end), [recording, *inputs], [board, *outputs], both=picked)
    Microphone(frame, asked, end).connect(speak, inputs, outputs)


def _advanced(frame: Frame) -> list[gr.components.Component]:
    names = frame.models.names("speech")
    return [
        gr.Dropdown(names, value=names[0], label="Model", allow_custom_value=frame.models.any_model),
        panels.optional_number("Seconds between looks", f"{UPDATE:g}"),
        gr.Radio(ENDPOINTS, value=ENDPOINTS[0], label="What finds pauses"),
        panels.optional_number("Seconds of silence that end a segment", f"{SILENCE:g}"),
        panels.optional_number("Seconds after which a segment is cut", f"{LONGEST:g}"),
        gr.Textbox(label="Language", placeholder="as heard; for models with several, such as de", max_lines=1),
        gr.Textbox(label="Names and rare words", placeholder="which may occur; for models that take them", max_lines=2),
    ]


def _gallery(recording: gr.Audio) -> Any:
    """The human speech that comes in the package of the small model; None where it is not there."""
    found = importlib.util.find_spec("moonshine_voice")
    folder = Path(str(found and found.origin)).parent / "assets"
    cards = []
    with TemporaryDirectory() as copies:  # gradio makes copies of its own, and only of files from here
        for name, title in TITLES.items():
            if (folder / name).is_file():
                copy = recording.move_resource_to_block_cache(shutil.copy(folder / name, copies))
                cards.append(Card(title, waves(speech.read_audio(folder / name).numpy()), (copy,)))
    panels.keep_examples(recording)
    return gallery(cards, [recording]) if cards else None


def asked(
    limits: Limits,
    compare: bool,
    file: Any,
    policy: Any,
    model: Any,
    update: Any,
    endpoint: Any,
    silence: Any,
    longest: Any,
    language: Any = "",
    prompt: Any = "",
) -> SpeechRequest:
    """A checked request from the values of the tab; `file` is empty for a microphone."""
    if policy not in POLICIES:
        raise unknown_name("policy", str(policy)[:40], POLICIES)
    seconds = number("seconds of silence", silence, 0.1, 10, whole=False) or SILENCE
    most = number("seconds of a segment", longest, 2, 60, whole=False) or LONGEST
    return SpeechRequest(
        model=model,
        policy=getattr(speech, POLICIES[policy])(),
        endpoint=find_endpoint(str(endpoint)[:40]).cutting(seconds, most),
        update_interval=number("seconds between looks", update, 0.1, 60, whole=False) or UPDATE,
        file=Path(file or "").name,
        compare=compare,
        language=limits.prompt(language)[:40] or None,
        prompt=limits.prompt(prompt),
    )


def _transcribe(
    frame: Frame, end: Callable[..., list[Any]], compare: bool, run: Run, file: Any, *values: Any
) -> Iterator[list[Any]]:
    """Words of a recording as they become known, then all about it."""
    request = asked(frame.limits, compare, file, *values)
    with run.stage("read"):
        samples = read_recording(file, frame.limits, run)
    steps = compared if compare else transcribed
    for heard, saved in steps(run, frame.models, samples, request):  # noqa: B007  the last ones are used below
        yield [gr.skip(), heard.words.page(), *(gr.skip() for _ in range(OTHERS))]
    board = _verdict(saved, heard.stats)
    yield [board, *end(heard.words, run, str(heard.stats), speech_code(request, frame.models), saved)]


def _verdict(saved: Saved | None, stats: StreamStats) -> str:
    """The board of a recording that was heard."""
    if saved is None:
        spent = f"of computing for {stats.audio_seconds:.1f} s of sound."
        return Scoreboard(f"{stats.compute_seconds:.2f} s", spent, said=f"{FILE_NOTE} {panels.NOT_MEASURED}").page()
    gain = ratio(*saved.seconds, more="less computing", less="more computing")
    times = tuple(zip((PLAIN, ACCELERATED), saved.seconds, strict=True))
    return Scoreboard(gain, saved.cost, times, "CPU s", f"{ONE_RUN_EACH} {FILE_NOTE}").page()


def ended(
    files: gr.File,
    results: panels.Results,
    words: LiveWords,
    run: Run,
    stats: str,
    code: str,
    saved: Saved | None = None,
) -> list[Any]:
    """The last values of the outputs; the subtitles are kept in gradio's cache, from where they are deleted by age."""
    report = f"{saved.report}\n{stats}" if saved else stats
    with TemporaryDirectory() as folder:
        kept = [files.move_resource_to_block_cache(file) for file in words.save(Path(folder))]
    offered = gr.update(value=kept or None, visible=bool(kept))
    return [words.page(over=True), offered, *results.values(run, "", report, code)]
