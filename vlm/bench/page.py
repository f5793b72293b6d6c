"""The page of `mmaccel bench vlm`."""

from __future__ import annotations

from mmaccel.bench.benchmark import Row
from mmaccel.bench.pages import markdown
from mmaccel.bench.winners import Figure, ahead
from mmaccel.comparison.results import called, cell

TITLE = "Video questions"
INTRO = """
Measured by `mmaccel bench vlm --full` on `tiny-onevision` (a real LLaVA-OneVision of small size, trained by
`mmaccel.demos.training.onevision.train` and `mmaccel.demos.training.onevision.thin`), 64 visual tokens a frame, greedy
answers. {clips}

*right* is the share of held-out questions answered word for word, *worst kind* that of the kind of question with the
fewest right answers, *of plain* the mean against all tokens'. *keep* is the setting of that name. *tokens* is the share
of the visual tokens that the language model got, a mean over its layers: where a method drops some of them inside it,
`keep` says another share, and methods are to be compared by this one. *first token* is the time from the end of the
vision tower to the first token, compression included; *with tower* has the tower too; both are ratios to the plain
model in one alternation. *every n-th frame* is the plain model on fewer frames. The picture is of the first kind of
clips, and its time has the tower too. The raw rows are in [{json}]({json}).

{plot}
"""

LIMITS = """
- **Fewer frames** save the tower's time too: no method that begins behind the tower can be as fast. They miss what
  happens between two of them, and lose nothing where nothing does.
- **`HoliTom`** stores what stands still once, in the first frame of a segment. The tower of this small model finds
  adjacent frames more alike than large ones do, so that the paper's tau takes moving things for still ones, and 0.9
  fewer. Still tokens are clustered by `exp(-d^2)` of their distances, and so by the size of tokens: with tokens as
  large as they came from training fewer questions were right than with small ones, and the model is shipped with
  these, at which it answers as at any other size. What moves then has tokens in every frame, and what
  stands only a few in all: of three things the model overlooked one, whatever was merged, until it was trained on
  things shown so unevenly.
- **`EarlyTom`** merges frames in the middle of a segment only: short segments spare less of the tower's work than long
  ones do. Where only frames merge that are alike in every place (`alike`), more is seen of what is there for a moment,
  and the tower is spared a little less.
- **Methods by attention** compute the tower's last attention once more to read it, which costs a part of the tower.
"""
TITLES = {"brief": "Brief events", "slow": "Slow clips", "long": "Brief events in 64 frames"}
ABOUT = {
    "brief": "In clips of *brief events*, 32 frames long, a thing is seen for 2 to 4 frames, or crosses the picture in"
    " 5 to 8 and is gone, and questions are about it.",
    "slow": "In *slow clips* of 32 frames what comes stays, and moves a pixel a frame.",
    "long": "Clips of *64 frames* are twice as long as those that the model was trained on.",
}
FIGURES = (
    Figure("questions answered right, mean", lambda row: row["quality"], " points", scale=100),
    Figure("questions answered right, worst kind", lambda row: row.get("quality_worst"), " points", scale=100),
)
FEWER = "fewer frames"
NEARLY = 0.3  # of a share of the tokens, within which a row counts as of that share
EQUAL = """
Whatever `keep` says: of each method the setting with which the language model gets about so many of the visual tokens,
on the mean over its layers. A cell is what is answered right, in brackets of the worst kind of question, and with how
many of the tokens; it is empty where no setting that was measured comes near.
""".strip()
HEADINGS = (
    "method",
    "right",
    "keep",
    "tokens",
    "worst kind",
    "of plain",
    "first token",
    "speed-up",
    "tower",
    "with tower",
    "tokens/s",
    "cache",
)


def groups(found: list[Row]) -> dict[str, list[Row]]:
    """Rows by the kind of their clips, without the plain model."""
    names = dict.fromkeys(row["table"] for row in found)
    return {TITLES[name]: [r for r in found if r["table"] == name and r["method"] != "plain"] for name in names}


def facts(found: list[Row]) -> dict[str, str]:
    """What the introduction says of the clips that were measured."""
    return {"clips": "\n".join(ABOUT[name] for name in dict.fromkeys(row["table"] for row in found))}


