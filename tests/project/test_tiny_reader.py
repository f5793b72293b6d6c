"""The reader of the zoo: its pages, its processor, its training, what it reads."""

import json
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from transformers import LightOnOcrForConditionalGeneration

import mmaccel
from mmaccel import vlm, zoo
from mmaccel.cli import main as cli
from mmaccel.demos.training.checkpoint import Checkpoint, stoppable
from mmaccel.demos.training.reader import data, parts, save, shape, train
from mmaccel.errors import PromptError, SettingError, UnsupportedTargetError
from mmaccel.vlm import reading
from mmaccel.zoo import tiny_reader as shipped
from mmaccel.zoo.worlds import page_words
from mmaccel.zoo.worlds import page_world as world

FOLDER = Path(zoo.__file__).parent / "tiny-reader"
trained = pytest.mark.skipif(not (FOLDER / "model.safetensors").is_file(), reason="not trained yet")
GLYPHS = np.random.default_rng(0).random((2, len(world.CHARACTERS), 16, 8), np.float32)  # no font is needed


@pytest.fixture(scope="module")
def pages():
    return [world.draw_page([3, seed], GLYPHS) for seed in range(120)]


@pytest.fixture(scope="module")
def tokenizer():
    return shape.build_tokenizer()


@pytest.fixture(scope="module")
def module(tokenizer):
    torch.manual_seed(0)
    return parts.Trained(shape.build_model(tokenizer), tokenizer).eval()


@pytest.fixture(scope="module")
def folder(module, tokenizer, tmp_path_factory):
    target = tmp_path_factory.mktemp("zoo") / "model"
    save.save(module.model, tokenizer, GLYPHS, target, {"seed": 1})
    return target


# ---------------------------------------------------------------- the world


def test_pages_are_a_function_of_their_seed_and_hold_all_kinds_of_regions(pages):
    again = world.draw_page([3, 7], GLYPHS)
    assert np.array_equal(again.picture, pages[7].picture) and again.text == pages[7].text
    assert {region.kind for page in pages for region in page.regions} == {
        "title", "heading", "paragraph", "list", "table", "figure"
    }  # fmt: skip
    assert len({page.text for page in pages}) == len(pages)
    assert all(page.picture.shape == (256, 224, 3) and page.picture.dtype == np.uint8 for page in pages)


def test_regions_stand_in_reading_order_apart_from_each_other_and_on_the_page(pages):
    for page in pages:
        boxes = [region.box for region in page.regions]
        assert all(0 <= left < right <= 224 and 0 <= top < bottom <= 256 for left, top, right, bottom in boxes)
        assert all(one[3] <= other[1] for one, other in zip(boxes, boxes[1:], strict=False))
        assert page.text == "\n\n".join(region.text for region in page.regions)


def test_what_is_printed_is_what_is_said(pages):
    """Each letter's cell has more ink than an empty one beside the text."""
    flat = np.ones_like(GLYPHS)
    page = world.draw_page([3, 11], flat)
    ink = np.abs(page.picture.astype(int) - np.median(page.picture, (0, 1))).mean(2)
    for text, place in page.pieces:
        for i, letter in enumerate(text if place else ""):
            cell = ink[place[0] * 16 + 2 : place[0] * 16 + 14, (place[1] + i) * 8 + 2 : (place[1] + i) * 8 + 6]
            title = page.regions[0].kind == "title" and place[0] * 16 == page.regions[0].box[1]
            assert (cell.mean() > 60) == (letter != " ") or title


def test_markdown_is_that_of_its_kind(pages):
    for region in (region for page in pages for region in page.regions):
        lines = region.text.split("\n")
        starts = {"title": "# ", "heading": "## ", "list": "- ", "table": "| ", "figure": "!["}
        if region.kind in starts:
            assert lines[0].startswith(starts[region.kind])
        if region.kind == "table":
            assert len({line.count("|") for line in lines}) == 1 and set(lines[1]) == set("|- ")
        if region.kind == "figure":
            assert lines[1].startswith("Figure ") and len(lines) == 2


def test_names_of_held_out_pages_are_never_trained_on():
    rng = np.random.default_rng(0)
    known = {page_words.invented(rng) for _ in range(3000)}
    held = {page_words.invented(rng, True) for _ in range(3000)}
    assert len(known) > 1000 and len(held) > 1000 and not known & held
    assert len(set(page_words.WORDS)) == len(page_words.WORDS) > 400


def test_no_word_comes_twice_before_all_were_said():
    words = page_words.some_words(np.random.default_rng(1))
    said = [word for word in (next(words) for _ in range(300)) if word.islower()]
    assert len(set(said)) == len(said) > 200


@pytest.mark.parametrize(("rows", "columns"), ((1, 8), (2, 16), (4, 20), (6, 28)))
def test_a_lone_region_goes_from_edge_to_edge(rows, columns):
    for seed in range(40):
        page = world.draw_page(seed, GLYPHS, rows, columns, alone=True)
        left, top, right, bottom = page.regions[0].box
        assert (left, top) == (0, 0) and right <= columns * 8 and bottom <= rows * 16


