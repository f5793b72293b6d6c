"""Takes methods and presets over from the registry into the package, for the command line: `mmaccel/cli/listing.json`.

    python -m mmaccel.demos.pages.method_listing

Run it whenever a method, its docstring or a preset has changed; a test compares the two.
"""

from __future__ import annotations

import json
from pathlib import Path

import mmaccel
from mmaccel import presets
from mmaccel.cli import listing
from mmaccel.modality import modalities

TARGET = Path(listing.__file__).with_name(listing.FILE)


def main() -> None:
    TARGET.write_text(collect(), encoding="utf-8")
    print(f"wrote {TARGET}")


def collect() -> str:
    """The text of `listing.json`, which is of mmaccel's own modalities."""
    own = [modality.name for modality in modalities() if modality.package.startswith(f"{mmaccel.__name__}.")]
    described = listing.described_methods().items()
    found = {
        "methods": {name: told for name, told in described if name.split(".")[0] in own},
        "presets": {name: presets.listing(name) for name in own},
    }
    return json.dumps(found, indent=1) + "\n"


if __name__ == "__main__":
    main()
