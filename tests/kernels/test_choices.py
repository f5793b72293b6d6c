"""Which way of computing runs: measured in quiet moments only, and kept for one processor in a file."""

import json
import os
import re
import sys
import threading
import time

import pytest
import torch

from mmaccel.cli.main import main
from mmaccel.files import kept_choices
from mmaccel.files.kept_choices import path as users_file
from mmaccel.kernels import choosing, timing
from mmaccel.kernels.native import decode_ways, long_cache, workspace

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def file(tmp_path, monkeypatch):
    """Each test is a process of its own, on a machine that nothing was measured on."""
    path = tmp_path / "folder" / "choices.json"
    monkeypatch.setattr(kept_choices, "path", lambda: path)
    long_cache.way.cache_clear()
    yield path
    long_cache.way.cache_clear()


# A clock that other work is seen on


class Clock:
    """Runs that take so many seconds of wall time each, of which the process has a share."""

    def __init__(self, monkeypatch, threads=1):
        self.wall = self.worked = 0.0
        monkeypatch.setattr(timing.time, "perf_counter", lambda: self.wall)
        monkeypatch.setattr(timing.time, "process_time", lambda: self.worked)
        monkeypatch.setattr(timing.torch, "get_num_threads", lambda: threads)

    def run(self, *turns):
        """`turns` are seconds, or seconds and the threads' time that the process had in them."""
        turns = iter(turns)

        def run():
            turn = next(turns)
            seconds, worked = turn if isinstance(turn, tuple) else (turn, turn)
            self.wall, self.worked = self.wall + seconds, self.worked + worked

        return run


def test_the_least_of_several_turns_counts(monkeypatch):
    """The first turn warms up; what others do on the machine only ever adds."""
    clock = Clock(monkeypatch)
    found = timing.fastest([clock.run(0, 5, 2, 4), clock.run(0, 7, 9, 8)], CPU)
    assert found.seconds == (2.0, 7.0)
    assert not found.quiet, "twice as long in the middle as at best"


def test_rounds_that_other_work_disturbed_do_not_count(monkeypatch):
    """Here they were the shorter ones, which nothing that is true would be."""
    clock = Clock(monkeypatch)
    first, second = clock.run(0, 4, (1, 0.1), 4.2, 5), clock.run(0, 6, (1, 0.1), 7, 6)
    assert timing.fastest([first, second], CPU) == timing.Timing((4.0, 6.0), quiet=True)


def test_a_busy_machine_is_given_up(monkeypatch):
    clock = Clock(monkeypatch)
    found = timing.fastest([clock.run(0, *[(1, 0.7)] * timing.BUSY_ROUNDS)], CPU)  # one more would be StopIteration
    assert found == timing.Timing((1.0,), quiet=False)


@pytest.mark.parametrize(("threads", "worked", "quiet"), ((1, 1, True), (2, 1, False), (2, 1.9, True), (16, 12, False)))
def test_all_threads_must_have_worked(monkeypatch, threads, worked, quiet):
    clock = Clock(monkeypatch, threads)
    assert timing.fastest([clock.run(0, *[(1, worked)] * 4)], CPU).quiet == quiet


def test_an_accelerator_leaves_the_processor_idle(monkeypatch):
    clock = Clock(monkeypatch)
    calls = 3 * timing.GPU_CALLS
    assert timing.fastest([clock.run(0, *[(1, 0.0)] * calls)], torch.device("meta")).quiet


@pytest.mark.parametrize("kind", ("cuda", "mps", "xpu"))
def test_an_accelerator_is_waited_for_before_each_look_at_the_clock(monkeypatch, kind):
    waited, clock = [], Clock(monkeypatch)
    monkeypatch.setattr(f"torch.{kind}.synchronize", lambda *_: waited.append(kind))
    timing.fastest([clock.run(0, *[(1, 0.0)] * 3 * timing.GPU_CALLS)], torch.device(kind))
    assert waited == [kind] * 2 * timing.QUIET_ROUNDS


# What is kept


def is_text(kept):
    return isinstance(kept, str)


def measured(*answers):
    """Each measurement gives the next answer; one more is an error."""
    return iter(answers).__next__


