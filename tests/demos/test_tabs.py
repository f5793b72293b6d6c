"""The tabs without a browser: which fields reach which work, and what comes back."""

import types

import gradio as gr
import pytest
import torch
from PIL import Image

from mmaccel import speech
from mmaccel.demos import app
from mmaccel.demos.app import Frame, Limits, Models, build
from mmaccel.demos.app.frame import QUEUE
from mmaccel.demos.app.looks import panels
from mmaccel.demos.app.looks.board import ACCELERATED, PLAIN
from mmaccel.demos.app.looks.gallery import Card, gallery, sample
from mmaccel.demos.app.runs import Run
from mmaccel.demos.app.tabs import (
    canvas_tab,
    code,
    image_run,
    image_tab,
    question_tab,
    speech_run,
    speech_tab,
    video_run,
    video_tab,
)
from mmaccel.demos.app.tabs.choice import MOST_SEED, Choice
from mmaccel.demos.app.tabs.image_run import ImageRequest
from mmaccel.demos.app.tabs.question_run import QuestionRequest
from mmaccel.demos.app.tabs.speech_run import COSTS, Saved, SpeechRequest
from mmaccel.demos.app.tabs.video_run import VideoRequest
from mmaccel.errors import SettingError
from mmaccel.image import ZipAR
from mmaccel.image.generation import ImageSettings
from mmaccel.report import Report
from mmaccel.speech.stream.stats import StreamStats
from mmaccel.video import EasyCache
from mmaccel.video.generation import VideoSettings
from mmaccel.vlm import EagleDraft

LIMITS = Limits()
HERE = Models()
COMMON = ["Preset", "Seed", "Model", "Own methods, instead of the preset"]
FIELDS = {
    image_tab: ["Prompt", *COMMON, "Guidance scale", "Temperature", "Top-k"],
    video_tab: [
        *("Prompt", *COMMON, "Steps", "Frames"),
        *("Height in pixels", "Width in pixels", "Guidance scale"),
    ],
    question_tab: [
        *("Clip", "Question", *COMMON, "Frames", "Most new tokens"),
        "The model is told the earlier questions and answers",
    ],
    canvas_tab: [
        *("Picture", "Question", *COMMON, "Tokens of the canvas"),
        "Chance from which the pipeline itself commits a token",
    ],
    speech_tab: [
        *("Or a recording", "Policy", "Model", "Seconds between looks", "What finds pauses"),
        *("Seconds of silence that end a segment", "Seconds after which a segment is cut"),
        *("Language", "Names and rare words"),
    ],
}
SEEDLESS = (question_tab, canvas_tab)
RESULTS = ["Report", "Used seed", "Stages", "Copy as Python"]
SHOWN = {
    image_tab: ["Race", "Accelerated", "Plain (left), accelerated (right)", "What was computed", *RESULTS],
    video_tab: ["Race", "Clip", "Picture", "What was computed", *RESULTS],
    question_tab: ["Race", "Answers", question_tab.KEPT_NOTE, *RESULTS],
    canvas_tab: ["Race", "Text", "What was computed", *RESULTS],
    speech_tab: ["Race", "Words", "Subtitles", *RESULTS],
}


def labels(components):
    return [label for component in components if (label := getattr(component, "label", None))]


def built(tab, frame=None):
    with gr.Blocks() as blocks:
        tab.build(frame or Frame())
    return blocks


def named(blocks, label):
    (found,) = (block for block in blocks.blocks.values() if getattr(block, "label", None) == label)
    return found


def triggers(blocks, event):
    """Names of what starts an event."""
    found = [(blocks.blocks.get(number), kind) for number, kind in event.targets]
    return [getattr(block, "label", None) or getattr(block, "value", None) or kind for block, kind in found]


