"""A question about a video file from its first byte to the first token of the answer: plain, compressed, and watched.

    python -m mmaccel.demos.vlm.watched_video --output docs/benchmarks/long/watched_video

Clips of brief events of `tiny-onevision`'s world are written as H.264 files and read again, 32 frames each, by every
entry in turns. Timed is all of it: decoding, preparing, vision tower, prefill, first token.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

import mmaccel
from mmaccel import vlm, zoo
from mmaccel.bench import pages
from mmaccel.comparison import results
from mmaccel.comparison.runner import turned
from mmaccel.demos.vlm.hours_of_video import clips
from mmaccel.vlm.answering import prepare
from mmaccel.vlm.bench.timing import NEW, TokenClock

MODEL = "tiny-onevision"
FRAMES = 32
FIFTH = vlm.StreamingCompression(keep=0.2, interval=3)
# Of a file, a question and a clock: the answer, and how many frames were seen.
Entry = Callable[[Path, str, TokenClock], tuple[str, int]]


def write(frames: Any, path: Path, size: int) -> None:
    """Frames uint8 `[F, H, W, 3]`, enlarged to `size` pixels, as an H.264 file."""
    import av
    from PIL import Image

    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=8, options={"crf": "18"})
        stream.width = stream.height = size
        stream.pix_fmt = "yuv420p"
        for frame in frames:
            picture = Image.fromarray(frame).resize((size, size), Image.Resampling.NEAREST)
            container.mux(stream.encode(av.VideoFrame.from_image(picture)))
        container.mux(stream.encode())


def entries(model: Any, processor: Any) -> dict[str, Entry]:
    """What is compared: each answers questions about a file."""

    def plain(path: Path, question: str, clock: TokenClock, target: Any = model) -> tuple[str, int]:
        inputs = prepare(processor, vlm.read_video(path, frames=FRAMES), [question])
        tokens = target.generate(**inputs, max_new_tokens=NEW, do_sample=False, logits_processor=[clock])
        return processor.decode(tokens[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True).strip(), FRAMES

    def compressed(method: Any) -> Entry:
        def run(path: Path, question: str, clock: TokenClock) -> tuple[str, int]:
            with mmaccel.accelerate(model, method) as session:
                return plain(path, question, clock, session)

        return run

    def watched(still: float) -> Entry:
        def run(path: Path, question: str, clock: TokenClock) -> tuple[str, int]:
            with vlm.VideoStream(model, processor, FIFTH) as stream:
                seen = vlm.watch(stream, path, still, frames=FRAMES)
                return stream.ask(question, NEW, logits_processor=[clock]), seen.frames

        return run

    return {
        "plain": plain,
        "HoliTom(keep=0.15)": compressed(vlm.HoliTom(keep=0.15)),
        **{f"watch(still={still})": watched(still) for still in (0, 24, 80, 96)},
    }


def rows(model: Any, processor: Any, asked: list[Any], size: int) -> Iterator[dict[str, Any]]:
    """One row for each question, about a clip of its own, and entry."""
    made = list(entries(model, processor).items())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "clip.mp4"
        for number, question in enumerate(tqdm(asked, unit="clip")):
            write(question.frames, path, size)
            for name, run in turned(made, number):
                clock, began = TokenClock(), time.perf_counter()
                answer, frames = run(path, question.question, clock)
                seconds = clock.times[0] - began
                row = {"entry": name, "frames": frames, "seconds": seconds, "right": answer == question.answer}
                yield {**row, "threads": torch.get_num_threads()}


def page(result: dict[str, Any]) -> str:
    intro = (
        f"`python -m mmaccel.demos.vlm.watched_video`: clips of brief events of `{MODEL}`'s world, 32 frames of"
        f" {result['size']} x {result['size']} pixels in H.264, from the file to the first token: decoding, preparing,"
        " vision tower, prefill. Entries take turns on each clip, speed-ups are medians of ratios. `watch` decodes,"
        " prepares, encodes and reads in a thread each, leaves out frames of which no part differs by `still` levels of"
        " 255, and"
        f" keeps a fifth of the tokens of the others (`{FIFTH}`), in a tower that reuses what it computed of like ones;"
        " `HoliTom` shortens what the tower made of all frames. Of these settings and of 80 it was seen on other clips,"
        " of seeds 7 and 21, that they keep the answers. With one thread for each pass, watching uses the cores that"
        " plain passes leave idle; where these have all of them, what is left is the work that is not done."
    )
    counts = sorted({row["threads"] for row in result["rows"]})
    sections = {
        f"Brief events, {count} thread{'s' * (count > 1)} for each pass": _table(
            [row for row in result["rows"] if row["threads"] == count]
        )
        for count in counts
    }
    return pages.page(result, "From a file to the first token", intro, sections)


def _table(rows: list[dict[str, Any]]) -> str:
    names = list(dict.fromkeys(row["entry"] for row in sorted(rows, key=lambda row: row["entry"] != "plain")))
    plain = [row for row in rows if row["entry"] == "plain"]
    lines = [_line(name, [row for row in rows if row["entry"] == name], plain) for name in names]
    return pages.markdown(("entry", "frames", "seconds", "speed-up", "right", "of plain"), lines)


def _line(name: str, some: list[dict[str, Any]], plain: list[dict[str, Any]]) -> tuple[str, ...]:
    right, of = (sum(row["right"] for row in each) for each in (some, plain))
    return (
        name,
        f"{sum(row['frames'] for row in some) / len(some):.1f}",
        f"{results.median(row['seconds'] for row in some):.3f}",
        f"{results.median(p['seconds'] / row['seconds'] for row, p in zip(some, plain, strict=True)):.2f}x",
        f"{right / len(some):.1%} of {len(some)}",
        f"{right / max(1, of):.1%}",
    )


def main(argv: list[str] | None = None) -> None:
    parser = pages.output_parser(__doc__)
    parser.add_argument("--clips", type=int, default=30, help="clips, with a question each (default 30)")
    parser.add_argument("--size", type=int, default=256, help="pixels of a side (default 256)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, nargs="+", default=[1], help="threads of a pass (default 1)")
    args = parser.parse_args(argv)
    model, processor = zoo.load(MODEL)
    asked = [one[n % len(one)] for n, one in enumerate(clips(args.clips, brief=True, seed=args.seed))]

    def every() -> Iterator[dict[str, Any]]:
        for count in args.threads:
            torch.set_num_threads(count)
            yield from rows(model, processor, asked, args.size)

    result = results.result(every())
    result["size"] = args.size
    pages.write(args.output, result, page)


if __name__ == "__main__":
    main()
