"""The board of a tab: how far two runs are, side by side, and what they gave in large type."""

from __future__ import annotations

import base64
import html
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO

import numpy as np
from PIL import Image

PLAIN, ACCELERATED = "plain", "accelerated"
# What is said of a stage while it lasts.
SAID = {
    "wait": "Waiting for another run to end.",
    "load": "Loading the model, once for all visitors.",
    "warm up": "Warming up with a run that is not counted.",
    PLAIN: "First the plain model, alone: two runs at once would slow each other.",
    ACCELERATED: "Now the accelerated one. The plain one is shown beside it, at the pace it just had.",
    "measure": "Measuring what the speed costs in quality.",
}
MOST_CELLS = 1024  # of a picture that appears token by token
SETTLED = 1.05  # times from which on one run is called faster than another


class Progress:
    """What the stages of a run tell, as a page: a lane for each run that is compared.

    The runs come one after the other. While the second runs, the first is shown at its recorded pace beside it.

    Parameters
    ----------
    lanes
        Names of the stages that are compared.
    """

    def __init__(self, lanes: Sequence[str] = (ACCELERATED,)) -> None:
        self.lanes, self.stage = tuple(lanes), ""
        self._paces: dict[str, list[tuple[float, float]]] = {}  # seconds since the stage began, and share done
        self._over: set[str] = set()
        self._shown: dict[str, float] = {}
        self._began = time.perf_counter()
        self._guard = threading.Lock()

    def tell(self, share: float | None, name: str) -> None:
        """A stage began, or came so far; for :class:`Run`."""
        with self._guard:
            if name != self.stage:
                self._end()
                self.stage, self._began = name, time.perf_counter()
                self._paces[name] = []
            self._paces[name].append((time.perf_counter() - self._began, share or 0.0))

    def _end(self) -> None:
        if self.stage in self._paces:
            self._paces[self.stage].append((time.perf_counter() - self._began, 1.0))
            self._over.add(self.stage)

    def share(self, lane: str, seconds: float) -> float:
        """How far a lane was after so many seconds of its own run."""
        pace = self._paces.get(lane) or [(0.0, 0.0)]
        times, shares = ([point[place] for point in pace] for place in (0, 1))
        return float(np.interp(seconds, times, shares))

    def page(self) -> str:
        """The lanes as they are now."""
        with self._guard:
            alone = self.lanes == (ACCELERATED,) and self.stage == ACCELERATED
            said = "" if alone else SAID.get(self.stage, f"{self.stage} ...".capitalize())
            lanes = "".join(self._lane(lane) for lane in self.lanes)
        return f'<div class="race">{lanes}<p class="said">{html.escape(said)}</p></div>'

    def _lane(self, lane: str) -> str:
        last = self.lanes[-1]
        now = self._paces[last][-1][0] if last in self._over else time.perf_counter() - self._began
        if self.stage == lane or lane in self._over:
            racing = self.stage in self.lanes or last in self._over
            length = self._paces[lane][-1][0] if lane in self._over else now
            seconds = min(now, length) if racing else length
            share = self.share(lane, seconds)
        else:
            seconds = share = 0.0
        before, self._shown[lane] = self._shown.get(lane, 0.0), 100 * share
        start = min(before, 100 * share)
        return (
            f'<div class="lane {lane}"><span class="name">{lane}</span><span class="track" role="progressbar"'
            f' aria-label="{lane}" aria-valuenow="{100 * share:.0f}" aria-valuemin="0" aria-valuemax="100">'
            f'<i style="--from:{start:.1f}%;--to:{100 * share:.1f}%"></i></span>'
            f'<span class="time">{seconds:.1f} s</span></div>'
        )


@dataclass(frozen=True)
class Scoreboard:
    """What a run gave, for the board.

    Attributes
    ----------
    gain
        The figure that is shown largest, such as ``"2.4x faster"``.
    cost
        What it costs in quality, in plain words.
    times
        Figures of the two runs, with their unit; empty where only one ran.
    said
        How it was measured.
    film
        HTML of both outputs as they came to be.
    """

    gain: str
    cost: str
    times: Sequence[tuple[str, float]] = ()
    unit: str = "s"
    said: str = ""
    film: str = ""

    def page(self) -> str:
        """The board: read out by screen readers once."""
        longest = max((value for _, value in self.times), default=0.0) or 1.0
        bars = "".join(
            f'<div class="lane {name}"><span class="name">{name}</span><span class="track">'
            f'<i style="--from:0%;--to:{100 * value / longest:.1f}%"></i></span>'
            f'<span class="time">{value:.2f} {self.unit}</span></div>'
            for name, value in self.times
        )
        gain = "gain" if self.won else "gain none"
        told = f'<p class="cost">{html.escape(self.cost)}</p>{bars}<p class="said">{html.escape(self.said)}</p>'
        return (
            f'<div class="verdict" role="status"><p class="{gain}">{html.escape(self.gain)}</p>'
            f'<div class="told">{told}</div>{self.film}</div>'
        )

    @property
    def won(self) -> bool:
        """Whether the last run took least, or was alone."""
        return not self.times or self.times[-1][1] == min(value for _, value in self.times)


def ratio(before: float, after: float, more: str = "faster", less: str = "slower") -> str:
    """How many times less the second figure is, in words.

    Examples
    --------
    >>> ratio(2.4, 1.0), ratio(1.0, 1.01), ratio(1.0, 2.0)
    ('2.4x faster', 'as fast', '2.0x slower')
    """
    if before >= SETTLED * after:
        return f"{before / after:.1f}x {more}"
    if after >= SETTLED * before:
        return f"{after / before:.1f}x {less}"
    return "as fast" if more == "faster" else "the same"


def notice(title: str, message: str) -> str:
    """The board of a run that gave nothing, with the reason; `message` is HTML."""
    return f'<div class="notice" role="alert"><h3>{html.escape(title)}</h3><p>{message}</p></div>'


def film(pictures: Sequence[tuple[str, Image.Image, Sequence[float] | None]], columns: int) -> str:
    """Pictures that appear token by token, each at the pace that its run had: name, picture, seconds of its tokens.

    Empty where a run did not tell, or has too many tokens for a page.
    """
    if any(seconds is None or not 0 < len(seconds) <= MOST_CELLS for _, _, seconds in pictures):
        return ""
    shown = "".join(_appearing(name, picture, seconds or (), columns) for name, picture, seconds in pictures)
    return f'<div class="film">{shown}</div>'


def _appearing(name: str, picture: Image.Image, seconds: Sequence[float], columns: int) -> str:
    cells = "".join(f'<i style="--at:{second:.2f}s"></i>' for second in seconds)
    image = f'<img src="{embedded(picture)}" alt="the {name} picture">'
    grid = f'<span class="cells" style="--columns:{columns}" aria-hidden="true">{cells}</span>'
    return f"<figure><div>{image}{grid}</div><figcaption>{name}</figcaption></figure>"


def embedded(picture: Image.Image, side: int = 384) -> str:
    """A picture as an address that holds it, no larger than `side` pixels."""
    small = picture.convert("RGB")
    small.thumbnail((side, side))
    file = BytesIO()
    small.save(file, format="webp", quality=88)
    return "data:image/webp;base64," + base64.b64encode(file.getvalue()).decode()