def tables(found: list[Row]) -> dict[str, str]:
    """For each kind of clips a table of all entries at each share of the tokens, and one at equal tokens."""
    pages = {}
    for name in dict.fromkeys(row["table"] for row in found):
        rows = [row for row in found if row["table"] == name]
        for share in _shares(rows):
            group = [r for r in rows if not _is_method(r) or r["share"] == share]
            pages[f"{TITLES[name]}: {share:.0%} of the tokens"] = _table(group)
        pages[f"{TITLES[name]}: at equal tokens"] = f"{EQUAL}\n\n{_equal_table(rows)}\n\n{at_equal_tokens(rows)}"
    return pages


def at_equal_tokens(rows: list[Row]) -> str:
    """The best method against fewer frames, where the language model gets about as many tokens of both."""
    pairs = [_best_and_fewer(rows, share) for share in _shares(rows)]
    found = [pair for pair in pairs if pair is not None]
    told = "; ".join(filter(None, (ahead(figure, found, _tokens) for figure in FIGURES)))
    return f"- At equal tokens, the best of ours against fewer frames: {told}." if told else ""


def _best_and_fewer(rows: list[Row], share: float) -> tuple[Row, Row] | None:
    near = nearest(rows, share)
    best = FIGURES[0].best(row for row in near if _is_method(row))
    fewer = next((row for row in near if row["method"] == FEWER), None)
    return None if best is None or fewer is None else (best, fewer)


def nearest(rows: list[Row], share: float) -> list[Row]:
    """Of each method the row whose tokens are nearest to a share; none where all are far from it."""
    found: dict[str, Row] = {}
    for row in sorted(rows, key=lambda row: abs(row["visual_share"] - share)):
        found.setdefault(series(row), row)
    return [row for row in found.values() if abs(row["visual_share"] - share) < NEARLY * share]


def _shares(rows: list[Row]) -> list[float]:
    return sorted({row["share"] for row in rows if _is_method(row)}, reverse=True)


def _tokens(row: Row) -> str:
    return f"{row['visual_share']:.0%} of the tokens"


def _equal_table(rows: list[Row]) -> str:
    """A line for each method, a column for each share of the tokens."""
    columns = {share: {series(row): _equal_cell(row) for row in nearest(rows, share)} for share in _shares(rows)}
    names = sorted({name for found in columns.values() for name in found}, key=lambda name: (name != FEWER, name))
    lines = [[name, *(found.get(name, "") for found in columns.values())] for name in names]
    return markdown(("method", *(f"{share:.0%} of the tokens" for share in columns)), lines)


def _equal_cell(row: Row) -> str:
    worst = "" if row["quality_worst"] is None else f" ({row['quality_worst']:.1%})"
    return f"{row['quality']:.1%}{worst} with {row['visual_share']:.1%}"


def _is_method(row: Row) -> bool:
    return row.get("kind") not in ("plain", "simple")


def _table(group: list[Row]) -> str:
    return markdown(
        HEADINGS,
        map(_line, sorted(group, key=lambda r: (_is_method(r), -r["share"] * (not _is_method(r)), -r["quality"]))),
    )


def _line(r: Row) -> list[str]:
    keep, worst = r["settings"].get("keep"), r["quality_worst"]
    return [
        label(r),
        f"{r['quality']:.1%}",
        cell(keep, ".0%"),
        f"{r['visual_share']:.1%}",
        cell(worst, ".1%"),
        f"{r['quality'] / max(r['baseline_quality'], 1e-9):.1%}",
        f"{1000 * r['first_token_seconds']:.0f} ms",
        f"{r['first_token_speedup']:.2f}x",
        f"{r['tower_speedup']:.2f}x",
        f"{r['speedup']:.2f}x",
        f"{r['tokens_per_second']:.0f}",
        f"{r['cache_bytes'] / 2**20:.1f} MiB",
    ]


def series(row: Row) -> str:
    """The line that a row lies on in a picture: a method with its settings, but for how much it keeps."""
    if row["method"] in ("plain", "fewer frames"):
        return str(row["method"])
    settings = {name: value for name, value in row["settings"].items() if name != "keep"}
    return called({**row, "settings": settings}).removeprefix("vlm.").removesuffix("()")


def label(row: Row) -> str:
    """What a row is called in a table that tells how much is kept."""
    if row.get("kind") != "simple":
        return series(row)
    step = row["settings"]["step"]
    return f"every {step}{'nd' if step == 2 else 'th'} frame"
