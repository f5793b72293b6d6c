"""What the small models pass on to the real classes, and what their questions are drawn from; without weights."""

import inspect
import json
from types import SimpleNamespace

import pytest
from diffusers import WanPipeline

from mmaccel import zoo
from mmaccel.cli.command import check_example
from mmaccel.errors import PromptError, SettingError, UnknownNameError
from mmaccel.modality import get_modality
from mmaccel.vlm import reading
from mmaccel.zoo import tiny_onevision, tiny_wan
from mmaccel.zoo.worlds import brief_events, moving_questions, moving_world


class Words:
    """A tokenizer of three words."""

    def __init__(self):
        self.backend_tokenizer = self.normalizer = self

    def get_vocab(self):
        return dict.fromkeys(("red", "heart", "pizza"), 1)

    def normalize_str(self, text):
        return text.lower()


def test_a_clip_is_asked_for_with_the_sizes_of_the_model_and_all_else_as_given(monkeypatch):
    calls = []
    plain = inspect.signature(WanPipeline.__call__)
    monkeypatch.setattr(WanPipeline, "__call__", lambda self, *args, **more: calls.append((args, more)) or "made")
    pipe = object.__new__(tiny_wan.TinyWanPipeline)
    vars(pipe).update(facts={"names": ["heart", "pizza"]}, tokenizer=Words())
    assert pipe("red heart") == "made"
    pipe(["heart", "pizza"], "nothing red", 32, 48, 9, 4, 1.5, max_sequence_length=8, generator=7, latents="x")
    pipe(prompt_embeds="y")
    told = [dict(list(plain.bind(pipe, *args, **more).arguments.items())[1:]) for args, more in calls]
    sizes = {"height": 64, "width": 64, "num_frames": 17, "num_inference_steps": 40, "guidance_scale": 3.0}
    usual = {"negative_prompt": None, **sizes, "max_sequence_length": 16}
    assert told[0] == {"prompt": "red heart", **usual}
    assert told[1] == {
        "prompt": ["heart", "pizza"],
        "negative_prompt": "nothing red",
        **dict(zip(sizes, (32, 48, 9, 4, 1.5), strict=True)),
        "max_sequence_length": 8,
        "generator": 7,
        "latents": "x",
    }
    assert told[2] == {"prompt": None, **usual, "prompt_embeds": "y"}
    with pytest.raises(PromptError, match="tiny-wan does not know 'spaceship'"):
        pipe(["heart", "spaceship"])
    with pytest.raises(PromptError, match="such as 'rocket moves up, blue background'"):
        pipe("")
    assert len(calls) == 3, "refused before any work"


@pytest.mark.parametrize("name", (3, None, []), ids=str)
def test_what_is_no_name_is_told_the_names(name):
    with pytest.raises(UnknownNameError, match="unknown zoo model .* choose from 'tiny-janus', 'tiny-wan'"):
        zoo.load(name)


def test_captions_of_a_small_world_are_drawn_by_seed_until_there_are_no_more(tmp_path):
    facts = {"names": ["a", "b"], "motions": {"stays": False, "goes": True}, "backgrounds": ["red", "blue"]}
    (tmp_path / "training.json").write_text(json.dumps(facts))
    assert list(tiny_wan.prompts(tmp_path, 0, 0)) == []
    all_of_one = list(tiny_wan.prompts(tmp_path, 8, 0, things=1))
    assert len(set(all_of_one)) == 8
    assert set(all_of_one) == {
        f"{n} {m}, {b} background" for n in "ab" for m in ("stays", "goes") for b in ("red", "blue")
    }
    assert list(tiny_wan.prompts(tmp_path, 8, 0, things=1)) == all_of_one
    assert list(tiny_wan.prompts(tmp_path, 8, 1, things=1)) != all_of_one
    with pytest.raises(SettingError, match="only 4 captions found with things=1, moving=0: ask for fewer"):
        list(tiny_wan.prompts(tmp_path, 5, 0, things=1, moving=0))
    with pytest.raises(SettingError, match="things=3, moving=None: it has 1 or 2 things"):
        list(tiny_wan.prompts(tmp_path, 1, 0, things=3))


@pytest.fixture
def drawn(monkeypatch):
    """How clips and questions are asked for."""
    asked = []

    def choose(clip, rng, count):
        asked.append(("choose", rng.random(), count))
        return [SimpleNamespace(text=f"q{i // 2}", answer=f"a{i}", kind=f"k{i}") for i in range(count)]

    def draw(*args, **more):
        asked.append((args, {name: value for name, value in more.items() if name != "sprites"}))
        assert more["sprites"] == "sprites"
        return SimpleNamespace(frames="frames")

    for module in (brief_events, moving_world):
        monkeypatch.setattr(module, "draw_clip", draw)
    for module in (brief_events, moving_questions):
        monkeypatch.setattr(module, "choose", choose)
    monkeypatch.setattr(tiny_onevision, "sprites_of", lambda folder: "sprites" if folder == "folder" else None)
    return asked


