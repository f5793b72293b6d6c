"""A processor is given every frame of a video and told when it is shown, whoever wrote it."""

import re
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor

from mmaccel import vlm
from mmaccel.vlm.answering import prepare
from mmaccel.vlm.input.processed import processed

VIDEO = "<|video_pad|>"
WORDS = ("<pad>", VIDEO, "<|image_pad|>", "<|vision_start|>", "<|vision_end|>", *"0123456789.<> ?", *"cdehnorswy")
TEMPLATE = (
    "{% for turn in messages %}{% for part in turn['content'] %}"
    "{% if part['type'] == 'video' %}<|video_pad|>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endfor %}"
)


class QwenProcessor(Qwen3VLProcessor):
    """Transformers' own, but that it does not look for classes which need torchvision."""

    def check_argument_for_proper_class(self, argument_name, argument):
        return type(argument)


@pytest.fixture(scope="module")
def qwen():
    """What it does without torchvision: frames stay as large as they are."""
    inner = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<pad>"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"<\|[a-z_]+\|>|."), "isolated")
    names = {"pad_token": "<pad>", "unk_token": "<pad>", "padding_side": "left"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, **names)
    frames = Qwen3VLVideoProcessor(do_resize=False, do_convert_rgb=False, do_normalize=False)
    return QwenProcessor(None, tokenizer, frames, chat_template=TEMPLATE)


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


def test_other_processors_are_given_what_they_take():
    given = []
    processed(lambda **told: given.append(told), ["why?"], [video(2)])
    assert given[0].keys() == {"text", "videos", "return_tensors", "padding"} and len(given[0]["videos"][0]) == 2
    processed(lambda **told: given.append(told), ["why?"], [], ["a picture"])
    assert given[1].keys() == {"text", "images", "return_tensors", "padding"}
