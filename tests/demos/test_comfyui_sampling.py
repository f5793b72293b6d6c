"""The nodes' sampling without ComfyUI: functions with its interface, over a model in closed form."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

from mmaccel.demos import comfyui
from mmaccel.demos.comfyui.__main__ import PACK, install
from mmaccel.demos.comfyui.sampling import FOLLOWED, ForecastSampler, reason_to_pass
from mmaccel.errors import SettingError
from mmaccel.report import Report
from mmaccel.stepping.schedule import growing, refresh

STEPS = 40
MEAN, SPREAD = torch.randn(2, 1, 4, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
NOISE = torch.randn(2, 4, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


class Denoiser:
    """The mean of normal data, given a sample with noise, as flow matching mixes them."""

    def __init__(self, fails_at=None):
        self.calls, self.fails_at = 0, fails_at

    def __call__(self, x, sigma, seed=None):
        self.calls += 1
        if self.calls == self.fails_at:
            raise RuntimeError("out of memory")
        level = sigma.reshape(-1, 1, 1, 1)
        clean, data = 1 - level, (0.5 + SPREAD.abs()) ** 2
        return MEAN + clean * data / (clean**2 * data + level**2) * (x - clean * MEAN)


def sample_euler(model, x, sigmas, extra_args=None, callback=None, disable=None):
    for i, (level, below) in enumerate(zip(sigmas, sigmas[1:], strict=False)):
        denoised = model(x, level * x.new_ones([len(x)]), **(extra_args or {}))
        if callback is not None:
            callback({"x": x, "i": i, "sigma": level, "sigma_hat": level, "denoised": denoised})
        x = x + (below - level) * (x - denoised) / level
    return x


def sample_dpmpp_2m(model, x, sigmas, extra_args=None, callback=None, disable=None):
    """Goes by this velocity and the last one, which it keeps."""
    before = None
    for i, (level, below) in enumerate(zip(sigmas, sigmas[1:], strict=False)):
        velocity = (x - model(x, level * x.new_ones([len(x)]), **(extra_args or {}))) / level
        slope = 0 if before is None else (velocity - before) / (level - sigmas[i - 1])
        x, before = x + (below - level) * (velocity + slope * (below - level) / 2), velocity
    return x


def sample_clean(model, x, sigmas, extra_args=None, callback=None, disable=None):
    """DPM-Solver++'s steps, by this clean sample and the last one."""
    before = None
    for i, (level, below) in enumerate(zip(sigmas, sigmas[1:], strict=False)):
        clean = denoised = model(x, level * x.new_ones([len(x)]), **(extra_args or {}))
        if before is not None and below > 0:
            clean = denoised + (denoised - before) * (level / below).log() / (sigmas[i - 1] / level).log() / 2
        x, before = below / level * x + (1 - below / level) * clean, denoised
    return x


deis = SimpleNamespace(get_deis_coeff_list=None)


def sample_deis(model, x, sigmas, extra_args=None, callback=None, disable=None):
    """Euler's steps, with weights from a module of this name, as ComfyUI's has them."""
    weights = deis.get_deis_coeff_list(sigmas, 3)
    for weight, level, below in zip(weights, sigmas, sigmas[1:], strict=False):
        denoised = model(x, level * x.new_ones([len(x)]), **(extra_args or {}))
        x = x + weight * (below - level) * (x - denoised) / level
    return x


def sigmas(steps=STEPS):
    even = torch.linspace(1, 0, steps + 1, dtype=torch.float64)
    return 3 * even / (1 + 2 * even)


def drawn(function, budget, **more):
    model, report = Denoiser(), Report(methods=["half"], exact=False)
    x = ForecastSampler(function, budget, report)(model, NOISE, sigmas(), extra_args={"seed": 1}, **more)
    return x, model.calls, report


def error(x, wanted):
    return float((x - wanted).square().mean().sqrt())


@pytest.mark.parametrize("function", (sample_euler, sample_dpmpp_2m))
@pytest.mark.parametrize("budget", (0.25, 0.5, 0.75))
def test_a_share_of_the_calls_comes_nearer_than_as_few_steps(function, budget):
    plain = function(Denoiser(), NOISE, sigmas())
    x, calls, report = drawn(function, budget)
    assert calls == budget * STEPS == report.forwards and report.plain_forwards == STEPS and report.engaged
    assert 0 < error(x, plain) < error(function(Denoiser(), NOISE, sigmas(calls)), plain)


@pytest.mark.parametrize("function", (sample_euler, sample_dpmpp_2m))
def test_all_of_the_calls_are_the_plain_run(function):
    x, calls, report = drawn(function, 1.0)
    torch.testing.assert_close(x, function(Denoiser(), NOISE, sigmas()), rtol=1e-9, atol=1e-9)
    assert calls == STEPS and not report.engaged


