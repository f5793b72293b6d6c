"""What recipes of the zoo share: folders that go on, files that are whole, and what the command line tells."""

import argparse
import sys
from pathlib import Path

import pytest
import torch

from mmaccel.demos.training import card, checkpoint, recipe
from mmaccel.demos.training.janus import averaged
from mmaccel.demos.training.onevision import thin


@pytest.mark.parametrize(("stage", "option"), ((averaged, "--begin"), (thin, "--model")))
def test_what_a_folder_ended_with_goes_on_in_another(stage, option, tmp_path, capsys):
    """Its checkpoint is finished: nothing would be trained, and all minutes be counted twice."""
    folder = tmp_path / "run"
    with pytest.raises(SystemExit):
        stage.main([option, str(folder / "model"), "--output", str(folder)])
    assert f"{option} {folder / 'model'}: this is what --output {folder} ended with" in capsys.readouterr().err
    assert not folder.exists()


def test_a_folder_without_facts_is_refused_before_the_training(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"training\.json"):
        averaged.main(["--begin", str(tmp_path), "--output", str(tmp_path / "run")])
    assert not (tmp_path / "run").exists()


def test_a_folder_goes_on_with_the_seed_it_was_begun_with(tmp_path):
    words = argparse.Namespace(output=tmp_path / "run", seed=20, threads=torch.get_num_threads())
    for _ in range(2):
        recipe.begin(words)
    words.seed = 21
    with pytest.raises(SystemExit, match="run was begun with --seed 20: give it, or another --output"):
        recipe.begin(words)


def test_what_does_not_fit_on_the_disk_is_not_there(tmp_path, monkeypatch):
    def full(tensors, path, told=None):
        Path(path).write_bytes(b"half of it")
        raise OSError("No space left on device")

    tensors = {"weight": torch.ones(2)}
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(checkpoint, "save_file", full)
        checkpoint.write(tensors, tmp_path / "talks.safetensors")
    assert not list(tmp_path.iterdir())
    checkpoint.write(tensors, tmp_path / "talks.safetensors")
    assert torch.equal(checkpoint.load_file(tmp_path / "talks.safetensors")["weight"], tensors["weight"])


class Part:
    """A part of a pipeline that is saved file by file."""

    room = 1

    def save_pretrained(self, folder):
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text("{}")
        if not self.room:
            raise OSError("No space left on device")
        (folder / "weights").write_text("all")


def test_a_folder_of_weights_is_there_once_it_is_whole(tmp_path):
    part = Part()
    part.room = 0
    with pytest.raises(OSError, match="No space"):
        checkpoint.write_model(part, tmp_path / "vae")
    assert not (tmp_path / "vae").exists()
    part.room = 1
    for _ in range(2):
        checkpoint.write_model(part, tmp_path / "vae")
    assert [folder.name for folder in tmp_path.iterdir()] == ["vae"] and len(list((tmp_path / "vae").iterdir())) == 2


def test_help_tells_defaults_where_there_are_some(capsys):
    parser = recipe.command_line("What it trains::\n\n    python -m it", seed=7)
    parser.add_argument("--compile", action="store_true", help="faster")
    with pytest.raises(SystemExit):
        parser.parse_args(["--help"])
    told = capsys.readouterr().out
    assert "of all that is random (default: 7)" in told and "python -m it" in told
    assert "None" not in told and "False" not in told
    assert parser.parse_args(["--output", "x"]).compile is False


def test_help_of_a_card_writes_none(monkeypatch, capsys):
    written = []
    monkeypatch.setattr(sys, "argv", ["card", "--help"])
    with pytest.raises(SystemExit):
        card.run(lambda: written.append("card"), "Write the card.")
    assert "Write the card." in capsys.readouterr().out and not written
    monkeypatch.setattr(sys, "argv", ["card"])
    card.run(lambda: written.append("card"), "Write the card.")
    assert written == ["card"]
