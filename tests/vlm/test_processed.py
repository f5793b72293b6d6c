"""A processor is given every frame of a video and told when it is shown, whoever wrote it."""

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from transformers import BatchEncoding, BatchFeature, LlavaOnevisionProcessor, LlavaProcessor, PreTrainedTokenizerFast
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.llava_onevision.image_processing_pil_llava_onevision import LlavaOnevisionImageProcessorPil
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor

from mmaccel import vlm
from mmaccel.errors import PromptError
from mmaccel.vlm import reading
from mmaccel.vlm.answering import prepare
from mmaccel.vlm.context.parts import TIMES
from mmaccel.vlm.input.processed import for_model, processed

VIDEO = "<|video_pad|>"
IMAGE, BOS = "<|image_pad|>", "<|bos|>"
WORDS = ("<pad>", VIDEO, IMAGE, BOS, "<|vision_start|>", "<|vision_end|>", *"0123456789.<> ?", *"cdehnorswy")
TEMPLATE = (
    "{% for turn in messages %}{% for part in turn['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}{% else %}<|{{ part['type'] }}_pad|>{% endif %}"
    "{% endfor %}{% endfor %}"
)


def without_torchvision(kind):
    """Transformers' own, but that it does not look for classes which need torchvision."""
    return type(kind.__name__, (kind,), {"check_argument_for_proper_class": lambda self, name, given: type(given)})


def tokens(**more):
    """A tokenizer, whose texts begin with the `bos_token` that it is given."""
    inner = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<pad>"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"<\|[a-z_]+\|>|."), "isolated")
    if more:
        inner.post_processor = processors.TemplateProcessing(
            single=f"{BOS} $A", special_tokens=[(BOS, WORDS.index(BOS))]
        )
    names = {
        "pad_token": "<pad>",
        "unk_token": "<pad>",
        "padding_side": "left",
        "extra_special_tokens": {"image_token": IMAGE},
    }
    return PreTrainedTokenizerFast(tokenizer_object=inner, **names, **more)


def qwen_of(tokenizer, template=TEMPLATE):
    """What it does without torchvision: frames stay as large as they are."""
    frames = Qwen3VLVideoProcessor(do_resize=False, do_convert_rgb=False, do_normalize=False)
    return without_torchvision(Qwen3VLProcessor)(None, tokenizer, frames, chat_template=template)


@pytest.fixture(scope="module")
def qwen():
    return qwen_of(tokens())


def video(count):
    """A frame of each second, of ten in the file."""
    pictures = np.random.default_rng(count).integers(0, 255, (count, 32, 32, 3), dtype=np.uint8)
    seconds = np.arange(count)
    return vlm.VideoFrames(pictures, seconds * 10, seconds.astype(float), 10.0, count * 10, count, Path("a.mp4"), "av")


def test_qwen3_is_shown_every_frame_at_its_time(qwen):
    inputs = prepare(qwen, video(8), ["why?", "where?"])
    assert inputs["video_grid_thw"].tolist() == [[4, 2, 2]] * 2, "frames come in pairs"
    for row in inputs["input_ids"].tolist():
        text = "".join(qwen.tokenizer.convert_ids_to_tokens(row))
        assert re.findall(r"<([\d.]+) seconds>", text) == ["0.5", "2.5", "4.5", "6.5"]
        assert text.count(VIDEO) == 4 and text.endswith("?")


def test_frames_without_times_are_shown_too(qwen):
    inputs = processed(qwen, [VIDEO, VIDEO], [list(video(6).frames), video(4)])
    assert inputs["video_grid_thw"].tolist() == [[3, 2, 2], [2, 2, 2]]


@pytest.mark.parametrize("mode", ("RGBA", "LA", "L", "P", "1", "CMYK"))
def test_frames_may_be_pictures_of_any_mode(qwen, mode):
    """As pictures may, which processors convert; clear ones are white."""
    clear = (0,) * len(Image.new(mode, (1, 1)).getbands()) if mode.endswith("A") else None
    picture = Image.new("RGB", (32, 32), "white").convert(mode) if clear is None else Image.new(mode, (32, 32), clear)
    shown, white = (
        processed(qwen, [VIDEO], [[each] * 2]) for each in (picture, np.full((32, 32, 3), 255, dtype=np.uint8))
    )
    assert torch.equal(shown["pixel_values_videos"], white["pixel_values_videos"])