def test_questions_are_about_held_out_clips_of_their_seed_four_of_each(drawn):
    found = list(tiny_onevision.questions("folder", 5, 7))
    assert [one.answer for one in found] == ["a0", "a1", "a2", "a3", "a0"]
    assert found[1] == ("frames", "q0", "a1", "k1") and len(drawn) == 4
    for number in (0, 1):
        assert drawn[2 * number] == (([7, number, 1], True), {"footage": moving_world.ONEVISION})
        assert drawn[2 * number + 1][2] == 4
    assert drawn[1][1] != drawn[3][1], "other choices for each clip"
    first, begun = drawn[1], len(drawn)
    list(tiny_onevision.questions("folder", 1, 7))
    list(tiny_onevision.questions("folder", 1, 8))
    assert drawn[begun + 1] == first != drawn[begun + 3]


def test_brief_questions_have_clips_of_their_own_length(drawn):
    list(tiny_onevision.questions("folder", 1, 7, brief=True))
    list(tiny_onevision.questions("folder", 1, 7, brief=True, frames=16))
    assert [more for _, more in drawn[::2]] == [{"frames": brief_events.FRAMES}, {"frames": 16}]
    assert drawn[0][0] == ([7, 0, 1],)
    for more in ({"frames": 32}, {"brief": True, "frames": 15}):
        with pytest.raises(SettingError, match=f"frames={more['frames']}: only brief clips"):
            tiny_onevision.questions("folder", 1, 7, **more)


def test_questions_that_are_offered_differ(drawn):
    assert list(tiny_onevision.prompts("folder", 2, 7)) == ["q0", "q1"]
    assert drawn[0][0] == ([7, 0, 1], True) and list(tiny_onevision.prompts("folder", 0, 7)) == []


def test_questions_end_where_clips_bring_no_others(drawn):
    assert list(tiny_onevision.prompts("folder", 3, 7)) == ["q0", "q1"]
    assert len(drawn) < 500


@pytest.mark.parametrize("name", ("tiny-canvas", "tiny-reader"))
def test_more_prompts_than_there_are_is_said(name):
    assert len(zoo.prompts(name, 1)) == 1
    with pytest.raises(SettingError, match=f"count=2: {name} understands no more prompts than 1, ask for fewer"):
        zoo.prompts(name, 2)


def test_the_zoo_passes_the_choice_on(monkeypatch):
    calls = []

    def ask(*args, **more):
        calls.append((args, more))
        return iter("xy")

    monkeypatch.setattr(zoo, "_module", lambda name: SimpleNamespace(prompts=ask, questions=ask))
    folder = zoo.path("tiny-wan")
    assert zoo.prompts("tiny-wan", 2) == zoo.questions("tiny-wan", 2, 3, brief=True) == ["x", "y"]
    zoo.prompts("tiny-wan", 2, 4, things=1)
    assert calls == [((folder, 2, 0), {}), ((folder, 2, 3), {"brief": True}), ((folder, 2, 4), {"things": 1})]
    for ask in (zoo.path, zoo.modality):
        with pytest.raises(UnknownNameError, match="zoo model 'tiny-wam': did you mean 'tiny-wan'"):
            ask("tiny-wam")


# Words of the command line


def test_an_example_or_all_of_ones_own():
    own, shipped = SimpleNamespace(example=False), SimpleNamespace(example=True)
    check_example(own, ["clip.mp4", "what?"], "a clip")
    check_example(shipped, [None, ""], "a clip")
    check_example(shipped, [], "a clip")
    for given, lacks in (([None, "what?"], "a part"), (["clip.mp4", None], "a part"), ([None, None], ""), ([], "")):
        lacking = "a part of the input is missing" if lacks else "there is no input"
        with pytest.raises(SettingError, match=f"^{lacking}: give a clip, or --example for a shipped one"):
            check_example(own, given, "a clip")
    with pytest.raises(SettingError, match="--example replaces a file of your own"):
        check_example(shipped, [None, "what?"], "a clip")


@pytest.mark.parametrize(
    ("kind", "typed", "meant"),
    (
        ("image", "tiny-jnaus", "tiny-janus"),
        ("video", "tiny-van", "tiny-wan"),
        ("vlm", "tiny-onevison", "tiny-onevision"),
        ("speech", "moonshine-tny", "moonshine-tiny"),
    ),
)
def test_a_mistyped_name_is_told_before_the_hub_is_asked(kind, typed, meant, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownNameError, match=f"hub ids are owner/name.*'{typed}': did you mean '{meant}'") as refused:
        get_modality(kind).open(typed)
    assert refused.value.__context__ is None
    (tmp_path / typed).mkdir()
    with pytest.raises((OSError, TypeError, ValueError)) as refused:
        get_modality(kind).open(typed)
    assert not isinstance(refused.value, UnknownNameError), "a folder may have any name"


def test_a_mistyped_reader_is_told_too():
    with pytest.raises(UnknownNameError, match="did you mean 'tiny-reader'"):
        reading.load("tiny-raeder")
