"""Clips of brief events: what their facts promise, what questions need, and what fewer frames cannot know."""

from pathlib import Path

import numpy as np
import pytest

from mmaccel import zoo
from mmaccel.errors import SettingError
from mmaccel.zoo import tiny_onevision as shipped
from mmaccel.zoo.worlds import brief_events, moving_questions

FOLDER = Path(zoo.__file__).parent / "tiny-onevision"
FORMS = {"count", "last", "order", "presence", "end", "motion", "mover"}


@pytest.fixture(scope="module", params=[32, 64])
def clips(request):
    sprites = shipped.sprites_of(FOLDER)
    return [brief_events.draw_clip([3, i], frames=request.param, sprites=sprites) for i in range(60)]


def seen(clip):
    """Frames that differ from the one before where the brief thing is or was drawn."""
    actor = clip.scene.actors[-1]
    return range(actor.appears, actor.gone)


def test_what_is_brief_is_seen_as_long_as_promised(clips):
    spans = {True: set(), False: set()}
    for clip in clips:
        *lasting, brief = clip.scene.actors
        assert 1 <= len(lasting) <= 2 and all(a.appears == 0 and a.gone is None for a in lasting)
        assert brief_events.EARLIEST <= brief.appears < brief.gone <= len(clip.frames)
        spans[brief.moving].add(len(seen(clip)))
    assert spans[False] == {2, 3, 4} and spans[True] == {5, 6, 7, 8}


def test_pictures_show_it_then_and_only_then(clips):
    for clip in clips[:20]:
        brief, path = clip.scene.actors[-1], clip.places[-1]
        for edge, is_there in ((brief.appears, True), (brief.gone, False)):
            if edge < len(clip.frames):
                top, left = path[brief.appears if is_there else brief.gone - 1]
                box = (slice(top, top + 24), slice(left, left + 24))
                before, after = (clip.frames[t][box].astype(int) for t in (edge - 1, edge))
                assert np.abs(before - after).max() > 30
    still = [clip for clip in clips if not any(actor.moving for actor in clip.scene.actors)]
    assert still, "clips in which only the brief thing changes anything"
    for clip in still:
        changes = np.flatnonzero(np.abs(np.diff(clip.frames.astype(int), axis=0)).max((1, 2, 3))) + 1
        assert set(changes) == {clip.scene.actors[-1].appears, clip.scene.actors[-1].gone} - {len(clip.frames)}


def test_what_crosses_goes_from_edge_to_edge_and_nothing_lies_on_another(clips):
    for clip in clips:
        assert (clip.places >= 0).all() and (clip.places <= brief_events.FREE).all()
        path = clip.places[-1][list(seen(clip))]
        assert np.abs(path[-1] - path[0]).max() == (brief_events.FREE if clip.scene.actors[-1].moving else 0)
        for other in clip.places[:-1]:
            assert (np.abs(other[list(seen(clip))] - path).max(-1) >= 20).all()


def test_a_clip_is_a_function_of_its_seed():
    sprites = shipped.sprites_of(FOLDER)
    one, same, other = (brief_events.draw_clip([3, seed], sprites=sprites) for seed in (5, 5, 6))
    assert (one.frames == same.frames).all() and one.scene == same.scene
    assert (one.frames != other.frames).any()
    assert one.scene.held_out and not brief_events.draw_clip([3, 5], False, sprites=sprites).scene.held_out


def test_answers_follow_from_the_facts(clips):
    asked = set()
    for clip in clips:
        brief = clip.scene.actors[-1]
        for question in brief_events.questions(clip):
            asked.add(question.kind)
            assert question.answer in moving_questions.ANSWERS or question.kind in ("order", "end")
            match question.kind:
                case "motion":
                    assert brief.moving and question.answer == brief.motion.removeprefix("moves ")
                case "mover":
                    assert question.text == f"what {brief.motion}?" and question.answer == brief.name
                case "count":
                    assert question.answer == ("two", "three")[len(clip.scene.actors) - 2]
                case "last":
                    assert question.answer == brief.name
                case "order":
                    assert question.answer == " then ".join(actor.name for actor in clip.scene.actors)
                case "end":
                    assert brief.gone == len(clip.frames) and question.answer == moving_questions.corner(
                        clip.places[-1][-1]
                    )
                case "presence":
                    name = question.text.removeprefix("is there a ").rstrip("?")
                    assert (question.answer == "yes") == (name == brief.name)
                    assert question.answer == "yes" or name not in {a.name for a in clip.scene.actors}
    assert asked == FORMS
    counts = [[q.answer for q in brief_events.questions(clip) if q.kind == "presence"] for clip in clips]
    assert {tuple(answers) for answers in counts} == {(), ("yes", "no")}


def known(clip, question, step):
    """Whether every `step`-th frame shows what an answer takes: a crossing thing twice, one that stands once."""
    times = sum(clip.scene.actors[-1].is_seen(time) for time in range(0, len(clip.frames), step))
    return times >= (2 if question.kind in ("motion", "mover") else question.answer != "no")


def test_frames_cannot_be_skipped(clips):
    def share(step):
        found = [known(clip, question, step) for clip in clips for question in brief_events.questions(clip)]
        return sum(found) / len(found)

    assert share(1) == share(2) == 1
    assert share(4) < 0.85 and share(7) <= 0.6 and share(10) <= 0.6


def test_the_zoo_gives_them():
    rows = zoo.questions("tiny-onevision", 40, seed=2, brief=True)
    assert len(rows) == 40 and {row.kind for row in rows} <= FORMS
    assert all(row.frames.shape == (32, 64, 64, 3) for row in rows)
    again = zoo.questions("tiny-onevision", 40, seed=2, brief=True)
    assert [(r.question, r.answer) for r in rows] == [(r.question, r.answer) for r in again]
    assert (rows[0].frames == again[0].frames).all()
    (long,) = zoo.questions("tiny-onevision", 1, seed=2, brief=True, frames=64)
    assert len(long.frames) == 64
    slow = zoo.questions("tiny-onevision", 40, seed=2)
    assert {row.question for row in slow} != {row.question for row in rows}


@pytest.mark.parametrize("choice", [{"frames": 64}, {"brief": True, "frames": 8}])
def test_other_lengths_are_refused(choice):
    with pytest.raises(SettingError, match="16 frames or more"):
        zoo.questions("tiny-onevision", 1, **choice)
