"""A comparison as one self-contained HTML page, which loads nothing from elsewhere."""

from __future__ import annotations

import base64
import io
import json
import tempfile
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from ..files.pictures import enlarged
from .difference import FACTOR, difference, marked, worst_row, worst_texts
from .results import described

if TYPE_CHECKING:
    from .comparison import Comparison, Pair

LARGE = 2**20  # pixels from which a picture is written as WebP
MOST_TEXTS = 20  # shown answers of a batch; those that differ most come first

STYLE = """
:root { color-scheme: light dark; --ink: #1c1c1e; --soft: #63636a; --line: #dcdce0; --card: #f5f5f7; --back: #fff;
  --good: #1a7f4b; --bad: #b3261e; --mark: #8a5a00 }
@media (prefers-color-scheme: dark) { :root { --ink: #ececf0; --soft: #a2a2ab; --line: #3a3a40; --card: #242428;
  --back: #161618; --good: #5fd39a; --bad: #ff8a80; --mark: #ffc766 } }
* { box-sizing: border-box }
body { margin: 0 auto; padding: 1.2rem; max-width: 70rem; font: 16px/1.5 system-ui, sans-serif; color: var(--ink);
  background: var(--back); overflow-wrap: break-word }
h1 { font-size: 1.5rem; margin: 0 0 .2rem } h2 { font-size: 1.1rem; margin: 2rem 0 .2rem }
p, ul { margin: .3rem 0 } .soft { color: var(--soft); font-size: .9rem } ul { padding-left: 1.2rem }
table { border-collapse: collapse; width: 100%; margin: 1rem 0; font-size: .92rem; font-variant-numeric: tabular-nums }
th, td { text-align: left; padding: .4rem .7rem .4rem 0; border-bottom: 1px solid var(--line); vertical-align: top }
th { color: var(--soft); font-weight: 500 } tr.plain, tr.simple { color: var(--soft) }
td.name { font-weight: 600; overflow-wrap: anywhere }
tr.idle td.name::after { content: " did nothing"; color: var(--bad); font-weight: 600 }
td.slower { color: var(--bad) } td.faster { color: var(--good) }
.notes li { color: var(--mark) }
.pair { display: grid; grid-template-columns: repeat(3, minmax(0, 1fr)); gap: .7rem; margin: .7rem 0; max-width: 66rem }
figure { margin: 0 } figcaption { font-size: .85rem; color: var(--soft); margin-top: .2rem }
img, video { width: 100%; display: block; border-radius: 6px; background: var(--card) }
.answers div { background: var(--card); border-radius: 6px; padding: .6rem .8rem; margin: .5rem 0 }
.answers h3 { font-size: .95rem; font-weight: 600; margin: 0 0 .3rem }
.answers p { margin: .15rem 0 } .answers b { color: var(--soft); font-weight: 500; font-size: .85rem }
del { color: var(--bad); text-decoration: line-through } ins { color: var(--good); text-decoration: underline }
.controls { display: flex; gap: .7rem; align-items: center; max-width: 66rem } .controls input { flex: 1 }
button { font: inherit; padding: .35rem 1.1rem; border: 1px solid var(--line); border-radius: 6px; color: inherit;
  background: var(--card); cursor: pointer }
details { margin-top: 2rem } .answers details { margin-top: .5rem } summary { cursor: pointer; color: var(--soft) }
@media (max-width: 46rem) {
  .pair { grid-template-columns: repeat(2, minmax(0, 1fr)) } .pair figure:nth-child(3) { grid-column: 1 / 3 }
  .pair figure:nth-child(3) > :first-child { width: 50% }
  thead { display: none } tr { display: block; padding: .5rem 0; border-bottom: 1px solid var(--line) }
  td { display: flex; justify-content: space-between; gap: 1rem; border: 0; padding: .1rem 0 }
  td.name { display: block } td:empty { display: none } td:not(.name)::before { content: attr(data-name);
  color: var(--soft) } td:not(.name) { text-align: right } }
"""
# All clips of a group start together, and go on together when the first has ended.
SCRIPT = """
for (const group of document.querySelectorAll('.clips')) {
  const clips = [...group.querySelectorAll('video')], button = group.querySelector('button');
  const slider = group.querySelector('input'), first = clips[0];
  const seek = time => { for (const clip of clips) clip.currentTime = time };
  const play = () => { for (const clip of clips) clip.play(); button.textContent = 'Pause' };
  const stop = () => { for (const clip of clips) clip.pause(); button.textContent = 'Play' };
  button.onclick = () => first.paused ? (seek(first.ended ? 0 : first.currentTime), play()) : stop();
  slider.oninput = () => { stop(); seek(slider.value * (first.duration || 0)) };
  first.ontimeupdate = () => { if (!first.paused) slider.value = first.currentTime / (first.duration || 1) };
  first.onended = () => { seek(0); play() };
}
"""
POLICY = "default-src 'none'; img-src data:; media-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def page(comparison: Comparison) -> str:
    """The whole page; everything that came from a user or a model is escaped."""
    header = comparison.result["header"]
    runs, seeds = len(comparison.rows[0]["samples"]), header["seeds"]
    made = f"Medians of {runs} runs in turns (lowest to highest)" if runs > 1 else "One run of each, too few to trust"
    meanings = " ".join(f"<b>{escape(m.title)}</b>: {escape(m.meaning)}." for m in comparison.metrics)
    drawn = f"seed{'s' if len(seeds) > 1 else ''} {', '.join(str(seed) for seed in seeds)}"
    parts = [
        f"<h1>{escape(header['model'])}: what each method gains and costs</h1>",
        f"<p class=soft>{escape(header['target'])}, {_call(header['call'])}</p>",
        _table(comparison),
        _list(comparison.notes(), "notes"),
        f"<p class=soft>{made}, {drawn}, warm-up left out. The speed-up is the median of the ratios within a round."
        f"{_simple(comparison)} {meanings}</p>",
        *(_pair(comparison, pair) for pair in comparison.pairs),
        _machine(comparison),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(header['model'])} compared</title><style>{STYLE}</style></head>\n<body>\n"
        + "\n".join(parts)
        + f"\n<script>{SCRIPT}</script></body></html>\n"
    )


