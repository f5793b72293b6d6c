"""When methods help, what they cost, and how an example calls them: what their modalities say."""

from __future__ import annotations

from mmaccel.modality import Advice, get_modality, modalities

HUB = "from_pretrained("  # in code that downloads


def advice() -> dict[str, Advice]:
    """The advice on every method by its name."""
    return {name: told for modality in modalities() for name, told in modality.advice.items()}


def example(name: str) -> str:
    """Code that runs a method on a small model; in a fenced block whose title says if it downloads anything."""
    told = advice()[name]
    code = told.example or get_modality(name.split(".")[0]).example
    title = ' title="downloads weights from the hub"' if HUB in code else ""
    return f"```python{title}\n{code.format(method=f'{name}({told.settings})')}\n```"
