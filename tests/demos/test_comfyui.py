"""The nodes in the real ComfyUI, which the command in the environment variable `COMFYUI_START` starts.

It is called with a port and a folder for custom nodes, inputs and outputs, such as
``COMFYUI_START="sh -c 'cd ~/ComfyUI && exec python main.py --cpu --port $0 --base-directory $1'"``.
"""

import json
import os
import shlex
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import mmaccel
from mmaccel import video, zoo
from mmaccel.demos.comfyui.__main__ import PACK, install

START = os.environ.get("COMFYUI_START")
pytestmark = pytest.mark.skipif(not START, reason="COMFYUI_START names no command that starts ComfyUI")
PROMPT, STEPS, SEED = "rocket moves up, blue background", 40, 3


class ComfyUi:
    def __init__(self, folder, port):
        self.folder, self.address = folder, f"http://127.0.0.1:{port}"

    def get(self, path):
        with urllib.request.urlopen(f"{self.address}/{path}") as answer:
            return json.load(answer)

    def run(self, graph):
        body = json.dumps({"prompt": graph}).encode()
        request = urllib.request.Request(f"{self.address}/prompt", body, {"content-type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            number = json.load(answer)["prompt_id"]
        while number not in (history := self.get(f"history/{number}")):
            time.sleep(0.2)
        return history[number]

    def latents(self, found):
        assert found["status"]["status_str"] == "success", found["status"]
        saved = found["outputs"]["save"]["latents"][0]
        return load_file(self.folder / "output" / saved["subfolder"] / saved["filename"])["latent_tensor"]


@pytest.fixture(scope="module")
def pipe():
    pipe = zoo.load("tiny-wan")
    pipe.set_progress_bar_config(disable=True)
    return pipe


@pytest.fixture(scope="module")
def comfy(tmp_path_factory, pipe):
    folder = tmp_path_factory.mktemp("comfy")
    (folder / "custom_nodes").mkdir()
    install(folder)
    shutil.copytree(Path(__file__).parent / "comfyui_nodes", folder / "custom_nodes" / "tiny_wan")
    with torch.no_grad():
        positive, negative = pipe.encode_prompt(PROMPT, "", max_sequence_length=16)
    pipe.scheduler.set_timesteps(STEPS)
    sigmas = pipe.scheduler.sigmas.float()
    texts = {"positive": positive.contiguous(), "negative": negative.contiguous()}
    save_file({**texts, "sigmas": sigmas, "noise": noise()}, folder / "given.safetensors")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with (folder / "log").open("w") as log:
        server = subprocess.Popen([*shlex.split(START), str(port), str(folder)], stdout=log, stderr=log)
    found = ComfyUi(folder, port)
    try:
        for _ in range(240):
            assert server.poll() is None, (folder / "log").read_text()[-2000:]
            try:
                found.get("queue")
                break
            except urllib.error.URLError:
                time.sleep(0.5)
        yield found
    finally:
        server.terminate()
        server.wait()


def noise():
    return torch.randn(1, 8, 9, 16, 16, generator=torch.Generator().manual_seed(SEED))


def graph(comfy, budget=None, sampler="euler"):
    made = {
        "wan": {"class_type": "TinyWan", "inputs": {"given": str(comfy.folder / "given.safetensors")}},
        "by": {"class_type": "KSamplerSelect", "inputs": {"sampler_name": sampler}},
        "sample": {
            "class_type": "SamplerCustom",
            "inputs": {
                "model": ["wan", 0],
                "positive": ["wan", 1],
                "negative": ["wan", 2],
                "latent_image": ["wan", 3],
                "sigmas": ["wan", 4],
                "sampler": ["by", 0],
                "add_noise": True,
                "noise_seed": SEED,
                "cfg": 3.0,
            },
        },
        "save": {"class_type": "SaveLatent", "inputs": {"samples": ["sample", 0], "filename_prefix": "clip"}},
    }
    if budget is not None:
        made["fast"] = {"class_type": "MmaccelAccelerate", "inputs": {"model": ["wan", 0], "budget": budget}}
        made["sample"]["inputs"]["model"] = ["fast", 0]
        made["told"] = {"class_type": "MmaccelReport", "inputs": {"model": ["fast", 0], "latent": ["sample", 0]}}
    return made


@pytest.fixture(scope="module")
def plain(comfy):
    return comfy.latents(comfy.run(graph(comfy)))


def psnr(pipe, one, other):
    one, other = (decoded(pipe, latents) for latents in (one, other))
    return -10 * torch.log10((one - other).square().mean()).item()


@torch.no_grad()
def decoded(pipe, latents):
    config = pipe.vae.config
    mean, std = (torch.tensor(part).view(1, -1, 1, 1, 1) for part in (config.latents_mean, config.latents_std))
    return pipe.vae.decode(latents * std + mean).sample.clamp(-1, 1) / 2 + 0.5


def test_a_clip_has_the_quality_and_the_steps_that_it_has_in_diffusers(comfy, pipe, plain):
    call = {"prompt": PROMPT, "num_inference_steps": STEPS, "output_type": "latent"}
    wanted = pipe(**call, latents=noise()).frames
    torch.testing.assert_close(plain, wanted, rtol=1e-3, atol=1e-3)
    for budget in (0.25, 0.5):
        found = comfy.run(graph(comfy, budget))
        fast, told = comfy.latents(found), found["outputs"]["told"]["text"][0]
        with mmaccel.accelerate(pipe, video.HeterogeneousSteps(budget)) as session:
            there = session(**call, latents=noise()).frames
            assert f"passes      {session.report.forwards / 2:g} instead of {STEPS}," in told  # two branches a step
        assert abs(psnr(pipe, plain, fast) - psnr(pipe, wanted, there)) < 0.5


def test_without_the_node_the_clip_is_the_plain_one_bit_for_bit(comfy, plain):
    comfy.run(graph(comfy, 0.5))
    changed = graph(comfy)
    changed["sample"]["inputs"]["cfg"] = 3.0000001  # so that ComfyUI does not answer from its memory
    assert torch.equal(comfy.latents(comfy.run(changed)), plain)


@pytest.mark.parametrize("sampler", ("dpmpp_2m", "uni_pc", "uni_pc_bh2", "deis", "res_multistep", "ipndm"))
def test_multistep_samplers_are_followed_too(comfy, pipe, sampler):
    whole = comfy.latents(comfy.run(graph(comfy, sampler=sampler)))
    found = comfy.run(graph(comfy, 0.5, sampler))
    assert "20 instead of 40" in found["outputs"]["told"]["text"][0]
    assert psnr(pipe, whole, comfy.latents(found)) > 45


def test_what_cannot_be_followed_passes_through_and_says_so(comfy):
    whole = comfy.latents(comfy.run(graph(comfy, sampler="heun")))
    found = comfy.run(graph(comfy, 0.5, "heun"))
    assert torch.equal(comfy.latents(found), whole)
    assert "all steps were computed: the steps of heun cannot be forecast" in found["outputs"]["told"]["text"][0]


def test_both_ways_are_compared(comfy):
    made = graph(comfy, 0.5)
    inputs = {name: made["sample"]["inputs"][name] for name in ("positive", "negative", "latent_image", "cfg")}
    settings = {"seed": SEED, "steps": STEPS, "sampler_name": "euler", "scheduler": "simple", "vae": ["wan", 5]}
    made["both"] = {"class_type": "MmaccelCompare", "inputs": {"model": ["fast", 0], **inputs, **settings}}
    made["picture"] = {"class_type": "SaveImage", "inputs": {"images": ["both", 1], "filename_prefix": "both"}}
    found = comfy.run(made)
    text = found["outputs"]["both"]["text"][0]
    assert "dB to the plain run" in text and "both measured" in text
    assert len(found["outputs"]["picture"]["images"]) == 9  # latents of 17 frames


def test_the_page_shows_what_was_computed(comfy):
    client = pytest.importorskip("websockets.sync.client", reason="needs websockets")
    made = graph(comfy, 0.5)
    made["sample"]["inputs"]["cfg"] = 3.1  # so that ComfyUI does not answer from its memory
    told = {}
    with client.connect(f"ws{comfy.address.removeprefix('http')}/ws") as socket:
        comfy.run(made)
        while "told" not in told:
            message = socket.recv(timeout=10)
            if isinstance(message, bytes) and int.from_bytes(message[:4], "big") == 3:  # text below a node
                end = 8 + int.from_bytes(message[4:8], "big")
                told[message[8:end].decode()] = message[end:].decode()
    assert told["fast"].startswith("20 instead of 40 passes, ")
    assert "passes      20 instead of 40" in told["told"]


def test_a_model_is_accelerated_once(comfy):
    made = graph(comfy, 0.5)
    made["again"] = {"class_type": "MmaccelAccelerate", "inputs": {"model": ["fast", 0], "budget": 0.25}}
    made["sample"]["inputs"]["model"] = ["again", 0]
    found = comfy.run(made)
    assert "comes from another node Accelerate" in str(found["status"]["messages"])
    made["told"]["inputs"]["model"] = made["sample"]["inputs"]["model"] = ["wan", 0]
    assert "is not accelerated: put the node Accelerate" in str(comfy.run(made)["status"]["messages"])


def test_the_examples_fit_the_nodes_that_are_there(comfy):
    known = comfy.get("object_info")
    for path in (PACK / "example_workflows").iterdir():
        for node in json.loads(path.read_text())["nodes"]:
            inputs = known[node["type"]]["input"]
            there = {**inputs.get("required", {}), **inputs.get("optional", {})}
            assert {one["name"] for one in node["inputs"]} <= set(there)
            typed = [name for name in there if name not in {one["name"] for one in node["inputs"]}]
            assert len(node["widgets_values"]) == len(typed) + ("seed" in typed), node["type"]