@pytest.mark.parametrize("tab", FIELDS, ids=lambda tab: tab.__name__.rpartition(".")[2])
def test_every_button_passes_on_all_fields(tab, monkeypatch):
    """In the order in which the work takes them; Compare and the cards compare, the rest does not."""
    seen = []

    def work(*given):
        seen.append(given)
        return ["done"]

    name = "_transcribe" if tab is speech_tab else "_work"
    monkeypatch.setattr(tab, name, work)
    frame = Frame()
    blocks = built(tab, frame)
    heavy = [event for event in blocks.fns.values() if event.concurrency_id == QUEUE]
    compares = {}
    for event in heavy:
        assert labels(event.inputs) == FIELDS[tab] and labels(event.outputs) == SHOWN[tab]
        assert (event.concurrency_limit, event.trigger_mode) == (None, "once")
        assert [part.label for part in event.show_progress_on] == ["Race"]
        *_, last = event.fn(types.SimpleNamespace(session_hash="a"), "the", "fields")
        assert last == ["done"] and seen[-1][0] is frame and seen[-1][-2:] == ("the", "fields")
        (compares[triggers(blocks, event)[0]],) = (one for one in seen[-1] if isinstance(one, bool))
    typed = {image_tab: "Prompt", video_tab: "Prompt", question_tab: "Question", canvas_tab: "Question"}
    alone = {"Accelerated": False} | ({typed[tab]: False} if tab in typed else {})
    assert compares == {**alone, "Compare": True, "then": True}


@pytest.mark.parametrize("tab", FIELDS, ids=lambda tab: tab.__name__.rpartition(".")[2])
def test_stop_and_cards_do_not_wait_in_the_queue(tab):
    frame = Frame()
    blocks = built(tab, frame)
    at_once = [event for event in blocks.fns.values() if event.concurrency_id != QUEUE]
    assert len(at_once) >= 2 and not any(event.queue for event in at_once)
    assert {event.api_visibility for event in blocks.fns.values()} == {"private"}, "offered to programs"
    (stop,) = (event for event in at_once if triggers(blocks, event) == ["Stop"])
    with frame.runs.begin("a", lambda *_: None) as mine, frame.runs.begin("b", lambda *_: None) as theirs:
        stop.fn(types.SimpleNamespace(session_hash="a"))
        assert mine.stopped and not theirs.stopped


def test_lanes_are_those_of_the_runs_that_are_made(monkeypatch):
    made = []
    frame = Frame()
    monkeypatch.setattr(Frame, "connect", lambda self, *given, **more: made.append((given, more)))
    with gr.Blocks():
        found, picked, submit = panels.buttons(frame), object(), object()
        found.connect(frame, print, ["in"], ["out"], [submit], picked)
    (alone, plainly), (both, racing) = made
    assert alone[0][1:] == [submit] and both[0][1:] == [picked]
    assert alone[2:] == both[2:] == (["in"], ["out"])
    assert plainly.get("lanes", (ACCELERATED,)) == (ACCELERATED,) and racing["lanes"] == (PLAIN, ACCELERATED)


def test_the_microphone_hears_with_the_fields_of_the_tab():
    blocks = built(speech_tab)
    events = {event.name: event for event in blocks.fns.values()}
    for name, trigger in (("begin", "click"), ("hear", "input"), ("finish", "submit")):
        assert events[name].targets == [(named(blocks, "Microphone")._id, trigger)]
    state, *fields = events["begin"].inputs
    assert isinstance(state, gr.State) and labels(fields) == FIELDS[speech_tab][1:]
    assert events["begin"].outputs[0] is state and events["hear"].inputs[1] is state
    assert events["finish"].inputs == [state] and labels(events["finish"].outputs) == SHOWN[speech_tab][1:]
    for name in ("begin", "hear"):
        assert labels(events[name].outputs) == ["Microphone", "Words"]


def test_a_cleared_talk_is_a_new_one():
    blocks = built(question_tab)
    (clear,) = (event for event in blocks.fns.values() if triggers(blocks, event) == ["Answers"])
    (state,) = clear.outputs
    assert clear.fn() == question_tab.Talk() and state in next(
        event.inputs for event in blocks.fns.values() if event.concurrency_id == QUEUE
    )


