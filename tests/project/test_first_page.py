"""The first page: its snippets run as they are written, on tiny models of the classes that they name."""

import av
import numpy as np
import reader
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2_5_VLProcessor, TextGenerationPipeline
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor
from transformers.pipelines import any_to_any
from transformers.video_utils import load_video

import mmaccel
from mmaccel.vlm import examples, visual_examples

README = (reader.ROOT / "README.md").read_text(encoding="utf-8")
WORDS = [
    "<pad>",
    "<bos>",
    *"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ?:.,'-!",
    "<|image_pad|>",
    "<|video_pad|>",
]
TEMPLATE = (
    "{% for turn in messages %}{% if turn['content'] is string %}{{ turn['content'] }}{% else %}"
    "{% for part in turn['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}{% else %}"
    "<|{{ part['type'] }}_pad|>{% endif %}{% endfor %}{% endif %}{% endfor %}"
)
LONGEST = 5  # lines of a snippet


def snippet(word):
    """The Python block of the page with a word in it."""
    (block,) = [block for block in reader.blocks(README, "python") if word in block.code]
    return block


def tokens():
    inner = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<pad>"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"<\|[a-z_]+\|>|."), "isolated")
    special = {"image_token": "<|image_pad|>", "video_token": "<|video_pad|>"}
    named = {"pad_token": "<pad>", "unk_token": "<pad>", "extra_special_tokens": special}
    return PreTrainedTokenizerFast(tokenizer_object=inner, chat_template=TEMPLATE, **named)


def written(task, name, dtype, device):
    """What the page asks of transformers, with a small model."""
    assert (task, device) == ("text-generation", "cuda")
    return TextGenerationPipeline(model=examples.llama(0)[0], tokenizer=tokens())


class Qwen(Qwen2_5_VLProcessor):
    """Transformers' own, but that it does not look for a class which needs torchvision."""

    def check_argument_for_proper_class(self, name, given):
        return type(given)


class Frames(Qwen3VLVideoProcessor):
    """Reads files by PyAV, where transformers asks for torchcodec."""

    def fetch_videos(self, videos, sample_indices_fn=None):
        if isinstance(videos, list):
            return list(zip(*[self.fetch_videos(video, sample_indices_fn) for video in videos], strict=True))
        return load_video(videos, backend="pyav", sample_indices_fn=sample_indices_fn)


def shown(task, name, dtype, device):
    assert (task, device) == ("any-to-any", "cuda")
    frames = Frames(do_resize=False, do_convert_rgb=False, do_normalize=False, patch_size=4)
    processor = Qwen(None, tokens(), frames, chat_template=TEMPLATE)
    return any_to_any.AnyToAnyPipeline(model=visual_examples.qwen2_5_vl(0)[0], processor=processor)


def film(path, frames=64):
    """A clip of 16 seconds in which a square moves."""
    with av.open(path, "w") as out:
        stream = out.add_stream("mpeg4", rate=4)
        stream.width = stream.height = 32
        stream.pix_fmt = "yuv420p"
        for number in range(frames):
            picture = np.zeros((32, 32, 3), np.uint8)
            picture[number // 4 : number // 4 + 8, :8] = 255
            out.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        out.mux(stream.encode())


def test_a_language_model_is_faster_inside_its_pipeline(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "report.txt").write_text("Boats leave at six.")
    names = {"mmaccel": mmaccel, "pipeline": written}
    exec(snippet("text-generation").code, names)
    report = names["fast"].report
    assert report.forwards > 0 and "FusedDraft" in str(report) and capsys.readouterr().out.strip()
    names["fast"].remove()


def test_a_clip_is_asked_about_with_fewer_tokens(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(any_to_any, "requires_backends", lambda *_: None)  # torchvision, which is not installed
    film("clip.mp4")
    names = {"mmaccel": mmaccel, "pipeline": shown}
    exec(snippet("any-to-any").code, names)
    told = str(names["fast"].report)
    assert "vlm.VidCom2(keep=0.15)" in told and "tokens instead of" in told and "warning" not in told
    assert "What happens?" in capsys.readouterr().out
    names["fast"].remove()


def test_snippets_are_a_few_lines_and_have_a_figure_beside_them():
    for word, figure in (("WanPipeline.from", "wan"), ("any-to-any", "qwen"), ("text-generation", "text")):
        block = snippet(word)
        assert block.downloads and len(block.code.splitlines()) <= LONGEST
        behind = README.partition(block.code)[2]
        assert behind.startswith(f"```\n\n<!-- figures: {figure} -->") and "x** " in behind.partition("<!-- end -->")[0]


def test_the_page_is_read_in_a_minute():
    lines = README.splitlines()
    assert len(lines) < 160
    assert not [line for line in lines if len(line) > 120 and not line.startswith(("|", "!["))]
