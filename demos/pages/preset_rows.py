"""Takes the rows of the presets over from `docs/benchmarks` into the package: `mmaccel/presets.json`.

    python -m mmaccel.demos.pages.preset_rows

Run it whenever a benchmark was measured anew; a test compares the two.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from mmaccel import presets
from mmaccel.comparison import results
from mmaccel.errors import SettingError
from mmaccel.modality import modalities
from mmaccel.presets import Preset
from mmaccel.registry import get_method

BENCHMARKS = Path(__file__).resolve().parents[2] / "docs" / "benchmarks"
TARGET = Path(presets.__file__).with_name(presets.FILE)
# What is taken over of a row.
FIGURES = (
    "modality",
    "model",
    "method",
    "settings",
    "exact",
    "speedup",
    "first_token_speedup",
    "work_ratio",
    "wall_seconds",
    "baseline_seconds",
    "quality_metric",
    "quality",
    "baseline_quality",
    "psnr_worst",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--benchmarks", type=Path, default=BENCHMARKS, help="folder of the measured rows")
    parser.add_argument("-o", "--output", type=Path, default=TARGET)
    arguments = parser.parse_args()
    arguments.output.write_text(collect(arguments.benchmarks), encoding="utf-8")
    print(f"wrote {arguments.output}")


def all_presets() -> list[Preset]:
    """Every preset of every family, each once."""
    found = [
        preset
        for modality in modalities()
        for family in presets.families(modality.name)
        for preset in presets.presets_of(modality.name, family).values()
    ]
    return list({preset.key: preset for preset in found}.values())


def collect(benchmarks: Path) -> str:
    """The text of `presets.json` for the rows of that folder."""
    rows = {preset.key: find(preset, benchmarks) for preset in all_presets()}
    return json.dumps(rows, indent=1) + "\n"


def find(preset: Preset, benchmarks: Path) -> dict[str, Any]:
    """The one row of a preset, with the machine it was measured on.

    Raises
    ------
    SettingError
        If there is none, or more than one.
    """
    path = benchmarks / f"{preset.benchmark}.json"
    result = results.load(path)
    found = [row for row in result["rows"] if _fits(preset, row)]
    if len(found) != 1:
        raise SettingError(
            f"{path.name} has {len(found)} rows of {preset.key} with {dict(preset.columns)}, and it must be one:"
            " measure the preset, or change it in the modality's presets.py"
        )
    return {key: found[0][key] for key in FIGURES if key in found[0]} | results.where(result["header"])


def _fits(preset: Preset, row: dict[str, Any]) -> bool:
    """Whether a row is of these methods and columns; rows of `video.json` name the variant and not the method."""
    if any(row.get(column) != value for column, value in preset.columns.items()) or not row["settings"]:
        return False
    if row.get("kind") in ("simple", "rival"):
        return False
    (method,) = preset.methods
    if "." in row["method"] and get_method(row["method"]) is not type(method):
        return False
    names = method.settings()
    return set(row["settings"]) <= set(names) and type(method).from_settings(row["settings"]) == method


if __name__ == "__main__":
    main()
