"""Parts of the repository's own Markdown files, with links that work in the site."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Files of the repository that have a page of their own; what else is linked there is only named.
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "mmaccel/zoo/README.md": "models/index.md",
}
CARD = re.compile(r"^mmaccel/zoo/([\w-]+)/README\.md$")
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
HEADING = re.compile(r"^(#+) (.*)$")


def text(name: str) -> str:
    """A file of the repository."""
    return (ROOT / name).read_text(encoding="utf-8")


def lead(name: str) -> str:
    """What a file says between its title and its first section."""
    return text(name).split("\n## ")[0].split("\n", 1)[1].strip()


def section(name: str, heading: str) -> str:
    """One section of a file, without its heading.

    Raises
    ------
    KeyError
        If the file has no such section.
    """
    found, inside = [], False
    for line, in_code in _lines(text(name)):
        title = None if in_code else HEADING.match(line)
        if title and len(title[1]) <= 2:
            inside = title[2] == heading
        elif inside:
            found.append(line)
    if not found:
        raise KeyError(f"{name} has no section {heading!r}")
    return "\n".join(found).strip()


def relinked(markdown: str, page: str, source: str = "README.md") -> str:
    """Markdown of the file `source` with the links that it needs on a page of the site, `page`."""

    def one(match: re.Match[str]) -> str:
        picture, label, target = match.groups()
        if re.match(r"^(\w+:|#)", target):
            return match[0]
        path, _, anchor = target.partition("#")
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        there = _page(path)
        if there is None:
            return f"`{path}`" if not picture else ""
        link = posixpath.relpath(there, posixpath.dirname(page) or ".") + (f"#{anchor}" if anchor else "")
        return f"{picture}[{label}]({link})"

    return LINK.sub(one, markdown)


def _page(path: str) -> str | None:
    """Where a file of the repository is in the site."""
    if path in PAGES:
        return PAGES[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    card = CARD.match(path)
    return f"models/{card[1]}/index.md" if card else None


def _lines(markdown: str) -> list[tuple[str, bool]]:
    """Every line, and whether it is in a code block."""
    found, inside = [], False
    for line in markdown.split("\n"):
        inside ^= line.startswith("```")
        found.append((line, inside))
    return found
