"""Every kind of `mmaccel batch` on its shipped model, and what the command says."""

import argparse
import importlib.util
import json
import shutil
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mmaccel import zoo
from mmaccel.batch.items import Item
from mmaccel.batch.work import Work, arguments_of
from mmaccel.cli import main as cli
from mmaccel.files import clips
from mmaccel.modality import modalities
from mmaccel.vlm.arguments import frames_of
from mmaccel.vlm.batching import VlmBatching
from mmaccel.vlm.input import read_video

LOAD = cache(zoo.load)


@pytest.fixture(autouse=True)
def loaded_once(monkeypatch):
    monkeypatch.setattr(zoo, "load", LOAD)


@pytest.fixture
def batch(tmp_path, capsys):
    """A run of the command in a folder: its exit code, what it says, and the outputs."""

    def run(kind, source, *words, code=0):
        output = tmp_path / f"{kind}-out"
        assert cli.main(["batch", kind, str(source), "-o", str(output), *words]) == code
        said = capsys.readouterr()
        found = {path.name: path for path in sorted(output.glob("*.*")) if path.is_file()}
        return said.out, said.err, found

    return run


def listed(folder, *rows):
    path = folder / "items.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_pictures_are_those_of_run(batch, tmp_path):
    rows = {"prompt": "red heart", "seed": 3, "key": "a"}, {"prompt": "zeppelin"}, {"prompt": "red heart", "key": "c"}
    out, err, found = batch("image", listed(tmp_path, *rows), "--baseline", "1", "--seed", "5", code=1)
    assert list(found) == ["a.png", "c.png"] and "failed: 000002: tiny-janus does not know 'zeppelin'" in err
    assert "x against" in out and "items made both ways: 1" in out and "2 of 3 finished, in" in out
    path = tmp_path / "run.png"
    assert cli.main(["run", "image", "red heart", "--seed", "5", "-o", str(path)]) == 0
    run, *both = (np.asarray(Image.open(one)) for one in (path, *found.values()))
    assert np.array_equal(run, both[1]) and not np.array_equal(*both), "the seed of the item comes first"


def test_a_picture_that_the_plain_model_cannot_draw_is_kept_with_the_reason(batch, tmp_path):
    source = listed(tmp_path, {"prompt": "red heart", "key": "a"})
    out, _, found = batch("image", source, "--baseline", "1", "--guidance", "1")
    assert list(found) == ["a.png"] and "1 of 1 finished, in" in out
    assert "1 x not made without methods: --guidance 1" in out


def test_a_plain_run_without_memory_loses_no_picture(batch, tmp_path, monkeypatch):
    def no_memory(*_):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(Work, "_plainly", no_memory)
    out, _, found = batch("image", listed(tmp_path, {"prompt": "red heart", "key": "a"}), "--baseline", "1")
    assert list(found) == ["a.png"] and "1 of 1 finished, in" in out
    assert "1 x not made without methods: RuntimeError: out of memory" in out
    assert "no item was made both ways now" in out


def test_a_baseline_of_what_is_finished_is_not_advised_again(batch, tmp_path):
    source = listed(tmp_path, {"prompt": "red heart", "key": "a"})
    assert "not measured: say --baseline 5" in batch("image", source)[0]
    out = batch("image", source, "--baseline", "5")[0]
    assert "no item was made both ways now" in out and "say --baseline" not in out


def test_clips_of_texts(batch, tmp_path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "up.txt").write_text("rocket moves up, blue background")
    (tmp_path / "texts" / "down.md").write_text("rocket moves down, blue background")
    out, err, found = batch("video", tmp_path / "texts", "--format", ".gif", "--steps", "10", "--frames", "5")
    assert f"left out of {tmp_path / 'texts'}: 1 x '.md' (what is read ends with .txt)" in err
    with Image.open(found["up.gif"]) as clip:
        assert clip.n_frames == 5
    assert "video.HeterogeneousSteps" in out and "20" in out


def test_questions_pages_and_lists(batch, tmp_path):
    pytest.importorskip("av", reason="needs the package av")
    asked = zoo.questions("tiny-onevision", 1)[0]
    clips.save([Image.fromarray(frame) for frame in asked.frames], tmp_path / "a.mp4")
    rows = {"video": "a.mp4", "key": "a"}, {"video": "none.mp4", "key": "b", "question": "why?"}
    _, err, found = batch("vlm", listed(tmp_path, *rows), "--question", asked.question, code=1)
    assert found["a.txt"].read_text().strip() and "failed: b: " in err and "none.mp4" in err

    page = zoo.pages("tiny-reader", 1)[0]
    Image.fromarray(page.picture).save(tmp_path / "page.png")
    (tmp_path / "page.json").write_text(json.dumps([{"box": box, "text": text} for box, text in page.regions]))
    rows = {"page": "page.png", "key": "without"}, {"page": "page.png", "key": "with", "regions": "page.json"}
    out, _, found = batch("document", listed(tmp_path, *rows))
    assert found["with.md"].read_text() == found["without.md"].read_text() and "vlm.DocumentDraft" in out
    records = (tmp_path / "document-out/.mmaccel/records.jsonl").read_text().splitlines()
    first, second = (json.loads(record)["report"]["forwards"] for record in records)
    assert second < first / 2, "regions are verified, not written"

    (tmp_path / "pictures").mkdir()
    Image.fromarray(asked.frames[0]).save(tmp_path / "pictures" / "b.png")
    _, _, found = batch("canvas", tmp_path / "pictures", "--gen-length", "32", "--plain")
    assert found["b.txt"].read_text().strip()


