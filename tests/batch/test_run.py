"""Many items in one process: what is finished stays, failures are told, and nothing is made twice."""

import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from toy_batch import EchoCommand, usual

from mmaccel.batch import items as items_module
from mmaccel.batch import run
from mmaccel.batch.folder import OutputFolder
from mmaccel.batch.items import Item, read_items
from mmaccel.errors import SettingError

COMMAND = EchoCommand()


def items(*texts):
    return [Item(f"{number:02}", {"text": text}) for number, text in enumerate(texts)]


def made(path, found, manifest=(), **changed):
    """The outcome, and what is in the folder."""
    with OutputFolder(path, dict(manifest), ".txt") as folder:
        outcome = run.run(found, folder, COMMAND, usual(**changed), run.here(COMMAND, usual(**changed)))
    return outcome, {file.name: file.read_text() for file in sorted(path.glob("*.txt")) if file.is_file()}


def begun(journal):
    """What was begun, in this order."""
    return [line.split()[0] for line in journal.read_text().splitlines()]


def records(path):
    return [json.loads(line) for line in (path / ".mmaccel" / "records.jsonl").read_text().splitlines()]


def test_each_item_has_one_output_with_its_own_options(tmp_path):
    found = [*items("a", "b"), Item("deep/c", {"text": "c", "times": 3})]
    outcome, files = made(tmp_path / "new" / "out", found, times=2)
    assert (outcome.made, outcome.before, outcome.failures) == (3, 0, {})
    assert files == {"00.txt": "aa", "01.txt": "bb"}
    assert (tmp_path / "new/out/deep/c.txt").read_text() == "ccc"
    assert [record["key"] for record in records(tmp_path / "new/out")] == ["00", "01", "deep/c"]
    assert not (tmp_path / "new/out/.mmaccel/unfinished").exists()


def test_failures_are_told_and_tried_again(tmp_path, capsys):
    found = [
        *items("a", "bad", "empty", "odd"),
        Item("x", problem="row 5: unreadable"),
        Item("y", {"text": "a", "n": 1}),
        Item("z", {"text": "a", "times": False}),
        Item("list", {"text": "a", "times": [1, 2]}),
    ]
    outcome, files = made(tmp_path, found)
    assert files == {"00.txt": "a"}
    assert outcome.failures == {
        "02": "it is empty",
        "x": "row 5: unreadable",
        "y": "unknown field n",
        "z": "times=False: give a number or a text, or leave it out",
        "list": "times=[1, 2]: give a number or a text, or leave it out",
        "01": "it is bad",
        "03": "ZeroDivisionError: odd",
    }
    again, _ = made(tmp_path, found)
    assert (again.made, again.before, len(again.failures)) == (0, 1, 7)


def test_what_is_finished_is_not_made_again(tmp_path):
    journal = tmp_path / "journal"
    made(tmp_path / "out", items("a", "b"), journal=journal)
    outcome, files = made(tmp_path / "out", items("a", "b", "c"), journal=journal)
    assert (outcome.made, outcome.before) == (1, 2) and begun(journal) == ["a", "b", "c"]
    (tmp_path / "out/01.txt").unlink()
    outcome, files = made(tmp_path / "out", items("a", "b", "c"), journal=journal)
    assert (outcome.made, outcome.before) == (1, 2) and files["01.txt"] == "b"
    assert sorted(record["key"] for record in records(tmp_path / "out")) == ["00", "01", "02"]


def test_other_settings_items_and_files_are_refused(tmp_path):
    made(tmp_path, items("a"), {"kind": "toy"})
    with pytest.raises(SettingError, match=r"holds outputs of another run \(kind was 'toy' and is 'other'\)"):
        made(tmp_path, items("a"), {"kind": "other"})
    with pytest.raises(SettingError, match="made from another item with this key"):
        made(tmp_path, items("b"), {"kind": "toy"})
    (tmp_path / "01.txt").write_text("mine")
    with pytest.raises(SettingError, match="this run did not make it"):
        made(tmp_path, items("a", "b"), {"kind": "toy"})
    assert (tmp_path / "01.txt").read_text() == "mine"
    (tmp_path / ".mmaccel/manifest.json").write_text("{")
    with pytest.raises(SettingError, match="is not JSON"):
        made(tmp_path, items("a"), {"kind": "toy"})