def test_of_a_model_of_noise_clean_samples_are_forecast():
    """They change less than the noise at high levels, by which a sampler of clean samples goes."""

    def model(x, sigma):
        data, level = (0.5 + SPREAD.abs()) ** 2, sigma.reshape(-1, 1, 1, 1) ** 2
        return MEAN + data / (data + level) * (x - MEAN)

    levels = torch.cat([torch.logspace(2, -1.5, STEPS, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)])
    places, noise = [1 - step / STEPS for step in range(STEPS + 1)], levels[0] * NOISE
    plain, reports = sample_clean(model, noise, levels), [Report(methods=["half"], exact=False) for _ in range(2)]
    by_noise, by_clean = (
        ForecastSampler(sample_clean, 0.25, report, places, is_flow)(model, noise, levels)
        for report, is_flow in zip(reports, (True, False), strict=True)
    )
    assert all(report.forwards == STEPS / 4 for report in reports)
    assert error(by_clean, plain) < error(by_noise, plain) / 2


@pytest.mark.parametrize(("is_whole", "computed"), ((True, growing(STEPS, 0.25)), (False, refresh(STEPS, 0.25, 4))))
def test_distances_grow_over_a_whole_run_alone(is_whole, computed):
    """And not where a picture is painted over, or another sampler made or makes the other steps."""
    report = Report(methods=["quarter"], exact=False)
    ForecastSampler(sample_euler, 0.25, report, is_whole=is_whole)(Denoiser(), NOISE, sigmas())
    assert tuple(report.details["computed"]) == computed.fractions


def test_progress_is_told_once_a_step_with_what_it_will_become():
    seen = []
    x, _, _ = drawn(sample_euler, 0.5, callback=seen.append)
    assert [step["i"] for step in seen] == list(range(STEPS))
    assert torch.equal(seen[0]["x"], NOISE)
    assert error(seen[-1]["denoised"], x) < error(seen[0]["denoised"], x)


def test_an_error_of_the_model_ends_the_run():
    with pytest.raises(RuntimeError, match="out of memory"):
        ForecastSampler(sample_euler, 0.5, Report(methods=["half"], exact=False))(Denoiser(3), NOISE, sigmas())


def test_numbers_keep_their_type():
    model = Denoiser()

    def half(x, sigma, **more):
        assert x.dtype == torch.bfloat16
        return model(x.double(), sigma.double()).bfloat16()

    report = Report(methods=["half"], exact=False)
    x = ForecastSampler(sample_euler, 0.5, report)(half, NOISE.bfloat16(), sigmas().float())
    assert x.dtype == torch.bfloat16 and x.isfinite().all()


LEVELS = [1 - step / 40 for step in range(41)]


def other(*_):
    raise AssertionError


@pytest.mark.parametrize(
    ("function", "options", "levels", "budget", "reason"),
    (
        (other, {}, LEVELS, 0.5, "the steps of other cannot be forecast: choose the sampler euler, "),
        (object(), {}, LEVELS, 0.5, "the steps of object cannot be forecast"),
        (sample_euler, {"s_churn": 1.0}, LEVELS, 0.5, ".*s_churn draws new noise"),
        (sample_euler, {"s_churn": 0.0}, LEVELS[-5:], 0.5, "0.5 of 4 steps are too few .* take 16 steps or more$"),
        (sample_euler, {}, LEVELS[-9:], 0.5, "0.5 of 8 steps are too few .* take 16 steps or more$"),
        (sample_euler, {}, LEVELS[-10:], 0.5, ".* take 16 steps or more, or a budget of 0.9 or more$"),
        (sample_euler, {}, LEVELS[-11:], 0.5, ".* take 16 steps or more, or a budget of 0.8 or more$"),
        (sample_euler, {}, LEVELS[-11:], 0.8, ""),
        (
            sample_euler,
            {},
            LEVELS[-16:],
            0.5,
            "0.5 of 15 steps are too few .* take 16 steps or more, or a budget of 0.55",
        ),
        (sample_euler, {}, LEVELS[-39:], 0.21, "0.21 of 38 steps are too few .* take 39 steps or more, or .* 0.25"),
        (sample_euler, {}, [*LEVELS, 0.0], 0.5, "a step begins without noise"),
        (sample_euler, {}, LEVELS, 0.5, ""),
        (sample_dpmpp_2m, {}, LEVELS[-17:], 0.5, ""),
    ),
)
def test_runs_that_are_better_left_alone_say_why(function, options, levels, budget, reason):
    assert re.match(reason or "$", reason_to_pass(function, options, levels, budget))