def _call(call: dict[str, object]) -> str:
    return ", ".join(f"{escape(str(name))}={escape(json.dumps(value))}" for name, value in call.items())


def _table(comparison: Comparison) -> str:
    headings, lines = comparison.table()
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = []
    for row, line in zip(comparison.rows, lines, strict=True):
        kinds = ["name", "", *[""] * (len(line) - 2)]
        if row["kind"] != "plain":
            low, high = row["speedup_range"]  # no colour where rounds contradict each other
            kinds[2] = "faster" if low > 1 else "slower" if high < 1 else ""
        cells = "".join(
            f'<td class="{kind}" data-name="{escape(heading)}">{escape(cell)}</td>'
            for kind, heading, cell in zip(kinds, headings, line, strict=True)
        )
        body.append(f'<tr class="{row["kind"]}{" idle" if row["idle"] else ""}">{cells}</tr>')
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def _list(texts: list[str], kind: str) -> str:
    return f'<ul class="{kind}">{"".join(f"<li>{escape(text)}</li>" for text in texts)}</ul>' if texts else ""


def _simple(comparison: Comparison) -> str:
    names = sorted({row["method"] for row in comparison.rows if row["kind"] == "simple"})
    return f" <b>{escape(names[0])}</b>: what anyone can do without a method, in about the same time." if names else ""


def _pair(comparison: Comparison, pair: Pair) -> str:
    seeds = len(comparison.result["header"]["seeds"])
    which = f"the worst of {seeds} seeds: {pair.seed}" if seeds > 1 else f"seed {pair.seed}"
    figures = [f"{m.title} {pair.figures[m.key]:{m.form}}" for m in comparison.metrics if m.key in pair.figures]
    row = next(row for row in comparison.rows if row["label"] == pair.label)
    if row["same_distribution"] and not row["equal"]:
        figures.append("two samples of one distribution: the difference is no error")
    head = f"<h2>{escape(pair.label)}</h2><p class=soft>{escape('; '.join([which, *figures]))}</p>"
    if pair.plain.texts:
        return head + _answers(pair)
    if not pair.plain.clips:
        return head + "<p class=soft>The output is latents or tokens, and no picture.</p>"
    return head + _pictures(pair)