def test_another_format_is_refused_and_what_is_finished_stays(tmp_path):
    made(tmp_path, items("a", "b"))
    before = {path: path.read_bytes() for path in (tmp_path / ".mmaccel").glob("*.json*")}
    for _ in range(2):
        with (
            pytest.raises(SettingError, match=r"another run \(ending was '\.txt' and is '\.md'\)"),
            OutputFolder(tmp_path, {}, ".md"),
        ):
            pass
    assert {path: path.read_bytes() for path in before} == before and len(before) == 2
    assert made(tmp_path, items("a", "b"))[0].before == 2
    manifest, listed = (tmp_path / ".mmaccel" / name for name in ("manifest.json", "records.jsonl"))
    manifest.write_text("{}")
    with pytest.raises(SettingError, match="another run"):
        made(tmp_path, items("a", "b"))
    assert listed.read_bytes() == before[listed], "a manifest that says nothing of endings forgets nothing"
    for name in ("00.txt", "01.txt"):
        (tmp_path / name).unlink()
    with OutputFolder(tmp_path, {}, ".md") as folder:
        assert not folder.records, "outputs that are gone bind nobody"


def test_an_option_of_several_lines_is_the_same_the_next_time(tmp_path):
    asked = {"question": "what moves?\n\twhere to?\u200f"}
    made(tmp_path, items("a"), asked)
    assert made(tmp_path, items("a"), asked)[0].before == 1
    with pytest.raises(SettingError, match=r"question was 'what moves\?\\n\\twhere to\?\\u200f' and is 'why\?'"):
        made(tmp_path, items("a"), {"question": "why?"})


def test_a_file_that_changes_while_its_output_is_made_is_noticed(tmp_path, monkeypatch):
    file, kind = tmp_path / "a", type(COMMAND.batching)
    file.write_text("x")
    found, make = [Item("00", {"text": str(file)}, files=("text",))], kind.make
    monkeypatch.setattr(kind, "make", lambda *given: make(*given) or file.write_text("y"))
    made(tmp_path / "out", found)
    with pytest.raises(SettingError, match="a file that has changed since"):
        made(tmp_path / "out", found)


def test_going_on_reads_no_file_again_that_is_as_it_was(tmp_path, monkeypatch):
    file = tmp_path / "a"
    file.write_text("x")
    os.utime(file, ns=(1, 1))
    monkeypatch.setattr(items_module, "SETTLED", -(10**12))  # as if it had been written long ago
    found, read = [Item("00", {"text": str(file)}, files=("text",))], []
    hashed = hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda *given: read.append(given) or hashed(*given))
    made(tmp_path / "out", found)
    assert len(read) == 1 and made(tmp_path / "out", found)[0].before == 1 and len(read) == 1

    def reads_once():
        before = len(read)
        assert [made(tmp_path / "out", found)[0].before for _ in range(2)] == [1, 1]
        return len(read) == before + 1

    os.utime(file, ns=(2, 2))
    assert reads_once(), "it was touched, and holds the same"
    (record,) = records(tmp_path / "out")
    del record["contents"]
    (tmp_path / "out/.mmaccel/records.jsonl").write_text(json.dumps(record) + "\n")
    assert reads_once(), "records of earlier versions say nothing of files"
    time.sleep(0.02)  # until the clock of the file system ticks
    file.write_text("y")
    os.utime(file, ns=(2, 2))  # as copies have that keep times
    with pytest.raises(SettingError, match="a file that has changed since"):
        made(tmp_path / "out", found)


def test_another_file_of_the_same_size_and_times_is_read(tmp_path, monkeypatch):
    for name in "ab":
        (tmp_path / name).write_text(name)
    same = SimpleNamespace(st_size=1, st_mtime_ns=9, st_ctime_ns=9)
    monkeypatch.setattr(items_module, "os", SimpleNamespace(stat=lambda path: same))
    before, after = (Item("00", {"text": str(tmp_path / name)}, files=("text",)) for name in "ab")
    made(tmp_path / "out", [before])
    assert made(tmp_path / "out", [before])[0].before == 1
    with pytest.raises(SettingError, match="from another item with this key"):
        made(tmp_path / "out", [after])


def test_a_file_of_moments_ago_is_read_again(tmp_path):
    file = tmp_path / "a"
    file.write_text("x")
    item = Item("00", {"text": str(file)}, files=("text",))
    known = item.contents()
    assert known["text"]["state"] is None, "another change within the same tick would show nowhere"
    file.write_text("y")
    assert item.contents(known) != known


def test_a_run_that_made_nothing_binds_nobody(tmp_path):
    with pytest.raises(SettingError, match=r"none of 1 items can be made; the first, 00: it is empty"):
        made(tmp_path, items("empty"), {"kind": "toy"})
    assert made(tmp_path, items("a"), {"kind": "other"})[0].made == 1


