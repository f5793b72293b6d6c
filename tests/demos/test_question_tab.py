"""The video chat tab: uploads, answers, talks that never mix, and the shown code."""

import contextlib
import io
import re
from pathlib import Path
from types import SimpleNamespace

import av
import gradio as gr
import numpy as np
import pytest
from gradio.route_utils import delete_files_created_by_app
from PIL import Image

from mmaccel import zoo
from mmaccel.comparison.difference import marked
from mmaccel.demos.app.frame import Frame
from mmaccel.demos.app.limits import Limits
from mmaccel.demos.app.runs import Run, Stopped
from mmaccel.demos.app.tabs import question_tab
from mmaccel.demos.app.tabs.code import question_code
from mmaccel.demos.app.tabs.question_run import conversation, prepare
from mmaccel.demos.app.uploads.reading import read_clip
from mmaccel.errors import PromptError, SettingError, UnknownNameError, UnsupportedTargetError, VideoFileError
from mmaccel.files import clips


class Shown:
    """Stands in for the panel of results: what a run told it."""

    def values(self, run, seed, report, code, quality=""):
        self.stages, self.report, self.code, self.quality = dict(run.stages), report, code, quality
        return [str(report), code]


@pytest.fixture(scope="module")
def frame():
    return Frame()


@pytest.fixture(scope="module")
def asked():
    return zoo.questions("tiny-onevision", 8, 3)


@pytest.fixture(scope="module")
def clip(asked, tmp_path_factory):
    path = tmp_path_factory.mktemp("clips") / "my clip.mp4"
    clips.save([Image.fromarray(picture) for picture in asked[4].frames], path)
    return path


def ask(frame, clip, question, talk=None, compare=False, run=None, preset="balanced", told=False, **more):
    values = {"seed": "", "model": "tiny-onevision", "method": "", "frames": "16", "tokens": "8", **more}
    shown = Shown()
    talk = question_tab.Talk() if talk is None else talk
    made = question_tab._work(
        frame, shown, compare, run or Run(), talk, str(clip), question, preset, *values.values(), told
    )
    return made, shown


def test_a_question_is_answered_plainly_and_accelerated(frame, clip, asked):
    (board, talk, messages, both, note, kept, *_), shown = ask(frame, clip, asked[4].question, compare=True)
    assert talk.turns == [(asked[4].question, asked[4].answer)]
    assert [message["content"] for message in messages["value"]] == [asked[4].question, asked[4].answer]
    assert "The same answer" in board and any(word in board for word in ("faster", "as fast", "slower"))
    assert "Same answer" in both and asked[4].answer in both
    assert shown.report.speedup is not None and shown.report.visual_tokens < shown.report.plain_visual_tokens
    assert {"read", "plain", "accelerated", "draw"} <= set(shown.stages)
    assert kept["visible"] and note["visible"] and kept["value"].width > 1000
    model, _ = frame.models._shared["vlm", "tiny-onevision"].loaded
    assert "generate" not in vars(model), "the session left something behind"


def test_without_comparing_nothing_is_claimed(frame, clip, asked):
    (board, _, _, both, *_), shown = ask(frame, clip, asked[4].question)
    assert "No speed-up is claimed" in board and "faster" not in board
    assert both == "" and shown.report.speedup is None and "plain" not in shown.stages and shown.quality == ""


def test_a_method_that_keeps_all_visual_tokens_draws_no_picture(frame, clip, asked):
    (_, _, _, _, note, kept, *_), _ = ask(frame, clip, asked[4].question, method="vlm.SelectKV:budget=0.5")
    assert not kept["visible"] and not note["visible"]


@pytest.mark.parametrize("told", (False, True))
def test_the_shown_code_gives_the_same_answer(frame, clip, asked, told):
    talk = question_tab.Talk(str(clip), [("how many things are there?", "two")])
    (_, talk, *_), shown = ask(frame, clip, asked[5].question, talk, compare=True, told=told)
    assert ("'two'" in shown.code) is told
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(shown.code.replace("'my clip.mp4'", repr(str(clip))), {})
    assert printed.getvalue().splitlines()[-1] == talk.turns[-1][1]
    assert "speed-up" in printed.getvalue()
    assert set(re.findall(r"^from (mmaccel[\w.]*) import", shown.code, re.MULTILINE)) == {"mmaccel"}


def test_a_talk_is_of_one_visitor_and_one_clip(frame, clip, asked, tmp_path):
    other = tmp_path / "other.mp4"
    clips.save([Image.fromarray(picture) for picture in asked[0].frames], other)
    mine, yours = question_tab.Talk(), question_tab.Talk()
    for question, expected in ((asked[4].question, 1), (asked[5].question, 2)):
        (_, mine, *_), _ = ask(frame, clip, question, mine)
        (_, yours, *_), _ = ask(frame, other, asked[0].question, yours)
        assert len(mine.turns) == len(yours.turns) == expected
    assert {question for question, _ in yours.turns} == {asked[0].question}
    assert mine.about(str(other)).turns == [] and len(mine.turns) == 2
    (_, fresh, *_), shown = ask(frame, other, asked[0].question, mine, told=True)
    assert [question for question, _ in fresh.turns] == [asked[0].question] and asked[4].question not in shown.code


