"""Nodes for tests inside ComfyUI: tiny-wan's weights in ComfyUI's own Wan module, and what a sampler needs with it."""

import json

import comfy.latent_formats
import comfy.model_patcher
import comfy.supported_models
import torch
from safetensors.torch import load_file

from mmaccel import zoo

# Names of parts in diffusers, and in Wan's own code.
NAMES = {
    "condition_embedder.text_embedder.linear_1": "text_embedding.0",
    "condition_embedder.text_embedder.linear_2": "text_embedding.2",
    "condition_embedder.time_embedder.linear_1": "time_embedding.0",
    "condition_embedder.time_embedder.linear_2": "time_embedding.2",
    "condition_embedder.time_proj": "time_projection.1",
    ".attn1.": ".self_attn.",
    ".attn2.": ".cross_attn.",
    ".to_out.0.": ".o.",
    ".to_q.": ".q.",
    ".to_k.": ".k.",
    ".to_v.": ".v.",
    ".norm2.": ".norm3.",
    ".ffn.net.0.proj.": ".ffn.0.",
    ".ffn.net.2.": ".ffn.2.",
    "proj_out.": "head.head.",
}


def renamed(name):
    if name == "scale_shift_table":
        return "head.modulation"
    for ours, theirs in NAMES.items():
        name = name.replace(ours, theirs)
    return name.replace("scale_shift_table", "modulation")


class TinyFormat(comfy.latent_formats.LatentFormat):
    latent_channels = 8
    latent_dimensions = 3


def model():
    """ComfyUI's own Wan with tiny-wan's weights."""
    folder = zoo.path("tiny-wan") / "transformer"
    own = json.loads((folder / "config.json").read_text())
    config = comfy.supported_models.WAN21_T2V(
        {
            "image_model": "wan2.1",
            "model_type": "t2v",
            "patch_size": tuple(own["patch_size"]),
            "in_dim": own["in_channels"],
            "out_dim": own["out_channels"],
            "dim": own["num_attention_heads"] * own["attention_head_dim"],
            "num_heads": own["num_attention_heads"],
            "num_layers": own["num_layers"],
            "ffn_dim": own["ffn_dim"],
            "freq_dim": own["freq_dim"],
            "text_dim": own["text_dim"],
        }
    )
    config.latent_format = TinyFormat()
    config.set_inference_dtype(torch.float32, None)
    cpu = torch.device("cpu")
    made = config.get_model({}, device=cpu)
    weights = load_file(next(folder.glob("*.safetensors")))
    made.diffusion_model.load_state_dict({renamed(name): value.float() for name, value in weights.items()})
    return comfy.model_patcher.ModelPatcher(made.eval(), load_device=cpu, offload_device=cpu)


class FirstChannels:
    """Stands for a VAE: shows three channels of the latents."""

    def decode(self, samples):
        return samples[:, :3].movedim(1, -1).sigmoid()


class TinyWan:
    """Its text encoder runs in the test: diffusers and transformers need more than a ComfyUI without torchvision."""

    RETURN_TYPES = ("MODEL", "CONDITIONING", "CONDITIONING", "LATENT", "SIGMAS", "VAE")
    FUNCTION, CATEGORY = "load", "tests"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"given": ("STRING", {})}}

    def load(self, given):
        given = load_file(given)
        positive, negative = ([[given[name], {}]] for name in ("positive", "negative"))
        latent = {"samples": torch.zeros_like(given["noise"])}
        return model(), positive, negative, latent, given["sigmas"], FirstChannels()


NODE_CLASS_MAPPINGS = {"TinyWan": TinyWan}
