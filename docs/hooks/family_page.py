"""The page of the model families: which methods work on each, asked of the plans themselves, or of runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from included import ROOT
from method_page import address

import mmaccel
from mmaccel import presets
from mmaccel.adapter import find_adapter
from mmaccel.bench.pages import markdown
from mmaccel.demos.families.speech_table import count_equal
from mmaccel.demos.families.table import count_halved
from mmaccel.demos.families.visual_models import UNTRIED as UNTRIED_CLASSES
from mmaccel.demos.families.visual_table import count_served
from mmaccel.errors import MmaccelError
from mmaccel.modality import Modality, get_modality, modalities
from mmaccel.registry import methods
from mmaccel.speech.families.rows import REFUSED as REFUSED_SPEECH
from mmaccel.vlm.families.rows import REFUSED, UNTRIED

INTRO = """# Model families

What works on which model. Nothing here is typed: this page makes a small model of every family, asks `mmaccel.plan`
for each method with its default settings, and writes down what it says; diffusion models and vision-language models
are run as well.
`mmaccel.plan(model, method)` answers for the checkpoint in your hands, before anything is touched, and `accelerate`
refuses with the same words.

Subclasses of a class count as it does. [Adding a model](adding/model.md) says how to teach one that is missing."""

MOST = 8  # classes of a family in one cell
RUNS, VISUAL_RUNS = ROOT / "docs" / "families.json", ROOT / "docs" / "visual_families.json"
SPEECH_RUNS = ROOT / "docs" / "speech_families.json"
SPEECH_RAN = """Every class that `StreamingRecognizer` and `speech.load` take, built small and untrained, and streamed
by `python -m mmaccel.demos.families.speech_table`. On {equal} of {all} classes the finals are the tokens of the model's
own call on the same samples, they and their times do not depend on chunks and looks, words follow each other inside
their segment, and nothing is left behind. Word errors were only measured for Moonshine and Whisper: we know of no
package with weights of the others. Where the processor needs torchaudio or mistral-common (Fun-ASR, all of Granite
Speech, both Voxtral), the audio came from a feature extractor that does not, and the prompt from a small one."""
VISUAL_RAN = """Every class of transformers that puts pictures or videos at placeholders of a prompt, built small and
run by `python -m mmaccel.demos.families.visual_table`. On {served} of {all} classes at least six methods leave tokens
out. On all of them keeping all tokens gives the plain tokens and logits bit for bit, in a padded batch of three, with
three beams and in a second turn (the last column says where transformers' own call is no measure), and nothing is left
behind. Where a method reads the attention in the vision tower, a change of one number of a picture showed that it is
laid on the right tokens. Where positions do not count up, tokens that stay, and those of the answer, have the ones
that they have with the whole prompt. Several pictures in a prompt stay apart; where the processor hands a video over
as pictures (InternVL, SmolVLM), those that follow each other in a prompt are its frames, and for SmolVLM so are the
tiles of one picture, which nothing tells from frames. Audio is left alone."""
_ATTENTION = "encoder and decoder: cross-attention"
KINDS = {
    "moonshine": _ATTENTION,
    "moonshine_streaming": _ATTENTION,
    "whisper": _ATTENTION,
    "ctc": "CTC: frames",
    "transducer": "transducer: frames",
    "streaming_transducer": "cache-aware transducer: frames",
    "speech_chat": "language model with audio tokens: none, words are spread by their letters",
    "codec_frames": "a token for each frame: frames, less the delay of the model",
    "mel_frames": "a token for each frame: frames, less the delay of the model",
}
RAN = """Every transformer and UNet of diffusers, built small and run in a sampler's loop with guidance, by
`python -m mmaccel.demos.families.table`. On {halved} of {all} classes `HeterogeneousSteps()` saves half the calls. On
all of them exact settings give the plain sample bit for bit, and nothing is left behind. `EasyCache` and `auto` work
wherever `HeterogeneousSteps` does; `SparseAttention` on every transformer whose attention torch computes. Blocks are
found in the source of a class: a transformer of your own works if it is written as diffusers writes them."""


@dataclass(frozen=True)
class FamilyRow:
    """One family: the classes that users load, and what plans said of each method."""

    title: str
    family: str
    classes: tuple[str, ...]
    refused: dict[str, str]  # the reason by name of the method


def family_page() -> str:
    """A table for each modality, and below it why methods were refused."""
    return "\n\n".join([INTRO, *(part for modality in modalities() for part in _section(modality))]) + "\n"


@cache
def family_rows(modality: str) -> tuple[FamilyRow, ...]:
    """The families of a modality with what works on them."""
    return tuple(_asked(title, target, modality) for title, target in _models(modality))


def _models(modality: str) -> Iterator[tuple[str, Any]]:
    """The tiny models of the contract tests, one of each family."""
    targets: dict[str, Any] = {}
    for example in get_modality(modality).examples():
        target = example.build(0)[0]
        targets.setdefault(find_adapter(target).family, target)
    yield from targets.items()


def _asked(title: str, target: Any, modality: str) -> FamilyRow:
    adapter, refused = find_adapter(target), {}
    for name, method in methods().items():
        if name.split(".")[0] == modality:
            try:
                mmaccel.plan(target, method())
            except MmaccelError as error:
                refused[name] = str(error)
    return FamilyRow(title, adapter.family, adapter.classes, refused)


def _section(modality: Modality) -> Iterator[str]:
    yield f"## {modality.title}"
    if modality.name == "video":
        yield from _diffusion_runs(json.loads(RUNS.read_text(encoding="utf-8")))
        return
    names = [name for name in methods() if name.split(".")[0] == modality.name]
    rows = family_rows(modality.name)
    if modality.note:
        yield modality.note
    shared = [name for name in names if sum(name not in row.refused for row in rows) > 1]
    yield markdown(("family", "classes", "methods that work", "presets"), [_line(row, names, shared) for row in rows])
    reasons = _reasons(rows)
    if reasons:
        yield _note({told: reason for reason, told in reasons.items()})
    if modality.name == "speech":
        yield from _speech_runs(json.loads(SPEECH_RUNS.read_text(encoding="utf-8")))
    if modality.name == "vlm":
        yield from _visual_runs(json.loads(VISUAL_RUNS.read_text(encoding="utf-8")))


def _diffusion_runs(found: dict[str, Any]) -> Iterator[str]:
    """The table of the diffusion models, which were run, and why methods were refused."""
    yield RAN.format(halved=count_halved(found), all=len(found))
    lines = [[row["name"], f"`{name}`", _shares(row["work"])] for name, row in found.items()]
    yield markdown(("family", "class", "methods that work, and the share of the work that they did"), lines)
    told = {
        name: {label: reason.split(", only those of")[0] for label, reason in row["refused"].items()}
        for name, row in found.items()
    }
    yield _note(_by_reason("video", told, {name: row["name"] for name, row in found.items()}))


def _visual_runs(found: dict[str, Any]) -> Iterator[str]:
    """The table of the vision-language models, which were run."""
    yield VISUAL_RAN.format(served=count_served(found), all=len(found))
    lines = [
        [f"`{name}`", _shares(row["kept"]), _plainness(row["exact"]), "yes" if row["merged"] else ""]
        for name, row in found.items()
    ]
    kept = "methods that work, and the share of the tokens that they kept of 40 %"
    yield markdown(("class", kept, "equal", "`EarlyTom` merges frames in the tower"), lines)
    told = {name: row["refused"] for name, row in found.items()}
    short = {name: name.removesuffix("ForConditionalGeneration") for name in found}
    yield _note(_by_reason("vlm", told, short))
    refused = _by_class({**REFUSED, **dict.fromkeys(UNTRIED_CLASSES, UNTRIED)})
    yield _note(refused, "Classes of which no tokens can be left out")


def _speech_runs(found: dict[str, Any]) -> Iterator[str]:
    """The table of the recognisers, which were streamed."""
    yield SPEECH_RAN.format(equal=count_equal(found), all=len(found))
    lines = [
        [f"`{name}`", KINDS[row["family"]], "once" if row["once"] else "again at each look"]
        for name, row in found.items()
    ]
    yield markdown(("class", "kind, and where times of words come from", "audio is heard"), lines)
    yield _note(_by_class(REFUSED_SPEECH), "Classes that hear and cannot be streamed")


def _by_class(reasons: dict[str, str]) -> dict[str, str]:
    """Classes by the reason why they are refused."""
    refused: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        refused.setdefault(reason, []).append(f"`{name}`")
    return {reason: ", ".join(on) for reason, on in refused.items()}


def _plainness(exact: dict[str, Any]) -> str:
    """Where keeping all tokens is the plain call, and why it is not compared elsewhere."""
    apart = [f"{what} not compared: {why}" for what, why in exact.items() if isinstance(why, str)]
    return "; ".join([", ".join(what for what, is_so in exact.items() if is_so is True), *apart])


def _by_reason(modality: str, told: dict[str, dict[str, str]], names: dict[str, str]) -> dict[str, str]:
    """Methods and the models on which they were refused, by what was said of class after class."""
    reasons: dict[str, dict[str, set[str]]] = {}
    for name, refused in told.items():
        for label, reason in refused.items():
            same = reason.replace(name, "it").removeprefix(f"{modality}.{label} ")
            reasons.setdefault(same, {}).setdefault(f"`{label}`", set()).add(names[name])
    return {
        reason: "; ".join(f"{label} on {', '.join(sorted(on))}" for label, on in by.items())
        for reason, by in reasons.items()
    }


def _note(reasons: dict[str, str], title: str = "Why a method is refused, in the words of the error") -> str:
    lines = "\n".join(f"    - {reason}: {on}" for reason, on in reasons.items())
    return f'??? note "{title}"\n\n{lines}'


def _shares(found: dict[str, float | None]) -> str:
    return ", ".join(f"{label} {share:.0%}" for label, share in found.items() if share is not None)


def _reasons(rows: tuple[FamilyRow, ...]) -> dict[str, str]:
    """Families and methods by reason, but for methods that are of other families by what they say of themselves."""
    found: dict[str, dict[str, set[str]]] = {}
    for row in rows:
        for name, reason in row.refused.items():
            families = methods()[name].families
            if families is None or row.family in families:
                told = found.setdefault(reason.removeprefix(name).strip(), {})
                told.setdefault(row.title, set()).add(f"`{name}`")
    return {
        reason: "; ".join(f"{', '.join(sorted(named))} on {title}" for title, named in told.items())
        for reason, told in found.items()
    }


def _line(row: FamilyRow, names: list[str], shared: list[str]) -> list[str]:
    found = presets.presets_of(names[0].split(".")[0], row.family)
    classes = ", ".join(f"`{name}`" for name in row.classes)
    if len(row.classes) > MOST:
        classes = f"{len(row.classes)} classes, one by one below"
    return [row.title, classes, _told(row, names, shared), ", ".join(found) or "none"]


def _told(row: FamilyRow, names: list[str], shared: list[str]) -> str:
    """All that several families have, all of these but a few, or the few that there are."""
    works = [name for name in names if name not in row.refused]
    lacking = [name for name in shared if name in row.refused]
    if set(works) <= set(shared) and len(lacking) <= len(works):
        return f"all {len(shared)}" + (f" but {', '.join(map(_link, lacking))}" if lacking else "")
    return ", ".join(map(_link, works)) or "none"


def _link(name: str) -> str:
    return f"[{name.split('.')[1]}]({address(methods()[name])})"
