"""What the documentation says of the methods of diffusion pipelines, and how it calls them."""

from __future__ import annotations

from mmaccel.modality import Advice

EXAMPLE = """import mmaccel
from mmaccel import video, zoo

pipe = zoo.load("tiny-wan")
with mmaccel.accelerate(pipe, {method}) as fast:
    frames = fast("rocket moves up, blue background", num_inference_steps=20).frames[0]
    print(fast.report)"""

UNET = """import mmaccel
from diffusers import StableDiffusionPipeline
from mmaccel import video

pipe = StableDiffusionPipeline.from_pretrained("stable-diffusion-v1-5/stable-diffusion-v1-5")
with mmaccel.accelerate(pipe, {method}) as fast:
    picture = fast("a fox in snow", num_inference_steps=50).images[0]
    print(fast.report)"""

ADVICE = {
    "video.Auto": Advice(
        "A pipeline of your own, when you know the speed-up or the quality that you want and not the settings.",
        "The first call takes about six times the plain time; a saved plan spares that.",
    ),
    "video.BlockCache": Advice(
        "Pipelines that change unevenly from step to step, and transformers with many blocks.",
        "At half the time it is behind fewer steps on the small model.",
        "threshold=0.15",
    ),
    "video.EasyCache": Advice(
        "Any pipeline with a transformer, without calibration: of the step caches it keeps the worst prompt best.",
        "Little on the worst prompt; on the mean it is level with fewer steps at half the time.",
    ),
    "video.EncoderReuse": Advice(
        "Pipelines with a UNet, such as Stable Diffusion and SDXL, with 20 steps or more.",
        "Texture gets a little smoother. There is no trained UNet here to measure it on.",
        example=UNET,
    ),
    "video.FasterCache": Advice(
        "CogVideoX, where it estimates the second guidance branch too; elsewhere attention alone.",
        "Attention outputs of two past steps are kept in memory.",
    ),
    "video.FirstBlockCache": Advice(
        "Those who want diffusers' own implementation; BlockCache has more settings and knows more families.",
        "At half the time it is a little ahead of fewer steps, and at a quarter far behind.",
        "threshold=0.15",
    ),
    "video.HeterogeneousSteps": Advice(
        "The first to try: at a half and a quarter of the time it is ahead of all others on average.",
        "Almost nothing at half the time. At a quarter the worst prompt can become another clip, as good and far away.",
    ),
    "video.MagCache": Advice(
        "Pipelines that are run often with the same number of steps: the first run measures its ratios.",
        "The first run is a plain one, unless ratios are given.",
    ),
    "video.PyramidAttentionBroadcast": Advice(
        "Long runs, whose attention changes little in the middle.",
        "Every layer's attention output is kept in memory.",
    ),
    "video.SparseAttention": Advice(
        "Long clips and large pictures, where attention is most of the time.",
        "Below some thousand tokens dense attention is faster, and is taken unless always=True.",
    ),
    "video.TaylorSeer": Advice(
        "Short intervals on models whose attention moves smoothly from step to step.",
        "At long intervals its extrapolation goes astray; twice the memory of other caches.",
        "interval=2, warmup=2",
    ),
    "video.TeaCache": Advice(
        "Families whose published coefficients are known, or pipelines that you calibrate once.",
        "About as much as fewer steps, on the small model.",
        "threshold=0.2",
    ),
    "video.TokenCache": Advice(
        "Clips of which large parts stand still.",
        "Every layer's last output is kept in memory; on a CPU small passes cost more than their share.",
    ),
}
