"""The benchmark's rows: complete, and JSON whatever the guidance."""

import json

import pytest

from mmaccel.comparison import results
from mmaccel.image import SpeculativeJacobi, ZipAR
from mmaccel.image.bench import benchmark


@pytest.fixture(scope="module")
def result():
    methods = (SpeculativeJacobi(window=1), SpeculativeJacobi(window=16), ZipAR(window=2))
    few = [benchmark.ImageCase(1, 3.0, 1, methods), benchmark.ImageCase(2, 1.0, 1, methods)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(benchmark, "cases", lambda full: few)
        return results.result(benchmark.rows())


def test_rows_are_json_with_every_column(result):
    assert json.loads(json.dumps(result)) == result
    assert len(result["rows"]) == 6
    for row in result["rows"]:
        assert set(results.COLUMNS) <= set(row) and not any(key.startswith("_") for key in row)


def test_passes_and_baselines_are_what_they_say(result):
    guided, unguided = result["rows"][:3], result["rows"][3:]
    assert {row["baseline"] for row in guided} == {"own generate"}
    assert {row["baseline"] for row in unguided} == {"plain loop"}
    for plain, speculative, row_parallel in (guided, unguided):
        assert plain["work_ratio"] == 1
        assert row_parallel["passes"] < speculative["passes"] < plain["passes"]


def test_the_page_names_the_machine(result):
    text = benchmark.BENCHMARK.page(result, "image.json", "image.png")
    assert result["header"]["machine"]["processor"] in text and "ZipAR" in text
