"""The shipped model: its calls, its manners, and its pictures."""

import importlib
import json
import re
import shutil
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import SafetensorError

import mmaccel
from mmaccel import image, zoo
from mmaccel.errors import PromptError, SettingError, UnknownNameError, UnsupportedTargetError, WeightsError
from mmaccel.image import quality
from mmaccel.modality import get_modality
from mmaccel.zoo import tiny_janus, weights
from mmaccel.zoo.vocabulary import Vocabulary
from mmaccel.zoo.worlds import emoji_world, moving_world


@pytest.fixture(scope="module")
def loaded():
    return zoo.load("tiny-janus")


def test_names_and_unknown_name():
    drawing, reading = ("tiny-janus", "tiny-wan"), ("tiny-onevision", "tiny-canvas", "tiny-reader")
    assert zoo.names() == (*drawing, *reading, "tiny-amused", "tiny-far", "tiny-unet")
    with pytest.raises(UnknownNameError, match="tiny-janus"):
        zoo.load("tiny-janis")


def test_is_the_real_class_and_takes_the_processor_output_as_it_is(loaded):
    from transformers import JanusForConditionalGeneration, JanusProcessor

    model, processor = loaded
    assert type(model) is JanusForConditionalGeneration
    assert isinstance(processor, JanusProcessor)
    inputs = processor(text="red heart", generation_mode="image", return_tensors="pt")
    torch.manual_seed(0)
    tokens = model.generate(**inputs, generation_mode="image")
    assert tokens.shape == (1, model.config.vision_config.num_image_tokens)
    pictures = processor.postprocess(list(model.decode_image_tokens(tokens).float()), return_tensors="PIL.Image.Image")[
        "pixel_values"
    ]
    assert pictures[0].size == (64, 64)


def test_a_red_heart_is_red(loaded):
    """The middle of the picture is red and its corners are yellow, for plain and accelerated runs."""
    model, processor = loaded
    inputs = processor(text=["big red heart on yellow"] * 4, generation_mode="image", return_tensors="pt")
    with mmaccel.accelerate(model, image.ZipAR(window=4)) as fast:
        tokens = fast.generate(**inputs, generation_mode="image", generator=torch.Generator().manual_seed(1))
    pixels = model.decode_image_tokens(tokens)
    red, green, blue = pixels[:, 24:40, 20:44].mean((0, 1, 2)).tolist()
    assert red > green + 0.5 and red > blue + 0.5
    red, green, blue = pixels[:, :6, :6].mean((0, 1, 2)).tolist()
    assert red > blue + 0.3 and green > blue + 0.3


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("spaceship", ["spaceship", "ship"]),
        ("red hart", ["hart", "red heart"]),
        ("on blue", ["names no thing"]),
        ("", ["empty"]),
        ("   ", ["empty"]),
        ("xyzzy", ["xyzzy", "knows"]),
    ],
)
def test_prompts_outside_its_world_get_an_answer(loaded, prompt, words):
    with pytest.raises(PromptError) as error:
        loaded[1](text=prompt, generation_mode="image", return_tensors="pt")
    assert all(word in str(error.value) for word in words)
    assert "\n" not in str(error.value)


def test_articles_case_and_punctuation_do_not_matter(loaded):
    processor = loaded[1]
    one = processor(text="A small red heart, on the blue!", generation_mode="image", return_tensors="pt")
    two = processor(text="small red heart on blue", generation_mode="image", return_tensors="pt")
    assert torch.equal(one["input_ids"], two["input_ids"])


def test_every_prompt_it_offers_is_one_it_takes(loaded):
    prompts = zoo.prompts("tiny-janus", 50, seed=3)
    assert len(set(prompts)) == 50 and prompts == zoo.prompts("tiny-janus", 50, seed=3)
    loaded[1](text=prompts, generation_mode="image", return_tensors="pt", padding=True)


