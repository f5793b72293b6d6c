"""The table of what works on which vision-language model of transformers: every method is run on every class.

    python -m mmaccel.demos.families.visual_table

It writes `docs/visual_families.json`, from which the site makes its page; takes about two minutes on one core. Run it
whenever a class was added to `visual_models.json`, or a method works on more. A test runs a part of it, and compares.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers

import mmaccel
from mmaccel import vlm
from mmaccel.adapter import find_adapter
from mmaccel.cache.argument import cache_of, cached
from mmaccel.errors import MmaccelError
from mmaccel.method import Method
from mmaccel.testing.snapshot import snapshot
from mmaccel.vlm.decoder.columns import taken
from mmaccel.vlm.families.visual_adapter import PIXELS

from .visual_models import build, rows
from .written import DOCS, write

TARGET = DOCS / "visual_families.json"
LAYER = 4  # of six: behind the first attention of hybrids
# By name, at settings with which each leaves some out of such short clips.
METHODS: dict[str, Method] = {
    method.name.removeprefix("vlm."): method
    for method in (
        vlm.HoliTom(keep=0.4),
        vlm.VidCom2(keep=0.4),
        vlm.VisionZip(keep=0.4),
        vlm.DyCoke(keep=0.4),
        vlm.FastVID(keep=0.4),
        vlm.IDPruner(keep=0.4),
        vlm.FastV(keep=0.4, layer=LAYER),
        vlm.FrameFusion(keep=0.4, layer=LAYER),
        vlm.EarlyTom(keep=0.4),
    )
}
ALL = vlm.VidCom2(keep=None, tokens=10**6)  # everything, and yet by way of the shortened prompt
KEYED = vlm.VisionZip()  # it reads the tower's attention and keys
MERGING = vlm.EarlyTom(merge_after=1, tau=-1.0, window=20)
BATCH = 3  # the second prompt is padded
Call = Callable[..., dict[str, Any]]


def main() -> None:
    transformers.logging.set_verbosity_error()
    write(TARGET, rows(), tried)


def tried(name: str, methods: dict[str, Method] = METHODS) -> dict[str, Any]:
    """What methods did on a small model of a class.

    Returns
    -------
    The adapter's family; the share of the visual tokens that each method kept, why others were refused, or what they
    said when they left nothing out; whether tokens and logits are the plain ones where all is kept, in a padded batch,
    with beams and in a second turn (or why the plain model is no measure there); and whether nothing was left behind.
    `positions` is whether tokens that stay, and those of the answer, have the positions that they have with the whole
    prompt, None where these count up; `placed` whether the tower's attention is laid on the right tokens, None where no
    method reads it; `merged` whether frames that are alike merge in the tower and lose nothing by it, None where none
    merge.
    """
    model, call = build(name)
    plain, before, kept, refused = model.generate(**call(BATCH)), snapshot(model), {}, {}
    for label, method in methods.items():
        try:
            share, told = share_kept(model, call, method, plain)
        except MmaccelError as error:
            refused[label] = str(error)
            continue
        if share is None:
            refused[label] = told
        else:
            kept[label] = share
    row = rows()[name]  # which says why, where transformers' own beams or turns are not what they should be
    exact = {
        "batch": same(model, call),
        "turns": row.get("turns") or same_later(model, call),
        "beams": row.get("beams") or same(model, call, num_beams=3),
    }
    clean = snapshot(model) == before and torch.equal(model.generate(**call(BATCH)), plain)
    return {
        "family": find_adapter(model).family,
        "kept": kept,
        "refused": refused,
        "exact": exact,
        "positions": kept_positions(model, call),
        "placed": placed(name),
        "merged": merged(name),
        "clean": clean,
    }


def share_kept(model: Any, call: Call, method: Method, plain: torch.Tensor) -> tuple[float | None, str]:
    """The share of the visual tokens that a method kept; None, and its warnings, where it left nothing out."""
    with mmaccel.accelerate(model, method) as fast:
        answers, report = fast.generate(**call(BATCH)), fast.report
    if not report.engaged:
        return None, report.warnings[0]
    assert answers.shape == plain.shape, f"{method}: {tuple(answers.shape)} instead of {tuple(plain.shape)}"
    return round(report.visual_tokens / report.plain_visual_tokens, 3), ""


def same(model: Any, call: Call, **more: Any) -> bool:
    """Whether keeping all tokens gives the plain tokens and logits, bit for bit."""
    more = {"return_dict_in_generate": True, "output_logits": True, **more}
    plain = model.generate(**call(BATCH, **more))
    with mmaccel.accelerate(model, ALL) as fast:
        return equal(fast.generate(**call(BATCH, **more)), plain)


def same_later(model: Any, call: Call) -> bool:
    """The same in a second turn on the first one's cache."""
    plain = two_turns(model, call)
    with mmaccel.accelerate(model, ALL) as fast:
        return equal(two_turns(fast, call), plain)