def test_glyphs_come_from_fonts_and_from_their_picture(folder):
    fonts = train.fonts()
    glyphs = world.glyphs_of(*fonts)
    assert glyphs.shape == GLYPHS.shape and glyphs[0, :62].max((1, 2)).min() > 0.5
    assert not np.array_equal(glyphs[0], glyphs[1])
    one = next(shipped.pages(folder, 1, 2))
    drawn = world.draw_page([2, 0, 5], GLYPHS, held_out=True)
    assert one.text == drawn.text and np.abs(one.picture.astype(int) - drawn.picture).max() <= 2


# ---------------------------------------------------------------- tokens and batches


def test_every_letter_is_a_token_and_nothing_is_unknown(pages, tokenizer):
    for page in pages:
        tokens = tokenizer(page.text)["input_ids"]
        assert tokenizer.unk_token_id not in tokens and tokenizer.decode(tokens) == page.text
    assert len(tokenizer("# ab\n\n| c |")["input_ids"]) == 9


def test_a_batch_says_which_patch_shows_each_letter(tokenizer):
    batch = data.draw(tokenizer, GLYPHS, [5], 4)
    letters = [""] + list(world.CHARACTERS)
    for row in range(4):
        for token, patch in zip(batch.tokens[row].tolist(), batch.patches[row].tolist(), strict=True):
            said = tokenizer.convert_ids_to_tokens(token)
            if patch != data.IGNORED and said != " ":
                assert said in [letters[letter] for letter in batch.letters[row, patch]]
    ends = (batch.labels == tokenizer.eos_token_id).sum(1)
    assert ends.tolist() == [1] * 4 and (batch.tokens[batch.labels == data.IGNORED] == tokenizer.eos_token_id).all()


def test_training_sees_what_generate_sees(module, tokenizer, folder):
    batch = data.draw(tokenizer, GLYPHS, [6], 2)
    model, processor = shipped.load(folder)
    inputs = processor(images=[picture.numpy() for picture in batch.pictures])
    ids = torch.cat([inputs["input_ids"], batch.tokens], 1)
    with torch.no_grad():
        logits, _, looked = module(batch)
        whole = model(**{**inputs, "input_ids": ids, "attention_mask": torch.ones_like(ids)}).logits
    assert torch.allclose(logits, whole[:, inputs["input_ids"].shape[1] - 1 : -1], atol=2e-2)
    assert looked.shape == (2, batch.tokens.shape[1], 224) and (looked.exp().sum(-1) <= 1.001).all()


def test_losses_teach_every_part(module, tokenizer):
    batch = data.draw(tokenizer, GLYPHS, [7], 2, 3, 16, True)
    module.zero_grad()
    told = module.losses(batch)
    (told["said"] + told["found"] + told["letters"]).backward()
    assert all(parameter.grad is not None for parameter in module.parameters())
    module.zero_grad()
    assert 0 <= told["whole"] <= told["right"] <= 1


def test_recipe_trains_saves_and_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(train, "CELLS", 448)
    words = ["--output", str(tmp_path), "--pages", "1", "--threads", "1"]

    def reached():
        """Steps and seconds of the checkpoint."""
        with safe_open(tmp_path / "reader.safetensors", "pt") as checkpoint:
            return int(checkpoint.metadata()["step"]), float(checkpoint.get_tensor("model.seconds"))

    train.main([*words, "--minutes", "0.01"])
    (first, seconds), facts = reached(), json.loads((tmp_path / "model" / "training.json").read_text())
    assert first >= 1 and facts["steps"] == first and set(facts["exact"]) == {"pages", "lines", "regions"}
    train.main([*words, "--minutes", str(seconds / 60 + 0.005)])
    assert reached()[0] > first
    assert type(shipped.load(tmp_path / "model")[0]) is LightOnOcrForConditionalGeneration


def test_a_checkpoint_is_one_file_with_its_step(tmp_path):
    """So that a run that is stopped while it saves has weights and their step, old ones or new ones."""
    model = torch.nn.Linear(2, 2)
    checkpoint = Checkpoint(tmp_path / "stage.safetensors", model, [torch.optim.AdamW(model.parameters())])
    assert checkpoint.load() == 0
    checkpoint.save(7)
    assert [file.name for file in tmp_path.iterdir()] == ["stage.safetensors"] and checkpoint.load() == 7


