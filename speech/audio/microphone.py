"""The microphone of this machine, chunk by chunk."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Any

from mmaccel.errors import AudioError, MissingExtraError

CHUNK = 0.1  # seconds


class Microphone:
    """Iterates over what the default microphone records, raw 16-bit samples of one channel, until it is interrupted.

    Nothing is lost while a model computes: chunks wait.

    Attributes
    ----------
    rate
        Samples a second, as the microphone has them.

    Raises
    ------
    MissingExtraError
        If the package sounddevice, or PortAudio below it, is not installed.
    AudioError
        If there is no microphone, or it cannot be opened.
    """

    def __init__(self) -> None:
        try:
            import sounddevice
        except ImportError as error:
            raise MissingExtraError('the microphone needs sounddevice: pip install "mmaccel[microphone]"') from error
        except OSError as error:  # the package is there, and what it calls is not
            raise MissingExtraError(
                f"the microphone needs PortAudio: apt-get install libportaudio2 ({error})"
            ) from error
        self._sounddevice = sounddevice
        try:
            self.rate = round(sounddevice.query_devices(kind="input")["default_samplerate"])
        except (sounddevice.PortAudioError, ValueError) as error:
            raise AudioError(f"there is no microphone ({error}): connect one, or give a file") from error

    def __iter__(self) -> Iterator[bytes]:
        chunks: queue.SimpleQueue[bytes] = queue.SimpleQueue()

        def take(samples: Any, *_: Any) -> None:
            chunks.put(bytes(samples))

        settings = {"channels": 1, "dtype": "int16", "blocksize": round(self.rate * CHUNK), "callback": take}
        try:
            with self._sounddevice.RawInputStream(samplerate=self.rate, **settings):
                while True:
                    yield chunks.get()
        except self._sounddevice.PortAudioError as error:
            raise AudioError(f"the microphone cannot be opened ({error}): close what else uses it") from error