@pytest.mark.parametrize(
    ("tab", "default"),
    ((image_tab, "exact"), (video_tab, "balanced"), (question_tab, "balanced"), (canvas_tab, "balanced")),
)
def test_what_a_tab_starts_with(tab, default):
    kind = {image_tab: "image", video_tab: "video", question_tab: "vlm", canvas_tab: "canvas"}[tab]
    frame = Frame(models=Models({kind: ["own/model"]}))
    blocks = built(tab, frame)
    preset, model, seed = (named(blocks, name) for name in ("Preset", "Model", "Seed"))
    assert preset.value == default and default in [name for name, _ in preset.choices]
    assert model.value == "own/model" and [name for name, _ in model.choices] == frame.models.names(kind)
    assert not model.allow_custom_value and seed.visible is (tab not in SEEDLESS)
    assert named(blocks, "Used seed").visible is (tab not in SEEDLESS)
    free = built(tab, Frame(models=Models(any_model=True)))
    assert named(free, "Model").allow_custom_value


def test_presets_that_a_family_lacks_are_explained():
    with gr.Blocks():
        controls = panels.controls(Frame(), "vlm", "llava_onevision", "balanced")
    names = [name for name, _ in controls.preset.choices]
    assert "exact" not in names and panels.PRESET_NOTE in controls.preset.info and "no exact: " in controls.preset.info


def test_the_speech_tab_has_the_models_of_the_operator():
    blocks = built(speech_tab, Frame(models=Models({"speech": ["own/asr"]}, any_model=True)))
    model = named(blocks, "Model")
    assert model.value == "own/asr" and model.allow_custom_value and not named(blocks, "Used seed").visible


def test_all_fields_reach_the_settings():
    choice = Choice("tiny-janus", "fast", (), 7)
    made = image_tab.asked(LIMITS, True, " a ", "fast", "7", "tiny-janus", "", "1.5", "0.7", "9")
    assert made == ImageRequest("a", choice, ImageSettings(seed=7, guidance=1.5, temperature=0.7, top_k=9), True)
    settings = VideoSettings(seed=7, steps=5, frames=9, height=32, width=48, guidance=2.5)
    filmed = video_tab.asked(LIMITS, True, " a ", "fast", "7", "tiny-janus", "", "5", "9", "32", "48", "2.5")
    assert filmed == VideoRequest("a", choice, settings, True)
    talk = question_tab.Talk("c", [("q", "a")])
    values = ("/x/clip.mp4", " b ", "fast", "7", "tiny-janus", "", "5", "6")
    expected = QuestionRequest("b", choice, "clip.mp4", 5, LIMITS.side, 6, (("q", "a"),), True)
    assert question_tab.asked(LIMITS, talk, True, *values, True) == expected
    empty = question_tab.asked(LIMITS, talk, False, *values[:6], "", "", False)
    assert (empty.frames, empty.max_new_tokens, empty.earlier, empty.compare) == (32, 32, (), False)


def test_fields_have_their_bounds():
    largest = image_tab.asked(LIMITS, False, "a", "fast", "0", "m", "", "100", "100", str(10**6)).settings
    assert (largest.guidance, largest.temperature, largest.top_k) == (100, 100, 10**6)
    least = image_tab.asked(LIMITS, False, "a", "fast", "0", "m", "", "0", "0.01", "0").settings
    assert (least.guidance, least.temperature, least.top_k) == (0, 0.01, 0)
    for place, value in enumerate(("100.1", "0.009", str(10**6 + 1))):
        with pytest.raises(SettingError, match=("guidance", "temperature", "top-k")[place]):
            image_tab.asked(LIMITS, False, "a", "fast", "0", "m", "", *["", "", ""][:place], value, *["", ""][place:])
    small = Limits(steps=3, frames=4, side=20)
    video_tab.asked(small, False, "a", "fast", "0", "m", "", "3", "4", "16", "20", "100")
    for place, (value, name) in enumerate((("4", "steps"), ("5", "frames"), ("21", "height"), ("15", "width"))):
        values = ["", "", "", "", ""]
        values[place] = value
        with pytest.raises(SettingError, match=name):
            video_tab.asked(small, False, "a", "fast", "0", "m", "", *values)
    talk, most = question_tab.Talk(), str(question_tab.MOST_NEW_TOKENS)
    question_tab.asked(small, talk, False, "c", "q", "fast", "", "m", "", "4", most, False)
    for frames, tokens in (("5", ""), ("", "513")):
        with pytest.raises(SettingError):
            question_tab.asked(small, talk, False, "c", "q", "fast", "", "m", "", frames, tokens, False)


