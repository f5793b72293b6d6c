"""What the registry cannot know of a method: when it helps, what it costs, and how an example calls it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Advice:
    """When a method helps, what it costs, and settings of the example where the defaults are not the best to show."""

    helps: str
    costs: str
    settings: str = ""


ADVICE = {
    "image.GroupedSpeculative": Advice(
        "Models whose codebook holds many codes that look alike, so that exact drafts are often refused.",
        "Pictures stay as near to real ones as plain ones are, and tokens become less likely under the model. On the"
        " small model it is no faster than the best exact setting of SpeculativeJacobi: try that first.",
    ),
    "image.SpeculativeJacobi": Advice(
        "One picture or a few at a time, where a pass over 16 tokens costs hardly more than one over a single token.",
        "Nothing in quality. Wide windows cost time on a CPU, and a batch waits for the row that accepts least.",
        'window=16, init="repeat_left"',
    ),
    "image.ZipAR": Advice(
        "When time matters more than the last bit of quality: the number of passes is fixed, whatever the picture.",
        "Tokens are drawn without the right part of the row above, and pictures get worse as the window narrows.",
    ),
    "speech.MergeAudioTokens": Advice(
        "Long audio with still stretches, and decoders that are large beside their encoder.",
        "Words change. On the small recogniser merging costs more time than it saves.",
    ),
    "speech.SuffixDraft": Advice(
        "Long recordings in which phrases come back, and models that fall into loops.",
        "Nothing in quality; a little time where nothing repeats, as in the recording below.",
    ),
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
    "vlm.CompressKV": Advice(
        "Long answers to long prompts: every decoding step reads a small cache.",
        "What the end of the prompt does not ask for is gone, also for the next turn.",
    ),
    "vlm.DyCoke": Advice(
        "Video that changes slowly, on any of the families; it asks nothing of the tower.",
        "The tower still sees everything, which is most of the time in a small model.",
        "keep=0.15",
    ),
    "vlm.EarlyTom": Advice(
        "LLaVA models that are shown many frames: the vision tower has less to do as well.",
        "Frames that were merged before the tower had read them can lose what told them apart.",
        "keep=0.15",
    ),
    "vlm.FastV": Advice(
        "When which tokens matter depends on the question.",
        "The first layers still see everything, so that the first token gains least of all.",
        "keep=0.15",
    ),
    "vlm.FastVID": Advice(
        "Video that is cut into scenes.",
        "Small things between its anchors, which the questions of the small model ask for.",
    ),
    "vlm.FrameFusion": Advice(
        "Video that stands still, and models whose tower must not be touched.",
        "The layers before see everything, and only the others gain.",
    ),
    "vlm.HoliTom": Advice(
        "Long video of which much stands still, on models whose attention says what matters.",
        "Where few tokens are left, answers about small things; compare it with DyCoke on your own clips.",
        "keep=0.25",
    ),
    "vlm.IDPruner": Advice(
        "Few tokens of varied content: what it keeps is important and unlike the rest.",
        "Choosing token after token takes time; raise step= to choose several at once.",
    ),
    "vlm.SelectKV": Advice(
        "Very long contexts, from which every step needs something else.",
        "The whole cache stays in memory; at 2,000 tokens choosing costs more than reading all.",
    ),
    "vlm.SparsePrefill": Advice(
        "Prompts of many thousand tokens: the longer, the more.",
        "Nearly nothing at 8,000 tokens; at 2,000 there is little to gain.",
    ),
    "vlm.StreamingCompression": Advice(
        "Frames that come one by one, in a VideoStream with bounded memory.",
        "It knows no later frame, and can keep what a look at the whole clip would have dropped.",
    ),
    "vlm.VidCom2": Advice(
        "Models whose tower gives no attention, or runs compiled.",
        "It goes by what is unusual, and that need not be what is asked for.",
    ),
    "vlm.VisionZip": Advice(
        "Single pictures, and clips in which every frame is looked at by itself.",
        "What stands still is kept again in every frame, which leaves less room for what changes.",
    ),
}

IMAGE = """import mmaccel
from mmaccel import image, zoo

model, processor = zoo.load("tiny-janus")
inputs = processor(text="big red heart on yellow", generation_mode="image", return_tensors="pt")
with mmaccel.accelerate(model, {method}) as fast:
    tokens = fast.generate(**inputs, generation_mode="image")
    print(fast.report)"""

VIDEO = """import mmaccel
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

VLM = """import mmaccel
from mmaccel import vlm, zoo

model, processor = zoo.load("tiny-onevision")
asked = zoo.questions("tiny-onevision", 1)[0]
inputs = processor(videos=[asked.frames], text=asked.question, return_tensors="pt")
with mmaccel.accelerate(model, {method}) as fast:
    tokens = fast.generate(**inputs, max_new_tokens=8)
    print(processor.decode(tokens[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True), asked.answer)
    print(fast.report)"""

SPEECH = """import mmaccel
from mmaccel import speech

model, processor = speech.load("moonshine-tiny")
samples = speech.read_audio("talk.wav")
inputs = processor(samples.numpy(), sampling_rate=16_000, return_tensors="pt")
with mmaccel.accelerate(model, {method}) as fast:
    tokens = fast.generate(**inputs)
    print(processor.batch_decode(tokens, skip_special_tokens=True)[0])
    print(fast.report)"""

EXAMPLES = {"image": IMAGE, "video": VIDEO, "vlm": VLM, "speech": SPEECH}


def example(name: str) -> str:
    """Code that runs a method on a small model; in a fenced block whose title says if it downloads anything."""
    settings = ADVICE[name].settings if name in ADVICE else ""
    template = UNET if name == "video.EncoderReuse" else EXAMPLES[name.split(".")[0]]
    title = ' title="downloads weights from the hub"' if template is UNET else ""
    return f"```python{title}\n{template.format(method=f'{name}({settings})')}\n```"
