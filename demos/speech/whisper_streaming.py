"""The published whisper_streaming as a listener: its own code decides what stays, from a clone that the user names."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import torch

from mmaccel.errors import MissingExtraError, SettingError
from mmaccel.speech.audio.endpoint import RATE
from mmaccel.speech.bench.listeners import UPDATE, Listener
from mmaccel.speech.families.adapter import Word
from mmaccel.speech.stream.recognizer import StreamingRecognizer
from mmaccel.speech.stream.units import ends_sentence

FOLDER = "MMACCEL_WHISPER_STREAMING"  # environment variable with a clone of github.com/ufal/whisper_streaming
FILE = "whisper_online.py"


def published() -> Any:
    """The module of a clone, None where none is named.

    Raises
    ------
    SettingError
        If the folder has no such module.
    MissingExtraError
        If a package that it imports is missing.
    """
    folder = os.environ.get(FOLDER)
    if not folder:
        return None
    path = Path(folder) / FILE
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise SettingError(f"{FOLDER}={folder}: no {FILE} there: name a clone of github.com/ufal/whisper_streaming")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except ImportError as error:
        raise MissingExtraError(f"{path} needs {error.name}: pip install librosa soundfile") from error
    return module


class Recogniser:
    """Ours, as whisper_streaming asks one: it hears all of its buffer anew each time, as with the published ones.

    Our models write no timestamps between sentences, so that a segment, behind which the buffer may be cut, is a
    sentence.
    """

    sep = " "

    def __init__(self, recognizer: StreamingRecognizer) -> None:
        self.recognizer = recognizer
        self.decoder_calls = 0

    def transcribe(self, audio: Any, init_prompt: str = "") -> list[Word]:
        """Words of samples `[n]`, in windows that the model takes."""
        longest = self.recognizer.adapter.longest
        window = len(audio) if longest is None else round(longest * RATE)
        words: list[Word] = []
        for start in range(0, len(audio), max(window, 1)):
            words += self._window(torch.as_tensor(audio[start : start + window]).float(), init_prompt, start / RATE)
        return words

    def _window(self, samples: torch.Tensor, context: str, after: float) -> list[Word]:
        prompt = self.recognizer.adapter.prompt(context)
        encoded, hypothesis = self.recognizer.hear(samples, prompt)
        self.decoder_calls += hypothesis.forwards
        words = self.recognizer.words(encoded, hypothesis.tokens, prompt)
        return [Word(word.text.strip(), after + word.start, after + word.end) for word in words]

    def ts_words(self, words: list[Word]) -> list[tuple[float, float, str]]:
        """Words with their times."""
        return [(word.start, word.end, word.text) for word in words]

    def segments_end_ts(self, words: list[Word]) -> list[float]:
        """Seconds at which segments end."""
        ends = [word.end for word in words[:-1] if ends_sentence(word.text)]
        return ends + [word.end for word in words[-1:]]


class WhisperStreamingListener(Listener):
    """Its `OnlineASRProcessor` with the published settings, asked every half second; what it commits stays."""

    def __init__(self, module: Any, recognizer: StreamingRecognizer) -> None:
        super().__init__()
        self._recogniser = Recogniser(recognizer)
        self._online = module.OnlineASRProcessor(self._recogniser)
        self._waiting = 0

    @property
    def decoder_calls(self) -> int:
        return self._recogniser.decoder_calls

    def push(self, chunk: torch.Tensor) -> None:
        self._online.insert_audio_chunk(chunk.numpy())
        self._waiting += len(chunk)
        if self._waiting >= UPDATE * RATE:
            self._update()

    def finish(self) -> None:
        if self._waiting:
            self._update()
        self.promised = self.shown = self.promised + self._online.finish()[2].split()

    def _update(self) -> None:
        self._waiting = 0
        self.promised = self.promised + self._online.process_iter()[2].split()
        rest = [word for _, _, text in self._online.transcript_buffer.complete() for word in text.split()]
        self.shown = self.promised + rest