def test_pauses_of_speech_are_as_asked():
    made = speech_tab.asked(LIMITS, True, "/x/talk.wav", "align-att", "m", "0.7", "energy", "0.1", "20")
    endpoint = speech.EnergyEndpoint(silence=0.1, longest=20, tail=0.1)
    assert made == SpeechRequest("m", speech.AlignAtt(), endpoint, 0.7, "talk.wav", True)
    empty = speech_tab.asked(LIMITS, False, None, "local-agreement", "m", "", "energy", "", "")
    assert (empty.update_interval, empty.endpoint.silence, empty.endpoint.longest) == (0.5, 0.44, 15.0)
    assert empty.file == "" and isinstance(empty.policy, speech.LocalAgreement)


def test_own_methods_stand_for_the_preset():
    made = Choice.of(LIMITS, "m", "fast", " image.ZipAR:window=2 \n\n video.EasyCache\n", str(MOST_SEED))
    assert made == Choice("m", None, (ZipAR(window=2), EasyCache()), MOST_SEED)
    assert made.python() == f"{ZipAR(window=2)}, {EasyCache()}" and made.parts() == ["image", "video"]
    assert Choice.of(LIMITS, "m", "fast", "\n ", "0").python() == "preset='fast'"
    with pytest.raises(SettingError, match="seed"):
        Choice.of(LIMITS, "m", "fast", "", str(MOST_SEED + 1))


FILES = (
    "vlm.StoredContext:folder=kept,least=1",
    "vlm.JoinedContext:gigabytes=0.01",
    "vlm.EagleDraft:head=some-org/some-head",
    "vlm.MTPDraft:checkpoint=some-org/some-model",
    "vlm.DFlashDraft:head=some-org/some-model",
    "image.ZipAR\nvlm.EagleDraft:head=/srv/head",
)


@pytest.mark.parametrize("text", FILES)
def test_methods_that_keep_or_load_files_are_none_of_a_visitor(text):
    with pytest.raises(SettingError, match="keeps files on the machine of this page"):
        Choice.of(LIMITS, "m", "fast", text, "0")


def test_a_method_without_its_files_may_be_a_visitor_s():
    assert Choice.of(LIMITS, "m", "fast", "vlm.EagleDraft", "0").methods == (EagleDraft(),)


def test_the_code_of_models_from_elsewhere():
    """With what was asked for, and without a plain run where none was made."""
    values = ("own/pipe", "image.ZipAR:window=2\nvideo.EasyCache", "5", "9", "32", "48", "2.5")
    for compare in (False, True):
        shown = code.video_code(video_tab.asked(LIMITS, compare, "a", "fast", "7", *values), HERE)
        assert "generation.load('own/pipe')" in shown and "zoo" not in shown
        assert "from mmaccel import image, video" in shown and "manual_seed(7)" in shown
        assert ("fast.baseline()" in shown) is compare
        for part in ("num_inference_steps=5", "num_frames=9", "height=32", "width=48", "guidance_scale=2.5"):
            assert part in shown
        values_ = ("own/pipe", "", "1.5", "0.7", "9")
        drawn = code.image_code(image_tab.asked(LIMITS, compare, "a", "fast", "7", *values_), HERE)
        assert "ImageSettings(seed=7, guidance=1.5, temperature=0.7, top_k=9)" in drawn
        assert "preset='fast'" in drawn and ("fast.baseline()" in drawn) is compare
        talk = question_tab.Talk("c", [("q", "two")])
        fields = ("/x/my.mp4", "b", "fast", "7", "own/vlm", "", "5", "6")
        told = code.question_code(question_tab.asked(LIMITS, talk, compare, *fields, compare), HERE)
        assert told.count("from_pretrained('own/vlm')") == 2 and "zoo" not in told
        assert f"read_video('my.mp4', frames=5, max_side={LIMITS.side})" in told
        assert told.count("max_new_tokens=6") == 1 + compare and ("'two'" in told) is compare
    own = code.question_code(
        question_tab.asked(LIMITS, talk, False, "c", "b", "fast", "", "tiny-onevision", "", "", "", 0), HERE
    )
    assert "zoo.load('tiny-onevision')" in own and "text='b'" in own and "from_pretrained" not in own