def test_deis_integrates_its_coefficients_once(monkeypatch):
    counted = []
    monkeypatch.setattr(deis, "get_deis_coeff_list", original := lambda *given: counted.append(given) or [1.0] * STEPS)
    x, calls, _ = drawn(sample_deis, 0.5)
    assert len(counted) == 1 and deis.get_deis_coeff_list is original and calls == STEPS / 2
    assert error(x, drawn(sample_deis, 1.0)[0]) < 1e-2


def test_the_memory_of_all_velocities_is_told():
    _, _, report = drawn(sample_dpmpp_2m, 0.5)
    assert report.peak_extra_bytes >= STEPS * NOISE.nbytes


def test_the_pack_is_installed_anew_into_a_comfyui(tmp_path):
    with pytest.raises(SettingError, match="has no folder custom_nodes: give the folder of ComfyUI"):
        install(tmp_path)
    (tmp_path / "custom_nodes").mkdir()
    (install(tmp_path) / "old.py").touch()
    place = install(tmp_path)
    assert [path.name for path in place.parent.iterdir()] == ["mmaccel"], "what was on the way is left there"
    found = sorted(path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file())
    flows = [f"example_workflows/{path.name}" for path in (PACK / "example_workflows").iterdir()]
    assert found == sorted(["__init__.py", "nodes.py", "pyproject.toml", *flows]) and len(flows) == 2
    compile((place / "nodes.py").read_text(), "nodes.py", "exec")
    assert "comfy_entrypoint" in (place / "__init__.py").read_text()


@pytest.mark.parametrize(
    "lies_there", ("a clone", "a clone of the pack", "a link", "a lost link", "another pack", "a file")
)
def test_only_an_earlier_copy_is_replaced(tmp_path, lies_there):
    place, elsewhere = tmp_path / "custom_nodes" / "mmaccel", tmp_path / "elsewhere"
    place.parent.mkdir()
    if "link" in lies_there:
        if lies_there == "a link":
            shutil.copytree(PACK, elsewhere)
        place.symlink_to(elsewhere)
    elif lies_there == "a file":
        place.touch()
    elif lies_there == "a clone of the pack":
        (install(tmp_path) / ".git").mkdir()
    else:
        place.mkdir()
        (place / "pyproject.toml").write_text('[project]\nname = "mmaccel"\n' if lies_there == "a clone" else "")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SettingError, match="mmaccel is not an earlier copy of these nodes: move it away"):
        install(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_copy_that_fails_leaves_the_nodes_that_were_there(tmp_path, monkeypatch):
    (tmp_path / "custom_nodes").mkdir()
    before = sorted(install(tmp_path).rglob("*"))
    monkeypatch.setattr(install.__globals__["shutil"], "copytree", mock.Mock(side_effect=OSError("no space left")))
    with pytest.raises(OSError, match="no space left"):
        install(tmp_path)
    assert before == sorted((tmp_path / "custom_nodes" / "mmaccel").rglob("*"))


def test_a_swap_that_fails_brings_the_earlier_nodes_back(tmp_path, monkeypatch):
    (tmp_path / "custom_nodes").mkdir()
    before, rename = sorted(install(tmp_path).rglob("*")), Path.rename

    def locked(path, target):
        if path.name == "new":
            raise PermissionError("in use")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", locked)
    with pytest.raises(PermissionError, match="in use"):
        install(tmp_path)
    assert before == sorted((tmp_path / "custom_nodes" / "mmaccel").rglob("*"))


def test_the_command_says_what_it_did(tmp_path):
    command = [sys.executable, "-m", comfyui.__name__]
    found = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True)
    assert found.returncode == 2 and found.stderr.startswith("mmaccel: ") and len(found.stderr.splitlines()) == 1
    (tmp_path / "custom_nodes").mkdir()
    found = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True)
    assert found.returncode == 0 and "restart ComfyUI" in found.stdout


@pytest.mark.parametrize("path", sorted((PACK / "example_workflows").iterdir()), ids=lambda path: path.stem)
def test_example_workflows_are_wired(path):
    flow = json.loads(Path(path).read_text())
    nodes = {node["id"]: node for node in flow["nodes"]}
    for number, source, out, target, slot, kind in flow["links"]:
        assert number in nodes[source]["outputs"][out]["links"] and nodes[source]["outputs"][out]["type"] == kind
        assert nodes[target]["inputs"][slot] == {**nodes[target]["inputs"][slot], "link": number, "type": kind}
    assert "MmaccelAccelerate" in {node["type"] for node in nodes.values()}
    samplers = set(FOLLOWED.values())
    assert all(samplers & set(node["widgets_values"]) for node in nodes.values() if "steps" in str(node["inputs"]))
