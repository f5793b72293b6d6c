"""The page and the plot of `mmaccel bench speech`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from mmaccel.bench.benchmark import Row
from mmaccel.bench.pages import markdown
from mmaccel.bench.selection import role_of
from mmaccel.comparison.quality_plot import Axes, Mark, Series

from ..audio.recordings import TEXTS
from .judged import name_of
from .judged import table as each_recording
from .stream_tables import OWN, STREAMS, own, streams

TITLE = "Streaming speech"
INTRO = """
Measured by `mmaccel bench speech --full`
on {seconds:.0f} s of human speech, {words} words in {count} recordings
whose text is known: {heard}. The models are Moonshine tiny and
Whisper tiny.en from the `[speech]` extra, in float32. One thread, and **CPU seconds** throughout, since the machine was
shared: a ratio of them is what a quiet machine would show in time, up to the caches. Recordings are pushed in chunks of
0.1 s, with an update every 0.5 s. So little speech is a check and no leaderboard: one word is {word:.1f} points of the
error rate over all words, and more of that of one recording. The raw rows, with every text, are in [{json}]({json}).

![when words stay, in each stream]({png})
"""
EACH = """
Word error rates of each recording, and their mean, in which each counts alike whatever its length.
"""
LIMITS = """
- **Drafts** save what a hypothesis shares with the one before. Segments of a second or two have one or two updates and
  little to share, so that *in the stream* saves less than *in one segment*; the encoder, which hears a growing segment
  anew at each update, and endpointing cost the same with and without.
