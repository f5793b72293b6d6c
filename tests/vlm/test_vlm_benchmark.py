"""The benchmark of video questions: its grid, its page and its index."""

import pytest

from mmaccel.bench import findings, plots
from mmaccel.comparison import results
from mmaccel.vlm.bench import benchmark, cases, page

FIGURES = {
    "wall_seconds": 0.1,
    "baseline_seconds": 0.2,
    "tower_seconds": 0.1,
    "first_token_seconds": 0.04,
    "first_token_speedup": 4.0,
    "tower_speedup": 1.0,
    "cache_bytes": 2**20,
    "tokens_per_second": 300.0,
    "exact": False,
    "seeds": [0],
    "quality_metric": "share right",
    "quality_worst": None,
}


def line(method, table, share, quality, speedup, **more):
    kind = {"plain": "plain", "fewer frames": "simple"}.get(method, "method")
    settings = {"simple": {"step": round(1 / share)}, "method": {"keep": share}}.get(kind, {})
    who = {"modality": "vlm", "model": "tiny-onevision", "method": method, "settings": settings, "kind": kind}
    told = {"table": table, "share": share, "visual_share": share, "quality": quality, "baseline_quality": 0.98}
    return results.row(**{**FIGURES, **who, **told, "speedup": speedup, **more})


@pytest.fixture
def rows():
    found = []
    for table, tenth in (("brief", 0.28), ("slow", 1.0)):
        found += [
            line("plain", table, 1.0, 0.98, 1.0),
            line("fewer frames", table, 0.5, 0.96, 1.9),
            line("fewer frames", table, 0.1, tenth, 8.0),
            line("vlm.FastV", table, 0.25, 0.9, 1.3, visual_share=0.5, quality_worst=0.6),
            line("vlm.DyCoke", table, 0.15, 0.97, 1.7, quality_worst=0.81),
            line("vlm.HoliTom", table, 0.15, 0.95, 1.8),
        ]
    return found


def cells(table):
    return [[cell.strip() for cell in text.split("|")[1:-1]] for text in table.splitlines() if text.startswith("| ")]


def test_brief_events_lead_and_every_table_has_fewer_frames(rows):
    tables = page.tables(rows)
    assert list(tables) == [
        "Brief events: 25% of the tokens",
        "Brief events: 15% of the tokens",
        "Brief events: at equal tokens",
        "Slow clips: 25% of the tokens",
        "Slow clips: 15% of the tokens",
        "Slow clips: at equal tokens",
    ]
    headings, _, *lines = cells(tables["Brief events: 15% of the tokens"])
    assert [text[0] for text in lines] == ["plain", "every 2nd frame", "every 10th frame", "DyCoke", "HoliTom"]
    told = dict(zip(headings, lines[3], strict=True))
    assert (told["keep"], told["tokens"], told["right"], told["worst kind"]) == ("15%", "15.0%", "97.0%", "81.0%")
    (fast,) = [text for text in cells(tables["Brief events: 25% of the tokens"]) if text[0] == "FastV"]
    told = dict(zip(headings, fast, strict=True))
    assert (told["keep"], told["tokens"]) == ("25%", "50.0%"), "what is kept is not what layers get"


def test_the_page_says_what_its_rows_say(rows):
    text = benchmark.BENCHMARK.page(results.result(rows), "vlm.json", "vlm.png")
    assert "| every 10th frame | 28.0% |" in text and "| DyCoke | 97.0% | 15% |" in text
    assert "brief events" in text and "64 frames" not in text
    slow = [row for row in rows if row["table"] == "slow"]
    assert "brief events" not in benchmark.BENCHMARK.page(results.result(slow), "vlm.json", "vlm.png")


def test_the_index_tells_where_fewer_frames_win(rows):
    groups = benchmark.SECTION.groups(rows)
    assert list(groups) == ["Brief events", "Slow clips"]
    brief, slow = (findings.told(benchmark.SECTION, group).splitlines() for group in groups.values())
    lossy = (
        "- At a loss only: `vlm.DyCoke(keep=0.15)`, the best of ours, -1.0 points to the plain model, 1.70x as fast."
    )
    fewer = (
        "- At a loss only: fewer frames(step=2), the best of its kind, -2.0 points to the plain model, 1.90x as fast."
    )
    wins = (
        "- Questions answered right, mean: `vlm.DyCoke(keep=0.15)` wins; ours is +1.0 points to fewer frames(step=2)."
    )
    assert brief[:3] == [lossy, fewer, wins]
    assert slow[:2] == ["- Speed at no loss: fewer frames(step=10) wins, 8.00x as fast as the plain model.", lossy]


def test_at_equal_tokens_each_method_has_the_setting_that_comes_nearest(rows):
    rows[3]["visual_share"] = 0.24  # FastV
    headings, _, *lines = cells(page.tables(rows)["Brief events: at equal tokens"])
    assert headings == ["method", "25% of the tokens", "15% of the tokens"]
    assert lines == [
        ["DyCoke", "", "97.0% (81.0%) with 15.0%"],
        ["FastV", "90.0% (60.0%) with 24.0%", ""],
        ["HoliTom", "", "95.0% with 15.0%"],
    ]


def test_the_picture_is_of_the_first_kind_of_clips(rows, tmp_path):
    figure = plots.plot(benchmark.BENCHMARK, results.result(rows), tmp_path / "index.png")
    lowest = min(y for drawn in figure.axes[0].lines for y in drawn.get_ydata())
    assert lowest == pytest.approx(28) or lowest == pytest.approx(0.28)


def test_the_worst_kind_is_of_kinds_that_were_asked_often_enough():
    kinds = ["motion"] * 10 + ["count"] * 10 + ["end"] * 2
    answers = [True] * 8 + [False] * 2 + [True] * 10 + [False] * 2
    assert benchmark.by_kind(answers, kinds) == {"motion": 0.8, "count": 1.0}


@pytest.mark.parametrize("grids", [cases.QUICK, cases.FULL], ids=["quick", "full"])
def test_every_kind_of_clips_has_a_name_and_brief_events_come_first(grids):
    assert grids[0].table == "brief" and all(grid.table in page.TITLES for grid in grids)
    assert all(grid.timed <= grid.clips for grid in grids)
    assert {0.15} <= set.intersection(*(set(grid.shares) for grid in grids))
