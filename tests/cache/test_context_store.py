"""ContextStore: the longest shared prefix, its bound, and what other processes, models and faults leave in a folder."""

import os
import time

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from mmaccel.cache import ContextStore, context_store
from mmaccel.cache.context_store import ABANDONED

SIZE = 2 * 2 * 2 * 8 * 4 * 4  # two layers of keys and values, `[2, 8, 4]` in float32


def states(fill=1.0, tokens=8):
    return [(torch.full((2, tokens, 4), fill + i), torch.full((2, tokens, 4), -fill - i)) for i in range(2)]


@pytest.fixture
def store(tmp_path):
    return ContextStore(tmp_path / "contexts", gigabytes=1)


def only_file(store):
    (path,) = store.folder.glob("*")
    return path


def test_the_longest_shared_prefix_is_found_and_read(store):
    assert store.find("m", {"a": 4}) is None and not store.troubles, "a folder that is not there is empty"
    assert store.write("m", {"a": 4, "b": 8}, states(1.0)) == SIZE
    store.write("m", {"a": 4, "c": 6, "d": 8}, states(5.0))
    again = ContextStore(store.folder, 1)
    entry, tokens = again.find("m", {"a": 4, "c": 6, "e": 9})
    assert (tokens, entry.tokens, again.find("m", {"e": 4})) == (6, 8, None)
    for (key, value), (wanted_key, wanted_value) in zip(again.read(entry), states(5.0), strict=True):
        assert torch.equal(key, wanted_key) and torch.equal(value, wanted_value)
    assert not again.troubles


@pytest.mark.parametrize("sizes", ((8, 64), (64, 8)))
def test_of_entries_that_share_as_much_the_smallest_is_read(store, sizes):
    for number, tokens in enumerate(sizes):
        store.write("m", {"a": 4, f"{number}": tokens}, states(tokens=tokens))
    entry, shared = store.find("m", {"a": 4})
    assert (entry.tokens, shared) == (8, 4)


@pytest.mark.skipif(os.name == "nt", reason="no modes of files")
def test_the_folder_is_this_users_alone(store):
    store.write("m", {"a": 8}, states())
    assert store.folder.stat().st_mode & 0o077 == 0


def test_half_precision_comes_back_as_it_was(store):
    odd = [(torch.randn(1, 3, 1).bfloat16(), torch.randn(1, 3, 1).bfloat16())]
    store.write("m", {"a": 3}, odd)
    ((key, value),) = store.read(store.find("m", {"a": 3})[0])
    assert torch.equal(key, odd[0][0]) and torch.equal(value, odd[0][1]) and key.dtype == torch.bfloat16


def test_an_entry_that_goes_while_it_is_opened_is_no_trouble(store, monkeypatch):
    store.write("m", {"a": 8}, states())
    entry, _ = store.find("m", {"a": 8})

    def gone(*_):
        raise RuntimeError("unable to open file: No such file or directory")  # safetensors opens a file twice

    monkeypatch.setattr(context_store, "safe_open", gone)
    assert store.read(entry) is None
    assert ContextStore(store.folder, 1).find("m", {"a": 8}) is None
    assert not store.troubles and only_file(store).exists()


def test_an_entry_that_another_process_wrote_anew_is_read_anew(store):
    """With a file of the same name and size."""
    one, other = ([tuple(torch.full((1, 2, 2), fill) for _ in range(2))] for fill in (1.0, 1.5))
    store.write("m", {"a": 2}, one)
    size = only_file(store).stat().st_size
    assert store.find("m", {"a": 2})
    ContextStore(store.folder, 1).write("m", {"a": 2}, other)
    assert only_file(store).stat().st_size == size
    ((key, _),) = store.read(store.find("m", {"a": 2})[0])
    assert key.unique().tolist() == [1.5] and not store.troubles


@pytest.mark.parametrize("tokens", (3, 4))
def test_no_more_is_read_than_is_asked_for(store, monkeypatch, tokens):
    """What is broken behind it is met by those who read so far."""
    monkeypatch.setattr(context_store, "PIECE", 4)
    wanted = [tuple(torch.randn(2, 10, 4) for _ in range(2)) for _ in range(2)]
    store.write("m", {"a": 4, "b": 10}, wanted)
    path = only_file(store)
    path.write_bytes(flipped(path.read_bytes()))
    entry, _ = ContextStore(store.folder, 1).find("m", {"a": 4})
    for pair, whole in zip(store.read(entry, tokens=tokens), wanted, strict=True):
        assert all(torch.equal(part, given[:, :tokens]) for part, given in zip(pair, whole, strict=True))
    assert not store.troubles and store.read(entry) is None and "is broken" in store.troubles[0]


def test_another_model_is_told(store):
    store.write("m", {"a": 8}, states())
    assert store.find("n", {"a": 8}) is None
    assert "all 1 contexts in" in store.troubles[0] and "of other models" in store.troubles[0]


