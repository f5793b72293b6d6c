"""How the rows of each benchmark are shown in docs/benchmarks/index.md."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]
Group = list[Row]


@dataclass(frozen=True)
class Section:
    """How the rows of one benchmark are shown.

    Attributes
    ----------
    kind
        Name of the benchmark, and of its files.
    groups
        Splits the rows into tables by heading; rows it leaves out are on the benchmark's own page.
    simple
        What the simple alternative is, or why there is none.
    plot
        Whether there is a picture of quality against time, and what it shows.
    higher_is_better
        Of the metric of quality.
    form
        Format of quality.
    """

    kind: str
    title: str
    groups: Callable[[Group], dict[str, Group]]
    simple: str
    plot: str = ""
    higher_is_better: bool = True
    form: str = ".3g"


def _image(rows: Group) -> dict[str, Group]:
    return {"": [r for r in rows if r["batch"] == 1 and r["guidance"] != 1]}


def _by_budget(rows: Group) -> dict[str, Group]:
    return {f"{b:.0%} of the time": [r for r in rows if r["budget"] == b] for b in _values(rows, "budget")}


def _by_share(rows: Group) -> dict[str, Group]:
    shares = [share for share in _values(rows, "share") if share < 1]
    return {f"{s:.0%} of the visual tokens": [r for r in rows if r["share"] == s] for s in sorted(shares, reverse=True)}


def _by_model(rows: Group) -> dict[str, Group]:
    return {model: [r for r in rows if r["model"] == model] for model in _values(rows, "model")}


def _speech(rows: Group) -> dict[str, Group]:
    """The longest recordings of the first model, and the parts."""
    told = [r for r in rows if r.get("refused") is None]
    streams = [r for r in told if r["table"] == "streams" and r["model"] == told[0]["model"]]
    longest = max((r["audio_seconds"] for r in streams), default=0)
    parts = [r for r in told if r["speedup"] is not None and r["model"] in (told[0]["model"], *_untrained(told))]
    found = {f"Words of {longest:.0f} s of speech": [r for r in streams if r["audio_seconds"] == longest]}
    return {
        **found,
        "Parts": [r for r in parts if r.get("audio_seconds") in (None, longest) or "seconds" in r["settings"]],
    }


def _untrained(rows: Group) -> list[str]:
    return [r["model"] for r in rows if r["model"].endswith("untrained")]


def _kernels(rows: Group) -> dict[str, Group]:
    """The best and the worst case of every op, in float32."""
    told = [r for r in rows if r["model"].endswith("float32")]
    found = []
    for name in _values(told, "method"):
        cases = sorted((r for r in told if r["method"] == name), key=lambda r: float(r["speedup"]))
        found += [cases[-1], cases[0]] if len(cases) > 1 else cases
    return {"": found}


def _values(rows: Group, name: str) -> list[Any]:
    return list(dict.fromkeys(r[name] for r in rows))


SECTIONS = (
    Section(
        "image",
        "Autoregressive images",
        _image,
        "none: every token of a picture has to be drawn, and the plain run is what there is.",
        "distance to real pictures against time; exact settings whose pictures were not judged lie on the plain line",
        higher_is_better=False,
    ),
    Section(
        "video",
        "Video diffusion transformers",
        _by_budget,
        "fewer steps.",
        "mean PSNR to the plain clip against time, at a half and a quarter of it",
        form=".1f",
    ),
    Section(
        "vlm",
        "Video questions",
        _by_share,
        "fewer frames.",
        "questions answered right against time, for each share of the visual tokens",
        form=".1%",
    ),
    Section(
        "speech",
        "Streaming speech",
        _speech,
        "fixed chunks without a stream. Time is that of the processor.",
        "word errors against processor seconds for each second of audio",
        higher_is_better=False,
        form=".1%",
    ),
    Section(
        "language",
        "Policies on a language model",
        _by_model,
        "none was measured.",
        "loss on the text that follows against time",
        higher_is_better=False,
    ),
    Section("kernels", "Kernels", _kernels, "torch's own operation, which is what the speed-up is against."),
)
