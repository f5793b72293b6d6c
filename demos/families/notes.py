"""Markdown that the parts of the page of model families share."""

from __future__ import annotations


def note(reasons: dict[str, str], title: str = "Why a method is refused, in the words of the error") -> str:
    lines = "\n".join(f"    - {reason}: {on}" for reason, on in reasons.items())
    return f'??? note "{title}"\n\n{lines}'


def by_reason(modality: str, told: dict[str, dict[str, str]], names: dict[str, str]) -> dict[str, str]:
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


def by_class(reasons: dict[str, str]) -> dict[str, str]:
    """Classes by the reason why they are refused."""
    refused: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        refused.setdefault(reason, []).append(f"`{name}`")
    return {reason: ", ".join(on) for reason, on in refused.items()}


def shares(found: dict[str, float | None]) -> str:
    return ", ".join(f"{label} {share:.0%}" for label, share in found.items() if share is not None)
