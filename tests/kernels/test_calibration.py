"""The break-even density, and a benchmark that refuses wrong results."""

import functools
import json
import threading
import time

import pytest
import torch

from mmaccel import kernels
from mmaccel.comparison import results
from mmaccel.errors import MmaccelError
from mmaccel.files import kept_choices
from mmaccel.kernels import calibration, timing
from mmaccel.kernels.bench import attention_cases, benchmark
from mmaccel.kernels.bench.case import Draw, KernelCase

BUSY = timing.Timing((1.0, 3.0, 4.0, 5.0), quiet=False)


@pytest.fixture(autouse=True)
def nothing_kept(tmp_path, monkeypatch):
    """Each test is a process of its own, on a machine that nothing was measured on."""
    monkeypatch.setattr(kept_choices, "path", lambda: tmp_path / "choices.json")
    calibrations = calibration._kept
    calibrations.cache_clear()
    yield
    calibrations.cache_clear()


def taking(*seconds, quiet=True):
    return lambda runs, device: timing.Timing(seconds, quiet)


def test_break_even_is_where_the_lines_cross(monkeypatch):
    """Sparse takes 1 + 4 x density, dense takes 3: they cross at one half."""
    monkeypatch.setattr(calibration, "fastest", taking(3.0, 2.0, 3.0, 4.0))
    assert kernels.calibrate("cpu").break_even == pytest.approx((0.5,) * 3)
    monkeypatch.setattr(calibration, "fastest", taking(1.5, 2.0, 3.0, 4.0))
    assert kernels.calibrate("cpu").break_even == (0.125,) * 3
    monkeypatch.setattr(calibration, "fastest", taking(9.0, 2.0, 3.0, 4.0))
    assert kernels.calibrate("cpu").break_even == (1.0,) * 3
    monkeypatch.setattr(calibration, "fastest", taking(5.0, 2.0, 3.0, 7.0))  # it bends upwards
    assert kernels.calibrate("cpu").break_even == pytest.approx((0.625,) * 3)


@pytest.mark.parametrize("causal", (False, True))
def test_what_is_measured(monkeypatch, causal):
    """Dense against sparse attention of the same direction, at shares of the blocks that are seen."""
    runs, shares = [], []
    monkeypatch.setattr(
        calibration, "fastest", lambda found, device: runs.extend(found) or timing.Timing((1.0,) * len(found), True)
    )
    monkeypatch.setattr(calibration, "_crossing", lambda dense, sparse, densities: shares.extend(densities) or 0.5)
    monkeypatch.setattr(calibration, "DENSITIES", (0.25, 0.5, 1.0))
    assert calibration._break_even(512, torch.device("cpu"), causal, torch.float32) == 0.5
    dense, *sparse = (run() for run in runs)
    torch.testing.assert_close(sparse[-1][0], dense, rtol=2e-5, atol=2e-5)  # of all blocks: the same attention
    assert shares == [pytest.approx(0.25, abs=0.13), pytest.approx(0.5, abs=0.13), 1.0]
    assert not torch.allclose(sparse[0][0], dense)


def test_a_busy_machine_has_the_usual_break_even(monkeypatch):
    """Whatever was measured then, and lengths that come later are not even tried."""
    measured = []
    monkeypatch.setattr(calibration, "fastest", lambda runs, device: measured.append(1) or BUSY)
    assert kernels.calibrate("cpu") == kernels.Calibration((512, 2048, 4096), (0.5,) * 3, measured=False)
    assert kernels.calibrate("cpu", causal=True).break_even == (0.4,) * 3
    assert len(measured) == 2


def test_a_busy_moment_spoils_neither_this_process_nor_later_ones(monkeypatch):
    """In it, block-sparse attention ran at 0.3 of the dense speed."""
    monkeypatch.setattr(calibration, "fastest", lambda runs, device: BUSY)
    assert kernels.should_use_sparse(0.4, 2048) and not kernels.should_use_sparse(0.6, 2048)
    monkeypatch.setattr(calibration, "fastest", taking(3.0, 2.0, 2.5, 3.0))
    assert not kernels.should_use_sparse(0.6, 2048), "what a process has used, it keeps"
    calibration._kept.cache_clear()
    assert kernels.should_use_sparse(0.6, 2048), "the next process measures"
    calibration._kept.cache_clear()
    monkeypatch.setattr(calibration, "fastest", lambda runs, device: pytest.fail("it was kept"))
    assert kernels.should_use_sparse(0.6, 2048)