def test_earlier_turns_are_told_only_where_asked(clip):
    talk = question_tab.Talk(str(clip), [("one?", "two")])
    values = (str(clip), "three?", "fast", "", "tiny-onevision", "", "", "")
    alone = question_tab.asked(Limits(), talk, False, *values, False)
    told = question_tab.asked(Limits(), talk, False, *values, True)
    assert len(conversation(alone)) == 1 and len(conversation(told)) == 3
    assert conversation(told)[0]["content"][0] == {"type": "video"}
    assert alone.frames == 32 and "read_video('my clip.mp4'" in question_code(alone, Frame().models)


@pytest.mark.parametrize("written", (False, True), ids=("tokenizer", "template"))
def test_the_shown_code_begins_a_prompt_once(clip, written):
    """As Gemma's, whose chat template writes the `bos_token` that its tokenizer writes too."""

    class Processor(SimpleNamespace):
        def __call__(self, **told):
            return told

    bos = "<bos>" if written else ""
    template = {"apply_chat_template": lambda turns, add_generation_prompt: f"{bos}why?"}
    processor = Processor(tokenizer=SimpleNamespace(bos_token="<bos>"), **template)
    values = (str(clip), "why?", "fast", "", "own/vlm", "", "", "")
    request = question_tab.asked(Limits(), question_tab.Talk(), False, *values, False)
    inputs, told = prepare(processor, [], request)
    code = question_code(request, Frame().models, told)
    assert inputs.get("add_special_tokens") is (False if written else None)
    assert (f"text=[text], **told, {'add_special_tokens=False, ' * written}return_tensors" in code) and told == (
        {"add_special_tokens": False} if written else {}
    )


def test_differences_are_marked_and_escaped():
    gone, new = marked("two <b>", "three <b>")
    assert gone == "<del>two</del> &lt;b&gt;" and new == "<ins>three</ins> &lt;b&gt;"


def test_a_run_that_is_stopped_ends_and_frees_the_model(frame, clip, asked):
    run = Run(lambda share, name: run.stop() if name == "accelerated" else None)
    with pytest.raises(Stopped):
        ask(frame, clip, asked[4].question, run=run)
    (_, talk, *_), _ = ask(frame, clip, asked[4].question)
    assert talk.turns[-1][1] == asked[4].answer


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    (
        ({"question": " "}, PromptError, "empty"),
        ({"question": "a" * 100_000}, PromptError, "shorten"),
        ({"frames": "0"}, SettingError, "frames"),
        ({"tokens": "many"}, SettingError, "most new tokens"),
        ({"model": "some/model"}, UnknownNameError, "some/model"),
        ({"method": "vlm.HoliTim"}, UnknownNameError, "HoliTom"),
        ({"preset": "exact"}, UnsupportedTargetError, "exact"),
    ),
)
def test_wrong_settings_are_said(frame, clip, wrong, error, words):
    with pytest.raises(error, match=words):
        ask(frame, clip, **{"question": "what moves up?", **wrong})


def test_a_clip_of_one_frame(frame, tmp_path):
    path = tmp_path / "one.mp4"
    clips.save([Image.new("RGB", (64, 64), "pink")], path)
    (_, talk, *_), shown = ask(frame, path, "what color is the background?")
    assert talk.turns[0][1] == "pink" and "frames=1" in shown.code


def _wav(path, seconds):
    with av.open(str(path), "w", format="wav") as container:
        stream = container.add_stream("pcm_s16le", rate=16_000, layout="mono")
        sound = av.AudioFrame.from_ndarray(np.zeros((1, seconds * 16_000), np.int16), format="s16", layout="mono")
        sound.sample_rate = 16_000
        container.mux([*stream.encode(sound), *stream.encode(None)])


def test_uploads_are_judged_by_what_they_hold(clip, tmp_path):
    made = {name: tmp_path / name for name in ("text.mp4", "empty.mp4", "cut.mp4", "list.mp4", "sound.mp4")}
    made["text.mp4"].write_text("this is no video " * 100)
    made["empty.mp4"].touch()
    made["cut.mp4"].write_bytes(clip.read_bytes()[:2000])
    made["list.mp4"].write_text(f"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\n{clip}\n#EXT-X-ENDLIST\n")
    _wav(made["sound.mp4"], 1)
    said = {"text.mp4": "no video file", "empty.mp4": "is empty", "sound.mp4": "holds no video"}
    for name, path in made.items():
        with pytest.raises(VideoFileError, match=said.get(name, "no video file")) as caught:
            read_clip(str(path), 8, Limits())
        assert name in str(caught.value) and str(tmp_path) not in str(caught.value), "paths of the server are told"
    with pytest.raises(VideoFileError, match="upload one first"):
        read_clip(None, 8, Limits())


def test_uploads_have_a_largest_size_and_length(clip):
    assert len(read_clip(str(clip), 8, Limits())) == 8
    with pytest.raises(VideoFileError, match="lasts longer than 2 s"):
        read_clip(str(clip), 8, Limits(clip_seconds=2))
    with pytest.raises(VideoFileError, match="allowed"):
        read_clip(str(clip), 8, Limits(upload_bytes=100))


def test_example_clips_outlive_the_files_of_visitors():
    with gr.Blocks() as blocks:
        question_tab.build(Frame())
    (clip,) = (block for block in blocks.blocks.values() if isinstance(block, gr.Video) and block.label == "Clip")
    delete_files_created_by_app(blocks, None)
    kept = [Path(file) for file in clip.keep_in_cache]
    assert len(kept) == question_tab.EXAMPLES and all(file.is_file() for file in kept)
