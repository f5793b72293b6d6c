"""The shipped Stable Diffusion pipeline: its class, pictures and prompts, what methods keep of it, its benchmark."""

import pytest
import torch
from diffusers import AutoencoderKL, StableDiffusionPipeline, UNet2DConditionModel
from PIL import Image
from transformers import CLIPTextModel

import mmaccel
from mmaccel import video, zoo
from mmaccel.cli import main as cli
from mmaccel.errors import PromptError
from mmaccel.video import quality
from mmaccel.video.bench import unet, unet_page
from mmaccel.video.bench.unet import BENCHMARK, Drawing
from mmaccel.video.bench.unet_cases import SAMPLERS

NAME = "tiny-unet"
PROMPT = "big red heart on yellow"


@pytest.fixture(scope="module")
def pipe():
    found = zoo.load(NAME)
    found.set_progress_bar_config(disable=True)
    return found


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def test_it_is_made_of_the_real_classes(pipe):
    assert isinstance(pipe, StableDiffusionPipeline) and type(pipe.unet) is UNet2DConditionModel
    assert type(pipe.vae) is AutoencoderKL and type(pipe.text_encoder) is CLIPTextModel
    assert zoo.modality(NAME) == "video" and mmaccel.adapter.find_adapter(pipe).family == "diffusion unet"


def test_diffusers_loads_the_folder_itself(pipe):
    own = StableDiffusionPipeline.from_pretrained(zoo.path(NAME), dtype=torch.float32)
    own.set_progress_bar_config(disable=True)
    call = {"prompt": PROMPT, "num_inference_steps": 4}
    picture = own(**call, guidance_scale=3.0, generator=seeded()).images[0]
    assert picture.tobytes() == pipe(**call, generator=seeded()).images[0].tobytes()


@pytest.mark.parametrize("methods", ((), (video.HeterogeneousSteps(),), (video.EncoderReuse(),)))
def test_a_red_heart_is_red_on_yellow(pipe, methods):
    """In the middle and in the corners, plainly and accelerated."""
    call = {"prompt": [PROMPT] * 2, "generator": seeded(), "output_type": "pt", "num_inference_steps": 25}
    if methods:
        with mmaccel.accelerate(pipe, *methods) as fast:
            pixels = fast(**call).images
            assert fast.report.work_ratio < 0.8
    else:
        pixels = pipe(**call).images
    red, green, blue = pixels[:, :, 26:38, 22:42].mean((0, 2, 3)).tolist()
    assert red > green + 0.2 and red > blue + 0.2
    red, green, blue = pixels[:, :, :5, :5].mean((0, 2, 3)).tolist()
    assert red > blue + 0.15 and green > blue + 0.15


@pytest.mark.parametrize("prompt", ("", "spaceship", "on blue"))
def test_prompts_outside_its_world_get_an_answer(pipe, prompt):
    with pytest.raises(PromptError):
        pipe(prompt)


@pytest.mark.parametrize("name", ("DPM++ 2M", "UniPC"))
def test_a_quarter_of_few_steps_keeps_about_as_much_as_so_few(pipe, name):
    """Also by samplers of several past steps, on which forecasts of the noise lost 11 dB and more to fewer steps."""
    sampler = next(sampler for sampler in SAMPLERS if sampler.name == name)
    drawing, found = Drawing(pipe, zoo.prompts(NAME, 2, seed=78), sampler), []
    for seed in range(2):
        plain = drawing.run(drawing.target, seed)
        fewer = drawing.run(drawing.target, seed, fewer=round(sampler.steps / 4))
        with mmaccel.accelerate(drawing.target, video.HeterogeneousSteps(0.25)) as fast:
            quarter = drawing.run(fast, seed)
        pictures = [drawing.picture(latents) for _, latents in (plain, quarter, fewer)]
        found.append([drawing.psnr(pictures[0], other) for other in pictures[1:]])
    kept, lost = torch.tensor(found).mean(0)
    assert kept > lost - 2


