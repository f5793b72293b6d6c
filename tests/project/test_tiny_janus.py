"""The last stage of the recipe of tiny-janus: its loss, and the weights that it leaves."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mmaccel import zoo
from mmaccel.demos.training.janus import averaged, train
from mmaccel.demos.training.janus.shape import build_tokenizer, encode_captions
from mmaccel.demos.training.recipe import to_pixels
from mmaccel.image import generation

FOLDER = Path(zoo.__file__).parent / "tiny-janus"
CAPTIONS = ["big red heart on yellow", "pizza", "small green book on orange, bottom right"]


def drawn(seed, step, count, things=None, held_out=False):
    """Pictures that need no font."""
    generator = torch.Generator().manual_seed(1000 * seed + step)
    pictures = torch.randint(0, 256, (count, 64, 64, 3), generator=generator, dtype=torch.uint8)
    return pictures, [CAPTIONS[i % len(CAPTIONS)] for i in range(count)]


class Drawn:
    """Stands for what draws on the device."""

    def __init__(self, device, seed, dropped):
        self.seed, self.step, self.tokenizer = seed, 0, build_tokenizer()

    def batch(self, count):
        pictures, captions = drawn(self.seed, self.step, count)
        self.step += 1
        rows = [torch.tensor(row) for row in encode_captions(self.tokenizer, captions, [False] * count)]
        text = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=self.tokenizer.pad_token_id)
        return to_pixels(pictures), text, torch.tensor([len(row) for row in rows])


@pytest.fixture(autouse=True)
def without_font(monkeypatch):
    monkeypatch.setattr(averaged, "Drawing", Drawn)
    monkeypatch.setattr(train, "held_out_loss", lambda model, tokenizer: 1.5)
    monkeypatch.setattr(train, "reference", lambda model: {"captions": [], "tokens": torch.zeros(0, 256)})


def test_the_loss_of_a_picture_does_not_depend_on_the_captions_beside_it():
    model, tokenizer = generation.load("tiny-janus").target, build_tokenizer()
    pictures, captions = drawn(0, 0, 3)
    with torch.no_grad():
        together = train.language_model_loss(model, tokenizer, pictures, captions, [False] * 3, "none")
        for i, caption in enumerate(captions):
            alone = train.language_model_loss(model, tokenizer, pictures[i : i + 1], [caption], [False], "none")
            torch.testing.assert_close(together[i : i + 1], alone, rtol=1e-4, atol=1e-4)
        ids = torch.tensor([[*tokenizer("pizza")["input_ids"], tokenizer.convert_tokens_to_ids("<boi>")]])
        expected = train.encoded_loss(model, to_pixels(pictures[1:2]), ids, torch.tensor([ids.shape[1]]), "none")
    torch.testing.assert_close(together[1:2], expected, rtol=1e-4, atol=1e-4)


def test_the_stage_goes_on_from_a_model_and_leaves_the_average_of_its_weights(tmp_path, capsys):
    options = ["--output", str(tmp_path), "--minutes", "0.02", "--batch", "2", "--device", "cpu", "--threads", "1"]
    averaged.main(["--begin", str(FOLDER), *options])
    told = json.loads((tmp_path / "model" / "training.json").read_text())
    shipped = json.loads((FOLDER / "training.json").read_text())
    assert told["averaged_steps"] > shipped["averaged_steps"] and told["averaged_batch"] == 2
    assert told["held_out_nats_per_token"] == 1.5
    minutes = json.loads(capsys.readouterr().out)["averaged_minutes"]
    assert minutes == pytest.approx(shipped["averaged_minutes"] + 0.02)
    before, after = (load_file(folder / "model.safetensors") for folder in (FOLDER, tmp_path / "model"))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed and all("language_model" in name or "generation" in name for name in changed)
    state = load_file(tmp_path / "averaged.safetensors")
    means = [value for name, value in state.items() if name.startswith("model.average")]
    assert sum(
        any(torch.equal(mean.half(), after[name]) for mean in means if mean.shape == after[name].shape)
        for name in changed
    ) == len(changed)
