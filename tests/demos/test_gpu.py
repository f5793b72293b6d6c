"""The scripts for a GPU, tried out on tiny shapes of the same classes."""

import importlib
import json

import pytest
import torch

from mmaccel.comparison import results
from mmaccel.demos.gpu import diffusion_benchmark, page
from mmaccel.demos.gpu.diffusion_shapes import SHAPES, build


@pytest.mark.parametrize("name", SHAPES)
def test_a_small_shape_makes_latents_like_the_whole_one(name):
    pipe, call = build(name, small=True, device="cpu")
    made = pipe(**call, num_inference_steps=2, generator=torch.Generator().manual_seed(0))[0]
    again = pipe(**call, num_inference_steps=2, generator=torch.Generator().manual_seed(0))[0]
    assert made.isfinite().all() and torch.equal(made, again) and torch.get_default_dtype() == torch.float32
    denoiser = pipe.unet if name == "stable-diffusion-1.5" else pipe.transformer
    assert denoiser.dtype == torch.float32 and not any(p.requires_grad for p in denoiser.parameters())


def test_diffusion_rows_stand_beside_half_the_steps(monkeypatch, capsys):
    words = ["diffusion_benchmark", "--device", "cpu", "--small", "--shapes", "ltx-video-2b", "--seconds", "0.001"]
    monkeypatch.setattr("sys.argv", words)
    diffusion_benchmark.main()
    made = json.loads(capsys.readouterr().out)
    assert not results.faults(made) and {row["steps"] for row in made["rows"]} == {diffusion_benchmark.FEWEST}
    half, *others = made["rows"]
    assert half["method"] == "fewer steps" and half["settings"] == {"steps": diffusion_benchmark.FEWEST // 2}
    assert [row["method"] for row in others] == [method.name for method in diffusion_benchmark.METHODS]
    assert others[0]["work_ratio"] == 0.5 and all(row["baseline_seconds"] > 0 for row in made["rows"])
    lines = [page._step_line({**row, "peak_bytes": 3 << 29, "baseline_peak_bytes": 1 << 30}) for row in made["rows"]]
    assert lines[0][2] == "fewer steps(steps=5)" and lines[1][2] == "video.HeterogeneousSteps()"
    assert {line[-1] for line in lines} == {"0.5"} and len(lines[0]) == len(page.STEPS)


def test_a_unet_is_timed_with_its_own_methods(monkeypatch, capsys):
    words = ["diffusion_benchmark", "--device", "cpu", "--small", "--shapes", "stable-diffusion-1.5"]
    monkeypatch.setattr("sys.argv", [*words, "--seconds", "0.001"])
    diffusion_benchmark.main()
    made = json.loads(capsys.readouterr().out)["rows"]
    assert [row["settings"].get("parallel") for row in made] == [None, None, 1, 5]
    assert made[3]["work_ratio"] == made[2]["work_ratio"] < 1 and not made[3]["warnings"]


@pytest.mark.parametrize("name", ("diffusion", "vlm", "image", "kernel"))
def test_without_a_gpu_each_script_says_what_to_type(name, monkeypatch, capsys):
    module = importlib.import_module(f"mmaccel.demos.gpu.{name}_benchmark")
    monkeypatch.setattr("sys.argv", [name])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as stopped:
        module.main()
    assert stopped.value.code == 2 and "no CUDA device here: try --device cpu" in capsys.readouterr().err