def two_turns(target: Any, call: Call) -> Any:
    """The second answer of a conversation, to more words on the cache of the first."""
    more = {"return_dict_in_generate": True, "output_logits": True}
    given = call(BATCH)
    first = target.generate(**given, **more)
    ids = torch.cat([first.sequences, given["input_ids"][:, -4:]], 1)
    mask = torch.nn.functional.pad(given["attention_mask"], (0, ids.shape[1] - given["input_ids"].shape[1]), value=1)
    later = {"input_ids": ids, "attention_mask": mask, **cached(cache_of(first))}
    return target.generate(**later, **more, max_new_tokens=4, do_sample=False)


def kept_positions(model: Any, call: Call) -> bool | None:
    """Whether keys turn by the positions of the whole prompt also where tokens are left out; None if these count up."""
    adapter = find_adapter(model)
    if adapter.positions(call(BATCH)) is None:
        return None
    whole = _turns(adapter.decoder, model, call)
    with mmaccel.accelerate(model, METHODS["VidCom2"]) as fast:
        short = _turns(adapter.decoder, fast, call)
        source = fast.adapter.last[0].source
    for now, then in zip(short, whole, strict=True):
        if now.shape[-1] > 1:  # the prompt, without its padding
            now, then = now[..., source >= 0], taken(then, source.clamp(min=0), -1)[..., source >= 0]
        if not torch.equal(now, then):
            return False
    return True


def _turns(decoder: torch.nn.Module, target: Any, call: Call) -> list[torch.Tensor]:
    """The positions that the rotary embedding of a decoder is given in a call, pass by pass."""
    rotary = next(module for name, module in decoder.named_modules() if name.endswith("rotary_emb"))
    seen: list[torch.Tensor] = []

    def note(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen.append(kwargs["position_ids"] if "position_ids" in kwargs else args[1])

    with rotary.register_forward_pre_hook(note, with_kwargs=True):
        target.generate(**call(BATCH))
    return seen


def placed(name: str, changes: int = 6) -> bool | None:
    """Whether a change of one number of the pixels changes most the features and the tower's key of the same token.

    With weights as they are made, with which each patch mostly keeps its own.
    """
    model, call = build(name, scale=1.0)
    adapter, given = find_adapter(model), call(2, frames=2)
    try:
        adapter.check(KEYED)
    except MmaccelError:
        return None
    kind = "video" if "pixel_values_videos" in given else "image"
    pixels = given[PIXELS[kind]]

    def told(values: torch.Tensor) -> list[torch.Tensor]:
        visuals = adapter.encode(kind, KEYED, {**given, PIXELS[kind]: values})
        return [torch.cat([getattr(visual, part).flatten(0, 1) for visual in visuals]) for part in ("frames", "key")]

    before, generator = told(pixels), torch.Generator().manual_seed(1)
    for index in torch.randint(0, pixels.numel(), (changes,), generator=generator).tolist():
        changed = pixels.clone().contiguous()
        changed.view(-1)[index] += 30
        most = {int((now - then).norm(dim=1).argmax()) for now, then in zip(told(changed), before, strict=True)}
        if len(most) > 1:
            return False
    return True


def merged(name: str, frames: int = 12) -> bool | None:
    """Whether alike frames merge in the tower, and all features are those without; None where no frames merge."""
    model, call = build(name)
    adapter, given = find_adapter(model), still(call(2, frames=frames))
    kind = "video" if "pixel_values_videos" in given else "image"
    try:
        adapter.check(MERGING)
    except MmaccelError:
        return None
    found, plain = (adapter.encode(kind, method, given) for method in (MERGING, KEYED))
    if not all(visual.present is not None and len(visual.present) < frames for visual in found):
        return None
    pairs = zip(found, plain, strict=True)
    return all(torch.allclose(visual.features, other.features, atol=1e-2) for visual, other in pairs)


def still(given: dict[str, Any], clips: int = 2, frames: int = 12) -> dict[str, Any]:
    """A call in which all frames of each clip but the first and the last are alike."""
    name = "pixel_values_videos" if "pixel_values_videos" in given else "pixel_values"
    pixels = given[name].clone()
    entries = pixels.view(clips, frames, -1)
    entries[:, 1:-1] = entries[:, 1:2]
    return {**given, name: pixels}


def equal(one: Any, other: Any) -> bool:
    """Whether two results of `generate` have the same tokens and logits."""
    logits = zip(one.logits, other.logits, strict=True)
    return torch.equal(one.sequences, other.sequences) and all(torch.equal(a, b) for a, b in logits)


def count_served(found: dict[str, Any]) -> int:
    """Classes on which all is exact that transformers can do, and six methods leave tokens out, without a trace."""
    return sum(
        row["clean"] and row["placed"] is not False and all(row["exact"].values()) and len(row["kept"]) >= 6
        for row in found.values()
    )


if __name__ == "__main__":
    main()