def test_the_code_of_speech():
    spoken = speech_tab.asked(LIMITS, False, "", "align-att", "moonshine-tiny", "0.7", "energy", "0.9", "12")
    shown = code.speech_code(spoken, HERE)
    assert "speech.load('moonshine-tiny')" in shown and "policy=speech.AlignAtt()" in shown
    assert "update_interval=0.7" in shown and "silence=0.9" in shown and "longest=12" in shown
    assert "read_audio('talk.wav')" in shown and "or what a microphone gives" in shown
    heard = code.speech_code(speech_tab.asked(LIMITS, False, "a/b.wav", "align-att", "m", "", "energy", "", ""), HERE)
    assert "read_audio('b.wav')" in heard and "microphone" not in heard


def test_the_code_runs_where_the_demo_runs():
    """On its device, in its dtype, with inputs and numbers from there; a clip's noise comes from the CPU anyway."""
    there = Models(device="cuda:1", dtype=torch.bfloat16)
    place, talk = "'cuda:1', torch.bfloat16", question_tab.Talk()
    asked = ("a", "fast", "7")
    for model in ("tiny-janus", "own/model"):
        drawn = code.image_code(image_tab.asked(LIMITS, True, *asked, model, "", "", "", ""), there)
        assert f"generation.load('own/model', {place})" in drawn or f"model.to({place})" in drawn
    drawn = code.image_code(image_tab.asked(LIMITS, True, *asked, "tiny-janus", "", "", "", ""), there)
    assert "torch.Generator('cuda:1')" in drawn and drawn.count(".to('cuda:1')") == 1 and ".cpu()" in drawn
    filmed = [
        code.video_code(video_tab.asked(LIMITS, True, *asked, model, *[""] * 6), there)
        for model in ("tiny-wan", "own/model")
    ]
    assert f"\npipe.to({place})\n" in filmed[0] and f"generation.load('own/model', {place})" in filmed[1]
    assert all("torch.Generator()" in one for one in filmed)
    told = [
        code.question_code(question_tab.asked(LIMITS, talk, True, "c", *asked, model, "", "", "", 0), there)
        for model in ("tiny-onevision", "own/model")
    ]
    assert f"\nmodel.to({place})\n" in told[0] and "return_tensors=\"pt\").to('cuda:1')" in told[0]
    assert "from_pretrained('own/model', dtype=torch.bfloat16).to('cuda:1')" in told[1]
    filled = code.canvas_code(canvas_tab.asked(LIMITS, True, "c", *asked, "tiny-canvas", "", "", ""), there)
    assert f"\npipe.model.to({place})\n" in filled
    heard = code.speech_code(speech_tab.asked(LIMITS, False, "", "align-att", "m", "", "energy", "", ""), there)
    assert f"speech.load('m', {place})" in heard
    for made in (drawn, *filmed, *told, filled, heard):
        assert "import torch\n" in made and compile(made, "shown", "exec")


def test_a_picture_alone_or_both_in_the_slider():
    red, blue = (Image.new("RGB", (8, 8), color) for color in ("red", "blue"))
    drawn = image_run.Drawn(red, None, Report([], True), "", "", None, "")
    alone, slider = image_tab._pictures(drawn)
    assert alone["visible"] and not slider["visible"] and slider["value"] is None
    assert alone["value"].getpixel((0, 0)) == (255, 0, 0)
    alone, slider = image_tab._pictures(image_run.Drawn(red, blue, Report([], True), "", "", None, ""))
    assert alone["value"] is None and [one.getpixel((0, 0)) for one in slider["value"]] == [(0, 0, 255), (255, 0, 0)]


def told(board, values):
    """What every tab shows of a run that took half the time."""
    details, report, seed, _, made_code = values
    assert "2.0x faster" in board and "cost &lt;c&gt;" in board
    assert details["visible"] and report.endswith("as good") and seed == "7" and "own/m" in made_code


