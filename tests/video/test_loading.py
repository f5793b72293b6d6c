"""Pipelines from a folder: their precision, and parts that a family keeps in float32."""

import json
import re
import shutil

import pytest
import torch
from diffusers import AmusedPipeline, AnyFlowFARPipeline, DiffusionPipeline, StableDiffusionPipeline, WanPipeline
from safetensors.torch import load_file, save_file

from mmaccel import zoo
from mmaccel.errors import MissingExtraError, MmaccelError, UnsupportedTargetError, WeightsError
from mmaccel.video import generation
from mmaccel.zoo import weights
from mmaccel.zoo.weights import stored_dtype


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """tiny-wan, stored in bfloat16."""
    place = tmp_path_factory.mktemp("stored") / "wan"
    zoo.load("tiny-wan").to("cpu", torch.bfloat16).save_pretrained(place)
    return place


def precisions(pipe):
    return {part.dtype for part in pipe.components.values() if isinstance(part, torch.nn.Module)}


def test_a_pipeline_is_loaded_in_the_one_precision_of_its_denoiser(folder):
    pipe = generation.load(str(folder))
    assert precisions(pipe) == {torch.bfloat16}
    settings = generation.VideoSettings(steps=1, frames=5, height=32, width=32)
    assert len(generation.film(pipe, "red heart stays, gray background", settings).frames) == 5
    assert precisions(generation.load(str(folder), dtype=torch.float32)) == {torch.float32}


@pytest.mark.parametrize(
    ("name", "cls"),
    (
        ("tiny-wan", WanPipeline),
        ("tiny-far", AnyFlowFARPipeline),
        ("tiny-amused", AmusedPipeline),
        ("tiny-unet", StableDiffusionPipeline),
    ),
)
def test_a_pipeline_of_the_zoo_is_saved_as_one_that_diffusers_knows(name, cls, tmp_path):
    zoo.load(name).save_pretrained(tmp_path)
    assert type(DiffusionPipeline.from_pretrained(tmp_path)) is cls


def test_what_a_family_keeps_in_float32_stays_in_float32(folder):
    model = generation.load(str(folder), dtype=torch.bfloat16).transformer
    kept = [model.scale_shift_table, *model.condition_embedder.time_embedder.parameters()]
    assert {value.dtype for value in kept} == {torch.float32}
    assert model.patch_embedding.weight.dtype == torch.bfloat16


@pytest.mark.parametrize("part", ("text_encoder", "transformer"))
def test_pointers_in_place_of_weights_are_named(folder, tmp_path, part):
    """As `git clone` leaves them without git-lfs."""
    cloned = shutil.copytree(folder, tmp_path / "wan")
    (weights,) = (cloned / part).glob("*.safetensors")
    weights.write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 123\n")
    with pytest.raises(MmaccelError, match="damaged.*fetch or install them again|git-lfs") as raised:
        generation.load(str(cloned))
    assert isinstance(raised.value, WeightsError) == (part == "text_encoder")


def test_a_text_encoder_without_all_of_its_tensors_is_refused(folder, tmp_path):
    """transformers draws them at random, and says so in a warning that the command line does not show."""
    copied = shutil.copytree(folder, tmp_path / "wan")
    (weights,) = (copied / "text_encoder").glob("*.safetensors")
    tensors = load_file(weights)
    gone = next(name for name in tensors if "layer.0" in name)
    save_file({name: value for name, value in tensors.items() if name != gone}, weights, {"format": "pt"})
    with pytest.raises(WeightsError, match=f"1 tensors are missing or of another shape, such as {gone}"):
        generation.load(str(copied))


def changed(file, **more):
    file.write_text(json.dumps({**json.loads(file.read_text()), **more}))


def bits(size):
    return {"quant_method": "bitsandbytes", f"load_in_{size}bit": True}


LACKING = {
    "a package": ("transformer", bits(4), MissingExtraError, "bitsandbytes"),
    "a package of the text encoder": ("text_encoder", bits(4), MissingExtraError, "bitsandbytes"),
    "a GPU": ("transformer", bits(8), UnsupportedTargetError, "No GPU found"),
    "a GPU of the text encoder": ("text_encoder", {"quant_method": "spqr"}, UnsupportedTargetError, "GPU is required"),
    "a GPU, told otherwise": ("text_encoder", {"quant_method": "higgs"}, UnsupportedTargetError, "supported on GPU"),
}


@pytest.mark.parametrize("case", LACKING)
def test_what_quantized_weights_lack_is_said_once_and_in_a_line(folder, tmp_path, monkeypatch, case):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    copied = shutil.copytree(folder, tmp_path / "wan")
    part, kind, error, lacking = LACKING[case]
    changed(copied / part / "config.json", quantization_config=kind)
    with pytest.raises(error, match=f"the weights in {re.escape(str(copied))}.* .*{lacking}") as raised:
        generation.load(str(copied))
    assert str(raised.value).count("the weights in") == 1


def test_a_part_without_a_folder_of_its_own_lies_in_that_of_the_pipeline(folder, tmp_path):
    """Where diffusers looks too."""
    copied = shutil.copytree(folder, tmp_path / "wan")
    for file in (copied / "text_encoder").iterdir():
        file.rename(copied / file.name)
    (copied / "text_encoder").rmdir()
    own, found = (generation.load(str(place)).text_encoder.state_dict() for place in (folder, copied))
    assert own.keys() == found.keys() and all(torch.equal(value, found[name]) for name, value in own.items())


def test_no_text_encoder_is_loaded_of_a_pipeline_that_diffusers_does_not_know(folder, tmp_path, monkeypatch):
    """Minutes and gigabytes, before it said so."""
    copied = shutil.copytree(folder, tmp_path / "wan")
    changed(copied / "model_index.json", _class_name="PipelineOfTomorrow")
    monkeypatch.setattr(weights, "load_pretrained", lambda *_: pytest.fail("loaded"))
    with pytest.raises(UnsupportedTargetError, match="is not a pipeline.*PipelineOfTomorrow"):
        generation.load(str(copied))


def test_the_stored_precision_is_that_of_most_parameters(tmp_path):
    assert stored_dtype(tmp_path) == torch.float32
    half, full = (torch.zeros(2, dtype=dtype) for dtype in (torch.float16, torch.float32))
    unet, name = tmp_path / "unet", "diffusion_pytorch_model"
    unet.mkdir()
    save_file({"a.weight": half}, unet / f"{name}.fp16.safetensors")
    assert stored_dtype(tmp_path) == torch.float32, "of a variant that is not loaded"
    weights = {"norm.weight": full, "a.weight": half, "a.bias": half.clone()}
    save_file(weights, unet / f"{name}-00001-of-2.safetensors")
    assert stored_dtype(tmp_path) == torch.float16
    weights |= {"a.weight": torch.zeros(2, dtype=torch.uint8), "b.bias": half.clone()}
    weights |= {f"a.weight.{kind}": full.clone() for kind in ("absmax", "quant_map", "nested_absmax")}
    save_file(weights | {"b.SCB": full.clone()}, unet / f"{name}-00001-of-2.safetensors")
    assert stored_dtype(tmp_path) == torch.float16, "as bitsandbytes keeps them in 4 and 8 bits"
    (tmp_path / "transformer").mkdir()
    (tmp_path / "transformer" / f"{name}.safetensors").write_bytes(b"damaged")
    assert stored_dtype(tmp_path) == torch.float32, "whoever loads it says that it is damaged"
