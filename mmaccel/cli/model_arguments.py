"""The model and the methods of a command: their arguments, and the objects that they name."""

from __future__ import annotations

import argparse
import json
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import SettingError, UnknownNameError, UnsupportedTargetError
from ..modality import Modality, get_modality, modalities
from ..presets import NAMES

BETWEEN = re.compile(r",(?![^(\[]*[)\]])")  # commas that are in no brackets
WORDS = {"True": "true", "False": "false", "None": "null", "none": "null"}  # of JSON, by those that people type
# A number as JSON writes it or as shells do, such as .5
NUMBER = re.compile(r"(?<![\w.])[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?(?![\w.])")


def add_model(parser: argparse.ArgumentParser, default: str) -> None:
    """Add the arguments that choose the model and its device."""
    parser.add_argument("--model", default=default, help=f"zoo name, hub id or folder (default {default})")
    add_device(parser)


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that choose a model's device."""
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda, cuda:1, mps, ...")
    parser.add_argument(
        "--dtype", choices=["float32", "bfloat16", "float16"], help="default: as stored; float32 for speech on a CPU"
    )


def add_methods(parser: argparse.ArgumentParser, default: str = "exact", otherwise: str = "") -> None:
    """Add the arguments that choose the methods; `otherwise` describes the default in words."""
    said = otherwise or (default if "." in default else f"--preset {default}")
    parser.add_argument(
        "--method",
        action="append",
        default=[],
        metavar="NAME[:KEY=VALUE,...]",
        help=f"a method with settings; `mmaccel methods` lists them (default: {said})",
    )
    parser.add_argument("--preset", help="exact, balanced or fast, instead of methods; see `mmaccel presets`")
    parser.set_defaults(default=default)
    parser.add_argument("--plan", type=Path, help="a plan saved before, instead of methods")


def device_of(arguments: argparse.Namespace) -> str:
    """The device that the user named.

    Raises
    ------
    SettingError
        If this machine, or this build of torch, has none of that name.
    """
    import torch

    device: str = arguments.device
    try:
        torch.zeros(1, device=device).item()
    except (AssertionError, RuntimeError, NotImplementedError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise SettingError(
            f"--device {device} cannot be used here ({reason}): leave it out to run on the CPU"
        ) from error
    return device


def dtype_of(arguments: argparse.Namespace) -> Any:
    """The dtype that the user named; None for that of the checkpoint."""
    import torch

    return getattr(torch, arguments.dtype) if arguments.dtype else None


def target_of(arguments: argparse.Namespace) -> Any:
    """The model or pipeline that the user named, opened by the modality that recognizes it, or the first that can.

    Raises
    ------
    UnsupportedTargetError
        If none can.
    """
    known = modalities()
    recognized = [modality for modality in known if modality.recognizes(arguments.model)]
    for modality in recognized[:1] or known:
        try:
            return modality.target(_opened(modality, arguments))
        except (UnsupportedTargetError, UnknownNameError):  # which a hub id's configuration tells
            if recognized:
                raise
    raise UnsupportedTargetError(
        f"{arguments.model!r} is no model of {', '.join(modality.name for modality in known)} that is opened by name:"
        " give a zoo name, a hub id or a folder of one, or plan in Python, with mmaccel.plan(model, ...).save(file)"
    )


def opened(arguments: argparse.Namespace) -> Any:
    """The model that the user named, as the modality of the command opens it."""
    return _opened(get_modality(arguments.kind), arguments)


def _opened(modality: Modality, arguments: argparse.Namespace) -> Any:
    found = modality.open(arguments.model, device_of(arguments), dtype_of(arguments))
    if arguments.dtype is None and _is_half_on_cpu(modality.target(found)):
        note = "its weights are float16, in which a CPU computes slowly: --dtype float32 is faster, in twice the memory"
        print(f"note: {arguments.model}: {note}", file=sys.stderr)
    return found


def _is_half_on_cpu(target: Any) -> bool:
    """Whether some weights of a model, or of a part of a pipeline, are float16 and on the CPU."""
    import torch

    parts = [target, *getattr(target, "components", {}).values()]
    weights = (next(part.parameters(), None) for part in parts if isinstance(part, torch.nn.Module))
    return any(w is not None and w.dtype == torch.float16 and w.device.type == "cpu" for w in weights)


def chosen_methods(arguments: argparse.Namespace) -> tuple[list[Any], str | None]:
    """Methods and preset; the command's own default, a method or a preset, if the user named none."""
    from ..plan import Plan

    chosen = [parse_method(text) for text in arguments.method]
    if arguments.plan:
        chosen.append(Plan.load(arguments.plan))
    if chosen or arguments.preset:
        return chosen, arguments.preset
    default = arguments.default
    return ([parse_method(default)], None) if "." in default else ([], default)


def parse_method(text: str) -> Any:
    """A method from ``NAME[:KEY=VALUE,...]``.

    Examples
    --------
    >>> print(parse_method("image.ZipAR:window=2,verify=true"))
    image.ZipAR(window=2, verify=True)
    >>> print(parse_method("vlm.PrefillDrop:keep=(0.2,0.1),window=16"))
    vlm.PrefillDrop(keep=(0.2, 0.1), window=16)
    """
    from ..registry import get_method

    name, _, settings = text.partition(":")
    if ") + " in text:  # as tables print several
        raise SettingError(f"--method {text}: name --method once for each of them")
    if "(" in name:  # as reports and plans print one
        name, _, printed = text.strip().removesuffix(")").partition("(")
        typed = printed.replace(", ", ",").replace("'", "")
        get_method(name)  # which says what is meant where there is none
        raise SettingError(f"--method {text}: write {f'{name}:{typed}' if typed else name}")
    if name in NAMES:
        behind = "`mmaccel presets` lists the methods behind it"
        raise UnknownNameError(f"{name!r} is a preset and no method, for --preset where there is that; {behind}")
    values: dict[str, Any] = {}
    for item in filter(None, BETWEEN.split(settings)):
        key, equals, value = item.partition("=")
        if not equals:
            raise SettingError(f"--method {text}: write KEY=VALUE after the colon, such as {name}:window=4")
        if key.strip() in values:
            raise SettingError(f"--method {text}: it gives {key.strip()} twice, name --method once for each value")
        values[key.strip()] = value_of(value)
    return get_method(name).from_settings(values)


def value_of(text: str) -> Any:
    """A setting as the user types it: a number, true, false, none or a word.

    Examples
    --------
    >>> value_of("0.5"), value_of("False"), value_of("none"), value_of("refresh")
    (0.5, False, None, 'refresh')
    >>> value_of("(0.2, 0.1)")
    [0.2, 0.1]
    >>> value_of(".5"), value_of("+2"), value_of("(1., .5)")  # as shells write numbers, and JSON does not
    (0.5, 2, [1.0, 0.5])
    """
    if text.startswith("(") and text.endswith(")"):  # as a method is printed
        text = f"[{text[1:-1].rstrip(', ')}]"
    written = re.sub("|".join(WORDS), lambda found: WORDS[found[0]], text)
    for form in (written, NUMBER.sub(_number_in_json, written)):
        with suppress(json.JSONDecodeError, RecursionError):
            return json.loads(form)
    return text


def _number_in_json(found: re.Match[str]) -> str:
    number = found[0].lstrip("+")
    return repr(float(number)) if "." in number else number
