"""Decodes one upload in a process of its own, which the server may end at any moment.

Started as a script with one argument, a JSON object of what is asked. It answers with lines of JSON, some followed by
bytes. It imports neither torch nor Gradio, and reads mmaccel's own readers as single files: it must be there at once.
"""

import importlib.util
import json
import math
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import av
import numpy as np
from PIL import Image

from mmaccel.errors import AudioError, MmaccelError, VideoFileError

# FFmpeg's names of what is read, whatever a file is called. Playlists are not among them: those name other files to
# open, which would be files of the server.
FORMATS = (
    "3gp,aac,ac3,aiff,amr,amrnb,amrwb,apng,asf,au,avi,caf,flac,flv,gif,m4a,matroska,mj2,mov,mp3,mp4,mpeg,mpegts,mpegvideo,"
    "ogg,opus,w64,wav,webm,webp_pipe"
)
FASTEST = 240  # frames a second of any clip
PADDING = 2**18  # pixels
GRACE = 10  # seconds after which it ends itself, where nobody is left to end it


class Answers:
    """Lines of JSON with bytes behind them, where nothing else is written: libraries print too."""

    def __init__(self) -> None:
        self._stream: BinaryIO = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)

    def give(self, data: bytes = b"", **values: Any) -> None:
        self._stream.write(json.dumps(values).encode() + b"\n" + data)
        self._stream.flush()


def main() -> None:
    asked, answers = SimpleNamespace(**json.loads(sys.argv[1])), Answers()
    try:
        limit(asked.read_seconds, asked.read_bytes)
        WORK[asked.kind](asked, answers)
    except MmaccelError as error:
        answers.give(error=str(error))
    except (MemoryError, Image.DecompressionBombError):
        answers.give(error=f"{asked.file} needs more memory than one upload may take: upload a smaller one")
    except Exception as error:
        answers.give(error=f"{asked.file} cannot be read, it may be damaged: upload another", log=repr(error))
        traceback.print_exc()


def limit(seconds: float, memory: int) -> None:
    """End this process after so long, and let it have no more memory than that, where the system can."""
    if hasattr(signal, "alarm"):
        signal.alarm(math.ceil(seconds + GRACE))
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    except (ImportError, ValueError, OSError):  # Windows has none, and macOS refuses some
        pass


def video(asked: Any, answers: Answers) -> None:
    """Tell the times of all frames, be told which are wanted, and give those, scaled down."""
    readers, file = module(asked.module), Path(asked.file)
    options = ffmpeg_options(asked)
    if asked.backend == "pil":
        check_picture(file, asked, readers.PictureReader.FORMATS)
        reader = readers.PictureReader(file)
    else:
        check_packets(file, asked, "video", options, VideoFileError)
        reader = readers.AvReader(file, options)
    if reader.times[-1] > asked.clip_seconds:
        raise too_long(file, asked.clip_seconds, VideoFileError)
    answers.give(times=reader.times.tolist(), rate=reader.rate, cut_off=reader.cut_off)
    for frame in reader.frames(json.loads(sys.stdin.readline())):
        check_size(file, frame.shape[1], frame.shape[0], 1, asked)
        small = np.ascontiguousarray(readers.scaled(frame, asked.side))
        answers.give(small.tobytes(), shape=small.shape)


def audio(asked: Any, answers: Answers) -> None:
    """Give all samples with their rates, the mean of all channels."""
    file, options = Path(asked.file), ffmpeg_options(asked)
    check_packets(file, asked, "audio", options, AudioError)
    seconds, count = Fraction(0), 0
    for samples, rate in module(asked.module).AudioFile(file, skip_damaged=None, options=options):
        seconds, count = seconds + Fraction(len(samples), rate), count + len(samples)
        if seconds > asked.audio_seconds:  # a file may announce less than it holds
            raise too_long(file, asked.audio_seconds, AudioError)
        check_samples(file, count, asked)
        answers.give(samples.tobytes(), samples=len(samples), rate=rate)
    answers.give(samples=0)


def check_packets(file: Path, asked: Any, kind: str, options: dict[str, str], error: type[MmaccelError]) -> None:
    """Raise unless this is a media file within bounds, from its header and the packets that it holds.

    Seconds are counted from the packets: the header may say anything.
    """
    most = asked.clip_seconds if kind == "video" else asked.audio_seconds
    try:
        with av.open(str(file.absolute()), options=options, metadata_errors="replace") as container:
            streams = getattr(container.streams, kind)
            if not streams:
                raise error(f"{file} holds no {kind}: upload one that does")
            context, played, count = streams[0].codec_context, Fraction(0), 0
            for packet in packets(container, streams[0]):
                played, count = played + (packet.duration or 0) * (packet.time_base or 0), count + 1
                if played > most or count > FASTEST * most and kind == "video":
                    raise too_long(file, most, error)
                if kind == "video":
                    check_size(file, context.width, context.height, count, asked)
                else:
                    check_samples(file, float(played * context.sample_rate * context.channels), asked)
    except (av.FFmpegError, ValueError) as problem:
        if isinstance(problem, MmaccelError):
            raise
        raise error(f"{file} is no {kind} file, or is damaged: upload another, such as .mp4 or .wav") from problem


def packets(container: Any, stream: Any) -> Iterator[Any]:
    return (packet for packet in container.demux(stream) if packet.size)


def check_picture(file: Path, asked: Any, formats: tuple[str, ...]) -> None:
    """As `check_packets`, for pictures that move."""
    try:
        with Image.open(file, formats=formats) as picture:
            check_size(file, *picture.size, 1, asked)
            check_size(file, *picture.size, getattr(picture, "n_frames", 1), asked)
    except (OSError, EOFError, SyntaxError, ValueError) as problem:
        if isinstance(problem, MmaccelError):
            raise
        raise VideoFileError(f"{file} is no video file, or is damaged: upload another, such as .mp4") from problem


def check_size(file: Path, width: int, height: int, frames: int, asked: Any) -> None:
    """Raise where a frame, or all of them together, have more pixels than allowed."""
    # FFmpeg, which is told a bound too, tells no size of what is beyond it.
    if not 0 < width * height <= asked.frame_pixels:
        raise VideoFileError(
            f"{file} has frames of more than {asked.frame_pixels / 1e6:.1f} million pixels, the limit here:"
            " upload a smaller one"
        )
    if width * height * frames > asked.clip_pixels:
        raise VideoFileError(
            f"{file} has more than {asked.clip_pixels / 1e9:g} billion pixels in all its frames, the limit"
            " here: upload a part of it, or a smaller one"
        )


def check_samples(file: Path, count: float, asked: Any) -> None:
    if count > asked.audio_samples:
        raise AudioError(
            f"{file} has more than {asked.audio_samples / 1e6:.0f} million samples in all its channels, which is the"
            " most here: upload a part of it, or at a lower rate"
        )


def too_long(file: Path, most: float, error: type[MmaccelError]) -> MmaccelError:
    return error(f"{file} lasts longer than {most:g} s, the limit here: upload a part of it")


def ffmpeg_options(asked: Any) -> dict[str, str]:
    """What FFmpeg holds to, whatever a header says; it counts pixels with those that it pads frames with."""
    most = asked.frame_pixels + PADDING
    return {"format_whitelist": FORMATS, "protocol_whitelist": "file", "max_pixels": str(most)}


def module(path: str) -> Any:
    """A module read from its file: importing it by name would import the package around it, and torch."""
    spec = importlib.util.spec_from_file_location("reader", path)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


WORK = {"video": video, "audio": audio}

if __name__ == "__main__":
    main()
