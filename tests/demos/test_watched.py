"""What the image and video tabs see of a run from outside: passes, steps, clips, and what the speed costs."""

import contextlib
import types

import pytest
import torch
from PIL import Image

from mmaccel.demos.app import Models
from mmaccel.demos.app.limits import Limits
from mmaccel.demos.app.models import Shared
from mmaccel.demos.app.runs import Run, Stopped
from mmaccel.demos.app.tabs import image_run, image_tab, passes, question_run, video_run, video_tab
from mmaccel.demos.app.tabs.passes import Passes
from mmaccel.errors import PromptError
from mmaccel.image.decoding.layout import Layout
from mmaccel.image.generation import Painted, language_model
from mmaccel.report import Report
from mmaccel.video.generation import Filmed

LAYOUT = Layout.grids([(2, 3)])
RED = Image.new("RGB", (8, 8), "red")


@pytest.fixture(scope="module")
def models():
    return Models()


class Language(torch.nn.Module):
    def forward(self, tokens, position_ids=None):
        return tokens


def model_of(language):
    return types.SimpleNamespace(model=types.SimpleNamespace(language_model=language))


@pytest.fixture
def clock(monkeypatch):
    now = types.SimpleNamespace(value=0.0)
    monkeypatch.setattr(passes.time, "perf_counter", lambda: now.value)
    return now


def feed(seen, clock, *rows, prompt=4):
    """Passes of one second each: positions of the prompt, then of tokens of the picture."""
    language, told = Language(), []
    run = types.SimpleNamespace(tell=lambda done, total: told.append((done, total)))
    with seen.watch(model_of(language), run):
        for row in (None if row is None else torch.tensor(row) for row in ([*range(prompt)], *rows)):
            position_ids = None if row is None else row[None]
            language(torch.zeros(1), position_ids=position_ids)
            clock.value += 1
    language(torch.zeros(1), position_ids=torch.zeros(1, 1, dtype=int))
    return told


def test_a_new_prompt_begins_anew(clock):
    seen = Passes(6)
    told = feed(seen, clock, [4, 5], [6], [*range(4)], [4, 5, 6], [6, 7, 8], [8, 9])
    assert [row.tolist() for row in seen.passes] == [[], [0, 1, 2], [2, 3, 4], [4, 5]], "or when nobody watches"
    last, times = seen.maps(LAYOUT)
    assert last.tolist() == [[2, 2, 3], [3, 4, 4]] and times.tolist() == [[1, 1, 2], [1, 2, 1]]
    assert seen.seconds(LAYOUT) == [2.0, 2.0, 3.0, 3.0, 4.0, 4.0]
    assert told == [(1, 6), (2, 6), (3, 6), (1, 6), (3, 6), (5, 6), (6, 6)]


def test_the_last_token_is_never_fed(clock):
    seen = Passes(6)
    feed(seen, clock, [4], [5], [6], [7], [8])
    last, times = seen.maps(LAYOUT)
    assert last.tolist() == [[2, 3, 4], [5, 6, 6]] and times[1].tolist() == [1, 1, 0]


def test_passes_without_positions_are_one_token_each(clock):
    """As in a plain run; a run of another number of passes has no times to show."""
    seen, language = Passes(6), Language()
    with seen.watch(model_of(language), Run()):
        for _ in range(6):
            language(torch.zeros(1))
            clock.value += 1
    assert seen.seconds(LAYOUT) == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0] and seen.maps(LAYOUT) is seen.picture(LAYOUT) is None
    short = Passes(6)
    with short.watch(model_of(language), Run()):
        language(torch.zeros(1))
    assert short.seconds(LAYOUT) is None
    three_axes = Passes(6)
    with three_axes.watch(model_of(language), Run()):
        language(torch.zeros(1), position_ids=torch.zeros(3, 1, 4, dtype=int))
    assert not three_axes.passes


def test_watching_ends_with_the_run_also_where_it_is_stopped():
    language, run, seen = Language(), Run(), Passes(6)
    run.stop()
    with pytest.raises(Stopped), seen.watch(model_of(language), run):
        language(torch.zeros(1))
    assert not language._forward_pre_hooks
    other = types.SimpleNamespace(model=types.SimpleNamespace(text_model=language))
    assert language_model(other) is language is language_model(model_of(language))