@pytest.mark.parametrize("at", (2, 4))
@pytest.mark.parametrize("presses", (1, 2))
def test_ctrl_c_ends_a_recipe_after_a_step_and_saves(presses, at):
    """Minutes of training were lost, of whatever came behind the last checkpoint; a second one does not wait.

    In the last step of a stage too, behind which the next one would begin.
    """
    saved, done, before = [], [], signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        for step in stoppable(range(5), saved.append):
            for _ in range(presses if step == at else 0):
                signal.raise_signal(signal.SIGINT)
            done.append(step)
    assert (done, saved) == (([*range(at + 1)], [at]) if presses == 1 else ([*range(at)], []))
    assert signal.getsignal(signal.SIGINT) is before
    assert list(stoppable(range(3), saved.append)) == [0, 1, 2] and signal.getsignal(signal.SIGINT) is before


# ---------------------------------------------------------------- the processor


def test_pictures_of_every_make_and_size(folder):
    model, processor = shipped.load(folder)
    picture = np.full((64, 96, 3), 200, np.uint8)
    one = processor(images=picture)
    for page in (torch.from_numpy(picture).movedim(-1, 0), Image.fromarray(picture), [picture]):
        assert torch.equal(processor(images=page)["input_ids"], one["input_ids"])
    two = processor(images=[picture, picture[:32]])
    assert two["attention_mask"].sum(1).tolist() == [3 + 24, 3 + 12] and two["attention_mask"][:, -1].all()
    assert model.generate(**two, max_new_tokens=2).shape[0] == 2


def test_only_readers_have_pages():
    with pytest.raises(SettingError, match="tiny-onevision reads no pages, unlike tiny-reader"):
        zoo.pages("tiny-onevision", 1)


# ---------------------------------------------------------------- the trained model


@trained
def test_it_reads_held_out_pages():
    from mmaccel.demos.training.reader.check import exact

    measured = json.loads((FOLDER / "training.json").read_text())["exact"]
    assert measured["pages"] >= 0.9 and measured["lines"] > 0.97
    assert exact(FOLDER, 12, seed=7)["lines"] > 0.95
    assert (FOLDER / "model.safetensors").stat().st_size < 8e6


@trained
def test_the_command_reads_a_page(tmp_path, capsys):
    output, picture = tmp_path / "page.md", tmp_path / "page.png"
    words = ["run", "document", "--example", "-o", str(output), "--compare", "--picture", str(picture)]
    assert cli.main(words) == 0
    printed = capsys.readouterr().out
    assert "the plain text is the same" in printed and "speed-up" in printed and "x fewer" in printed
    (page,) = zoo.pages("tiny-reader", 1)
    assert np.array_equal(np.asarray(Image.open(picture)), page.picture)
    regions = tmp_path / "page.json"
    regions.write_text(json.dumps([{"box": box, "text": text} for box, text in page.regions]))
    again = tmp_path / "again.md"
    crops = ["--method", "vlm.DocumentDraft:regions=true"]
    assert cli.main(["run", "document", str(picture), "--regions", str(regions), "-o", str(again), *crops]) == 0
    assert again.read_text() == output.read_text()
    assert "  passes" in capsys.readouterr().out
    named = ["run", "document", str(picture), "--regions", str(regions), "-o", str(tmp_path / "none.md")]
    assert cli.main([*named, "--method", "vlm.FusedDraft"]) == 2
    assert "--regions: vlm.FusedDraft uses none" in capsys.readouterr().err and not (tmp_path / "none.md").exists()


@trained
def test_the_session_opens_it_by_name():
    plan = mmaccel.plan(vlm_open("tiny-reader"), vlm.DocumentDraft())
    assert "DocumentDraft" in str(plan)


def vlm_open(name):
    return mmaccel.modality.get_modality("vlm").open(name)[0]


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("written", "said"),
    (
        ("no json", "it is no list of boxes and texts; it must be like"),
        ("[7]", "it is no list of boxes and texts"),
        ('[{"box": [0, 0, 9]}]', "it is no list of boxes and texts"),
        ('[{"box": [0, 0, 9], "text": "a"}]', "a region has the box"),
        ("[" * 100_000, "it is no list"),
    ),
)
def test_files_that_hold_no_regions(tmp_path, written, said):
    path = tmp_path / "page.json"
    path.write_text(written)
    with pytest.raises(PromptError, match=said):
        reading.read_regions(path)
    with pytest.raises(PromptError, match="cannot read"):
        reading.read_regions(tmp_path / "none.json")


def test_models_that_read_no_pages():
    with pytest.raises(UnsupportedTargetError, match="tiny-wan reads no pages: use tiny-reader"):
        reading.load("tiny-wan")


def test_a_prompt_is_of_readers_that_are_told_what_to_do(folder):
    _, processor = shipped.load(folder)
    assert reading.prompt_of(processor, None) is None
    with pytest.raises(SettingError, match="--prompt: tiny-reader knows one prompt"):
        reading.prompt_of(processor, "read")

    class Other:
        chat_template = "a program"

        def apply_chat_template(self, talk, add_generation_prompt):
            return str(talk)

    assert reading.PROMPT in reading.prompt_of(Other(), None) and "table" in reading.prompt_of(Other(), "table")