def test_reference_pictures_are_likelier_than_noise(loaded):
    model, processor = loaded
    prompts, tokens = zoo.reference("tiny-janus")
    assert tokens.shape == (len(prompts), 256) and len(prompts) >= 400
    adapter = mmaccel.adapter.find_adapter(model)
    inputs = processor(text=prompts[:4], generation_mode="image", return_tensors="pt", padding=True)
    arguments = {**inputs, "generation_mode": "image", "guidance_scale": 1.0}
    real = quality.nats_per_token(adapter, arguments, tokens[:4])
    noise = quality.nats_per_token(adapter, arguments, torch.randint(1024, (4, 256)))
    facts = json.loads((zoo.path("tiny-janus") / "training.json").read_text())
    assert real.mean() < noise.mean() - 3
    assert abs(real.mean() - facts["held_out_nats_per_token"]) < 0.7


def _copy(tmp_path):
    return shutil.copytree(zoo.path("tiny-janus"), tmp_path / "model")


def test_truncated_weights(tmp_path):
    folder = _copy(tmp_path)
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])
    with pytest.raises(WeightsError, match="damaged"):
        tiny_janus.load(folder)


def test_foreign_weights(tmp_path):
    from safetensors.torch import save_file

    folder = _copy(tmp_path)
    save_file({"weight": torch.zeros(2)}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(WeightsError, match="missing"):
        tiny_janus.load(folder)


def test_what_is_held_out_stays_held_out():
    """Trained weights know the other scenes, so that no renaming may move the line between the two."""
    asked = [(question.question, question.answer) for question in zoo.questions("tiny-onevision", 5)]
    assert asked[0] == ("what stays?", "christmas tree")
    assert asked[4] == ("where is the star at the start?", "bottom right")
    moving = [moving_world.random_scene(np.random.default_rng(i)) for i in range(200)]
    assert [i for i, scene in enumerate(moving) if scene.held_out] == [40, 45, 192]
    still = [emoji_world.random_scene(np.random.default_rng(i), ("heart", "pizza", "star")) for i in range(200)]
    assert [i for i, scene in enumerate(still) if scene.held_out] == [155]


@pytest.mark.parametrize(
    ("name", "told"),
    (
        ("tiny-amused", "{held_out_nats_per_masked_code} nats"),
        ("tiny-reader", "{exact[pages]:.1%} of whole pages"),
        ("tiny-unet", "**Held-out loss**: {held_out_loss}"),
        ("tiny-canvas", "{exact[blocks]:.1%} of whole lists"),
    ),
)
def test_the_card_tells_what_was_measured(name, told):
    facts = json.loads((zoo.path(name) / "training.json").read_text())
    card = (zoo.path(name) / "README.md").read_text()
    assert told.format(**facts) in card and f"{facts['steps']:,} steps" in card


RECORDED = {"--minutes": "minutes", "--vae-minutes": "vae_minutes", "--pool": "pool"}


@pytest.mark.parametrize("name", (*zoo.names(), *zoo.heads()))
def test_the_card_has_the_commands_that_train_it_again(name, capsys):
    card = " ".join((zoo.path(name) / "README.md").read_text().split())
    commands = re.findall(r"`python -m (mmaccel\.demos\.training\.[a-z_.]+) ([^`]*)`", card)
    assert commands
    part = zoo.path(name) / ("transformer" if name == "tiny-far" else "")
    facts = json.loads((part / "training.json").read_text())
    for module, words in commands:
        with pytest.raises(SystemExit) as ended:
            importlib.import_module(module).main(["--help"])
        told = capsys.readouterr().out
        assert ended.value.code == 0 and all(option in told for option in re.findall("--[a-z-]+", words))
    told, words = " ".join(told.split()), commands[0][1]
    if name == "tiny-onevision":  # trained in parts, which the card tells
        return
    for option, key in RECORDED.items():
        if key in facts:
            given = f"{facts[key]:g}"
            default = re.search(rf"{option} [A-Z_]+ [^-]*\(default: {given}(\.0)?\)", told)
            assert f"{option} {given}" in words or default, f"{name} was trained with {option} {given}"


# ---------------------------------------------------------------- what is said of prompts


class Words:
    """A tokenizer that knows a few words and writes them small."""

    known = ("red", "heart", "big", "on", "blue", "apple", "pizza", "green", "moves")

    def __init__(self):
        self.backend_tokenizer = self.normalizer = self

    def get_vocab(self):
        return {"<pad>": 0, **dict.fromkeys(self.known, 1)}

    def normalize_str(self, text):
        return text.lower()


def said_of(prompt, names=("red heart", "green apple", "pizza")):
    with pytest.raises(PromptError) as error:
        Vocabulary("tiny", list(names), Words(), "red heart").check(prompt)
    return str(error.value)


def test_prompts_are_answered_with_what_comes_near():
    Vocabulary("tiny", ["red heart", "pizza"], Words(), "red heart").check("Big RED heart on blue")
    assert said_of(" ") == said_of(None) == said_of(3) == "the prompt is empty: say what to draw, such as 'red heart'"
    assert said_of("<pad> pizza").startswith("tiny does not know '<pad>'"), "a word for the model alone"
    assert said_of("pizzaa onn") == "tiny does not know 'pizzaa': near words are 'pizza'", "the first, and each once"
    assert said_of("moves onn") == "tiny does not know 'onn': near words are 'on'"
    assert said_of("redheart") == "tiny does not know 'redheart': near words are 'red heart', 'heart'"
    assert said_of("on", ["onn", "pizza"]) == "'on' names no thing that tiny can draw: near are 'onn'"
    assert said_of("green", [f"green {letter}" for letter in "abcdef"]).endswith(
        "'green a', 'green b', 'green c', 'green d'"
    )
    assert said_of("big apple") == "'big apple' is not enough for tiny: say which thing, such as 'green apple'"
    assert said_of("green") == "'green' names no thing that tiny can draw: near are 'green apple'"
    assert said_of("xyzzy") == ("tiny does not know 'xyzzy': it knows 3 things, such as red heart, green apple, pizza")
    assert said_of("heart red").startswith("'heart red' is not enough"), "a name has its order"
    many = [f"thing{i}" for i in range(80)]
    assert said_of("xyzzy", many).endswith("it knows 80 things, such as " + ", ".join(many[::10]))
    hearts = [f"{colour} heart" for colour in "abcdef"]
    assert said_of("heart", hearts).endswith("such as 'a heart', 'b heart', 'c heart', 'd heart'")


def test_each_prompt_of_a_batch_is_checked_and_only_those_of_pictures(loaded):
    with pytest.raises(PromptError, match="spaceship"):
        loaded[1](text=["red heart", "spaceship"], generation_mode="image", return_tensors="pt")
    with pytest.raises(PromptError, match="empty"):
        loaded[1](generation_mode="image", return_tensors="pt")
    assert loaded[1](text="spaceship", generation_mode="text", return_tensors="pt")["input_ids"].ndim == 2


def test_seeds_give_other_prompts_and_only_small_things_have_a_place():
    one, two = zoo.prompts("tiny-janus", 60), zoo.prompts("tiny-janus", 60, seed=1)
    assert one == zoo.prompts("tiny-janus", 60, seed=0) != two and zoo.prompts("tiny-janus", 0) == []
    assert {prompt.split()[0] for prompt in one if "," in prompt} == {"small"}
    assert all("," in prompt for prompt in one if prompt.startswith("small"))
    assert {prompt.split()[0] for prompt in one} > {"small"}


# ---------------------------------------------------------------- how it is loaded


def test_a_model_that_is_not_trained_is_known_and_says_how_to_train_it(monkeypatch, tmp_path):
    monkeypatch.setattr(zoo, "_folder", lambda name: tmp_path / name)
    (tmp_path / "tiny-wan").mkdir()
    assert zoo.names() == ("tiny-wan",) and zoo.is_known("tiny-janus") and not zoo.is_known("tiny-janis")
    with pytest.raises(WeightsError, match=r"demos.training.janus.train .* FOLDER/model can stand"):
        zoo.load("tiny-janus")


def test_models_answer_or_draw():
    kinds = {name: zoo.modality(name) for name in zoo.names()}
    canvases = {"tiny-canvas": "canvas", "tiny-amused": "canvas"}
    answering = {"tiny-onevision": "vlm", "tiny-reader": "vlm"}
    clips = {"tiny-wan": "video", "tiny-far": "video", "tiny-unet": "video"}
    assert kinds == {"tiny-janus": "image", **clips, **answering, **canvases}
    with pytest.raises(SettingError, match="smollm2-eagle is a head and no model: vlm.EagleDraft"):
        zoo.modality("smollm2-eagle")
    with pytest.raises(SettingError, match="tiny-janus answers no questions, unlike tiny-onevision, tiny-canvas"):
        zoo.questions("tiny-janus", 1)
    with pytest.raises(SettingError, match="tiny-amused has no reference pictures, unlike tiny-janus"):
        zoo.reference("tiny-amused")


@pytest.mark.parametrize("error", (ValueError, OSError))
def test_code_of_a_checkpoint_finds_no_terminal_and_other_errors_stay(error):
    terminal = sys.stdin
    with (
        pytest.raises(UnsupportedTargetError, match="x/y needs Python code of its own") as told,
        weights.no_foreign_code("x/y"),
    ):
        assert sys.stdin is not terminal and sys.stdin.read() == ""
        raise error("pass trust_remote_code=True")
    assert sys.stdin is terminal and isinstance(told.value.__cause__, error)
    with pytest.raises(error, match="another"), weights.no_foreign_code("x/y"):
        raise error("another")
    assert sys.stdin is terminal


def test_two_threads_load_one_after_the_other():
    order, terminal = [], sys.stdin

    def second():
        with weights.no_foreign_code("two"):
            order.append("second")

    with weights.no_foreign_code("one"):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(0.1)
        with weights.no_foreign_code("a part of one"):
            order.append("first")
    thread.join(5)
    assert order == ["first", "second"] and sys.stdin is terminal


class Loaded(torch.nn.Module):
    """Stands for a class of transformers: notes how it is loaded, and says what it was told to."""

    info = {"missing_keys": [], "mismatched_keys": []}
    error = None

    @classmethod
    def from_pretrained(cls, source, **options):
        if cls.error:
            raise cls.error
        cls.options = options
        return cls(), cls.info


def test_weights_are_loaded_as_safetensors_and_ready_to_run(monkeypatch):
    model = weights.load_pretrained(Loaded, "x", more=1)
    assert not model.training
    assert Loaded.options == {"dtype": "auto", "use_safetensors": True, "output_loading_info": True, "more": 1}
    weights.load_pretrained(Loaded, "x", torch.float16)
    assert Loaded.options["dtype"] == torch.float16
    monkeypatch.setattr(Loaded, "info", {"missing_keys": ["a"], "mismatched_keys": ["b", "c"]})
    with pytest.raises(
        WeightsError, match="not those of a Loaded: 3 tensors are missing or of another shape, such as a"
    ):
        weights.load_pretrained(Loaded, "x")


@pytest.mark.parametrize(
    ("error", "kind", "word"),
    (
        (EOFError("end"), WeightsError, r"damaged \(end\): fetch or install"),
        (SafetensorError("cut"), WeightsError, r"damaged \(cut\): fetch or install"),
        (OSError("Unable to load weights from x"), WeightsError, "x are damaged: fetch or install"),
        (OSError("no such file"), OSError, "^no such file"),
        (RuntimeError("can't allocate memory: 9 bytes"), RuntimeError, "can't allocate memory"),
        (RuntimeError("Data processing error: no space left"), RuntimeError, "^Data processing error"),
        (
            RuntimeError("Error(s) in loading it\nand more"),
            WeightsError,
            r"not those of a Loaded \(Error\(s\) in .* it\)$",
        ),
        (ValueError("Cannot load it"), WeightsError, r"not those of a Loaded \(Cannot load it\)"),
        (ValueError("a wrong option"), ValueError, "^a wrong option"),
    ),
)
def test_errors_of_libraries_are_translated_where_they_are_of_weights(monkeypatch, error, kind, word):
    monkeypatch.setattr(Loaded, "error", error)
    with pytest.raises(kind, match=word) as told:
        weights.load_pretrained(Loaded, "x")
    assert (told.value is error) == (kind is not WeightsError)


def test_a_folder_may_be_a_text():
    folder = str(zoo.path("tiny-wan"))
    pipe = zoo.load("tiny-wan", folder)
    assert pipe.facts == zoo.load("tiny-wan").facts


@pytest.mark.parametrize("name", zoo.names())
def test_what_a_recipe_wrote_is_loaded_by_its_folder(name, tmp_path):
    folder = shutil.copytree(zoo.path(name), tmp_path / "model")
    assert zoo.like(name) == zoo.like(folder) == zoo.like(str(folder)) == name
    shipped, loaded = zoo.load(name), zoo.load(str(folder))
    both = [one if isinstance(one, tuple) else (one,) for one in (shipped, loaded)]
    assert [type(part) for part in both[0]] == [type(part) for part in both[1]]


def test_a_checkpoint_of_ones_own_is_like_none(tmp_path):
    assert {zoo.like(one) for one in (tmp_path, "owner/name", "smollm2-eagle", Path("tiny-wan"))} == {None}
    shutil.copy(zoo.path("tiny-wan") / "model_index.json", tmp_path)
    assert zoo.like(tmp_path) is None, "no recipe wrote it"
    for facts in ("{}", "[]", "7", "null", '{"epochs": 3}', "seven epochs"):
        (tmp_path / "training.json").write_text(facts)
        assert zoo.like(tmp_path) is None, "nor this"
        (reader := tmp_path / "reader").mkdir(exist_ok=True)
        shutil.copy(zoo.path("tiny-reader") / "config.json", reader)
        shutil.copy(tmp_path / "training.json", reader)
        assert zoo.like(reader) is None
    shutil.copy(zoo.path("tiny-wan") / "training.json", tmp_path)
    assert zoo.like(tmp_path) == "tiny-wan"
    (tmp_path / "model_index.json").write_text('{"_class_name": "FluxPipeline"}')
    assert zoo.like(tmp_path) is None
    for path in (tmp_path, Path("tiny-wan")):
        with pytest.raises(UnknownNameError, match="zoo model"):
            zoo.load(path)


@pytest.mark.parametrize(
    ("name", "kind"),
    (("tiny-wan", "video"), ("tiny-far", "video"), ("tiny-unet", "video"), ("tiny-amused", "image")),
)
def test_the_command_line_opens_what_a_recipe_wrote_with_its_own_sizes_and_words(name, kind, tmp_path):
    folder = shutil.copytree(zoo.path(name), tmp_path / "model")
    modality = get_modality(kind)
    pipe = modality.target(modality.open(str(folder)))
    denoiser = pipe.unet if name == "tiny-unet" else pipe.transformer
    assert pipe.example[0] == name and denoiser.dtype == torch.float32
    with pytest.raises(PromptError, match="spaceship"):
        pipe("spaceship")
    assert kind == "image" or modality.recognizes(str(folder))


def test_a_folder_of_another_kind_says_where_it_belongs(tmp_path):
    folders = {name: str(shutil.copytree(zoo.path(name), tmp_path / name)) for name in ("tiny-reader", "tiny-canvas")}
    vlm = get_modality("vlm")
    assert (
        vlm.recognizes(folders["tiny-reader"])
        and type(vlm.open(folders["tiny-reader"])[1]).__name__ == "ReaderProcessor"
    )
    with pytest.raises(UnsupportedTargetError, match="answers no questions: use `mmaccel run canvas`"):
        vlm.open(folders["tiny-canvas"])
    pipe, processor = get_modality("canvas").open(str(zoo.path("tiny-amused")))
    assert processor is None and pipe.example[0] == "tiny-amused"