@pytest.mark.parametrize("kept", ("0.5", [0.5], [0.5, 0.5, 1.5], [0.5, 0.5, float("nan")], [0.5, 0.5, "0.5"], {"a": 1}))
def test_a_kept_calibration_that_is_none(monkeypatch, kept):
    name = "break-even of block-sparse attention, float32"
    kept_choices.keep(kept_choices.place(torch.get_num_threads()), name, kept)
    monkeypatch.setattr(calibration, "fastest", taking(3.0, 2.0, 3.0, 4.0))
    assert kernels.should_use_sparse(0.49, 2048) and not kernels.should_use_sparse(0.51, 2048)
    ((_, choices),) = kept_choices.read().items()
    assert choices[name] == pytest.approx([0.5] * 3, abs=1e-3)


@pytest.mark.parametrize("causal", (False, True))
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_a_real_calibration_is_a_share(causal, dtype):
    found = kernels.calibrate("cpu", causal, dtype)
    assert found.lengths == (512, 2048, 4096) and all(0 <= share <= 1 for share in found.break_even)


def test_each_type_and_direction_is_measured_once_by_itself(monkeypatch):
    measured = []

    def calibrate(*key):
        measured.append(key)
        return kernels.Calibration((512, 2048, 4096), (0.6 if key[1] else 0.8,) * 3)

    monkeypatch.setattr(calibration, "calibrate", calibrate)
    for _ in range(2):
        assert kernels.should_use_sparse(0.7, 512)
        assert not kernels.should_use_sparse(0.7, 512, causal=True)
        assert kernels.should_use_sparse(0.7, 512, dtype=torch.bfloat16)
    float32, bfloat16 = torch.float32, torch.bfloat16
    assert measured == [("cpu", False, float32), ("cpu", True, float32), ("cpu", False, bfloat16)]


def test_each_number_of_threads_is_measured_by_itself(monkeypatch):
    measured = []

    def calibrate(*_):
        measured.append(torch.get_num_threads())
        return kernels.Calibration((512, 2048, 4096), (0.6,) * 3)

    monkeypatch.setattr(calibration, "calibrate", calibrate)
    for threads in (2, 5, 2):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        assert kernels.should_use_sparse(0.5, 512)
    assert measured == [2, 5]


def test_other_devices_run_half_precision_and_keep_no_file(monkeypatch):
    measured = []
    known = kernels.Calibration((512, 2048, 8192), (0.6,) * 3)
    monkeypatch.setattr(calibration, "calibrate", lambda *key: measured.append(key) or known)
    assert kernels.should_use_sparse(0.5, 512, "meta", causal=True)
    assert kernels.should_use_sparse(0.5, 512, "meta", dtype=torch.float16)
    assert measured == [("meta", True, torch.bfloat16), ("meta", False, torch.float16)]
    assert kept_choices.read() == {}


def test_an_accelerator_is_measured_once_for_all_numbers_of_threads(monkeypatch):
    asked, shares = [], iter((0.2, 0.4, 0.8))
    monkeypatch.setattr(calibration, "_break_even", lambda *arguments: asked.append(arguments) or next(shares))
    for threads in (2, 5):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        assert kernels.should_use_sparse(0.3, 2048, "meta", causal=True)
    meta = torch.device("meta")
    assert asked == [(n, meta, True, torch.bfloat16) for n in (512, 2048, 8192)]
    assert not kernels.should_use_sparse(0.81, 8192, "meta", causal=True)


def test_what_is_kept_of_a_calibration(monkeypatch):
    """Rounded, under type and direction; the next process reads the break-even of each length."""
    shares = iter((0.12345, 0.5, 0.9, 0.1, 0.2, 0.3))
    monkeypatch.setattr(calibration, "_break_even", lambda *_: next(shares))
    assert kernels.should_use_sparse(0.4, 2048) and not kernels.should_use_sparse(0.4, 2048, causal=True)
    ((place, choices),) = kept_choices.read().items()
    name = "break-even of block-sparse attention, float32"
    assert place == kept_choices.place(torch.get_num_threads())
    assert choices == {name: [0.123, 0.5, 0.9], f"{name}, causal": [0.1, 0.2, 0.3]}
    calibration._kept.cache_clear()
    assert kernels.should_use_sparse(0.8, 4096) and not kernels.should_use_sparse(0.2, 512)
    assert calibration._kept("cpu", True, torch.float32, 1) == kernels.Calibration((512, 2048, 4096), (0.1, 0.2, 0.3))
    assert kernels.Calibration((1,), (0.5,)).measured