def test_a_recording_is_compared_with_a_warm_model(monkeypatch):
    """A second warms it up, and is not counted; then once without drafts and once with, each in its own stage."""
    made, heard, told = [], [], []

    class Fake:
        def __init__(self, drafts):
            self.drafts, self.decoding, self.adapter = drafts, 9.0, types.SimpleNamespace(prompt=lambda: [1])

        def hear(self, samples, prompt):
            told.append((len(samples), prompt))

    def listen(run, listener, samples, request):
        heard.append((listener, listener.decoding, len(samples), request))
        listener.decoding += 1.0
        yield from (f"first {listener.drafts}", f"last {listener.drafts}")

    monkeypatch.setattr(speech_run, "recognizer", lambda *_, drafts: made.append(Fake(drafts)) or made[-1])
    monkeypatch.setattr(speech_run, "listen", listen)
    monkeypatch.setattr(speech_run, "_report", lambda *given: given)
    run = Run()
    found = list(speech_run.compared(run, None, torch.zeros(40_000), "request"))
    report = ("last False", 1.0, "last True", 10.0)
    assert found == [("first True", None), ("last True", None), ("last True", report)]
    assert told == [(16_000, [1])] and [one.drafts for one in made] == [False, True]
    assert heard == [(made[0], 0.0, 40_000, "request"), (made[1], 9.0, 40_000, "request")]
    assert list(run.stages) == ["warm up", PLAIN, ACCELERATED]


def test_what_drafts_saved_leaves_out_what_took_nothing():
    before, after = (
        speech_run.PartialTranscript(None, StreamStats(decoder_calls=calls, compute_seconds=seconds), events)
        for calls, seconds, events in ((30, 4.0, ["a"]), (10, 2.0, ["a"]))
    )
    saved = speech_run._report(before, 3.0, after, 1.5)
    assert saved.seconds == (4.0, 2.0) and saved.cost == COSTS[True]
    assert saved.report.splitlines()[1:] == [
        "  decoder     10 calls instead of 30, 3.00x less",
        "  decoding    1.50 CPU s instead of 3.00, 2.00x less",
        "  in all      2.00 CPU s instead of 4.00, 2.00x less",
        "  text        the same, event for event",
    ]
    assert "decoding" not in speech_run._report(before, 3.0, after, 0.0).report


def test_what_a_picture_costs_is_judged_beside_the_plain_one(monkeypatch):
    """The chance of a token is e to the power of minus its surprise; own is that of the plain picture."""
    judged = {("plain", "plain"): {"same": 1.0, "surprise": 0.0}, ("plain", "fast"): {"same": 0.25, "surprise": 0.6931}}
    asked = []
    trial = types.SimpleNamespace(judge=lambda *tokens: judged[tokens])
    painter = types.SimpleNamespace(target="model", processor="words", inputs=lambda *given: given)
    monkeypatch.setattr(image_run, "find_adapter", lambda target: f"adapter of {target}")
    monkeypatch.setattr(image_run, "trial_of", lambda *given: asked.append(given) or trial)
    session = types.SimpleNamespace(report=Report([], False))
    request = types.SimpleNamespace(prompt="a cat", settings="settings")
    plain, fast = (types.SimpleNamespace(tokens=tokens) for tokens in ("plain", "fast"))
    quality, cost = image_run._quality(Run(), painter, request, session, plain, fast)
    likely = "the plain model would have drawn each token with a chance of 50%, of its own picture 100%"
    assert quality.splitlines() == [
        f"  quality     {likely}, measured",
        "  same        25% of the tokens are those of the plain picture",
    ]
    assert cost == f"Lossy: 25% of its tokens are those of the plain picture; {likely}."
    assert asked == [("adapter of model", (["a cat"], "settings"), "words")]


