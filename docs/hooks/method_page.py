"""The page of a method, from the registry, its docstring and the committed rows."""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import Any

import griffe
import measured
from included import ROOT

from mmaccel import presets
from mmaccel.bench import pages
from mmaccel.cli import listing
from mmaccel.method import Method
from mmaccel.modality import get_modality, modalities
from mmaccel.registry import methods

PICTURES = ROOT / "docs" / "pictures"
HUB = "from_pretrained("  # in code that downloads
ROLE = re.compile(r":\w+:`~?([\w.]+)`")


def address(method: type[Method]) -> str:
    """Where the page of a method is, such as `methods/vlm/early_tom.md`."""
    return f"methods/{method.name.split('.')[0]}/{method.__module__.split('.')[-1]}.md"


def method_page(method: type[Method]) -> str:
    """The whole page."""
    docs = _docstring(method)
    parts = [f"# {method.__name__}", _facts(method), sentence(method), _picture(method), docs["text"]]
    parts += ["## Use", _example(method), "## Settings", _settings(method)]
    parts += [docs["notes"], _errors(docs["raises"])]
    parts += ["## When it helps, and what it costs"]
    parts += [f"**Helps**: {method.advice.helps}", f"**Costs**: {method.advice.costs}"]
    parts += [_presets(method)]
    parts += ["## Measured", *_measured(method), "## Together with others", _together(method)]
    return "\n\n".join(part for part in parts if part) + "\n"


def index_page() -> str:
    """All methods with a sentence each."""
    parts = [
        "# Methods",
        "An *exact* method gives the model's own output: equal tokens, or the same distribution, and the tests prove"
        " it. A *lossy* one says so in its report, and its page has what it was measured to cost.",
    ]
    for modality in modalities():
        found = [cls for name, cls in methods().items() if name.split(".")[0] == modality.name]
        lines = [[_link(cls, "index.md"), _kind(cls), sentence(cls)] for cls in found]
        parts += [f"## {modality.title}", modality.note, pages.markdown(("method", "output", "what it does"), lines)]
    return "\n\n".join(filter(None, parts)) + "\n"


def sentence(method: type[Method]) -> str:
    """What it does, without the word that a column or a badge has."""
    return plain(re.sub(r"; (lossy|lossless|exact)\.$", ".", method.summary()))


def _kind(method: type[Method]) -> str:
    return "exact" if method.lossless else "lossy"


def _example(method: type[Method]) -> str:
    """Code that runs it on a small model, in a fenced block whose title says if it downloads anything."""
    code = method.advice.example or get_modality(method.name.split(".")[0]).example
    title = ' title="downloads weights from the hub"' if HUB in code else ""
    return f"```python{title}\n{code.format(method=f'{method.name}({method.advice.settings})')}\n```"


def _facts(method: type[Method]) -> str:
    families = "" if method.families is None else f" · works on {', '.join(sorted(method.families))}"
    return f"`{method.name}` · **{_kind(method)}**{families}\n\n*{method.paper}*"


def _picture(method: type[Method]) -> str:
    path = PICTURES / f"{method.name}.png"
    caption = PICTURES / f"{method.name}.txt"
    if not path.is_file():
        return ""
    text = caption.read_text(encoding="utf-8").strip()
    return f"![{text}](../../pictures/{path.name})\n\n{text}\n{{ .caption }}"


def _settings(method: type[Method]) -> str:
    """One line for each entry of the docstring, which can be of several fields, such as `first, last`."""
    described = listing.meanings(method)
    defaults = {field.name: getattr(method(), field.name) for field in dataclasses.fields(method)}
    entries: dict[str, list[str]] = {}
    for name in defaults:
        entry = next((entry for entry in described if name in entry.split(", ")), name)
        entries.setdefault(entry, []).append(name)
    lines = [
        [", ".join(f"`{n}`" for n in names), ", ".join(f"`{defaults[n]!r}`" for n in names), _cell(described[entry])]
        for entry, names in entries.items()
    ]
    return pages.markdown(("setting", "default", "what it is"), lines)


def _errors(raised: list[tuple[str, str]]) -> str:
    return "\n".join(["**Raises**\n", *(f"- `{name}`: {_cell(text)}" for name, text in raised)]) if raised else ""


def _presets(method: type[Method]) -> str:
    """The presets that are this method, each with its row."""
    found: dict[str, list[str]] = {}
    for family in presets.families(method.name.split(".")[0]):
        for name, preset in presets.presets_of(method.name.split(".")[0], family).items():
            if any(type(one) is method for one in preset.methods):
                text = f"`preset={name!r}` is `{' + '.join(map(str, preset.methods))}`, {preset}"
                found.setdefault(text, []).append(family)
    return "\n".join(f"- On {', '.join(families)} models, {text}." for text, families in found.items())


def _measured(method: type[Method]) -> list[str]:
    """The tables, those after the first folded up."""
    tables = measured.sections(method)
    if not tables:
        return [
            "No row of the committed benchmarks is of this method yet. `mmaccel.compare(target, method, ...)` measures"
            " it on your own model and input, beside the plain run and the simple alternative."
        ]
    links = [
        f"[docs/benchmarks/{name}](../../benchmarks/{name}.md) ({measured.where(name)})"
        for name in measured.pages(method)
    ]
    parts = [f"From the committed rows of {' and '.join(links)}; speed-ups are against the plain run beside it."]
    for number, (condition, table) in enumerate(tables.items()):
        folded = "    " + table.replace("\n", "\n    ")
        parts.append(f"**{condition}**\n\n{table}" if number == 0 else f'??? note "{condition}"\n\n{folded}')
    return parts


def _together(method: type[Method]) -> str:
    table = methods()
    others = [name for name, cls in table.items() if cls is not method and method.conflicts(cls)]
    if not others:
        return "It can be combined with every other method of its modality."
    return f"It cannot be combined with {', '.join(_link(table[name], address(method)) for name in others)}."


def _link(method: type[Method], page: str) -> str:
    folder, file = address(method).split("/")[1:]
    return f"[{method.__name__}]({folder + '/' + file if page == 'index.md' else f'../{folder}/{file}'})"


def _docstring(method: type[Method]) -> dict[str, Any]:
    """Text, notes and errors of the docstring of a class."""
    found: dict[str, Any] = {"text": "", "notes": "", "raises": []}
    for part in griffe.Docstring(inspect.getdoc(method) or "").parse("numpy", warnings=False):  # types are in the code
        if part.kind is griffe.DocstringSectionKind.text:
            found["text"] += plain(part.value.partition("\n\n")[2]) if not found["text"] else plain(part.value)
        elif part.kind is griffe.DocstringSectionKind.admonition:
            found["notes"] += plain(part.value.description)
        elif part.kind is griffe.DocstringSectionKind.raises:
            found["raises"] = [(str(one.annotation), one.description) for one in part.value]
    return found


def plain(text: str) -> str:
    """Text of a docstring with its references as Markdown has code."""
    return ROLE.sub(lambda match: f"`{match[1].removeprefix('mmaccel.')}`", text)


def _cell(text: str) -> str:
    return plain(" ".join(text.split())).replace("|", "\\|")