def test_bounds_of_the_arguments():
    assert not kernels.should_use_sparse(1, 1)
    for density in (-0.01, 1.1, float("nan")):
        with pytest.raises(ValueError, match="^density must be "):
            kernels.should_use_sparse(density, 1)
    for n in (0, -1):
        with pytest.raises(ValueError, match="^n must be "):
            kernels.should_use_sparse(0.5, n)


def test_two_threads_do_not_measure_against_each_other(monkeypatch):
    measured = []

    def calibrate(*_):
        measured.append(1)
        time.sleep(0.1)
        return kernels.Calibration((512, 2048, 4096), (0.6,) * 3)

    monkeypatch.setattr(calibration, "calibrate", calibrate)
    threads = [threading.Thread(target=kernels.should_use_sparse, args=(0.5, 512)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert measured == [1]


def test_lengths_in_between(monkeypatch):
    known = kernels.Calibration((512, 2048), (0.2, 0.6))
    assert [known.at(n) for n in (1, 512, 1024, 2048, 9999)] == pytest.approx([0.2, 0.2, 0.4, 0.6, 0.6])
    monkeypatch.setattr(calibration, "_kept", lambda *_: known)
    assert kernels.should_use_sparse(0.39, 1024) and not kernels.should_use_sparse(0.41, 1024)
    assert not kernels.should_use_sparse(known.at(1024), 1024), "as fast is not faster"
    assert not kernels.should_use_sparse(1.0, 99999)
    monkeypatch.setattr(calibration, "_kept", lambda *_: pytest.fail("a plan of all blocks needs no measurement"))
    assert not kernels.should_use_sparse(1.0, 1024)


@pytest.mark.parametrize("pays", (False, True))
def test_a_case_above_the_break_even_attends_to_everything(monkeypatch, pays):
    monkeypatch.setattr(attention_cases, "should_use_sparse", lambda *_: pays)
    q = Draw(torch.float32, "cpu")(1, 2, 256, 16)
    case = attention_cases.sparse_case(q, q, q, 0.25, causal=True)
    dense, _ = kernels.block_sparse_attention(q, q, q, causal=True)
    assert torch.equal(case.run()[0], dense) is not pays


def few(dtype, device, lengths):
    draw = Draw(dtype, device)
    q, k, v = (draw(1, 2, 256, 16) for _ in range(3))
    yield attention_cases.sparse_case(q, k, v, 0.25, causal=True)
    yield attention_cases.window_case(q, k, v, 32)
    yield from attention_cases.decode_cases(draw(1, 4, 1, 16), draw(1, 2, 2048, 16), draw(1, 2, 2048, 16), draw)


def decided(patch):
    """Sparse attention pays, without a measurement."""
    for module in (benchmark, attention_cases):
        patch.setattr(module, "should_use_sparse", lambda *_: True)


@functools.cache
def measured():
    """A short benchmark."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(benchmark, "cases", few)
        decided(patch)
        return results.result(benchmark.rows())


def test_benchmark_rows():
    result = measured()
    assert json.loads(json.dumps(result)) == result and len(result["rows"]) == 14
    assert sum(row["settings"].get("layers", 1) == attention_cases.LAYERS for row in result["rows"]) == 4
    for row in result["rows"]:
        assert set(results.COLUMNS) <= set(row) and row["quality"] <= 5e-3 and row["speedup"] > 0


def test_a_wrong_result_is_not_reported(monkeypatch):
    monkeypatch.setattr(benchmark, "cases", few)
    decided(monkeypatch)
    right = attention_cases.block_sparse_attention

    def wrong(*args, **kwargs):
        output, lse = right(*args, **kwargs)
        return output + 1e-3, lse

    monkeypatch.setattr(attention_cases, "block_sparse_attention", wrong)
    with pytest.raises(MmaccelError, match="no figures are reported"):
        list(benchmark.rows())


def test_a_result_that_is_no_number_is_wrong(monkeypatch):
    case = KernelCase("op", "s", torch.float32, {}, "b", *[lambda: None] * 2, lambda: float("nan"))
    with pytest.raises(MmaccelError, match=r"op \(s, torch.float32\) is off by nan"):
        benchmark.measure(case, "cpu")


def test_rounding_is_held_against_that_of_torch_where_it_grows_with_the_shape(monkeypatch):
    monkeypatch.setattr(benchmark, "ROUNDS", 1)
    case = KernelCase("op", "s", torch.float32, {}, "b", *[lambda: None] * 2, lambda: 5e-6, usual_error=lambda: 2e-6)
    assert benchmark.measure(case, "cpu")["quality"] == 5e-6
    for usual, most in ((None, "2e-06"), (lambda: 1e-7, "2e-06"), (lambda: 1e-6, "4e-06")):
        case.usual_error = usual
        with pytest.raises(MmaccelError, match=f"more than {most}"):
            benchmark.measure(case, "cpu")


def test_a_row_says_what_was_timed(monkeypatch):
    """Ours, torch's way and others in one alternation; arithmetic and traffic are those of our time."""
    monkeypatch.setattr(benchmark, "ROUNDS", 2)
    calls = []
    ours, plain, other = (lambda name=name: calls.append(name) for name in ("ours", "plain", "other"))
    case = KernelCase(
        "op", "a shape", torch.bfloat16, {"x": 1}, "torch's", ours, plain, lambda: 1e-3, 4e9, 2e9, {"copy": other}
    )
    row = benchmark.measure(case, "cpu")
    assert (row["model"], row["method"], row["settings"]) == ("a shape bfloat16", "kernels.op", {"x": 1})
    assert (row["baseline"], row["quality"], row["exact"]) == ("torch's", 1e-3, True)
    assert row["gigaflops"] == pytest.approx(4 / row["wall_seconds"])
    assert row["gigabytes_per_second"] == pytest.approx(2 / row["wall_seconds"])
    assert row["copy_seconds"] > 0 and calls.count("ours") == calls.count("plain") == calls.count("other") >= 2
    case.flops = case.bytes = 0.0
    row = benchmark.measure(case, "cpu")
    assert row["gigaflops"] is None and row["gigabytes_per_second"] is None


@pytest.mark.parametrize("full", (False, True))
def test_types_and_lengths_of_the_benchmark(monkeypatch, full):
    """When dense attention pays is found out before anything is timed."""
    happened = []
    monkeypatch.setattr(benchmark, "should_use_sparse", lambda *asked: happened.append(asked[1:]))
    monkeypatch.setattr(benchmark, "cases", lambda *asked: happened.append(asked) or [])
    assert list(benchmark.rows(full)) == []
    types = [torch.float32, torch.bfloat16, torch.float16][: 3 if full else 2]
    asked = [(4096, "cpu", causal, dtype) for dtype in types for causal in (False, True)]
    assert happened == asked + [(dtype, "cpu", (4096,)) for dtype in types]


def test_the_index_has_the_best_and_the_worst_case_of_an_op():
    def row(method, speedup, dtype="float32", **settings):
        return {"method": f"kernels.{method}", "model": f"s {dtype}", "speedup": speedup, "settings": settings}

    op = "verify_attention"
    one, two, three, alone = row(op, 2.0), row(op, 3.0, tokens=4), row(op, 1.0), row("segment_mean", 1.5)
    found = benchmark.SECTION.groups([one, two, three, alone, row(op, 9.0, "bfloat16")])
    assert found == {"": [two, three, alone]}
    assert benchmark.SECTION.name(two) == "`kernels.verify_attention`, tokens 4"


def test_benchmark_page(tmp_path):
    result = measured()
    benchmark.BENCHMARK.write_page(result, tmp_path / "kernels.md")
    text = (tmp_path / "kernels.md").read_text()
    assert "## float32" in text and "## bfloat16" in text and text.count("verify_attention") == 10


def test_a_gpu_is_timed_in_rows_of_calls_and_told_by_the_call(monkeypatch):
    """A single call would mostly measure what a launch costs on the processor, which a model's queue hides."""
    calls, clock = [], iter(range(10**6))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: float(next(clock)))
    found = timing.fastest([lambda: calls.append("one"), lambda: calls.append("other")], torch.device("meta"))
    rounds = timing.QUIET_ROUNDS
    assert found.quiet and found.seconds == (1 / timing.GPU_CALLS,) * 2
    assert calls[:2] == ["one", "other"] and calls.count("one") == calls.count("other") == 1 + rounds * timing.GPU_CALLS
    assert calls[2 : 2 + timing.GPU_CALLS] == ["one"] * timing.GPU_CALLS