def test_answers_follow_their_prompts_whatever_the_tokenizer_says():
    tokenizer = tokens()
    tokenizer.padding_side = "right"
    inputs = prepare(qwen_of(tokenizer), video(2), ["why?", "where?"])
    assert inputs["attention_mask"].sum(1).diff().item() == 2 and inputs["attention_mask"][:, -1].all()


def test_other_processors_are_given_what_they_take():
    given = []
    processed(lambda **told: given.append(told), ["why?"], [video(2)])
    assert given[0].keys() == {"text", "videos", "return_tensors", "padding"} and len(given[0]["videos"][0]) == 2
    processed(lambda **told: given.append(told), ["why?"], [], ["a picture"])
    assert given[1].keys() == {"text", "images", "return_tensors", "padding"}


@pytest.mark.parametrize("template", (TEMPLATE, "{{ bos_token }}" + TEMPLATE), ids=("tokenizer", "template"))
def test_a_prompt_begins_once(template):
    """Whether the tokenizer or the chat template writes the beginning."""
    inputs = prepare(qwen_of(tokens(bos_token=BOS), template), video(2), ["why?", "where?"])
    for row in inputs["input_ids"].tolist():
        assert row.count(WORDS.index(BOS)) == 1


def test_a_prompt_for_a_page_begins_once():
    reader = LlavaProcessor(
        CLIPImageProcessorPil(), tokens(bos_token=BOS), 14, chat_template="{{ bos_token }}" + TEMPLATE
    )
    given = []

    class Model:
        device, dtype = "cpu", None

        def generate(self, **inputs):
            given.append(inputs["input_ids"])
            return inputs["input_ids"]

    reading.read(Model(), reader, Image.new("RGB", (9, 9)), reading.prompt_of(reader, "why?"))
    assert given[0][0].tolist().count(WORDS.index(BOS)) == 1


def test_a_processor_that_takes_no_videos_says_so():
    """It would leave them out in silence."""
    llava = LlavaProcessor(CLIPImageProcessorPil(), tokens(), 14, chat_template=TEMPLATE)
    with pytest.raises(PromptError, match="LlavaProcessor takes pictures, no videos: .*Qwen2.5-VL"):
        prepare(llava, video(2), ["why?"])


def test_a_processor_that_loses_pictures_beside_videos_says_so():
    """SmolVLM's calls both `pixel_values`, and the model ended in a traceback."""
    both = qwen_of(tokens())
    both.image_processor = SimpleNamespace(model_input_names=["pixel_values", "pixel_attention_mask"])
    both.video_processor.model_input_names = ["pixel_values", "pixel_attention_mask"]
    with pytest.raises(PromptError, match="Qwen3VLProcessor gives pictures and videos one name, .*: ask about"):
        processed(both, [IMAGE + VIDEO], [video(2)], [Image.new("RGB", (8, 8))])


def test_pictures_of_one_prompt_are_shown_together():
    """LLaVA-OneVision cuts up those that stand alone."""
    kind, cutter = without_torchvision(LlavaOnevisionProcessor), LlavaOnevisionImageProcessorPil()
    onevision = kind(cutter, tokens(), None, num_image_tokens=9, image_token=IMAGE, video_token=VIDEO)
    pictures = [Image.new("RGB", (60, 40)), Image.new("RGB", (40, 90))]
    inputs = processed(onevision, [IMAGE + IMAGE], [], pictures)
    assert inputs["batch_num_images"].tolist() == [2]


def test_pictures_come_in_the_precision_of_the_model():
    """Towers as Llama 4's and Kimi K2.5's cast nothing, and a checkpoint in bfloat16 ended in a traceback."""
    target = SimpleNamespace(device="cpu", dtype=torch.bfloat16)
    given = {"input_ids": torch.ones(1, 2, dtype=torch.long), "pixel_values": torch.rand(1, 3, 4, 4), "sizes": [(4, 4)]}
    for kind in (BatchFeature, BatchEncoding):
        found = for_model(kind(dict(given)), target)
        assert found["pixel_values"].dtype == torch.bfloat16 and found["input_ids"].dtype == torch.long
        assert found["sizes"] == [(4, 4)]


@pytest.mark.parametrize("name", TIMES)
def test_times_of_frames_are_not_rounded(name):
    """Qwen2.5-VL multiplies them by the numbers of frames: in bfloat16 late ones stood at another place."""
    times = torch.tensor([2 / 29.97])
    given = {"input_ids": torch.ones(1, 2, dtype=torch.long), name: times}
    found = for_model(BatchFeature(given), SimpleNamespace(device="cpu", dtype=torch.bfloat16))
    assert found[name].dtype == torch.float32 and torch.equal(found[name], times)
