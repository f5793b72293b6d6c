"""Uploads decoded apart from the server, in a process that is ended where it takes too long or nobody wants it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..errors import MmaccelError, VideoFileError
from .limits import UploadLimits

log = logging.getLogger("mmaccel.uploads")
SCRIPT = Path(__file__).with_name("decoder.py")
PATIENCE = 0.1  # seconds between looks at whether it is still wanted
LONGEST = 2**24  # bytes of one line: the times of some 100,000 frames
ALONE = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # each thread would take part of its memory


class UploadRun(Protocol):
    """Whether somebody still waits for an upload."""

    @property
    def stopped(self) -> bool:
        """Whether nobody does."""

    def check(self) -> None:
        """Raise an error of its own where nobody does."""


class Wanted:
    """A reading that is waited for until it ends."""

    stopped = False

    def check(self) -> None:
        """Nothing to raise."""


class DecoderProcess:
    """A process that reads one upload.

    Parameters
    ----------
    run
        Ends it with an error of its own.
    file
        What is read.
    limits
        Bounds, and for how long.
    error
        What is raised where the file cannot be read.
    asked
        What else `decoder.py` is told.
    """

    def __init__(
        self, run: UploadRun, file: Path, limits: UploadLimits, error: type[MmaccelError], **asked: Any
    ) -> None:
        self.run, self.file, self.limits, self.error = run, file, limits, error
        self._late = False
        told = {**asdict(limits), "file": str(file), **asked}
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(SCRIPT), json.dumps(told)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **ALONE},
        )
        threading.Thread(target=self._watch, name="mmaccel decoder", daemon=True).start()

    def _watch(self) -> None:
        until = time.monotonic() + self.limits.read_seconds
        while self._process.poll() is None:
            self._late = time.monotonic() > until
            if self._late or self.run.stopped:
                self._process.kill()
            time.sleep(PATIENCE)

    def take(self) -> dict[str, Any]:
        """The next line that it answers."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline(LONGEST)
        if not line.endswith(b"\n"):
            raise self._ended()
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            log.info("an upload was refused: %s", answer.get("log", answer["error"]))
            raise self.error(answer["error"])
        return answer

    def data(self, size: int) -> bytes:
        """The bytes behind it."""
        assert self._process.stdout is not None
        data = self._process.stdout.read(size)
        if len(data) < size:
            raise self._ended()
        return data

    def tell(self, values: Any) -> None:
        """Tell it what it waits for."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(values).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:  # ended meanwhile: what is taken next says why
            pass

    def _ended(self) -> MmaccelError:
        """Why it answers no more; raises what `run` does where its visitor ended it."""
        self.close()
        self.run.check()
        if self._late:
            return self.error(
                f"{self.file} takes longer than {self.limits.read_seconds:g} s to read, the limit here:"
                " upload a shorter or a smaller one"
            )
        log.warning("the decoder of an upload ended with %s", self._process.returncode)
        return self.error(f"{self.file} cannot be read, it may be damaged or too large: upload another")

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):  # it may have ended before it read what it was sent
                    stream.close()


class ApartReader:
    """Frames of an upload, no larger than `limits.side`; `module` is the file that has the readers."""

    def __init__(self, run: UploadRun, file: Path, backend: str, limits: UploadLimits, module: str) -> None:
        asked = {"kind": "video", "backend": backend, "module": module}
        self._decoder, self._side = DecoderProcess(run, file, limits, VideoFileError, **asked), limits.side
        try:
            head = self._decoder.take()
        except BaseException:
            self.close()
            raise
        self.times = np.array(head["times"], np.float64)
        self.rate: float | None = head["rate"]
        self.cut_off: float | None = head["cut_off"]

    def frames(self, indices: Sequence[int]) -> Iterator[np.ndarray]:
        self._decoder.tell(list(indices))
        for _ in indices:
            height, width, channels = self._decoder.take()["shape"]
            if not (0 < height <= self._side and 0 < width <= self._side and channels == 3):
                raise VideoFileError(f"{self._decoder.file} cannot be read: upload another")
            data = self._decoder.data(height * width * channels)
            yield np.frombuffer(data, np.uint8).reshape(height, width, channels)

    def close(self) -> None:
        self._decoder.close()


def decoded_apart(
    run: UploadRun, file: Path, limits: UploadLimits, error: type[MmaccelError], module: str
) -> Iterator[tuple[np.ndarray, int]]:
    """Samples of an upload, float32 `[n]`, with their rates; `module` is the file that has the reader."""
    decoder = DecoderProcess(run, file, limits, error, kind="audio", module=module)
    try:
        while count := int((answer := decoder.take())["samples"]):
            if not 0 < count <= limits.audio_samples:
                raise error(f"{file} cannot be read: upload another")
            run.check()
            yield np.frombuffer(decoder.data(4 * count), np.float32).copy(), int(answer["rate"])
    finally:
        decoder.close()
