"""What is read as items: folders, and rows of JSONL and parquet."""

import json
import sys
from pathlib import Path

import pytest
from toy_batch import Echo, usual

from mmaccel.batch.items import left_out, read_items
from mmaccel.batch.work import arguments_of
from mmaccel.errors import MissingExtraError, SettingError
from mmaccel.speech.batching import SpeechBatching
from mmaccel.vlm.batching import VlmBatching


class Seen(Echo):
    field, reads, files = "picture", (".png", ".jpg"), ("regions",)


def listed(folder, *rows, name="items.jsonl"):
    path = folder / name
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return path


def test_files_of_a_folder_are_items_by_their_place(tmp_path):
    for name in ("a.png", "b/c.JPG", "b/d.txt", ".hidden/e.png", ".f.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    found = {item.key: item.fields for item in read_items(tmp_path, Seen())}
    assert found == {"a": {"picture": str(tmp_path / "a.png")}, "b/c": {"picture": str(tmp_path / "b/c.JPG")}}


def test_files_whose_names_cannot_name_outputs_are_to_be_renamed(tmp_path):
    for name in ("What?", "12:30", "x" * 201, "y" * 200):
        (tmp_path / f"{name}.png").write_text("x")
    found = {item.key: item.problem for item in read_items(tmp_path, Seen())}
    assert not found.pop("y" * 200) and set(found) == {"What?", "12:30", "x" * 201}
    assert all("rename it, or give a list with a `key`" in problem for problem in found.values())


def test_what_a_folder_holds_beside_items_is_named(tmp_path):
    assert left_out(tmp_path, Seen()) == "" == left_out(tmp_path / "none", Seen())
    for name in ("in/a.png", "in/b/c.tif", "in/d.TIF", "in/README", "in/.hidden/e.tif", "in/.f.tif", "day2/g.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "in/day2").symlink_to("../day2")
    (tmp_path / "in/linked.png").symlink_to("../day2/g.png")
    said = left_out(tmp_path / "in", Seen())
    assert said.startswith(f"left out of {tmp_path}/in: 2 x '.tif', 1 x no ending (what is read ends with .png, .jpg);")
    assert said.endswith("; links to folders, which are not followed, or to nothing: 'day2'")
    assert {item.key for item in read_items(tmp_path / "in", Seen())} == {"a", "linked"}
    for number in range(10):
        (tmp_path / f"in/x.{number}").write_text("x")
    assert "'.5' and 4 more (what is read" in left_out(tmp_path / "in", Seen())


def test_what_may_not_be_read_and_is_no_item_is_no_obstacle(tmp_path, monkeypatch):
    def refuse(path, **options):
        raise PermissionError(path)

    for name in ("a.png", "notes/b.doc"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "gone.png").symlink_to("nowhere")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "is_file", refuse)
        said = left_out(tmp_path, Seen())
    assert said.startswith(f"left out of {tmp_path}: 1 x '.doc' (what") and said.endswith(" or to nothing: 'gone.png'")
    assert [item.key for item in read_items(tmp_path, Seen())] == ["a"]


def test_files_of_a_folder_with_one_name_are_to_be_renamed(tmp_path):
    for name in ("talk.png", "talk.jpg"):
        (tmp_path / name).write_text("x")
    with pytest.raises(SettingError, match=r"talk.jpg.*talk.png.*: rename one, or give a list with a `key`"):
        read_items(tmp_path, Seen())


@pytest.mark.parametrize(
    ("batching", "endings"),
    ((SpeechBatching(), "wma aiff aif caf amr 3gp"), (VlmBatching(), "m4v mpg mpeg ts")),
    ids=("speech", "vlm"),
)
def test_recordings_and_clips_of_other_makers_are_items_too(tmp_path, batching, endings):
    av = pytest.importorskip("av", reason="needs the package av")
    known = {f".{one}" for name in av.formats_available for one in av.ContainerFormat(name).extensions}
    assert set(batching.reads) <= known, "FFmpeg reads them"
    for ending in endings.split():
        (tmp_path / f"of {ending}.{ending}").write_text("x")
    assert len(read_items(tmp_path, batching)) == len(endings.split()) and not left_out(tmp_path, batching)


def test_texts_of_a_folder_are_read(tmp_path):
    (tmp_path / "a.txt").write_text(" red heart\n")
    (tmp_path / "b.txt").write_text("red heart", encoding="utf-8-sig")  # as editors of Windows do
    (tmp_path / "c.txt").write_bytes(b"\xff\xfe")
    (tmp_path / "d.txt").write_text("x" * 70_000)
    *good, wrong, long = read_items(tmp_path, Echo())
    assert [item.fields for item in good] == [{"text": "red heart"}] * 2 and not any(item.problem for item in good)
    assert "is no text" in wrong.problem and "longer than 64 KiB" in long.problem


def test_rows_have_keys_and_fields_of_their_own(tmp_path):
    path = listed(tmp_path, {"text": "a", "times": 2, "key": "one/two"}, "", {"text": "b", "times": None, "key": 7})
    first, second = read_items(path, Echo())
    assert (first.key, first.fields) == ("one/two", {"text": "a", "times": 2})
    assert (second.key, second.fields) == ("7", {"text": "b"})
    (third,) = read_items(listed(tmp_path, {"text": "c"}), Echo())
    assert third.key == "000001" and third.digest() != second.digest()


def test_a_whole_number_is_the_same_in_a_table_with_gaps(tmp_path):
    """There it is 3.0, as pandas writes it."""
    (with_gaps,) = read_items(listed(tmp_path, {"text": "a", "times": 3.0, "key": 7.0}), Echo())
    (without,) = read_items(listed(tmp_path, {"text": "a", "times": 3, "key": 7}), Echo())
    (broken,) = read_items(listed(tmp_path, {"text": "a", "times": 2.5}), Echo())
    assert with_gaps == without and with_gaps.key == "7" and with_gaps.digest() == without.digest()
    assert arguments_of(with_gaps, Echo(), usual()).times == 3 and broken.fields["times"] == 2.5


@pytest.mark.parametrize(
    ("row", "said"),
    (
        ("{", "it is no JSON"),
        ("[1]", "it is no object: [1]"),
        ('"text"', "it is no object: 'text'"),
        ({"times": 2}, "text is missing"),
        ({"text": " "}, "text is missing"),
        ({"text": 3}, "text is missing"),
        *(
            ({"text": "a", "key": key}, "is no name of a file")
            for key in ("../a", "/a", ".a", "a//b", "a\\b", "a\n", "", "漢" * 100, "a\ud800b", "a/" * 700 + "a")
        ),
    ),
)
def test_what_is_wrong_with_a_row_is_said_of_it_alone(tmp_path, row, said):
    good, bad = read_items(listed(tmp_path, {"text": "a"}, row), Echo())
    assert not good.problem and said in bad.problem and bad.problem.startswith("row 2: ") and bad.key == "000002"


def test_keys_that_some_file_systems_do_not_tell_apart_are_refused(tmp_path):
    with pytest.raises(SettingError, match="two items have the key 'A'"):
        read_items(listed(tmp_path, {"text": "a", "key": "a"}, {"text": "b", "key": "A"}), Echo())


def test_files_that_rows_name_lie_below_the_root(tmp_path):
    for name in ("a.png", "r/a.json", "files/a.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    rows = [{"picture": "a.png", "regions": "r/a.json"}, {"picture": "../a.png"}, {"picture": "/etc/a.png"}]
    inside, above, elsewhere = read_items(listed(tmp_path, *rows), Seen())
    assert inside.fields == {"picture": str(tmp_path / "a.png"), "regions": str(tmp_path / "r/a.json")}
    assert not inside.problem and "is not below" in above.problem and "--root" in elsewhere.problem
    (found,) = read_items(listed(tmp_path, {"picture": "a.png"}), Seen(), tmp_path / "files")
    assert found.fields["picture"] == str(tmp_path / "files" / "a.png")
    (gone,) = read_items(listed(tmp_path, {"picture": "b.png"}), Seen())
    assert f"picture='b.png': there is no file {tmp_path / 'b.png'}" in gone.problem
    (unnamed,) = read_items(listed(tmp_path, {"regions": "r/a.json"}), Seen())
    assert unnamed.problem == "row 1: picture is missing: give the path of a file"


def test_a_link_out_of_the_folder_is_named_with_what_to_do(tmp_path):
    """As in a snapshot of Hugging Face, whose files are links to blobs beside it."""
    for name in ("blobs", "snapshot"):
        (tmp_path / name).mkdir()
    (tmp_path / "blobs" / "1f").write_text("x")
    (tmp_path / "snapshot" / "a.png").symlink_to("../blobs/1f")
    (found,) = read_items(listed(tmp_path / "snapshot", {"picture": "a.png"}), Seen())
    assert f"picture='a.png' leads out of {tmp_path / 'snapshot'} by a link" in found.problem
    assert "cp -rL" in found.problem and "--root" not in found.problem


def test_what_is_no_path_is_wrong_with_its_row_alone(tmp_path):
    (tmp_path / "a.png").write_text("x")
    rows = [{"picture": path} for path in ("a.png", "a\0.png", "a\ud800.png")]
    good, *bad = read_items(listed(tmp_path, *rows), Seen())
    assert not good.problem and len(bad) == 2 and all("is no path" in item.problem for item in bad)


def test_nothing_to_do_and_no_list_are_errors(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.csv").write_text("text\na")
    for path, said in (
        (tmp_path / "empty", "nothing to do"),
        (listed(tmp_path), "has no rows"),
        (tmp_path / "none", "there is no folder or file"),
        (tmp_path / "a.csv", ".jsonl or .parquet"),
    ):
        with pytest.raises(SettingError, match=said):
            read_items(path, Echo())
    with pytest.raises(SettingError, match="two items have the key 'a'"):
        read_items(listed(tmp_path, {"text": "a", "key": "a"}, {"text": "b", "key": "a"}), Echo())


def test_parquet_is_read_as_rows(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason='needs pyarrow: pip install "mmaccel[ray]"')
    from pyarrow import parquet

    table = pyarrow.table({"text": ["a", "b"], "times": [None, 3], "key": ["x", "y"]})
    parquet.write_table(table, tmp_path / "items.parquet")
    first, second = read_items(tmp_path / "items.parquet", Echo())
    assert (first.key, first.fields, second.fields) == ("x", {"text": "a"}, {"text": "b", "times": 3})
    (tmp_path / "items.parquet").write_bytes(b"PAR1 and nothing")
    with pytest.raises(SettingError, match="no parquet file that can be read"):
        read_items(tmp_path / "items.parquet", Echo())


def test_parquet_without_its_package_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match="pip install pyarrow"):
        read_items(listed(tmp_path, {"text": "a"}, name="items.parquet"), Echo())


def test_an_item_is_what_its_files_hold_wherever_they_lie(tmp_path):
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.png").write_text("x")
    (here,), (there,) = (read_items(tmp_path / name, Seen()) for name in ("here", "there"))
    (row,) = read_items(listed(tmp_path / "here", {"picture": "a.png"}), Seen())
    before = here.digest()
    assert before == there.digest() == row.digest()
    (tmp_path / "here" / "a.png").write_text("y")
    assert here.digest() != before == there.digest()