@pytest.mark.parametrize(
    ("words", "row", "looks"),
    (
        (["--fps", "2"], {"frames": 4}, 4),
        (["--frames", "4"], {"fps": 2}, {"fps": 2.0}),
        (["--fps", "2"], {}, {"fps": 2.0}),
        (["--fps", "2", "--frames", "4"], {}, {"fps": 2.0}),
        (["--frames", "4", "--fps", "2"], {}, {"fps": 2.0}),
        (["--fps", "2", "--frames", "3"], {"frames": 4}, 4),
        (["--fps", "3"], {"fps": 2, "frames": 5}, {"fps": 2.0}),
        (["--fps", "3"], {"frames": 5, "fps": 2}, {"fps": 2.0}),
    ),
)
def test_frames_of_a_second_come_before_a_number_and_an_item_before_the_command_line(words, row, looks, monkeypatch):
    monkeypatch.setattr(read_video, "read_video", lambda path, **asked: asked)
    monkeypatch.setattr(read_video, "read_at_most", lambda path, frames: frames)
    parser, batching = argparse.ArgumentParser(), VlmBatching()
    batching.add_item(parser)
    item = Item("a", {"video": "a.mp4", **row})
    assert frames_of(arguments_of(item, batching, parser.parse_args(words))) == looks


def test_recordings(batch, tmp_path):
    spoken = importlib.util.find_spec("moonshine_voice")
    if spoken is None:
        pytest.skip('needs the speech extra: pip install "mmaccel[speech]"')
    shutil.copy(Path(spoken.origin).parent / "assets" / "beckett.wav", tmp_path / "talk.wav")
    (tmp_path / "bad.wav").write_text("no sound")
    source = tmp_path / "sounds"
    source.mkdir()
    for name in ("talk.wav", "bad.wav"):
        (tmp_path / name).rename(source / name)
    (source / "cut off.wav").write_bytes((source / "talk.wav").read_bytes()[:100_000])
    out, err, found = batch("speech", source, "--format", ".vtt", code=1)
    assert "Ever tried" in found["talk.vtt"].read_text() and "failed: bad: " in err and "without methods" in out
    told = next(line for line in err.splitlines() if "failed: cut off: " in line)
    assert told.endswith("copy it again, or repair it: ffmpeg -i 'cut off.wav' -ar 16000 good.wav"), (
        "what a command can do"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    (
        (["--workers", "2"], "--workers is for --ray"),
        (["--plain", "--baseline", "1"], "--plain is without methods"),
        (["--method", "nothing"], "unknown method"),
        (["--count", "0"], "--count 0"),
        (["--format", ".txt"], "--format: invalid choice"),
        (["-o", "{}"], "whose files are the input"),
        (["-o", "{}/a.txt/out"], "a.txt"),
    ),
)
def test_bad_options_are_refused_in_a_line(words, message, tmp_path, capsys):
    (tmp_path / "a.txt").write_text("red heart")
    given = [word.replace("{}", str(tmp_path)) for word in words]
    outside = [] if "-o" in given else ["-o", str(tmp_path.parent / f"{tmp_path.name}-out")]
    assert cli.main(["batch", "image", str(tmp_path), *outside, *given]) == 2
    said = capsys.readouterr().err
    assert message in said and len(said.strip().splitlines()) == 1


def test_another_plan_in_the_same_folder_is_refused(batch, tmp_path):
    source = listed(tmp_path, {"prompt": "red heart", "key": "a"})
    batch("image", source, "--method", "image.ZipAR:window=2")
    _, err, _ = batch("image", source, "--method", "image.ZipAR:window=3", code=2)
    assert "holds outputs of another run (methods was" in err and len(err.splitlines()) == 1
    out, _, _ = batch("image", source, "--method", "image.ZipAR:window=2")
    assert "1 of 1 finished, in" in out and "1 of them before" in out


def test_the_help_of_each_kind_says_what_an_item_is(capsys):
    for modality in modalities():
        for name, command in modality.commands().items():
            if (batching := command.batching) is not None:
                with pytest.raises(SystemExit):
                    cli.main(["batch", name, "--help"])
                told = " ".join(capsys.readouterr().out.split())  # however its lines are wrapped
                assert f"A row has `{batching.field}`" in told and batching.writes[0] in told


def test_several_processes_of_a_launcher_are_refused_before_anything_is_loaded(tmp_path, monkeypatch, capsys):
    """They would each make all items, and all but one ended at the lock of the folder."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "red heart"}\n')
    words = ["batch", "image", str(tmp_path / "prompts.jsonl"), "-o", str(tmp_path / "out")]
    for rank, told in (("0", 1), ("1", 0)):
        monkeypatch.setenv("RANK", rank)
        assert cli.main(words) == 2 and not (tmp_path / "out").exists()
        assert capsys.readouterr().err.count("a launcher started 2 processes, and each would make all items") == told
