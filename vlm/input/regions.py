"""Regions of pages, as a light pipeline of layout and recognition finds them: boxes and what is said there."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from mmaccel.errors import SettingError, shown
from mmaccel.files.pictures import on_white

WANTED = "a box (left, top, right, bottom) in pixels and its text"


class Region(NamedTuple):
    """A part of a page.

    Attributes
    ----------
    box
        ``(left, top, right, bottom)`` in pixels.
    text
        What is said there, as far as known.
    """

    box: tuple[float, float, float, float]
    text: str


Pipeline = Callable[[Any], Sequence[tuple[Sequence[float], str]]]


def pages_of(given: Any) -> list[Image.Image]:
    """Pictures, PIL or uint8 `[H, W, 3]`, of one page or of a list of them.

    Raises
    ------
    SettingError
        If one of them is something else.
    """
    several = isinstance(given, list | tuple) or getattr(given, "ndim", 0) == 4
    return [_picture(page) for page in (given if several else [given])]


def _picture(page: Any) -> Image.Image:
    if isinstance(page, Image.Image):
        return on_white(page)
    values = page.numpy(force=True) if isinstance(page, torch.Tensor) else page
    if isinstance(values, np.ndarray) and values.dtype == np.uint8 and values.ndim == 3 and values.shape[2] == 3:
        return Image.fromarray(values)
    raise SettingError(f"page={shown(page)} must be a picture: PIL, or uint8 [height, width, 3]")


def regions_of(given: Any, pages: Sequence[Image.Image] | None) -> list[list[Region]]:
    """The regions of each page, in reading order.

    Parameters
    ----------
    given
        Pairs of box and text, for a batch a list of such lists, or a pipeline that is called with each page.
    pages
        The pictures, if they were given.

    Raises
    ------
    SettingError
        If something is no region, or a pipeline has no page to look at.

    Examples
    --------
    >>> regions_of([((0, 0, 10, 10), "Title"), ((0, 20, 10, 30), "Text")], None)[0][1].text
    'Text'
    """
    if callable(given):
        if pages is None:
            raise SettingError("regions= is a pipeline, which needs the page: give page=picture too")
        return [[_region(each) for each in given(page)] for page in pages]
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise SettingError(f"regions={shown(given)} must be a list of pairs: {WANTED}")
    several = all(isinstance(each, list) for each in given) and not (given and all(map(_is_region, given)))
    return [[_region(each) for each in page] for page in (given if given and several else [given])]


def _is_region(given: Any) -> bool:
    return isinstance(given, Sequence) and len(given) == 2 and isinstance(given[1], str)


def _region(given: Any) -> Region:
    if not _is_region(given):
        raise SettingError(f"a region is {shown(given)}: it must be {WANTED}")
    box = [float(each) if isinstance(each, Real) else math.nan for each in given[0]]
    if len(box) != 4 or not all(map(math.isfinite, box)) or box[0] >= box[2] or box[1] >= box[3]:
        raise SettingError(f"a region has the box {shown(given[0])}: it must be (left, top, right, bottom) in pixels")
    left, top, right, bottom = box
    return Region((left, top, right, bottom), given[1])


def crop(page: Image.Image, region: Region) -> Image.Image | None:
    """What a page shows in a region, as far as that lies on the page; None if nothing of it does.

    Examples
    --------
    >>> page = Image.new("RGB", (40, 40))
    >>> crop(page, Region((20, 30, 60, 60), "")).size
    (20, 10)
    """
    left, top, right, bottom = region.box
    box = (
        max(0, int(np.floor(left))),
        max(0, int(np.floor(top))),
        min(page.width, int(np.ceil(right))),
        min(page.height, int(np.ceil(bottom))),
    )
    return page.crop(box) if box[0] < box[2] and box[1] < box[3] else None
