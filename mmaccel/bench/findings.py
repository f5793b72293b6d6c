"""What a table of the index says, in words, from its rows: who is fastest at no loss, and who is best."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from ..tuning.curve import NEAR
from .benchmark import Group, Row, Section
from .selection import plain_quality, role_of, score
from .winners import speed, who_wins

FASTEST = speed("speed at no loss")
WORST = speed("speed at no loss, worst sample", "speedup_worst")
Others = dict[str, Group]  # by the name of their group


def told(section: Section, group: Group) -> str:
    """What a section says of one of its tables."""
    return section.said(group) if section.said is not None else of_table(section, group)


def of_table(section: Section, group: Group) -> str:
    """Ours beside each group of others and the plain model; empty where nothing can be compared."""
    rows = [row for row in group if role_of(row) != "plain" and _saves(row)]
    return "\n".join(filter(None, [*_at_no_loss(section, rows), *_best(section, rows)]))


def typed(name: str) -> str:
    """The name of a row, as code where it can be typed as it stands."""
    return f"`{name}`" if re.match(r"([a-z]+\.)?[A-Z]\w+\(", name) else name


def plain_of(rows: Group) -> Row:
    """The plain run that rows were measured beside, as a row."""
    quality = plain_quality(rows)
    return {"method": "plain", "settings": {}, "speedup": 1.0, "speedup_worst": 1.0, "quality": quality}


def named(section: Section) -> Callable[[Row], str]:
    """What a section calls a row in a sentence."""
    return lambda row: "the plain model" if role_of(row) == "plain" else typed(section.name(row))


def _saves(row: Row) -> bool:
    """Whether a row was timed, and is not a neutral setting that may happen to be faster."""
    return row["speedup"] is not None and (row["work_ratio"] or 0) < 1


def _split(section: Section, rows: Group) -> tuple[Group, Others]:
    """Ours, and the others by the group that the section puts them into."""
    ours, others = Group(), Others()
    for row in rows:
        name = section.versus(row) if section.versus else role_of(row).removeprefix("method")
        (others.setdefault(name, []) if name else ours).append(row)
    return ours, others


def _at_no_loss(section: Section, rows: Group) -> Iterator[str]:
    """The fastest of ours that is as good as the plain run, beside the fastest such others, and who never is."""
    plain, (all_ours, all_others) = plain_of(rows), _split(section, rows)
    ours, others = _split(section, [row for row in rows if _keeps(section, row, rows, plain)])
    best, theirs = FASTEST.best(ours), FASTEST.best(row for group in others.values() for row in group)
    if best is not None:
        beside = [*others.values(), [plain]]
        yield from (who_wins(figure, best, beside, named(section)) for figure in (FASTEST, WORST))
    elif theirs is not None and theirs["speedup"] > 1:
        told = FASTEST.told(theirs["speedup"], "the plain model")
        yield f"- Speed at no loss: {named(section)(theirs)} wins, {told}."
    elif theirs is not None:
        yield "- Speed at no loss: the plain model wins."
    yield "" if ours else _loses(section, all_ours, plain, "ours")
    yield from (_loses(section, group, plain, "its kind") for name, group in all_others.items() if name not in others)


def _keeps(section: Section, row: Row, rows: Group, plain: Row) -> bool:
    """Whether a row is no worse than the plain run."""
    quality, least = score(section, row, rows), score(section, {**plain, "exact": False}, rows)
    return row["exact"] or (quality is not None and least is not None and quality >= least)


def _loses(section: Section, rows: Group, plain: Row, kind: str) -> str:
    """What is lost at best by rows that are nowhere as good as the plain run."""
    best = section.figures[0].best(rows) if section.figures else None
    if best is None or plain["quality"] is None:
        return ""
    lost = section.figures[0].told(section.figures[0].gain(best, plain), "the plain model")
    return f"- At a loss only: {named(section)(best)}, the best of {kind}, {lost}, {best['speedup']:.2f}x as fast."


def _best(section: Section, rows: Group) -> Iterator[str]:
    """The best of ours on the mean, of those no slower than the plain run, beside the best others on each figure."""
    ours, others = _split(section, [row for row in rows if row["speedup"] >= NEAR])
    best = section.figures[0].best(ours) if section.figures else None
    if best is not None:
        yield from (who_wins(figure, best, others.values(), named(section)) for figure in section.figures)
