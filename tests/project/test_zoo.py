"""The shipped model: its calls, its manners, and its pictures."""

import json
import shutil

import numpy as np
import pytest
import torch

import mmaccel
from mmaccel import image, zoo
from mmaccel.demos.training import emoji_world, moving_world
from mmaccel.errors import PromptError, UnknownNameError, WeightsError
from mmaccel.image import quality
from mmaccel.zoo import tiny_janus


@pytest.fixture(scope="module")
def loaded():
    return zoo.load("tiny-janus")


def test_names_and_unknown_name():
    assert zoo.names() == ("tiny-janus", "tiny-wan", "tiny-onevision")
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
    shutil.copytree(zoo.path("tiny-janus"), tmp_path / "model")
    return tmp_path / "model"


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