def test_both_maps_are_drawn(clock):
    seen = Passes(6)
    feed(seen, clock, [4], [5])
    picture = seen.picture(LAYOUT)
    assert picture.width > 2 * picture.height and len(picture.getcolors(10**6)) > 10


class Learning:
    """A session whose methods learn in their first run, and its model."""

    def __init__(self):
        self.memory, self.adapter, self.report = {}, types.SimpleNamespace(layout=lambda: None), Report(["a"], True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        """Nothing to put back."""

    @contextlib.contextmanager
    def baseline(self):
        yield model_of(Language())


@pytest.fixture
def drawn(monkeypatch):
    """Draws with a preset or own methods; what a session knew at its first run, what ran, and what came out."""
    runs, sessions = [], []

    def accelerate(target, *methods, preset=None):
        sessions.append(Learning())
        return sessions[-1]

    def paint(target, prompts, settings):
        known = dict(target.memory) if isinstance(target, Learning) else None
        runs.append(("plain" if known is None else "fast", known))
        if known is not None:
            target.memory.setdefault("width", len(runs))
        return Painted([RED], torch.zeros(1), token_seconds=2.0)

    painter = types.SimpleNamespace(target=model_of(Language()), paint=paint)
    painter.generate = lambda *given: paint(*given)
    monkeypatch.setattr(image_run, "accelerate", accelerate)
    monkeypatch.setattr(image_run, "check_prompts", lambda *_: None)
    monkeypatch.setattr(image_run, "_quality", lambda *_: ("quality", "cost"))
    models = Models()
    models._find("image", "tiny-janus").loaded = painter

    def draw(preset, method="", compare=True):
        runs.clear()
        run = Run()
        request = image_tab.asked(Limits(), compare, "red heart", preset, "3", "tiny-janus", method, "", "", "")
        return image_run.draw(models, run, request), list(run.stages), list(runs)

    return draw


def test_what_a_session_measured_is_kept_for_the_next_visitor(drawn):
    """For each preset by itself; own methods begin anew, and no visitor's are another's."""
    for preset in ("exact", "fast"):
        made, stages, runs = drawn(preset)
        assert "warm up" in stages and [name for name, _ in runs] == ["fast", "plain", "fast"] and runs[0][1] == {}
        assert made.report.baseline_seconds == 2.0, "without decoding, as the report's own time"
        assert (made.quality, made.cost, made.computed, made.film) == ("quality", "cost", None, "")
        _, stages, runs = drawn(preset)
        assert "warm up" not in stages and runs == [("plain", None), ("fast", {"width": 1})]
    for _ in range(2):
        _, stages, runs = drawn("exact", "image.ZipAR:window=2")
        assert "warm up" in stages and runs[0] == ("fast", {})
    made, stages, runs = drawn("exact", compare=False)
    assert (made.plain, made.quality, made.report.baseline_seconds) == (None, "", None)
    assert [name for name, _ in runs] == ["fast"] and "plain" not in stages and "measure" not in stages


def test_progress_of_a_clip_is_told_after_every_step(models):
    told = []
    run = Run(lambda share, name: told.append((share, name)))
    made = video_tab.asked(
        Limits(), True, "rocket moves up", "balanced", "5", "tiny-wan", "video.EasyCache", "3", "5", "32", "32", ""
    )
    shares = []
    run.tell = lambda done, total: shares.append((done, total))
    shot = video_run.shoot(models, run, made)
    steps = [(1, 3), (2, 3), (3, 3)]
    assert shares == [(1, 2), (2, 2), *steps, *steps], "a short run, plainly and accelerated"
    assert 0 < shot.report.baseline_seconds <= run.stages["plain"] and "dB PSNR" in shot.quality and shot.cost
    assert list(run.stages) == ["wait", "load", "warm up", "plain", "accelerated", "draw", "measure"]
    assert shot.shown[0].width > 2 * shot.frames[0].width, "both in one clip"


def test_an_empty_prompt_loads_nothing():
    for request in (video_run.VideoRequest("", None, None), question_run.QuestionRequest("", None, "", 1, 1, 1)):
        call = video_run.shoot if isinstance(request, video_run.VideoRequest) else question_run.answer
        with pytest.raises(PromptError, match="empty"):
            call(None, Run(), request, *([None] if call is question_run.answer else []))


def test_only_pipelines_that_take_a_callback_get_one(monkeypatch):
    seen = []
    monkeypatch.setattr(video_run, "film", lambda target, prompt, settings, **more: seen.append(more))

    class Base:
        def __call__(self, prompt, callback_on_step_end=None):
            """Takes it."""

    class Other:
        def __call__(self, prompt):
            """Does not."""

    request = video_run.VideoRequest("a", None, None)
    for pipe in (Base(), type("Own", (Base,), {})(), Other()):
        video_run._film(Run(), pipe, request)
    assert [list(more) for more in seen] == [["callback_on_step_end"], ["callback_on_step_end"], []]
    values, run = {"latents": 1}, Run()
    video_run._film(run, Base(), request)
    step = seen[-1]["callback_on_step_end"]
    assert step(types.SimpleNamespace(num_timesteps=4), 0, 0, values) is values, "the pipeline goes on with them"
    assert step(types.SimpleNamespace(), 0, 0, values) is values, "also where it does not say how many there are"
    run.stop()
    with pytest.raises(Stopped):
        step(types.SimpleNamespace(num_timesteps=4), 1, 0, values)


def test_clips_stand_beside_each_other_with_their_times(monkeypatch):
    seen = []
    monkeypatch.setattr(video_run.clips, "side_by_side", lambda *given: seen.append(given))
    plain, fast = Filmed(["p"], 2.0), Filmed(["f"], 1.0)
    video_run._side_by_side(plain, fast)
    video_run._side_by_side(None, fast)
    assert seen == [([["p"], ["f"]], ["plain  2.00 s", "accelerated  1.00 s"]), ([["f"]], ["accelerated  1.00 s"])]
    assert video_run._quality(None, fast) == ("", "")


@pytest.mark.parametrize(
    ("decibels", "said"),
    (
        (100, "very same"),
        (99, "By eye"),
        (40, "By eye"),
        (39.9, "Small"),
        (30, "Small"),
        (20, "Visible"),
        (19, "Another"),
    ),
)
def test_distances_in_words(decibels, said):
    told = video_run._cost(decibels, "picture")
    assert said in told and "clip" not in told


def test_answers_that_differ_are_counted_in_words():
    report, said = question_run._quality("two red birds fly", "two red cats fly")
    assert "75% of the words" in report and "75% of the words" in said and said.startswith("Another answer")
    assert "same" in question_run._quality("a", "a")[0] and "word for word" in question_run._quality("a", "a")[1]


def test_a_warm_model_is_not_warmed_again():
    calls = []
    shared, run = Shared(), Run()
    for _ in range(2):
        shared.warm(run, lambda: calls.append(1))
    assert calls == [1] and "warm up" in run.stages


def test_an_answer_is_greedy_and_without_the_question():
    """And ends early where its visitor does not want it any more."""
    asked, told = [], []

    class Target:
        def generate(self, **given):
            asked.append(given)
            tokens = torch.tensor([[1, 2, 3, 4, 5]])
            assert not given["stopping_criteria"](tokens, None).any()
            return tokens

    decoded = []
    processor = types.SimpleNamespace(batch_decode=lambda tokens, **more: decoded.append((tokens, more)) or [" ok "])
    run = types.SimpleNamespace(tell=lambda *given: told.append(given))
    request = question_run.QuestionRequest("q", None, "", 1, 1, 7)
    text, seconds = question_run._generate(run, Target(), processor, {"input_ids": torch.zeros(1, 3)}, request)
    assert text == "ok" and seconds > 0 and told == [(2, 7)]
    assert asked[0]["max_new_tokens"] == 7 and asked[0]["do_sample"] is False
    ((tokens, more),) = decoded
    assert tokens.tolist() == [[4, 5]] and more == {"skip_special_tokens": True}