- **Whisper with a short context** (the default, for a third of the encoder's work) hears at least 8 s. With 4 s it
  repeated single phrases of a second or two again and again, offline as in a stream; agreement on a loop is agreement,
  so that to be close to offline alone says nothing good.
- **Fixed chunks** are early and lose the words at their seams.
- **moonshine-voice** runs the same model with weights of 8 bits in its own engine, with endpointing of its own; all its
  threads are counted. Its lines are final once complete, and text before may change, so that *promised* is the end of
  a line.
- **Mimi**: what is saved is the padding that the stock module computes around each block, which is less of a large
  block, and the laying out of weights and signals for oneDNN; blocks are exact, which the stock module's are not.
- **`SuffixDraft`** on recordings that are heard once saves few calls of the decoder, as sentences do not repeat
  themselves, and its loop costs more than those on a decoder as small as this; it pays in a stream, where each update
  is drafted by the one before.
- **`MergeAudioTokens`** costs about what it saves on a decoder as small as this.
"""
DRAFTS = """
The same with every hypothesis decoded from its start. *In the stream*, which is cut at pauses, so that many segments
here are a second or two long and have little to draft from; all events are equal: words, tokens, times, and what was
shown on the way. *In one segment*: at most 15 s of speech, decoded every 0.5 s without regard to pauses; all
tokens are equal. A row whose check failed would have no figures. *all* has encoder, endpointing and times of words
too, which drafts do not change, but *packed weights* do (`StreamingRecognizer(packed=True)`).
"""
ENCODER = """
Untrained weights of the default size, {seconds} s of audio that grows in {updates} updates, all frames asked for at
each. *error* is the largest, of the largest value.
"""
CODEC = """
Untrained weights of the default size, 8 codebooks, CPU time for each frame of 80 ms. *stock* is `model.decode` of the
same blocks with its own cache, whose sound is wrong at the seams; errors are the largest, of the loudest sample, to
decoding all at once.
"""
GENERATE = """
`model.generate` on the segments of the recordings, plainly and with a method.
"""


def facts(rows: list[Row]) -> dict[str, Any]:
    """What was heard."""
    first = next(r for r in rows if r["method"] == "offline")
    return {
        "seconds": first["audio_seconds"],
        "words": first["said"],
        "count": len(first["recordings"]),
        "heard": heard(first),
        "word": 100 / first["said"],
    }


def heard(offline: Row) -> str:
    """The recordings of a row, and where they are from."""
    names = [one["name"] for one in offline["recordings"]]
    packaged, own = [name for name in names if name in TEXTS], [name for name in names if name not in TEXTS]
    joined = "sentences whose file names begin with the same letters are one recording, with pauses of a second"
    parts = [f"{_listed(packaged)} of the wheel `moonshine-voice`"] if packaged else []
    parts += [f"{_listed(own)} of a folder that is not shipped ({joined})"] if own else []
    return ", and ".join(parts)


def _listed(names: list[str]) -> str:
    return " and ".join(", ".join(f"`{name}`" for name in part) for part in (names[:-1], names[-1:]) if part)


def tables(rows: list[Row]) -> dict[str, str]:
    """A table for each kind of row."""
    sections: dict[str, str] = {}
    for name, (heading, text, table) in TABLES.items():
        group = [r for r in rows if r["table"] == name]
        if group:
            settings = (item for row in group for item in row["settings"].items())
            numbers = {key: f"{value:.3g}" for key, value in settings if isinstance(value, int | float)}
            sections[heading] = f"{text.format_map(numbers).strip()}\n\n{table(group)}"
        if name == "streams" and group:
            sections["Each recording"] = f"{EACH.strip()}\n\n{each_recording(group)}"
        if name == "streams" and any("stats" in r for r in group):
            sections["As the streams count"] = f"{OWN.strip()}\n\n{own(group)}"
    return sections


def _table(headings: tuple[str, ...], line: Callable[[Row], list[str]]) -> Callable[[list[Row]], str]:
    """A table with a line for each row; one whose check failed has no figures and says why."""
    empty = [""] * (len(headings) - 2)

    def table(group: list[Row]) -> str:
        return markdown(headings, [[r["model"], r["refused"], *empty] if r["refused"] else line(r) for r in group])

    return table


def _draft(r: Row) -> list[str]:
    calls = [str(r["decoder_calls"]), str(r["baseline_decoder_calls"]), f"{1 / r['work_ratio']:.2f}x"]
    seconds = [f"{r['decoding_seconds']:.2f}", f"{r['baseline_decoding_seconds']:.2f}", f"{r['decoding_speedup']:.2f}x"]
    what = f"{r['method'].removeprefix('drafts ')}, {r['audio_seconds']:.0f} s"
    return [r["model"], what, *calls, *seconds, f"{r['speedup']:.2f}x"]


def _encoder(r: Row) -> list[str]:
    return [r["model"], *_seconds(r), f"{r['error']:.1e}"]


def _codec(r: Row) -> list[str]:
    times = [f"{1000 * r['cpu_seconds']:.0f} ms", f"{1000 * r['baseline_cpu_seconds']:.0f} ms", f"{r['speedup']:.2f}x"]
    return [str(r["settings"]["block"]), *times, f"{r['error']:.1e}", f"{r['baseline_error']:.1e}"]


def _generate(r: Row) -> list[str]:
    worst = f", worst recording {r['quality_worst']:.1%}" if "quality_worst" in r else ""
    errors = f"{r['quality']:.1%} (plain {r['baseline_quality']:.1%}{worst})"
    calls = f"{r['decoder_calls']} of {r['baseline_decoder_calls']}"
    return [r["method"], "yes" if r["exact"] else "no", calls, *_seconds(r), errors]


def _seconds(r: Row) -> list[str]:
    return [f"{r['cpu_seconds']:.2f}", f"{r['baseline_cpu_seconds']:.2f}", f"{r['speedup']:.2f}x"]


DRAFT_COLUMNS = ("model", "what", "calls", "without drafts", "fewer", "decoder, CPU s", "without drafts", "less", "all")
ENCODER_COLUMNS = ("model", "cached, CPU s", "anew at each update", "cheaper", "error")
CODEC_COLUMNS = ("frames in a block", "StreamingCodecDecoder", "stock", "faster", "error", "error of stock")
GENERATE_COLUMNS = ("method", "exact", "decoder calls", "CPU s", "plain", "speed-up", "WER")
TABLES = {
    "streams": ("Streams", STREAMS, streams),
    "drafts": ("What drafts save", DRAFTS, _table(DRAFT_COLUMNS, _draft)),
    "encoder": ("The encoder of Moonshine v2", ENCODER, _table(ENCODER_COLUMNS, _encoder)),
    "codec": ("Mimi in blocks", CODEC, _table(CODEC_COLUMNS, _codec)),
    "generate": ("Methods of generate", GENERATE, _table(GENERATE_COLUMNS, _generate)),
}


def plot(rows: list[Row], path: Path) -> None:
    """When words are shown as ones that stay: a line for each way, from the median to the ninth of ten."""
    from matplotlib.figure import Figure

    found = [r for r in rows if r["table"] == "streams" and (r.get("promised_lag") or {}).get("ready_p50") is not None]
    colours = dict(zip(dict.fromkeys(r["model"] for r in found), ("#26547c", "#e07a5f", "#888888"), strict=False))
    figure = Figure(figsize=(9, 1.2 + 0.36 * len(found)), layout="constrained")
    axes = figure.subplots()
    for place, r in enumerate(found):
        low, high, colour = r["promised_lag"]["ready_p50"], r["promised_lag"]["ready_p90"], colours[r["model"]]
        axes.plot([low, high], [place] * 2, color=colour, linewidth=2)
        axes.scatter(low, place, color=colour, zorder=3)
        told = f"{r['quality']:.1%} wrong, {r['real_time_factor']:.2f} CPU s"
        axes.annotate(told, (high, place), xytext=(6, 0), textcoords="offset points", fontsize=8, va="center")
    axes.set_yticks(range(len(found)), [f"{r['model']}, {name_of(r)}" for r in found], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel(
        "seconds from the end of a word until it stays, with computing: median (dot) to p90;\n"
        "beside it words that are wrong, and processor seconds for each second of audio"
    )
    axes.set_xlim(0, 1.3 * max(r["promised_lag"]["ready_p90"] for r in found))
    axes.grid(axis="x", alpha=0.3)
    figure.savefig(path, dpi=110)


def picture(group: list[Row]) -> tuple[list[Series], Axes]:
    """Word errors of streams against processor seconds, for the index."""
    offline = next(row for row in group if role_of(row) == "plain")
    lines = []
    for name in dict.fromkeys(row["method"] for row in group if role_of(row) != "plain"):
        found = [row for row in group if row["method"] == name]
        lines.append(Series(name, tuple(map(_mark, found)), role_of(found[0])))
    around = Axes(
        title=f"{TITLE} on {offline['model']}",
        quality="word error rate (lower is better)",
        higher_is_better=False,
        plain=offline["quality"],
        plain_time=offline["real_time_factor"],
        plain_label="offline: the recording as a whole",
        time="processor seconds for each second of audio",
        is_share=True,
    )
    return lines, around


def _mark(row: Row) -> Mark:
    settings = row["settings"]
    return Mark(row["real_time_factor"], row["quality"], f"{settings['seconds']:g} s" if "seconds" in settings else "")