def test_a_choice_is_measured_once():
    assert choosing.kept_or_measured("decoding", measured("packed"), is_text) == "packed"
    assert choosing.kept_or_measured("decoding", measured(), is_text) == "packed"
    assert choosing.kept_or_measured("other", measured("split"), is_text) == "split"


def test_where_it_is_kept(file):
    choosing.kept_or_measured("decoding", measured("packed"), is_text)
    place = kept_choices.place(torch.get_num_threads())
    assert json.loads(file.read_text()) == {place: {"decoding": "packed"}}
    assert re.search(rf"^.+, {torch.get_num_threads()} threads, torch {re.escape(torch.__version__)}$", place)
    assert os.listdir(file.parent) == [file.name], "nothing half written stays"


@pytest.mark.skipif(sys.platform != "linux", reason="other platforms have other conventions")
def test_the_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("MMACCEL_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert users_file() == tmp_path / "mmaccel" / "choices.json"
    monkeypatch.setenv("MMACCEL_CACHE", str(tmp_path / "here"))
    assert users_file() == tmp_path / "here" / "choices.json"


def test_another_processor_measures_for_itself(monkeypatch, file):
    choosing.kept_or_measured("decoding", measured("packed"), is_text)
    monkeypatch.setattr(kept_choices, "processor", lambda: "Another Maker 9000")
    assert choosing.kept_or_measured("decoding", measured("split"), is_text) == "split"
    assert [choices["decoding"] for choices in json.loads(file.read_text()).values()] == ["packed", "split"]


def test_other_threads_are_measured_for_themselves(monkeypatch):
    choosing.kept_or_measured("decoding", measured("packed"), is_text)
    monkeypatch.setattr(choosing.torch, "get_num_threads", lambda: 99)
    assert choosing.kept_or_measured("decoding", measured("split"), is_text) == "split"


BROKEN = (b"", b"{", b"[1, 2]", b'{"a": 1}', b"\x80\x04K\x01.", b"\xff\xfe", b"[" * 100_000, b"x" * (1 << 21))


@pytest.mark.parametrize("content", BROKEN)
def test_a_broken_file_is_written_anew(file, content):
    file.parent.mkdir()
    file.write_bytes(content)
    assert choosing.kept_or_measured("decoding", measured("packed"), is_text) == "packed"
    assert choosing.kept_or_measured("decoding", measured(), is_text) == "packed"


def test_a_choice_that_is_none_is_measured_again():
    kept_choices.keep(kept_choices.place(torch.get_num_threads()), "decoding", 7)
    assert choosing.kept_or_measured("decoding", measured("packed"), is_text) == "packed"


def test_a_folder_that_cannot_be_made(file):
    """Then every process measures."""
    file.parent.write_text("a file where the folder should be")
    for _ in range(2):
        assert choosing.kept_or_measured("decoding", measured("packed"), is_text) == "packed"


def test_a_file_that_cannot_be_written(file):
    """A folder stands in its place, which root could not write to either."""
    file.mkdir(parents=True)
    for _ in range(2):
        assert choosing.kept_or_measured("decoding", measured("packed"), is_text) == "packed"
    assert os.listdir(file.parent) == [file.name]


def test_busy_moments_are_not_kept_and_end_some_time():
    for _ in range(choosing.TRIES):
        assert choosing.kept_or_measured("decoding", measured(None), is_text) is None
    assert choosing.kept_or_measured("decoding", measured(), is_text) is None, "it has been tried often enough"
    kept_choices.forget()
    assert choosing.kept_or_measured("decoding", measured("packed"), is_text) == "packed"


def test_a_quiet_moment_wins_over_busy_ones():
    place = kept_choices.place(torch.get_num_threads())
    assert choosing.kept_or_measured("decoding", measured(None), is_text) is None
    assert choosing.kept_or_measured("decoding", measured("packed"), is_text) == "packed"

    def another_process_was_quiet():
        kept_choices.keep(place, "other", "split")

    assert choosing.kept_or_measured("other", another_process_was_quiet, is_text) == "split"
    assert kept_choices.read()[place] == {"decoding": "packed", "other": "split"}


def test_env_shows_and_forgets(capsys, monkeypatch):
    kept_choices.keep(kept_choices.place(3), "decoding", "packed")
    kept_choices.keep(kept_choices.place(3), "break-even", [0.5, 0.75])
    kept_choices.keep(kept_choices.place(3), "drafts", {"tried": 2})
    for rows, way in ((1, "turned"), (12, "onednn"), (2, "turned"), (8, {"tried": 1}), (3, "turned")):
        kept_choices.keep(kept_choices.place(3), f"linear layers of {rows} rows, 576 columns", way)
    kept_choices.keep("Another Maker 9000, 3 threads, torch 1.0", "decoding", "split")
    assert main(["env"]) == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 120
    lines = [line for line in printed.replace("\n  ", " ").splitlines() if line.startswith("kernels")]
    place = kept_choices.place(3)
    assert [" ".join(line.split()[1:]) for line in lines] == [
        f"decoding: packed ({place})",
        f"break-even: 0.5, 0.75 ({place})",
        f"drafts: not measured yet (the machine was busy) ({place})",
        "linear layers of 576 columns: turned for 1 to 3, not measured yet (the machine was busy) for 8,"
        f" onednn for 12 rows ({place})",
    ]
    assert main(["env", "--forget"]) == 0 and main(["env", "--forget"]) == 0, "nothing to forget is no error"
    assert "packed" not in capsys.readouterr().out and kept_choices.read() == {}


# Which way decodes over a long cache

KIND = (torch.float32, 2, 2, 16)


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(long_cache, "LAYER_BYTES", 1 << 16)
    monkeypatch.setattr(long_cache, "LEAST_BYTES", 0)


def times(monkeypatch, seconds, quiet=True):
    """As if these had been measured; gives the numbers of ways that were compared."""
    counts = []
    monkeypatch.setattr(
        choosing,
        "fastest",
        lambda runs, device: counts.append(len(runs)) or timing.Timing(tuple(seconds)[: len(runs)], quiet),
    )
    return counts


@pytest.mark.parametrize(
    ("seconds", "expected"),
    (
        ((3, 4, 5, 6), "matrix_products"),
        ((4, 3, 5, 6), "packed"),
        ((4, 4, 3, 6), "each_head"),
        ((4, 4, 5, 3), "in_parts"),
        ((3.1, 3, 3, 3), "matrix_products"),
    ),
)
def test_the_fastest_way_is_taken(monkeypatch, small, seconds, expected):
    """Where nothing is clearly faster, the usual one."""
    times(monkeypatch, seconds)
    assert long_cache.way(*KIND, threads=1) == expected


def test_half_precision_is_not_rounded_in_between(monkeypatch, small):
    """Matrix products would round the scores, so they are not among its ways."""
    assert times(monkeypatch, (3, 4, 5)) == []
    assert long_cache.way(torch.bfloat16, *KIND[1:], threads=1) == "packed"


def test_a_busy_machine_takes_the_usual_way(monkeypatch, small):
    times(monkeypatch, (9, 1, 1, 1), quiet=False)
    assert long_cache.way(*KIND, threads=1) == "matrix_products"
    assert long_cache.way(torch.float16, *KIND[1:], threads=1) == "packed"


def test_a_process_does_not_change_its_way(monkeypatch, small, file):
    """Two runs of one session must give equal bits."""
    times(monkeypatch, (4, 3, 5, 6))
    assert long_cache.way(*KIND, threads=1) == "packed"
    kept_choices.forget()
    times(monkeypatch, (1, 3, 5, 6))
    assert long_cache.way(*KIND, threads=1) == "packed"


def test_one_kind_serves_all_lengths(monkeypatch, small):
    counts = times(monkeypatch, (4, 3, 5, 6))
    for tokens in (33, 100, 1000):
        k = torch.randn(1, 2, tokens, 16)
        long_cache.few_queries(torch.randn(1, 2, 2, 16), k, k, 0.25)
    assert counts == [4]


def test_two_threads_find_one_way(monkeypatch, small):
    measured, k = [], torch.randn(1, 2, 33, 16)

    def measure(*_):
        measured.append(1)
        time.sleep(0.1)
        return "packed"

    monkeypatch.setattr(choosing, "_fastest_way", measure)
    query = torch.randn(1, 2, 2, 16)
    threads = [threading.Thread(target=long_cache.few_queries, args=(query, k, k, 0.25)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert measured == [1]


def test_kinds_of_a_cache_are_measured_by_themselves(monkeypatch, small):
    """Rows and heads are rounded up to powers of two, and heads beyond 64 are alike."""
    kinds = []
    monkeypatch.setattr(long_cache, "kept_way", lambda name, *_: kinds.append(name) or "packed")
    for batch, heads, rows in ((1, 3, 1), (2, 2, 1), (1, 4, 3), (1, 65, 1), (3, 64, 1)):
        k = torch.randn(batch, heads, 5, 16)
        long_cache.few_queries(torch.randn(batch, heads, rows, 16), k, k, 0.25)
    told = "decoding over a long cache, float32, {} x 16 over {} heads"
    assert kinds == [told.format(*kind) for kind in ((1, 4), (4, 4), (1, 64))]


@pytest.mark.parametrize("fails", (False, True))
def test_a_way_that_this_torch_cannot_compute(monkeypatch, small, fails):
    def way(q, k, v, scale):
        if fails:
            raise RuntimeError("unequal numbers of heads")
        return q, q.sum(-1)

    monkeypatch.setitem(decode_ways.WAYS, "each_head", way)
    assert times(monkeypatch, (3, 4, 5)) == []
    counts = times(monkeypatch, (3, 4, 2))
    assert long_cache.way(*KIND, threads=1) == "in_parts" and counts == [3]


@pytest.mark.parametrize("wrong", (0, 1))
def test_a_way_must_give_both_output_and_log_sum_exp(monkeypatch, small, wrong):
    def way(*args):
        found = list(decode_ways.matrix_products(*args))
        found[wrong] = found[wrong] + 0.01
        return tuple(found)

    monkeypatch.setitem(decode_ways.WAYS, "each_head", way)
    counts = times(monkeypatch, (3, 4, 2))
    assert long_cache.way(*KIND, threads=1) == "in_parts" and counts == [3]


def test_a_kept_way_is_one_of_this_type(monkeypatch, small):
    """The file may have been changed by anybody."""
    place, name = (
        kept_choices.place(torch.get_num_threads()),
        "decoding over a long cache, bfloat16, 2 x 16 over 2 heads",
    )
    for kept in ("matrix_products", "nonsense", 3, ["packed"]):
        long_cache.way.cache_clear()
        kept_choices.keep(place, name, kept)
        times(monkeypatch, (4, 3, 5))
        assert long_cache.way(torch.bfloat16, *KIND[1:], threads=1) == "each_head"
        assert kept_choices.read()[place] == {name: "each_head"}


def test_what_is_measured_of_a_way(monkeypatch, small):
    """Each way over the keys and values of two layers, which are other memory than each other's."""
    calls, runs = [], []
    for name, way in list(decode_ways.WAYS.items()):
        monkeypatch.setitem(
            decode_ways.WAYS, name, lambda *args, name=name, way=way: calls.append((name, args)) or way(*args)
        )
    monkeypatch.setattr(
        choosing, "fastest", lambda found, device: runs.extend(found) or timing.Timing((1, 2, 3, 4), True)
    )
    assert long_cache.way(*KIND, threads=1) == "matrix_products"
    calls.clear()
    for run in runs:
        run()
    assert [name for name, _ in calls] == [name for name in decode_ways.WAYS for _ in range(2)]
    assert len({x.data_ptr() for _, args in calls for x in args[1:3]}) == 4
    q, k, v, scale = calls[0][1]
    assert q.shape == (1, 2, 2, 16) and scale == 0.25 and 2 * k.nbytes == long_cache.LAYER_BYTES == 2 * v.nbytes
    assert all(args[3] == scale for _, args in calls)


def test_where_there_is_a_choice_of_ways(monkeypatch):
    q, k = torch.zeros(2, 2, 8, 16), torch.zeros(2, 2, 64, 16)
    monkeypatch.setattr(long_cache, "LEAST_BYTES", 2 * k.nbytes)
    assert long_cache.suits(q, k, k), "8 queries, and as many bytes as are asked for"
    assert not long_cache.suits(torch.zeros(2, 2, 9, 16), k, k)
    assert not long_cache.suits(q, k[:, :, :63], k[:, :, :63])
    assert not long_cache.suits(q.double(), k.double(), k.double())
    assert not long_cache.suits(q.to("meta"), k.to("meta"), k.to("meta"))
    apart = torch.zeros(2, 3, 64, 16)[:, :2]  # the heads of one row do not follow those of the other
    assert not long_cache.suits(q, apart, k) and not long_cache.suits(q, k, apart)
    monkeypatch.setattr(long_cache, "LEAST_BYTES", 0)
    assert long_cache.suits(q[:1], apart[:1], apart[:1])


def test_threads_are_part_of_what_a_way_holds_for(monkeypatch, small):
    measured, k = [], torch.randn(1, 2, 33, 16)
    monkeypatch.setattr(long_cache, "kept_way", lambda *_: measured.append(torch.get_num_threads()) or "packed")
    for threads in (1, 3, 1):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        long_cache.few_queries(k[:, :, :2], k, k, 0.25)
    assert measured == [1, 3]


def test_another_process_may_be_luckier(file):
    """What it kept while this one measured in vain is taken, and stays."""
    place = kept_choices.place(torch.get_num_threads())

    def measure():
        kept_choices.keep(place, "decoding", "split")

    assert choosing.kept_or_measured("decoding", measure, is_text) == "split"
    assert kept_choices.read()[place] == {"decoding": "split"}


@pytest.mark.parametrize("tried", ("5", None, [9]))
def test_tries_that_are_no_number_are_none(tried):
    place = kept_choices.place(torch.get_num_threads())
    kept_choices.keep(place, "decoding", {"tried": tried})
    assert choosing.kept_or_measured("decoding", measured(None), is_text) is None
    assert kept_choices.read()[place] == {"decoding": {"tried": 1}}
    assert choosing.kept_or_measured("decoding", measured(None), is_text) is None
    assert kept_choices.read()[place] == {"decoding": {"tried": 2}}


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float16))
def test_a_real_measurement_gives_a_way_of_the_type(small, dtype):
    found = long_cache.way(dtype, *KIND[1:], threads=1)
    assert found in decode_ways.WAYS and (dtype == torch.float32 or found != "matrix_products")


# Memory that is kept between calls


def test_scratch_memory_is_used_again_and_grows(monkeypatch):
    monkeypatch.setattr(workspace, "_buffers", workspace._Buffers())
    monkeypatch.setattr(workspace, "MOST_BYTES", 1000)
    first = workspace.scratch("key", (4, 5), torch.float32)
    assert first.shape == (4, 5) and workspace.scratch("key", (2, 3), torch.float32).data_ptr() == first.data_ptr()
    whole = workspace.scratch("key", (10, 25), torch.float32)
    assert workspace.scratch("key", (2, 3), torch.float32).data_ptr() == whole.data_ptr(), "as large as is kept"
    others = [workspace.scratch("value", (4, 5), torch.float32), workspace.scratch("key", (4, 5), torch.float16)]
    assert len({first.data_ptr(), *(x.data_ptr() for x in others)}) == 3 and others[1].dtype == torch.float16
    kept = set(workspace._buffers.of)
    large = workspace.scratch("large", (251,), torch.float32)
    assert large.shape == (251,) and set(workspace._buffers.of) == kept, "it would hold memory for good"


def test_threads_have_scratch_memory_of_their_own(monkeypatch):
    monkeypatch.setattr(workspace, "_buffers", workspace._Buffers())
    table, found = torch.arange(12.0).view(6, 2), []
    mine = workspace.gather_rows("key", table, torch.tensor([1, 3]))
    other = threading.Thread(target=lambda: found.append(workspace.gather_rows("key", table, torch.tensor([0, 5]))))
    other.start()
    other.join()
    assert mine.tolist() == [[2, 3], [6, 7]] and found[0].tolist() == [[0, 1], [10, 11]]


def test_scratch_memory_that_was_made_in_inference_mode_is_written_to_outside_of_it(monkeypatch):
    monkeypatch.setattr(workspace, "_buffers", workspace._Buffers())
    table = torch.arange(12.0).view(6, 2)
    with torch.inference_mode():
        assert workspace.gather_rows("key", table, torch.tensor([1, 3])).tolist() == [[2, 3], [6, 7]]
    with torch.no_grad():
        assert workspace.gather_rows("key", table, torch.tensor([0, 5])).tolist() == [[0, 1], [10, 11]]
