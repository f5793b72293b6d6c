"""The command `mmaccel tune`: its arguments, and its work."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from ..comparison.ranks import Ranks
from ..errors import SettingError
from ..files.output import check_writable
from .arguments import in_options, number
from .command import Command, add_kinds
from .model_arguments import BETWEEN, parse_method, value_of
from .run import check_apart

SEEDS = 1
EXAMPLES = """examples:
  mmaccel tune video "rocket moves up" --method video.HeterogeneousSteps --target-speedup 1.8 -o plan.json
  mmaccel tune video "rocket moves up" --method video.EasyCache --setting threshold=0.05,0.1,0.2 --floor 30 \\
      -o plan.json --plot curve.png
  mmaccel tune image "red heart" --method image.SpeculativeJacobi -o plan.json
  mmaccel tune vlm clip.mp4 "what moves up?" --method vlm.DyCoke --floor 1 -o plan.json
  mmaccel tune speech talk.wav --method speech.MergeAudioTokens --setting keep=0.5,0.6,0.8 --target-speedup 1.1
  mmaccel tune canvas --example --method canvas.FactorCommit --floor 1 -o plan.json
  mmaccel run video "rocket moves up" --plan plan.json -o clip.mp4
"""


def add_parser(commands: Any) -> None:
    """Add `tune` with its kinds to the command line."""
    about = "measure settings of a method, and save the plan that reaches a goal"
    for command, kind in add_kinds(commands, "tune", about, EXAMPLES, SEEDS):
        _add_choice(kind, command.floor)
        kind.set_defaults(run=partial(run_tune, command))


def _add_choice(kind: Any, floor: str) -> None:
    """Add the arguments that say what to measure, and which result is good enough."""
    kind.add_argument(
        "--method",
        required=True,
        metavar="NAME[:KEY=VALUE,...]",
        help="the method, with settings that stay as they are",
    )
    kind.add_argument(
        "--setting",
        action="append",
        default=[],
        metavar="KEY=V1,V2,...",
        help="values to measure; given twice, all combinations (default: a few values of the method's main setting)",
    )
    above = number("a number above 1", lambda value: value > 1)
    kind.add_argument("--target-speedup", type=above, metavar="X", help="the speed-up to reach, such as 1.8")
    kind.add_argument("--floor", type=number(), help=f"the quality to keep: {floor}")
    kind.add_argument("-o", "--output", type=Path, metavar="PLAN.json", help="save the plan that was picked")
    kind.add_argument("--plot", type=Path, metavar="CURVE.png", help="draw quality against time")


def run_tune(command: Command, arguments: argparse.Namespace) -> None:
    """Measure, print and save; the plot is written even if no setting reaches the goal."""
    from ..comparison.quality_plot import require_matplotlib

    for path, ending in ((arguments.output, ".json"), (arguments.plot, ".png")):
        if path is not None and path.suffix.lower() != ending:
            raise SettingError(f"{path.name!r}: end it with {ending}; -o saves the plan, --plot draws the curve")
    if arguments.plot:
        require_matplotlib()
    check_writable(arguments.output)
    check_writable(arguments.plot, "--plot")
    check_apart(arguments, "output", "plot")
    ranks = Ranks.launched()  # before a model is loaded, so that "cuda" is the GPU of this process
    found = _tune(command, arguments)
    if ranks.rank > 0:
        return  # the first process prints and writes
    picked = arguments.output if found.plan is not None else None
    try:
        print(in_options(str(found)), flush=True)
    finally:  # also where its reader is gone, who may have left while it was measured
        for path in filter(None, (picked, arguments.plot)):
            found.save(path)
    if picked:
        print(f"saved to {picked}")
    if arguments.plot:
        print(f"wrote {arguments.plot}")
    if arguments.output and found.plan is None:
        raise SettingError(f"no plan was saved: {found.notes[0]}")


def _tune(command: Command, arguments: argparse.Namespace) -> Any:
    from ..tuning.tune import tune

    grid = grid_of(arguments.setting)
    method = parse_method(arguments.method)
    target, inputs = command.measured_inputs(arguments)
    goal = {"target_speedup": arguments.target_speedup, "floor": arguments.floor}
    return tune(target, method, grid=grid or None, **goal, **inputs)


def grid_of(words: list[str]) -> dict[str, list[Any]]:
    """Values by setting, from ``KEY=V1,V2``.

    Examples
    --------
    >>> grid_of(["budget=0.25,0.5", "policy=refresh,groups"])
    {'budget': [0.25, 0.5], 'policy': ['refresh', 'groups']}
    >>> grid_of(["keep=(0.3,0.2),(0.2,0.1)"])
    {'keep': [[0.3, 0.2], [0.2, 0.1]]}
    """
    found: dict[str, list[Any]] = {}
    for word in words:
        key, equals, values = word.partition("=")
        if not equals or not values.strip(","):
            raise SettingError(f"--setting {word}: write KEY=V1,V2, such as budget=0.25,0.5")
        key = key.strip()
        if key in found:
            raise SettingError(f"--setting {word}: {key} is given twice: write all its values after one =")
        found[key] = [value_of(value) for value in dict.fromkeys(filter(None, BETWEEN.split(values)))]
    return found
