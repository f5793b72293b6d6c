"""The shipped model of masked pictures: its class, its pictures, its prompts, its commands and its benchmark."""

import json

import pytest
import torch
from diffusers import AmusedPipeline, UVit2DModel, VQModel
from PIL import Image
from transformers import CLIPTextModelWithProjection

import mmaccel
from mmaccel import canvas, zoo
from mmaccel.canvas.bench.picture_cases import cases
from mmaccel.canvas.bench.pictures import BENCHMARK, Drawing
from mmaccel.cli import main as cli
from mmaccel.comparison.runner import Runner
from mmaccel.demos.training.amused import shape
from mmaccel.demos.training.amused.data import numbers_of, scene_of
from mmaccel.demos.training.amused.vq import converted
from mmaccel.errors import PromptError, SettingError, UnsupportedTargetError
from mmaccel.image import generation

NAME = "tiny-amused"


@pytest.fixture(scope="module")
def pipe():
    return zoo.load(NAME)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def test_it_is_made_of_the_real_classes(pipe):
    assert isinstance(pipe, AmusedPipeline) and type(pipe.transformer) is UVit2DModel
    assert type(pipe.vqvae) is VQModel and type(pipe.text_encoder) is CLIPTextModelWithProjection
    assert zoo.modality(NAME) == "canvas"


def test_diffusers_loads_the_folder_itself():
    own = AmusedPipeline.from_pretrained(zoo.path(NAME), torch_dtype=torch.float32)
    own.set_progress_bar_config(disable=True)
    picture = own("big red heart on yellow", guidance_scale=3.0, generator=seeded()).images[0]
    mine = zoo.load(NAME)("big red heart on yellow", generator=seeded()).images[0]
    assert picture.tobytes() == mine.tobytes()


@pytest.mark.parametrize("methods", ((), (canvas.HaltonOrder(steps=8),)))
def test_a_red_heart_is_red_on_yellow(pipe, methods):
    """In the middle and in the corners, plainly and accelerated."""
    call = {"prompt": ["big red heart on yellow"] * 6, "generator": seeded(), "output_type": "pt"}
    if methods:
        with mmaccel.accelerate(pipe, *methods) as fast:
            pixels = fast(**call).images
    else:
        pixels = pipe(**call).images
    red, green, blue = pixels[:, :, 26:38, 22:42].mean((0, 2, 3)).tolist()
    assert red > green + 0.2 and red > blue + 0.2
    red, green, blue = pixels[:, :, :5, :5].mean((0, 2, 3)).tolist()
    assert red > blue + 0.15 and green > blue + 0.15


def test_its_vq_model_decodes_as_that_of_tiny_janus(pipe):
    own = zoo.load("tiny-janus")[0].model
    _, tokens = zoo.reference("tiny-janus")
    codes = tokens[:2].view(2, 16, 16)
    wanted = own.vqmodel.decode(tokens[:2]) / 2 + 0.5
    exact = converted(own.vqmodel).decode(codes, force_not_quantize=True, shape=(2, 16, 16, 9)).sample
    assert (exact - wanted).abs().max() < 1e-5
    shipped = pipe.vqvae.decode(codes, force_not_quantize=True, shape=(2, 16, 16, 9)).sample
    assert (shipped - wanted).abs().max() < 0.02, "more than the rounding to float16"


def test_a_vq_model_that_needs_float32_decodes_in_it():
    """As in the pipeline itself; afterwards it is in float16 again."""
    painter, precisions = generation.load(NAME), []
    vq = painter.target.vqvae
    vq.half().register_to_config(force_upcast=True)
    vq.decoder.register_forward_pre_hook(lambda _, given: precisions.append(given[0].dtype))
    drawn = painter.paint(painter.target, ["pizza"], generation.ImageSettings()).pictures[0]
    own = painter.target("pizza", generator=seeded()).images[0]
    assert precisions == [torch.float32] * 2 and drawn.tobytes() == own.tobytes()
    assert vq.dtype == torch.float16


def test_its_encoder_finds_most_codes_again(pipe):
    facts = json.loads((zoo.path(NAME) / "training.json").read_text())
    _, tokens = zoo.reference("tiny-janus")
    codes = tokens[:8].view(8, 16, 16)
    shown = pipe.vqvae.decode(codes, force_not_quantize=True, shape=(8, 16, 16, 9)).sample.clip(0, 1)
    found = pipe.vqvae.quantize(pipe.vqvae.encode(shown).latents)[2][2].view_as(codes)
    assert (found == codes).float().mean() > 0.6 * facts["same_codes"]


