"""The benchmark's rows: complete, and JSON whatever the guidance."""

import contextlib
import json
from functools import partialmethod
from types import SimpleNamespace

import pytest
import torch

from mmaccel.comparison import results
from mmaccel.image import SpeculativeJacobi, ZipAR
from mmaccel.image.bench import benchmark, cases, page
from mmaccel.image.bench.distances import FrechetDistance, features


@pytest.fixture(scope="module")
def result():
    methods = (SpeculativeJacobi(window=1), SpeculativeJacobi(window=16), ZipAR(window=2))
    few = [benchmark.ImageCase(1, cases.GUIDED, 1, methods), benchmark.ImageCase(2, 1.0, 1, methods)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(benchmark, "cases", lambda full: few)
        patch.setattr(benchmark.Runner, "run", partialmethod(benchmark.Runner.run, warm_up=False))
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


class Painter:
    """Notes what is to be drawn."""

    name, target = "a model", "the model itself"

    def __init__(self):
        self.drawn = []

    def generate(self, target, prompts, settings):
        self.drawn.append((target, prompts, settings.seed, settings.guidance))


def test_each_round_draws_prompts_of_its_own():
    """As many as the batch has, from a seed of its own, and again from the first once all were drawn."""
    painter = Painter()
    drawing = cases.Drawing(painter, cases.ImageCase(2, 1.5, 10, ()))
    for seed in (0, 1, 8):
        drawing.run("a session", seed)
    prompts = [told for _, told, _, _ in painter.drawn]
    assert prompts == [drawing.prompts[:2], drawing.prompts[2:4], drawing.prompts[:2]]
    assert len(drawing.prompts) == 16 and prompts[0] != prompts[1]
    assert [told[2:] for told in painter.drawn] == [(0, 1.5), (1, 1.5), (8, 1.5)]
    assert {told[0] for told in painter.drawn} == {"a session"}


def sample(forwards, accepted, tested, **details):
    stats = {"accepted_by_depth": accepted, "tested_by_depth": tested}
    return SimpleNamespace(report={"forwards": forwards, "plain_forwards": 16, "details": {"stats": stats, **details}})


def test_a_row_is_of_all_rounds():
    entry = SimpleNamespace(
        samples=[sample(4, [2, 1], [4, 2], verify_cost="first"), sample(8, [1], [4], verify_cost="last")],
        seconds=[1.0, 3.0],
        identity=lambda: {"method": "m", "settings": {}, "exact": True, "label": "m", "kind": "method"},
        timing=lambda baseline: {"wall_seconds": 2.0, "speedup": baseline.speedup},
        work=lambda: {"peak_extra_bytes": 3, "work_ratio": 0.4},
    )
    baseline = SimpleNamespace(speedup=1.5, columns={"baseline": "own generate"})
    row = benchmark._row(Painter(), cases.ImageCase(4, 3.0, 2, ()), entry, baseline)
    assert (row["model"], row["modality"], row["seeds"], row["speedup"]) == ("a model", "image", [0, 1], 1.5)
    assert (row["batch"], row["guidance"], row["baseline"]) == (4, 3.0, "own generate")
    assert (row["passes"], row["tokens_per_pass"]) == (6, 32 / 12)
    assert row["acceptance"] == [3 / 8, 1 / 2], "of depths that not all rounds reached too"
    assert (row["verify_cost"], row["all_seconds"]) == ("last", [1.0, 3.0])


def test_quality_is_told_of_guided_rows_of_the_same_method(monkeypatch):
    """It is measured once, and in the full benchmark alone."""
    one, other = SpeculativeJacobi(window=8), ZipAR(window=2)

    def measure(painter, case):
        for method in (one, other, None):
            plan = method and SimpleNamespace(methods=(method,))
            yield SimpleNamespace(plan=plan), {"guidance": case.guidance}

    monkeypatch.setattr(benchmark, "measure", measure)
    monkeypatch.setattr(benchmark, "_quality", lambda painter: iter([(other, {"quality": 7})]))
    monkeypatch.setattr(benchmark.generation, "load", lambda name: Painter())
    monkeypatch.setattr(benchmark, "cases", lambda full: [cases.ImageCase(1, g, 1, ()) for g in (cases.GUIDED, 1.0)])
    guided, unguided = {"guidance": cases.GUIDED}, {"guidance": 1.0}
    judged = [guided, {**guided, "quality": 7}, guided, unguided, unguided, unguided]
    assert list(benchmark.rows(full=True)) == judged
    assert list(benchmark.rows()) == [guided] * 3 + [unguided] * 3


def test_plain_and_accelerated_pictures_of_the_same_prompts_are_judged(monkeypatch):
    """In batches, each from a seed of its own; real pictures that were not drawn are what they are compared with."""
    drawn = []

    class Own(Painter):
        def inputs(self, prompts, settings):
            return prompts, settings.guidance

        def generate(self, target, prompts, settings):
            drawn.append((target, prompts, settings.seed, settings.guidance))
            return torch.full((len(prompts), 1), 1.0 if target == self.target else 2.0)

    def nats(adapter, inputs, tokens):
        assert inputs[1] == cases.GUIDED and len(inputs[0]) == len(tokens)
        return tokens[:, 0] + 4

    prompts, real = [f"prompt {i}" for i in range(50)], torch.zeros(50, 1)
    monkeypatch.setattr(benchmark, "QUALITY_PICTURES", 45)
    monkeypatch.setattr(benchmark, "QUALITY_METHODS", (ZipAR(window=2),))
    monkeypatch.setattr(benchmark, "features", lambda tokens, codebook: tokens + codebook)
    monkeypatch.setattr(benchmark, "FrechetDistance", lambda real: lambda x: (len(real), len(x), float(x.mean())))
    monkeypatch.setattr(benchmark, "nats_per_token", nats)
    monkeypatch.setattr(benchmark.zoo, "reference", lambda name: (prompts, real))
    codebook = SimpleNamespace(begin=lambda inputs: SimpleNamespace(codebook=lambda: 100.0))
    monkeypatch.setattr(benchmark, "find_adapter", lambda target: codebook)
    monkeypatch.setattr(benchmark, "accelerate", lambda target, method: contextlib.nullcontext("a session"))
    ((method, row),) = benchmark._quality(Own())
    assert method == ZipAR(window=2) and "over 45 samples" in row["quality_metric"]
    assert (row["quality"], row["baseline_quality"]) == ((5, 45, 102.0), (5, 45, 101.0))
    assert row["real_quality"] == (5, 45, 100.0)
    assert (row["nats_per_token"], row["baseline_nats_per_token"]) == (6.0, 5.0)
    batches = [(prompts[i : min(i + 20, 45)], i, cases.GUIDED) for i in (0, 20, 40)]
    targets = ("the model itself", "a session")
    assert drawn == [(target, *batch) for target in targets for batch in batches]


def test_features_say_where_codes_are_and_how_they_meet():
    codebook = torch.tensor([[0.0, 0.0], [1.0, 3.0]])
    columns = torch.tensor([[0, 1] * 4] * 8)  # changes to the right, not downwards
    for tokens, right, below in ((columns, [1.0, 3.0], [0.0, 0.0]), (columns.T, [0.0, 0.0], [1.0, 3.0])):
        (found,) = features(tokens.reshape(1, 64), codebook)
        assert found[:32].tolist() == [0.5] * 16 + [1.5] * 16, "half of each cell, code by code"
        assert found[32:].tolist() == [*right, *below] and found.dtype == torch.float64
    corner = torch.zeros(1, 64, dtype=torch.long)
    corner[0, [6, 7, 14, 15]] = 1  # the last two columns of the first two rows
    (found,) = features(corner, codebook)
    assert found[:16].tolist() == [0, 0, 0, 1] + [0] * 12


def test_the_frechet_distance_of_known_gaussians():
    """In units of the spread of real features: shifted by one, and twice as wide."""
    spread = torch.tensor([1, 2, 3, 5, 9])
    real = torch.randn(200, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * spread + 7
    distance = FrechetDistance(real)
    assert distance(real) == pytest.approx(0, abs=1e-9)
    assert distance(real + real.std(0)) == pytest.approx(5)
    assert distance(real.mean(0) + 2 * (real - real.mean(0))) == pytest.approx(5), "of a standard deviation each"
    still = torch.cat([real, torch.ones(200, 1)], 1)
    assert FrechetDistance(still)(still) == pytest.approx(0, abs=1e-9), "what never changes divides by nothing"


def test_where_features_lie_is_no_part_of_the_distance():
    """Of more features than components count, those are taken that differ between pictures."""
    real, other = torch.randn(2, 60, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    near, far = FrechetDistance(real)(other), FrechetDistance(real + 9)(other + 9)
    assert near == pytest.approx(far) and near > 0.1


def test_the_full_benchmark_has_more_of_everything():
    (short,), full = cases.cases(False), cases.cases(True)
    assert short.is_guided and len(full) == 4
    assert {(case.batch, case.is_guided) for case in full} == {(b, g) for b in (1, 4) for g in (True, False)}
    for case in full:
        assert set(short.methods) < {*case.methods, *cases.QUALITY_METHODS} and cases.PLAIN_LOOP in case.methods
        couplings = {(m.coupling, m.window) for m in case.methods if isinstance(m, SpeculativeJacobi)}
        assert couplings >= {(c, w) for c in cases.COUPLINGS for w in cases.WINDOWS}


def table_row(**more):
    row = {"method": "image.ZipAR", "settings": {"window": 2}, "exact": False, "wall_seconds": 1.5, "speedup": 2.5}
    row |= {"tokens_per_pass": 3.5, "baseline": "own generate", "baseline_seconds": 3.75, "seeds": [0, 1]}
    return {**row, "batch": 1, "guidance": 3.0, **more}


def test_tables_of_the_page():
    """One for each batch and guidance, with what its baseline was."""
    judged = {"quality": 20.5, "baseline_quality": 19.5, "nats_per_token": 4.5, "baseline_nats_per_token": 4.25}
    unguided = {"guidance": 1.0, "baseline": "plain loop"}
    found = page.tables([table_row(**judged), table_row(**unguided), table_row(batch=4, **unguided)])
    assert [table.count("ZipAR") for table in found.values()] == [1, 1, 1]
    guided, unguided = found["Batch 1, guidance 3"], found["Batch 4, no guidance"]
    assert "the model's own `generate`, 3.75 s, 2 rounds" in guided and "our own loop" in unguided
    for told in ("ZipAR(window=2)", "no", "1.50", "2.50x", "3.50x", "20.50 (plain 19.50)", "4.50 (plain 4.25)"):
        assert f"| {told} |" in guided
    assert "plain 19" not in unguided


def test_depths_that_few_drafts_reached_are_not_drawn():
    row = {"passes": 50, "seeds": [0, 1], "acceptance": [0.5, 0.6, 0.5, 0.9]}
    assert page._well_tested(row) == [0.5, 0.6, 0.5], "100, 50 and 30 were tested there, and 15 behind them"