def test_another_version_is_told_and_left_alone(store):
    store.folder.mkdir()
    path = store.folder / "context-x.safetensors"
    save_file({"keys.0": torch.ones(1, 1, 1)}, path, {"format": "0"})
    assert store.find("m", {"a": 1}) is None and path.exists()
    assert store.troubles == ["context-x.safetensors was written by another version of mmaccel: it was not used"]
    assert store.find("m", {"a": 1}) is None and len(store.troubles) == 1, "told once"


def cut(data):
    return data[:-5]


def flipped(data):
    return data[:-5] + bytes([data[-5] ^ 1]) + data[-4:]


@pytest.mark.parametrize("spoil", [cut, flipped, lambda data: b"", lambda data: b"\xff" * 40, lambda data: data[:30]])
def test_a_broken_file_is_told_and_deleted(store, spoil):
    store.write("m", {"a": 8}, states())
    path = only_file(store)
    path.write_bytes(spoil(path.read_bytes()))
    again = ContextStore(store.folder, 1)
    found = again.find("m", {"a": 8})
    assert found is None or again.read(found[0]) is None
    assert len(again.troubles) == 1 and f"{path.name} is broken and was deleted" in again.troubles[0]
    assert not path.exists() and "\n" not in again.troubles[0]


def test_a_file_in_the_place_of_a_broken_one_is_read(store, tmp_path):
    """Also with the size and the inode of that one, which file systems give away again."""
    store.write("m", {"a": 8}, states())
    path, same = only_file(store), tmp_path / "same"
    good = path.read_bytes()
    path.write_bytes(b"\xff" * len(good))
    os.link(path, same)
    assert store.find("m", {"a": 8}) is None and not path.exists()
    same.write_bytes(good)
    os.link(same, path)
    os.utime(path, (9, 9))
    assert store.find("m", {"a": 8}) and len(store.troubles) == 1


@pytest.mark.parametrize("change", [{"stops": ""}, {"stops": "a"}, {"sums": "keys.0:1"}, {"model": None}])
def test_a_header_that_says_something_else_is_broken(store, change):
    store.write("m", {"a": 8}, states())
    path = only_file(store)
    with safe_open(path, "pt") as file:
        told, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    save_file(tensors, path, {k: v for k, v in {**told, **change}.items() if v is not None})
    again = ContextStore(store.folder, 1)
    assert again.find("m", {"a": 8}) is None and "is broken" in again.troubles[0]


def test_what_a_killed_writer_left_is_no_entry_and_goes(store):
    store.write("m", {"a": 8}, states())
    for name, age in ((".mmaccel-new.safetensors", 0), (".mmaccel-old.safetensors", ABANDONED + 9)):
        (store.folder / name).write_bytes(b"half")
        os.utime(store.folder / name, (time.time() - age,) * 2)
    assert store.find("m", {"a": 8}) and not store.troubles
    store.write("m", {"b": 8}, states())
    assert sorted(p.name for p in store.folder.glob(".*")) == [".mmaccel-new.safetensors"], "still being written"


def test_the_least_recently_used_go_first(store):
    store.write("m", {"a": 8}, states())
    store.limit = 2 * only_file(store).stat().st_size + SIZE // 2
    store.write("m", {"b": 8}, states())
    for number, path in enumerate(sorted(store.folder.glob("*"))):
        os.utime(path, (number, number))
    store.read(store.find("m", {"a": 8})[0])  # now b is the older one
    store.write("m", {"c": 8}, states())
    assert [bool(store.find("m", {name: 8})) for name in "abc"] == [True, False, True]
    store.limit = SIZE - 1
    assert not store.write("m", {"d": 8}, states()) and "give it more gigabytes" in store.troubles[0]
    assert len(list(store.folder.glob("*"))) == 2


def test_a_folder_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").write_text("x")
    store = ContextStore(tmp_path / "file", 1)
    assert not store.write("m", {"a": 8}, states()) and "a context was not kept" in store.troubles[0]


def test_an_entry_that_goes_meanwhile_is_no_fault(store):
    store.write("m", {"a": 8}, states())
    entry, _ = store.find("m", {"a": 8})
    store.remove(entry)
    store.remove(entry)
    assert store.read(entry) is None and not store.troubles


def test_an_entry_of_another_user_is_read_and_stays(store, monkeypatch):
    def refused(path):
        raise PermissionError(1, "Operation not permitted", str(path))

    store.write("m", {"a": 8}, states())
    monkeypatch.setattr(os, "utime", refused)
    assert store.read(store.find("m", {"a": 8})[0]) and not store.troubles and only_file(store).exists()


def test_a_file_that_cannot_be_opened_is_no_broken_one(store, monkeypatch):
    def refused(*_):
        raise FileNotFoundError("as safetensors says, also where too many files are open")

    store.write("m", {"a": 8}, states())
    entry, _ = store.find("m", {"a": 8})
    monkeypatch.setattr(context_store, "safe_open", refused)
    again = ContextStore(store.folder, 1)
    assert again.find("m", {"a": 8}) is None and again.read(entry) is None
    assert not again.troubles and only_file(store).exists()


def test_no_room_at_all_is_refused(tmp_path):
    with pytest.raises(ValueError, match="gigabytes must be above 0"):
        ContextStore(tmp_path, 0)