@pytest.mark.parametrize(
    ("prompt", "words"), [("spaceship", "spaceship"), ("on blue", "names no thing"), ("", "empty")]
)
def test_prompts_outside_its_world_get_an_answer(pipe, prompt, words):
    with pytest.raises(PromptError, match=words):
        pipe(prompt)


def test_its_prompts_are_those_of_tiny_janus(pipe):
    prompts = zoo.prompts(NAME, 20, seed=3)
    assert prompts == zoo.prompts("tiny-janus", 20, seed=3)
    for prompt in prompts:
        pipe.vocabulary.check(prompt)


def test_the_longest_caption_fits():
    tokenizer = shape.build_tokenizer()
    longest = tokenizer("small smiling face with heart-eyes on yellow, bottom right")["input_ids"]
    assert len(longest) <= shape.TEXT_LENGTH and tokenizer.unk_token_id not in longest


def test_scenes_survive_as_numbers():
    from mmaccel.zoo.worlds import emoji_world as world

    scene = world.EmojiScene("pizza", "small", "green", "top left")
    assert scene_of(numbers_of(scene)) == scene


# ---------------------------------------------------------------- on the command line


def test_run_draws_a_picture_and_tells_its_speed(tmp_path, capsys):
    path = tmp_path / "heart.png"
    words = ["run", "image", "big red heart on yellow", "-o", str(path), "--model", NAME, "--count", "2", "--compare"]
    assert cli.main([*words, "--method", "canvas.HaltonOrder:steps=6"]) == 0
    printed = capsys.readouterr().out
    assert "6 instead of 12" in printed and "speed-up" in printed
    assert Image.open(path).size[0] > 64 and (tmp_path / "heart.compare.png").is_file()


def test_run_takes_a_folder_and_the_preset_of_its_family(tmp_path, capsys):
    assert cli.main(["run", "image", "pizza", "-o", str(tmp_path / "x.png"), "--model", str(zoo.path(NAME))]) == 0
    assert "lossy" in capsys.readouterr().out


def test_compare_has_fewer_steps(work_clock, capsys):
    words = ["compare", "image", "pizza", "--model", NAME, "--seeds", "1", "--rounds", "1"]
    assert cli.main([*words, "--method", "canvas.HaltonOrder"]) == 0
    assert "fewer steps" in capsys.readouterr().out


@pytest.mark.parametrize("setting", ("temperature", "top_k", "top_p"))
def test_settings_of_other_samplers_are_refused(setting):
    painter = generation.load(NAME)
    with pytest.raises(SettingError, match=f"leave out {setting}"):
        painter.inputs(["pizza"], generation.ImageSettings(**{setting: 1}))


def test_a_preset_that_its_family_lacks_is_refused():
    with pytest.raises(UnsupportedTargetError, match="no preset 'exact'"):
        mmaccel.accelerate(zoo.load(NAME), preset="exact")


def test_it_lists_nothing(capsys):
    assert cli.main(["run", "canvas", "--example", "--model", NAME]) != 0
    assert "draws pictures" in capsys.readouterr().err


# ---------------------------------------------------------------- benchmark


def test_entries_of_the_benchmark_draw_the_same_shape(pipe):
    work = Drawing(pipe, zoo.prompts(NAME, 2, seed=1), 2)
    for entry in cases(pipe, full=False)[:3]:
        _, codes = Runner(work, [entry], [0]).once(entry, 0)
        assert codes.shape == (2, 256) and codes.min() >= 0 and codes.max() < 1024


def test_the_page_of_the_benchmark_answers():
    row = {"exact": False, "wall_seconds": 0.5, "speedup": 2.0, "speedup_worst": 1.5, "passes": None, "settings": {}}
    row |= {"quality_metric": "distance", "real_quality": 0.1, "model": NAME, "kind": "simple", "steps": 6}
    rows = [
        {**row, "method": "plain", "kind": "plain", "quality": 1.0, "steps": 12},
        {**row, "method": "fewer steps", "quality": 2.0},
        {**row, "method": "canvas.HaltonOrder", "quality": 1.5, "settings": {"steps": 6}, "passes": 6.0},
        {**row, "method": "tiny-janus, ZipAR(window=4)", "model": "tiny-janus", "quality": 1.6, "wall_seconds": 2.0},
    ]
    facts = BENCHMARK.facts(rows)
    assert "6 steps 1.50 against 2.00" in facts["halton"] and "4.0 times as fast" in facts["answer"]
    assert "| HaltonOrder(steps=6) | 1.50 | 6.0 |" in BENCHMARK.tables(rows)["All entries"]
