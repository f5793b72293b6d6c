"""When methods help, what they cost, and how an example calls them: what their modalities say."""

from __future__ import annotations

from mmaccel.modality import Advice, get_modality, modalities

ADVICE: dict[str, Advice] = {name: told for modality in modalities() for name, told in modality.advice.items()}
HUB = "from_pretrained("  # in code that downloads


def example(name: str) -> str:
    """Code that runs a method on a small model; in a fenced block whose title says if it downloads anything."""
    advice = ADVICE[name]
    code = advice.example or get_modality(name.split(".")[0]).example
    title = ' title="downloads weights from the hub"' if HUB in code else ""
    return f"```python{title}\n{code.format(method=f'{name}({advice.settings})')}\n```"