@pytest.mark.parametrize("sampler", SAMPLERS, ids=str)
def test_half_of_the_steps_keep_more_of_a_picture_than_half_as_many(pipe, sampler):
    """By every sampler that the benchmark has, on prompts that it does not have, one each."""
    drawing, seed = Drawing(pipe, zoo.prompts(NAME, 3, seed=77), sampler), SAMPLERS.index(sampler) % 3
    plain = drawing.run(drawing.target, seed)
    fewer = drawing.run(drawing.target, seed, fewer=sampler.steps // 2)
    with mmaccel.accelerate(drawing.target, video.HeterogeneousSteps()) as fast:
        half = drawing.run(fast, seed)
    shown, kept, lost = (drawing.picture(latents) for _, latents in (plain, half, fewer))
    assert drawing.psnr(shown, kept) > drawing.psnr(shown, lost)


def test_the_command_line_draws_a_picture(tmp_path, capsys):
    place = tmp_path / "heart.png"
    words = ["run", "video", PROMPT, "-o", str(place), "--model", NAME, "--steps", "6", "--compare"]
    assert cli.main([*words, "--method", "video.HeterogeneousSteps:budget=0.5"]) == 0
    assert Image.open(place).size == (64, 64)
    told = capsys.readouterr().out
    assert "HeterogeneousSteps" in told and "to the plain picture, measured\n" in told


def test_a_package_that_is_not_installed_says_so(pipe, monkeypatch):
    monkeypatch.setattr("mmaccel.video.bench.unet_cases.importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("mmaccel.video.bench.unet.Runner.run", lambda runner: None)
    monkeypatch.setattr("mmaccel.video.bench.unet._row", lambda drawing, entry, plain: {"method": entry.label})
    *found, one, two = unet.rows(pipe, [PROMPT], SAMPLERS[1])
    assert found[0] == {"method": "plain"} and {"method": "DeepCache"} not in found
    for row, interval in ((one, 2), (two, 5)):
        assert (row["method"], row["settings"], row["kind"]) == ("DeepCache", {"interval": interval}, "rival")
        assert row["label"] == "DeepCache is not installed"


def rows(**figures):
    """Ours and a rival at the same speed, and fewer steps far behind."""
    named = (("video.HeterogeneousSteps", "method", 40.0), ("DeepCache", "rival", figures["rival"]))
    return [
        {
            "model": f"{NAME}, DDIM, 50 steps",
            "method": method,
            "settings": {"budget": 0.5} if kind == "method" else {},
            "kind": kind,
            "exact": False,
            "work_ratio": None,
            "speedup": figures["speedup"] if kind == "rival" else 2.0,
            "speedup_worst": 1.9,
            **dict.fromkeys(("quality", "psnr_worst", "psnr_converged", "psnr_converged_worst"), value),
        }
        for method, kind, value in (*named, ("fewer steps", "simple", 20.0))
    ]


def test_ours_is_compared_with_what_takes_as_long():
    assert "DeepCache wins; ours" in unet_page.said(rows(rival=44.0, speedup=2.0))
    assert "-4.0 dB to DeepCache" in unet_page.said(rows(rival=44.0, speedup=2.0))
    slow = unet_page.said(rows(rival=44.0, speedup=1.2))
    assert "DeepCache" not in slow and "+20.0 dB to fewer steps" in slow
    assert "| DeepCache | 1.20x |" in unet_page.tables(rows(rival=44.0, speedup=1.2))["DDIM, 50 steps"]
    other = [{**row, "model": f"{NAME}, UniPC, 20 steps"} for row in rows(rival=44.0, speedup=2.0)]
    told = BENCHMARK.section.more([*rows(rival=44.0, speedup=1.2), *other])
    assert "50% of the steps against DeepCache" in told and "behind in 1 of 1 (-4.0 dB)" in told


def test_a_decoded_picture_is_that_of_the_pipeline(pipe):
    drawing = Drawing(pipe, [PROMPT], SAMPLERS[0])
    latents = drawing.run(drawing.target, 0, fewer=3)[1]
    shown = drawing.target(PROMPT, num_inference_steps=3, generator=seeded(), output_type="pt").images
    assert quality.tensor_psnr(shown, drawing.picture(latents)) > 60