def _pictures(pair: Pair) -> str:
    row = worst_row(pair.plain, pair.other)
    sides = pair.plain.clips[row], pair.other.clips[row]
    maps = [difference(one, other) for one, other in zip(*sides, strict=True)]
    names = ("plain", pair.label, f"difference, {FACTOR} times brighter")
    if len(pair.plain.clips) > 1:
        names = (f"plain, row {row + 1} of {len(pair.plain.clips)}, which differs most", *names[1:])
    shown = [_media([enlarged(frame) for frame in clip], pair.plain.rate) for clip in (*sides, maps)]
    figures = "".join(
        f"<figure>{media}<figcaption>{escape(name)}</figcaption></figure>"
        for media, name in zip(shown, names, strict=True)
    )
    grid = f'<div class="pair">{figures}</div>'
    if "<video" not in grid:
        return grid
    controls = '<button type="button">Play</button><input type="range" min=0 max=1 step=any value=0 aria-label="time">'
    return f'<div class="clips">{grid}<div class="controls">{controls}</div></div>'


def _media(clip: list[Image.Image], rate: float) -> str:
    """A picture, or a clip in H.264; without PyAV an animated picture."""
    if len(clip) == 1:
        return f'<img alt="" src="{_picture(clip[0])}">'
    from ..errors import MissingExtraError
    from ..files import clips

    with tempfile.TemporaryDirectory() as folder:
        try:
            path = Path(folder) / "clip.mp4"
            clips.save(clip, path, rate)
            tag, kind = '<video muted playsinline preload="auto" src="{}"></video>', "video/mp4"
        except MissingExtraError:
            path = Path(folder) / "clip.webp"
            clips.save(clip, path, rate)
            tag, kind = '<img alt="" src="{}">', "image/webp"
        return tag.format(_data(kind, path.read_bytes()))


def _picture(picture: Image.Image) -> str:
    kind = "webp" if picture.width * picture.height > LARGE else "png"
    buffer = io.BytesIO()
    picture.convert("RGB").save(buffer, kind, quality=90)
    return _data(f"image/{kind}", buffer.getvalue())


def _data(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _answers(pair: Pair) -> str:
    """Both answers of each row; words that only one of them has are marked."""
    found = worst_texts(pair.plain, pair.other)
    shown = [(_answer(pair.label, *row), row[1] == row[2]) for row in found[:MOST_TEXTS]]
    differing, equal = ([block for block, same in shown if same is wanted] for wanted in (False, True))
    if len(equal) > 1:  # equal answers need no reading
        equal = [f"<details><summary>{len(equal)} of {len(found)} are the same</summary>{''.join(equal)}</details>"]
    left = f"<p class=soft>and {len(found) - MOST_TEXTS} more</p>" if len(found) > MOST_TEXTS else ""
    return f'<div class="answers">{"".join([*differing, *equal])}{left}</div>'


def _answer(label: str, name: str, plain: str, other: str) -> str:
    head = f"<h3>{escape(name)}</h3>" if name else ""
    if plain == other:
        return f"<div>{head}<p><b>both</b></p><p>{escape(plain) or '(nothing)'}</p></div>"
    one, two = (text or "(nothing)" for text in marked(plain, other))
    return f"<div>{head}<p><b>plain</b></p><p>{one}</p><p><b>{escape(label)}</b></p><p>{two}</p></div>"


def _machine(comparison: Comparison) -> str:
    header = comparison.result["header"]
    facts = [
        ", ".join(f"{name} {version}" for name, version in header["versions"].items()),
        described(header),
        header["date"],
    ]
    return f"<details><summary>Versions and machine</summary>{_list(facts, 'soft')}</details>"
