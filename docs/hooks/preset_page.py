"""The page of the presets, with the measured row behind each."""

from __future__ import annotations

from mmaccel import presets
from mmaccel.bench import pages
from mmaccel.modality import modalities

INTRO = """# Presets

`mmaccel.accelerate(target, preset="balanced")` stands for methods that were measured to be good. *exact* keeps the
model's own output, or its distribution; *balanced* is the one to try first where something may be lost; *fast* gives up
more. Each carries the row of the benchmark that justifies it: one model on one machine, so compare on your own before
you rely on it. Where a family has none, the reason stands instead.

```python
import mmaccel
from mmaccel import zoo

model, processor = zoo.load("tiny-janus")
print(mmaccel.plan(model, preset="fast"))  # says the row
```

```bash
mmaccel presets
mmaccel plan --model tiny-wan --preset balanced
```"""


def preset_page() -> str:
    """All presets; families with the same ones share a table."""
    tables: dict[str, list[str]] = {}
    for modality in modalities():
        for family in presets.families(modality.name):
            tables.setdefault(_table(modality.name, family), []).append(family)
    return "\n\n".join([INTRO, *(f"## {', '.join(names)}\n\n{table}" for table, names in tables.items())]) + "\n"


def _table(modality: str, family: str) -> str:
    found, absent = presets.presets_of(modality, family), presets.absent_of(modality, family)
    lines = []
    for name in presets.NAMES:
        methods = " + ".join(f"`{method}`" for method in found[name].methods) if name in found else "none"
        lines.append([f"`{name}`", methods, str(found[name]) if name in found else absent[name]])
    return pages.markdown(("preset", "methods", "measured"), lines)
