"""Name what pictures show with fewer patch tokens: how often CLIP is right, and what a picture takes.

    python -m mmaccel.demos.training.picture_text --output runs/picture-text --minutes 13 --threads 1
    python -m mmaccel.demos.vlm.condensed_pictures --model runs/picture-text/model \
        --output docs/benchmarks/long/condensed_pictures

Quality is that of the small CLIP of the first line, on scenes that it never saw, one picture a call, as they are and
with noise, blur or little contrast, which it never saw either. Time is that of a tower of the shape of ViT-B/16 with
random weights. All ways take turns.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageFilter
from torch.nn.functional import interpolate
from tqdm import tqdm
from transformers import CLIPConfig, CLIPModel

import mmaccel
from mmaccel import vlm
from mmaccel.bench import pages
from mmaccel.comparison import results
from mmaccel.comparison.runner import turned
from mmaccel.demos.training import picture_text
from mmaccel.demos.training.recipe import to_pixels
from mmaccel.testing.untrained import untrained
from mmaccel.vlm.encoders.condensing import Condensing
from mmaccel.zoo.worlds import emoji_world

KEEPS = (0.7, 0.5, 0.3)
SIDES = (7 / 8, 3 / 4)  # of a smaller picture, as a share
CLASSES = 100  # of the tower that is timed
# Shifts of a picture uint8 [H, W, 3], by a generator of its own.
Shift = Callable[[np.ndarray, np.random.Generator], np.ndarray]
# A way to look at pictures, entered on a model: what takes the call, and what becomes of its pictures.
Entered = tuple[Any, Callable[[torch.Tensor], dict[str, Any]]]
Way = Callable[[Any], AbstractContextManager[Entered]]


class Simpler(Condensing):
    """Patches that go without a trace, by `order`: the best stay, or those that chance draws."""

    def __init__(self, layers: list[Any], keep: float, chance: bool) -> None:
        super().__init__(layers, vlm.TCA(keep=keep).shares(len(layers)))
        self.generator = torch.Generator().manual_seed(0) if chance else None

    def left(self, patches: torch.Tensor, scores: torch.Tensor, count: int) -> torch.Tensor:
        if self.generator is not None:
            scores = torch.rand(scores.shape, generator=self.generator)
        index = scores.topk(count, dim=1).indices
        return patches.gather(1, index[..., None].expand(-1, -1, patches.shape[2]))


def given(pictures: torch.Tensor) -> dict[str, Any]:
    return {"pixel_values": pictures}


@contextmanager
def plainly(model: Any) -> Iterator[Entered]:
    yield model, given


@contextmanager
def accelerated(method: vlm.TCA, model: Any) -> Iterator[Entered]:
    with mmaccel.accelerate(model, method) as fast:
        yield fast, given


@contextmanager
def simpler(keep: float, chance: bool, model: Any) -> Iterator[Entered]:
    with ExitStack() as stack:
        thinned = Simpler(list(model.vision_model.encoder.layers), keep, chance)
        thinned.attach(stack)

        def begun(pictures: torch.Tensor) -> dict[str, Any]:
            thinned.begin(None)
            return given(pictures)

        yield model, begun


@contextmanager
def smaller(share: float, model: Any) -> Iterator[Entered]:
    def shrunk(pictures: torch.Tensor) -> dict[str, Any]:
        size = round(share * pictures.shape[-1])
        left = interpolate(pictures, (size, size), mode="bilinear", antialias=True, align_corners=False)
        return {"pixel_values": left, "interpolate_pos_encoding": True}

    yield model, shrunk


def ways(model: Any) -> dict[str, tuple[Way, float]]:
    """Each with the share of patch tokens that the layers get, a mean."""
    layers, found = len(model.vision_model.encoder.layers), {"plain": (plainly, 1.0)}
    made: dict[str, tuple[Way, float]] = {**found}
    made["TCA(keep=0.999), adaptation alone"] = (partial(accelerated, vlm.TCA(keep=0.999)), 1.0)
    for keep in KEEPS:
        mean = mean_share(vlm.TCA(keep=keep).shares(layers), layers)
        made[f"TCA(keep={keep})"] = (partial(accelerated, vlm.TCA(keep=keep)), mean)
        made[f"TCA(keep={keep}, reservoir=0)"] = (partial(accelerated, vlm.TCA(keep=keep, reservoir=0)), mean)
        made[f"the most attended, {keep}"] = (partial(simpler, keep, False), mean)
        made[f"any by chance, {keep}"] = (partial(simpler, keep, True), mean)
    for share in SIDES:
        made[f"smaller pictures, {share:g} of a side"] = (partial(smaller, share), share**2)
    return made


def mean_share(shares: dict[int, float], layers: int) -> float:
    """Of the patch tokens, that a layer gets on average."""
    left = [max((n for n in shares if n <= layer), default=0) for layer in range(layers)]
    return sum(shares.get(number, 1.0) for number in left) / layers


def noisy(picture: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return (picture + rng.normal(0, 45, picture.shape)).clip(0, 255).astype(np.uint8)


def blurred(picture: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.asarray(Image.fromarray(picture).filter(ImageFilter.GaussianBlur(2.5)))


def pale(picture: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return (150 + 0.5 * (picture.astype(float) - 128)).clip(0, 255).astype(np.uint8)


SHIFTS: dict[str, Shift] = {"as trained": lambda picture, rng: picture, "noise": noisy, "blur": blurred, "pale": pale}


def right(model: Any, tokenizer: Any, count: int, seed: int) -> Iterator[dict[str, Any]]:
    """One row for each way and shift: how many pictures were named."""
    pictures, scenes = picture_text.held_out([seed, 99], count)
    answers = torch.tensor([emoji_world.FEATURED.index(scene.name) for scene in scenes])
    texts = tokenizer(list(emoji_world.FEATURED), padding=True, return_tensors="pt")
    texts = {name: texts[name] for name in ("input_ids", "attention_mask")}
    cases = list(itertools.product(SHIFTS.items(), ways(model).items()))
    for (shift, change), (name, (way, tokens)) in tqdm(cases, unit="stream"):
        rng = np.random.default_rng([seed, 5])
        stream = to_pixels(torch.from_numpy(np.stack([change(picture, rng) for picture in pictures])))
        with way(model) as (target, prepared):
            found = [int(target(**texts, **prepared(one[None])).logits_per_image.argmax()) for one in stream]
        named = int((torch.tensor(found) == answers).sum())
        yield {"way": name, "tokens": tokens, "shift": shift, "right": named, "of": count}


def base_model() -> Any:
    """A CLIP with an image tower of the shape of ViT-B/16 and random weights."""
    config = CLIPConfig(vision_config={"patch_size": 16})
    return untrained(lambda: CLIPModel(config))


def times(batches: tuple[int, ...], rounds: int) -> Iterator[dict[str, Any]]:
    """One row for each round, batch and way: seconds of a call of `get_image_features`."""
    model = base_model()
    texts = torch.randint(3, 40000, (CLASSES, 8), generator=torch.Generator().manual_seed(1))
    order = list(ways(model).items())
    pictures = torch.randn(max(batches), 3, 224, 224, generator=torch.Generator().manual_seed(2))
    for batch, turn in tqdm(list(itertools.product(batches, range(rounds))), unit="round"):
        for name, (way, _) in turned(order, turn):
            with way(model) as (target, prepared):
                target.get_text_features(texts)
                target.get_image_features(**prepared(pictures[:1]))  # warms up, and fills a place of the reservoir
                began = time.perf_counter()
                target.get_image_features(**prepared(pictures[:batch]))
                seconds = time.perf_counter() - began
            yield {"way": name, "batch": batch, "round": turn, "seconds": seconds}


def page(result: dict[str, Any]) -> str:
    quality = [row for row in result["rows"] if "shift" in row]
    timed = [row for row in result["rows"] if "seconds" in row]
    intro = (
        f"A CLIP names what a picture shows, of {len(emoji_world.FEATURED)} things, by"
        " `python -m mmaccel.demos.vlm.condensed_pictures`. Quality is of a small one trained by"
        " `python -m mmaccel.demos.training.picture_text` (12 layers, 64 patches), one picture a call, on"
        f" {quality[0]['of']} scenes that it never saw: as it was trained, and shifted in ways that it never saw."
        " *Tokens* is the share of patches that a layer of the image tower gets, a mean. *The most attended* ranks"
        " patches as TCA does, at the same depths, and neither merges nor remembers; *adaptation alone* lets no patch"
        f" go. Time is of an image tower of the shape of ViT-B/16 with random weights and {CLASSES} texts encoded"
        " before; ways take turns, medians of seconds and of ratios within a round."
    )
    sections = {"Right": _right(quality), "Time of a call of `get_image_features`": _times(timed)}
    return pages.page(result, "Pictures named with fewer patches", intro, sections)


def _right(rows: list[dict[str, Any]]) -> str:
    shifts = list(dict.fromkeys(row["shift"] for row in rows))
    found = {(row["way"], row["shift"]): row for row in rows}
    lines = [
        (way, f"{found[way, shifts[0]]['tokens']:.0%}", *(_share(found[way, shift]) for shift in shifts))
        for way in dict.fromkeys(row["way"] for row in rows)
    ]
    return pages.markdown(("way", "tokens", *shifts), lines)


def _share(row: dict[str, Any]) -> str:
    return f"{row['right'] / row['of']:.1%}"


def _times(rows: list[dict[str, Any]]) -> str:
    batches = sorted({row["batch"] for row in rows})
    seconds = {(row["way"], row["batch"], row["round"]): row["seconds"] for row in rows}
    lines = []
    for way in dict.fromkeys(sorted((row["way"] for row in rows), key=lambda way: way != "plain")):
        cells = []
        for batch in batches:
            turns = [turn for name, size, turn in seconds if (name, size) == (way, batch)]
            taken = results.median(seconds[way, batch, turn] for turn in turns)
            ratio = results.median(seconds["plain", batch, turn] / seconds[way, batch, turn] for turn in turns)
            cells += [f"{1000 * taken:.0f}", f"{ratio:.2f}x"]
        lines.append((way, *cells))
    headings = [text for batch in batches for text in (f"ms, batch {batch}", "speed-up")]
    return pages.markdown(("way", *headings), lines)


def measure(model: Path, pictures: int, rounds: int, batches: list[int], seed: int) -> dict[str, Any]:
    """What each way says of pictures, and how long it takes."""
    clip, tokenizer = picture_text.load(model)
    with torch.no_grad():
        rows = itertools.chain(right(clip, tokenizer, pictures, seed), times(tuple(batches), rounds))
        return results.result(rows)


if __name__ == "__main__":
    pages.run(
        __doc__,
        page,
        measure,
        model={"type": Path, "required": True, "help": "folder of the small CLIP"},
        pictures={"type": int, "default": 500, "help": "pictures of each shift (default 500)"},
        rounds={"type": int, "default": 5, "help": "calls of each way and batch that are timed (default 5)"},
        batches={"type": int, "nargs": "*", "default": [1, 8], "help": "pictures of a call that is timed"},
        seed={"type": int, "default": 0},
    )