@pytest.mark.parametrize("computed", (None, Image.new("RGB", (16, 16))))
def test_a_map_is_shown_only_where_there_is_one(computed, monkeypatch):
    """And the report, the seed and the code are those of this run."""
    frame, picture, run = Frame(), Image.new("RGB", (16, 16)), Run()
    report = Report(["a"], False, wall_seconds=2.0, baseline_seconds=4.0)
    with gr.Blocks():
        results, player = panels.results(), gr.Video()
    drawn = image_run.Drawn(picture, picture, report, "as good", "cost <c>", computed, "<film>")
    monkeypatch.setattr(image_tab, "draw", lambda models, run, request: drawn)
    values = ("a", "fast", "7", "own/m", "", "", "", "")
    board, _, _, shown, *rest = image_tab._work(frame, results, True, run, *values)
    assert shown["visible"] is (computed is not None) and shown["value"] is computed and "<film>" in board
    told(board, rest)
    shot = video_run.Shot([], [picture], report, "as good", "cost <c>", computed, 24)
    monkeypatch.setattr(video_tab, "shoot", lambda models, run, request: shot)
    monkeypatch.setattr(video_tab, "playable", lambda place, frames, rate: (place, frames, rate))
    board, clip, still, shown, *rest = video_tab._work(frame, results, player, True, run, *values, "", "")
    assert clip["visible"] and clip["value"] == (player, [picture], 24), "enlarged, and both in one"
    assert not still["visible"]
    assert shown["visible"] is (computed is not None) and shown["value"] is computed
    told(board, rest)
    assert "draw" in run.stages


def test_answers_stand_beside_each_other_where_they_differ():
    assert panels.both_texts(None, "a") == "" and panels.both_texts(None, "a", alone="<p>a</p>") == "<p>a</p>"
    assert panels.both_texts("<a>", "<a>").count("&lt;a&gt;") == 1
    both = panels.both_texts("two <b>", "three <b>")
    assert both == "<p>Plain: <del>two</del> &lt;b&gt;</p><p>Accelerated: <ins>three</ins> &lt;b&gt;</p>"


def test_the_board_of_speech():
    stats = StreamStats(audio_seconds=10.0, compute_seconds=2.5)
    alone = speech_tab._verdict(None, stats)
    assert "2.50 s" in alone and "for 10.0 s of sound" in alone and panels.NOT_MEASURED in alone
    board = speech_tab._verdict(Saved((3.0, 1.5), COSTS[True], ""), stats)
    assert "2.0x less computing" in board and "Exact" in board and "3.00 CPU s" in board and "1.50 CPU s" in board
    assert "2.0x more computing" in speech_tab._verdict(Saved((1.5, 3.0), COSTS[True], ""), stats)


def test_a_card_of_one_field_gives_its_value():
    with gr.Blocks() as blocks:
        gallery([Card(str(number), f"data:,{number}", (f"v{number}",)) for number in range(2)], [gr.Textbox()])
    (shown,) = (block for block in blocks.blocks.values() if isinstance(block, gr.HTML))
    assert 'src="data:,1"' in shown.value and shown.value.index("data:,0") < shown.value.index("data:,1")
    (event,) = blocks.fns.values()
    assert [event.fn(types.SimpleNamespace(index=number)) for number in (0, 1, 3)] == ["v0", "v1", "v1"]


def test_samples_are_cut_out_of_the_sheet_of_their_model():
    one, other = sample("tiny-wan", 0, 30, 64), sample("tiny-wan", 128, 30, 64)
    assert one != other and one.startswith("data:image/webp;base64,") and sample("tiny-janus", 0, 30, 64) != one


def test_the_app_has_a_tab_for_each_modality_and_lets_go_of_leavers(monkeypatch):
    frame = Frame(limits=Limits(waiting=3, file_seconds=400))
    blocks = build(frame)
    tabs = [block.label for block in blocks.blocks.values() if isinstance(block, gr.Tab)]
    assert len(tabs) == 5 == len(set(tabs))
    assert blocks._queue.max_size == 3 and not blocks.api_open
    assert blocks.delete_cache == (100, 400)
    (leave,) = (event for event in blocks.fns.values() if event.targets[0][1] == "unload")
    with frame.runs.begin("a", lambda *_: None) as run:
        leave.fn(types.SimpleNamespace(session_hash="a"))
        assert run.stopped
    monkeypatch.setattr(app, "modalities", lambda: ())
    assert build(Frame(limits=Limits(file_seconds=2))).delete_cache == (1, 2)