def test_two_runs_do_not_share_a_folder(tmp_path):
    with (
        OutputFolder(tmp_path, {}, ".txt"),
        pytest.raises(SettingError, match="another run writes to"),
        OutputFolder(tmp_path, {}, ".txt"),
    ):
        pass
    (tmp_path / "file").write_text("x")
    with pytest.raises(SettingError, match="is a file: give a folder"), OutputFolder(tmp_path / "file", {}, ".txt"):
        pass


def test_a_full_disk_ends_the_run_and_keeps_what_is_finished(tmp_path, monkeypatch):
    with pytest.raises(OSError, match="No space left on device.*say the same again"):
        made(tmp_path, items("a", "full", "c"))
    assert [file.name for file in tmp_path.glob("*.txt")] == ["00.txt"]

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="cannot write to"):
        patch.setattr(os, "fsync", full)
        made(tmp_path, items("a", "b", "c"))
    assert [file.name for file in tmp_path.glob("*.txt")] == ["00.txt"]
    assert made(tmp_path, items("a", "b", "c"))[0].made == 2


def test_a_key_within_the_output_of_another_fails_alone(tmp_path):
    found = [Item("a", {"text": "a"}), Item("a.txt/b", {"text": "b"}), Item("later", {"text": "c"})]
    for turn, fails in ((found, "a.txt/b"), ([found[1], found[0], found[2]], "a")):
        for _ in range(2):
            outcome, _ = made(tmp_path / fails[-1], turn)
            assert list(outcome.failures) == [fails] and "its key names no place" in outcome.failures[fails]
            assert (tmp_path / fails[-1] / "later.txt").read_text() == "c"


def test_a_record_without_an_output_and_half_a_record_are_dropped(tmp_path):
    made(tmp_path, items("a", "b"))
    (tmp_path / "01.txt").unlink()
    with (tmp_path / ".mmaccel/records.jsonl").open("a") as file:
        file.write('{"key": "02", "dig')
    outcome, files = made(tmp_path, items("a", "b", "c"))
    assert (outcome.made, outcome.before) == (2, 1) and len(files) == 3
    assert [record["key"] for record in records(tmp_path)] == ["00", "01", "02"]


def test_an_output_inside_the_input_is_refused(tmp_path):
    for output in (tmp_path, tmp_path / "out", tmp_path / "x" / ".." / "out"):
        with pytest.raises(SettingError, match="whose files are the input"):
            run.check_places(tmp_path, output)
    run.check_places(tmp_path / "in", tmp_path)
    run.check_places(tmp_path / "in.jsonl", tmp_path)


KILLED = """
import sys
from pathlib import Path
from toy_batch import EchoCommand, usual
from mmaccel.batch import run
from mmaccel.batch.folder import OutputFolder
from mmaccel.batch.items import read_items
command, given = EchoCommand(), usual(journal=sys.argv[3], pause=0.02)
items = read_items(Path(sys.argv[1]), command.batching)
with OutputFolder(Path(sys.argv[2]), {}, ".txt") as folder:
    run.run(items, folder, command, given, run.here(command, given))
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no signals")
def test_killed_three_times_it_ends_with_every_output_once(tmp_path):
    count, path, out = 60, tmp_path / "items.jsonl", tmp_path / "out"
    path.write_text("".join(json.dumps({"text": f"text {number}"}) + "\n" for number in range(count)))
    words = [sys.executable, "-c", KILLED, str(path), str(out), str(tmp_path / "journal")]
    helpers = str(Path(__file__).parents[1] / "helpers")
    for stage in (10, 25, 45):
        with subprocess.Popen(words, env={**os.environ, "PYTHONPATH": helpers}) as process:
            until = time.monotonic() + 60
            while len(list(out.glob("*.txt"))) < stage and time.monotonic() < until:
                time.sleep(0.005)
            process.kill()
        assert stage <= len(list(out.glob("*.txt"))) < count
    found = read_items(path, COMMAND.batching)
    with OutputFolder(out, {}, ".txt") as folder:
        outcome = run.run(found, folder, COMMAND, usual(), run.here(COMMAND, usual()))
    assert outcome.made + outcome.before == count and not outcome.failures
    assert sorted(file.read_text() for file in out.glob("*.txt")) == sorted(f"text {n}" for n in range(count))
    assert len({record["key"] for record in records(out)}) == len(records(out)) == count
    assert len(begun(tmp_path / "journal")) <= outcome.before + 3, "one item is lost by each kill"
