"""The video language model of the zoo: its world, its questions, its processor, its training, its answers."""

import copy
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from mmaccel import zoo
from mmaccel.demos.training.onevision import data, parts, save, shape, thin, thinning, train
from mmaccel.demos.training.recipe import to_pixels
from mmaccel.errors import PromptError, SettingError
from mmaccel.zoo import frames as frames_module
from mmaccel.zoo import tiny_onevision as shipped
from mmaccel.zoo.worlds import moving_questions, moving_world

FOLDER = Path(zoo.__file__).parent / "tiny-onevision"
drawn = pytest.mark.usefixtures("emoji_font")
trained = pytest.mark.skipif(not (FOLDER / "model.safetensors").is_file(), reason="not trained yet")
FACTS = {"names": list(moving_world.NAMES)}
ONEVISION = moving_world.ONEVISION


@pytest.fixture(scope="module")
def clips(emoji_font):
    return [moving_world.draw_clip(seed, footage=ONEVISION) for seed in range(120)]


@pytest.fixture(scope="module")
def tokenizer():
    return shape.build_tokenizer()


@pytest.fixture(scope="module")
def module(tokenizer):
    torch.manual_seed(0)
    return parts.Trained(shape.build_model(tokenizer), tokenizer).eval()


@pytest.fixture(scope="module")
def folder(module, tokenizer, emoji_font, tmp_path_factory):
    target = tmp_path_factory.mktemp("zoo") / "model"
    save.save(module.model, tokenizer, target, FACTS)
    return target


@pytest.fixture(scope="module")
def processor(folder):
    return shipped.load_processor(folder)


# ---------------------------------------------------------------- the world


def test_clips_are_longer_and_fuller_than_those_of_tiny_wan(clips):
    assert all(clip.frames.shape == (32, 64, 64, 3) for clip in clips)
    assert {len(clip.scene.actors) for clip in clips} == {1, 2, 3}
    assert any(actor.appears for clip in clips for actor in clip.scene.actors)
    assert all(min(actor.appears for actor in clip.scene.actors) == 0 for clip in clips)


def test_late_things_appear_when_the_facts_say(clips):
    for clip in clips[:40]:
        for actor, path in zip(clip.scene.actors, clip.places, strict=True):
            if actor.appears:
                top, left = path[actor.appears]
                box = (slice(top, top + 24), slice(left, left + 24))
                before, after = (clip.frames[t][box].astype(int) for t in (actor.appears - 1, actor.appears))
                assert np.abs(before - after).max() > 30


def test_some_frames_are_those_of_the_whole_clip(clips):
    some = moving_world.draw_clip(3, footage=ONEVISION, times=[0, 9, 31])
    assert np.array_equal(some.frames, clips[3].frames[[0, 9, 31]])
    assert np.array_equal(some.places, clips[3].places)


# ---------------------------------------------------------------- questions


def test_answers_follow_from_where_things_are(clips):
    """The facts are read off the places, not off the scene that the answers come from."""
    for clip in clips:
        paths = {actor.name: path for actor, path in zip(clip.scene.actors, clip.places, strict=True)}
        going = {name: _way(path) for name, path in paths.items()}
        for asked in moving_questions.questions(clip):
            named = [name for name in moving_world.NAMES if f" {name} " in asked.text.replace("?", " ")]
            if asked.kind == "motion":
                assert asked.answer == going[named[0]]
            elif asked.kind == "mover":
                way = "nowhere" if "stays" in asked.text else asked.text.rstrip("?").split()[-1]
                assert [name for name in going if going[name] == way] == ([asked.answer] * (asked.answer != "nothing"))
            elif asked.kind in ("start", "end"):
                assert asked.answer == _quadrant(paths[named[0]][0 if asked.kind == "start" else -1])
            elif asked.kind == "presence":
                assert (asked.answer == "yes") == (named[0] in paths)
            elif asked.kind == "count":
                assert asked.answer == ("one", "two", "three")[len(paths) - 1]


def _way(path):
    return {(0, 0): "nowhere", (-1, 0): "up", (1, 0): "down", (0, -1): "left", (0, 1): "right"}[
        tuple(np.sign(path[-1] - path[0]).tolist())
    ]


def _quadrant(place):
    rows, columns = place + moving_world.SPRITE_SIZE / 2 > moving_world.IMAGE_SIZE / 2
    return f"{'bottom' if rows else 'top'} {'right' if columns else 'left'}"


def test_order_is_that_of_appearance(clips):
    told = 0
    for clip in clips:
        appears = {actor.name: actor.appears for actor in clip.scene.actors}
        for asked in moving_questions.questions(clip):
            if asked.kind == "order":
                names = asked.answer.split(" then ")
                assert sorted(names) == sorted(appears) and len(set(appears.values())) == len(appears)
                assert [appears[n] for n in names] == sorted(appears.values())
                told += 1
            if asked.kind in ("first", "last"):
                assert appears[asked.answer] == (min if asked.kind == "first" else max)(appears.values())
    assert told > 5


def test_no_question_is_asked_twice_and_kinds_come_in_turn(clips):
    kinds = set()
    for clip in clips:
        texts = [asked.text for asked in moving_questions.questions(clip)]
        assert len(texts) == len(set(texts))
        chosen = moving_questions.choose(clip, np.random.default_rng(0), 4)
        assert len({asked.kind for asked in chosen}) == 4
        kinds |= {asked.kind for asked in chosen}
    assert kinds == set(moving_questions.KINDS)


def test_every_word_is_known(clips, tokenizer):
    for clip in clips:
        for asked in moving_questions.questions(clip):
            assert tokenizer.unk_token_id not in tokenizer(f"{asked.text} {asked.answer}")["input_ids"]


def test_held_out_questions_need_no_font(folder, monkeypatch):
    monkeypatch.setattr(moving_world, "sprite", None)
    monkeypatch.setattr("mmaccel.zoo.worlds.emoji_world.font", None)
    rows = list(shipped.questions(folder, 12, 0))
    again = list(shipped.questions(folder, 12, 0))
    assert [row[1:] for row in rows] == [row[1:] for row in again]
    assert all(np.array_equal(one.frames, two.frames) for one, two in zip(rows, again, strict=True))
    assert len({row.frames.tobytes() for row in rows}) == 3 and rows[0].frames.shape == (32, 64, 64, 3)
    assert next(shipped.questions(folder, 1, 1)).frames.tobytes() != rows[0].frames.tobytes()


def test_shipped_pictures_are_those_of_training(folder):
    drawn = moving_world.draw_clip([4, 4], footage=ONEVISION).frames
    loaded = moving_world.draw_clip([4, 4], footage=ONEVISION, sprites=shipped.sprites_of(folder)).frames
    assert np.abs(drawn.astype(int) - loaded).max() <= 2


def test_only_this_model_answers_questions():
    with pytest.raises(SettingError, match="tiny-onevision"):
        zoo.questions("tiny-wan", 1)


# ---------------------------------------------------------------- the processor


def _placeholders(processor, inputs, token):
    return (inputs["input_ids"] == processor.tokenizer.convert_tokens_to_ids(token)).sum(1).tolist()


def _kinds_of_video():
    frames = np.random.default_rng(0).integers(0, 256, (3, 40, 50, 3), dtype=np.uint8)
    tensor = torch.from_numpy(frames)
    pictures = [Image.fromarray(frame) for frame in frames]
    first_channels = tensor.movedim(-1, 1)
    return frames, [frames, list(frames), tensor, pictures, first_channels, first_channels / 255]


def test_videos_of_every_make_become_the_same(processor):
    frames, videos = _kinds_of_video()
    expected = processor(videos=[frames], text="what stays?")
    assert expected["pixel_values_videos"].shape == (1, 3, 3, 64, 64)
    assert _placeholders(processor, expected, "<video>") == [3 * 64 + 1]
    for video in videos:
        for given in ([video], video):
            inputs = processor(videos=given, text="what stays?", return_tensors="pt")
            assert torch.equal(inputs["pixel_values_videos"], expected["pixel_values_videos"])
            assert torch.equal(inputs["input_ids"], expected["input_ids"])


def test_frames_of_the_right_size_are_as_in_training(processor, clips):
    inputs = processor(videos=[clips[0].frames], text="what stays?")
    expected = to_pixels(torch.from_numpy(clips[0].frames))
    torch.testing.assert_close(inputs["pixel_values_videos"][0], expected)


def test_texts_are_padded_on_the_left(processor, clips):
    texts = ["what stays?", "where is the christmas tree at the start?"]
    inputs = processor(videos=[clips[0].frames[:2], clips[1].frames[:2]], text=texts)
    assert inputs["attention_mask"][0, 0] == 0 and inputs["attention_mask"][:, -1].tolist() == [1, 1]
    assert _placeholders(processor, inputs, "<video>") == [129, 129]


def test_several_videos_and_images_in_a_prompt_and_any_size(processor, folder):
    model, _ = shipped.load(folder)
    noise = np.random.default_rng(0).integers(0, 256, (2, 48, 80, 3), dtype=np.uint8)
    prompts = [
        {"videos": [noise, noise], "text": "<video> <video> what stays?"},
        {"images": [noise[0]], "text": "<image> what stays?"},
        {"images": noise[0][:, :30], "text": "what stays?"},
        {"images": [noise[0], noise[1]], "text": "<image> <image> what stays?"},
        {"images": [noise[0]], "videos": [noise], "text": "<image> <video> what stays?"},
        {"images": [noise[0], noise[1]], "text": ["what stays?", "what moves up?"]},
        {"text": "what stays?"},
    ]
    for prompt in prompts:
        inputs = processor(**prompt, return_tensors="pt")
        tokens = model.generate(**inputs, max_new_tokens=2, do_sample=False)
        assert tokens.shape[0] == len(inputs["input_ids"])


def test_conversations(processor, clips):
    frames = clips[0].frames[:2]
    asked = [{"type": "video", "video": frames}, {"type": "text", "text": "what moves up?"}]
    conversation = [{"role": "user", "content": asked}]
    text = processor.apply_chat_template(conversation, add_generation_prompt=True)
    assert text.count("<video>") == 1 and text.rstrip().endswith("assistant")
    inputs = processor.apply_chat_template(conversation, tokenize=True, add_generation_prompt=True)
    plain = processor(videos=[frames], text="what moves up?")
    assert all(torch.equal(inputs[key], plain[key]) for key in plain)
    both = processor.apply_chat_template([conversation] * 2, tokenize=True, add_generation_prompt=True)
    assert torch.equal(both["input_ids"], plain["input_ids"].repeat(2, 1))
    ids = processor.apply_chat_template(conversation, tokenize=True, add_generation_prompt=True, return_dict=False)
    assert torch.equal(ids, plain["input_ids"])


@pytest.mark.parametrize(
    ("videos", "text", "words"),
    [
        (1, "<video> <video> what stays?", "2 placeholders"),
        (2, "what stays?", "2 videos"),
        (1, None, "what to ask"),
    ],
)
def test_prompts_that_do_not_fit(processor, clips, videos, text, words):
    with pytest.raises(PromptError, match=words):
        processor(videos=[clips[0].frames[:2]] * videos, text=text)


def test_videos_of_different_length(processor, clips):
    with pytest.raises(PromptError, match=r"\[2, 3\]"):
        processor(videos=[clips[0].frames[:2], clips[1].frames[:3]], text=["what stays?"] * 2)


@pytest.fixture(scope="module")
def shipped_processor():
    """That of the packaged model, which needs no font."""
    return shipped.load_processor(zoo.path("tiny-onevision"))


def test_pixels_of_every_kind_become_a_picture_in_rgb():
    pixels = np.array([[[0, 51, 255], [254, 1, 2]]], np.uint8)
    floats = pixels / np.float32(255)
    kinds = [
        pixels,
        floats,
        floats.transpose(2, 0, 1),
        torch.from_numpy(floats).requires_grad_(),
        torch.from_numpy(pixels),
    ]
    for given in [*kinds, Image.fromarray(pixels), Image.fromarray(pixels).convert("RGBA")]:
        made = frames_module._pil(given)
        assert made.mode == "RGB" and np.array_equal(np.asarray(made), pixels)
    assert frames_module._pil(Image.new("RGBA", (1, 1))).getpixel((0, 0)) == (255, 255, 255), "as other processors do"
    wild = np.array([[[-1.0, 2.0, 0.4999 / 255]]])
    assert np.asarray(frames_module._pil(wild)).tolist() == [[[0, 255, 0]]]
    square = np.zeros((3, 3, 3), np.uint8)
    square[0] = 9
    assert np.asarray(frames_module._pil(square))[0].min() == 9, "the last axis is that of colours where both could be"


@pytest.mark.parametrize("kind", (np.float32, np.int64, np.uint16))
def test_pixels_to_255_of_another_kind_are_no_white_picture(kind):
    pixels = np.array([[[0, 51, 255]]], kind)
    for given in (pixels, torch.from_numpy(pixels.astype(np.int64)).float()):
        with pytest.raises(PromptError, match=r"goes up to 255: give uint8, or floats in \[0, 1\]"):
            frames_module._pil(given)


def test_one_or_several_of_everything():
    one = np.zeros((4, 4, 3), np.uint8)
    listed = frames_module._listed
    assert listed(None, 3) == [] and [x.shape for x in listed(np.stack([one, one]), 3)] == [one.shape] * 2
    assert len(listed(one, 3)) == len(listed(Image.fromarray(one), 3)) == 1 and len(listed([one, one, one], 3)) == 3
    assert len(listed([one, one], 4)) == 1 and len(listed([[one, one], [one, one]], 4)) == 2
    assert len(listed(np.stack([one, one]), 4)) == 1 and len(listed([np.stack([one, one])] * 2, 4)) == 2
    assert len(listed((Image.fromarray(one),) * 2, 4)) == 1


def test_lists_without_padding_and_texts_alone(shipped_processor):
    texts = ["what stays?", "where is the star at the start?"]
    inputs = shipped_processor(text=texts, return_tensors=None, padding=False)
    assert len(inputs["input_ids"][0]) < len(inputs["input_ids"][1]) and isinstance(inputs["input_ids"], list)
    assert set(inputs) == {"input_ids", "attention_mask"}
    alone = shipped_processor(text=texts[0])["input_ids"]
    assert torch.equal(alone, shipped_processor.tokenizer(texts[:1], return_tensors="pt")["input_ids"]), "as it stands"


def test_conversations_about_pictures_in_their_order(shipped_processor):
    pictures = [np.full((8, 8, 3), value, np.uint8) for value in (10, 200)]

    def asked(picture):
        parts = [{"type": "image", "image": picture}, {"type": "text", "text": "what stays?", "video": "no video"}]
        return [{"role": "user", "content": parts}]

    chats = [
        [*asked(picture), {"role": "assistant", "content": [{"type": "text", "text": "star"}]}] for picture in pictures
    ]
    inputs = shipped_processor.apply_chat_template(chats, tokenize=True)
    texts = shipped_processor.apply_chat_template(chats)
    expected = shipped_processor(images=pictures, text=texts)
    assert set(inputs) == set(expected) and "pixel_values_videos" not in inputs
    assert torch.equal(inputs["batch_num_images"], torch.tensor([1, 1]))
    asked_of_both = shipped_processor(images=pictures, text=["what stays?", "what moves up?"])
    assert ["what stays" in said for said in shipped_processor.batch_decode(asked_of_both["input_ids"])] == [
        True,
        False,
    ]
    assert all(torch.equal(inputs[key], expected[key]) for key in expected)
    lists = shipped_processor.apply_chat_template(
        asked(pictures[0]), tokenize=True, return_tensors=None, return_dict=False
    )
    assert isinstance(lists, list) and len(lists) == 1
    with pytest.raises(PromptError, match="1 placeholders <image> for 0 images"):
        shipped_processor.apply_chat_template([{"role": "user", "content": [{"type": "image"}]}], tokenize=True)
    said, longer = (
        shipped_processor.apply_chat_template(asked(pictures[0]), add_generation_prompt=more) for more in (False, True)
    )
    assert longer.startswith(said) and longer != said
    ids = shipped_processor.apply_chat_template(asked(pictures[0]), tokenize=True, add_generation_prompt=True)
    assert torch.equal(ids["input_ids"], shipped_processor(images=pictures[:1], text=longer)["input_ids"])


def test_pictures_take_tokens_for_their_tiles_and_span_minus_1_to_1(shipped_processor):
    white = np.full((64, 128, 3), 255, np.uint8)
    whole = shipped_processor.side**2

    def counted(*pictures, text):
        inputs = shipped_processor(images=list(pictures), text=text)
        assert inputs["pixel_values"].max() == 1
        return _placeholders(shipped_processor, inputs, "<image>")

    rows, columns = shipped_processor.side // 2, shipped_processor.side  # of the one tile, without its padding
    assert counted(white, text="what stays?") == [whole + rows * (columns + 1)], "each row of tiles has an end"
    assert counted(white, white, text="<image> <image> what stays?") == [2 * (whole + 1)], "no tiles"
    black = shipped_processor(videos=[[np.zeros_like(white)] * 3], text="what stays?")
    assert black["pixel_values_videos"].unique().tolist() == [-1]
    assert _placeholders(shipped_processor, black, "<video>") == [3 * math.ceil(shipped_processor.side / 2) ** 2 + 1]


@pytest.mark.parametrize(
    ("images", "videos", "text", "words"),
    (
        (0, 0, "<image> what stays?", "1 placeholders <image> for 0 images"),
        (1, 1, "<video> what stays?", "0 placeholders <image> for 1 images"),
        (0, 2, "what stays?", "1 texts without placeholders for 0 images and 2 videos"),
        (1, 1, "what stays?", "1 texts without placeholders for 1 images and 1 videos"),
    ),
)
def test_placeholders_are_counted_for_each_kind(shipped_processor, images, videos, text, words):
    one = np.zeros((8, 8, 3), np.uint8)
    with pytest.raises(PromptError, match=words):
        shipped_processor(images=[one] * images or None, videos=[[one]] * videos or None, text=text)


# ---------------------------------------------------------------- the training


def test_packed_questions_are_answered_as_lone_ones(module, folder, tokenizer, clips):
    """Same logits as the real model gives to each question alone, so nothing leaks from one to the next."""
    model, processor = shipped.load(folder)
    model.load_state_dict(module.model.state_dict())
    clip, packer = clips[0], data.Packer(tokenizer)
    asked = moving_questions.choose(clip, np.random.default_rng(0), 3)
    frames, (tokens, labels) = clip.frames[:9], packer([asked])
    with torch.no_grad():
        packed, _, _ = module(module.features(torch.from_numpy(frames)[None]), tokens)
        for i, question in enumerate(asked):
            inputs = processor(videos=[frames], text=question.text)
            answer = torch.tensor(tokenizer(question.answer)["input_ids"])[None]
            ids = torch.cat([inputs["input_ids"], answer], 1)
            alone = model(input_ids=ids, pixel_values_videos=inputs["pixel_values_videos"]).logits[0]
            length = len(packer.encode(question)[0])
            torch.testing.assert_close(packed[0, i, :length], alone[-length:], atol=2e-4, rtol=1e-4)
            told = labels[0, i][labels[0, i] >= 0].tolist()
            assert told == [*answer[0].tolist(), tokenizer.eos_token_id]


def test_dense_labels_are_where_the_things_are(clips):
    for clip in clips[:20]:
        times = np.array([0, 4, 15, 31])
        things, tracks, arrivals = data.dense_labels(clip, times)
        ground = data.GROUNDS[clip.scene.background]
        for row, time in enumerate(times):
            visible = {actor.name for actor in clip.scene.actors if actor.appears <= time}
            seen = {name for name, label in data.THINGS.items() if label in things[row]}
            assert seen == visible and ground in things[row]
        latest = max(actor.appears for actor in clip.scene.actors)
        shown = {data.THINGS[a.name]: a.appears for a in clip.scene.actors}
        for label, thing in zip(arrivals[arrivals >= 0].tolist(), things[arrivals >= 0].tolist(), strict=True):
            assert latest and shown[thing] == (latest if label else 0)
        assert latest or (arrivals < 0).all()
        told = set(tracks[-1][tracks[-1] >= 0].tolist())
        names, motions = data.THINGS, data.MOTIONS
        assert (tracks[0] < 0).all()
        assert told == {names[a.name] * len(motions) + motions[a.motion] for a in clip.scene.actors if a.appears <= 15}


def test_words_of_a_question_mean_the_thing_they_ask_about(clips):
    names, motions = data.THINGS, data.MOTIONS
    for clip in clips[:20]:
        actors = clip.scene.actors
        actor = actors[0]
        track = names[actor.name] * len(motions) + motions[actor.motion]
        others = [name for name in names if name not in {a.name for a in actors}]
        words = ["is", "there", "a", actor.name.split()[-1], others[0].split()[-1]]
        found = data.meant(clip, words).tolist()
        assert found == [data.IGNORED] * 3 + [track, data.IGNORED]
        takers = [a for a in actors if a.motion == actor.motion]
        (way,) = data.meant(clip, [actor.motion.split()[-1]])
        assert way == (track if len(takers) == 1 else data.IGNORED)


@drawn
def test_leaving_no_token_out_changes_nothing(tokenizer):
    torch.manual_seed(0)
    trained = parts.Trained(shape.build_model(tokenizer), tokenizer).eval()
    batch = data.draw(data.Packer(tokenizer), [3], count=2, length=4, asked=3)
    everything = torch.arange(4 * 64).expand(2, -1)
    with torch.no_grad():
        features = trained.features(batch.frames)
        for times in (None, batch.times):
            whole = trained(features, batch.tokens, times)
            for same, other in zip(whole, trained(features, batch.tokens, times, everything, everything), strict=True):
                assert torch.equal(same, other)


@drawn
def test_thinning_keeps_labels_with_their_tokens(tokenizer):
    batch = data.draw(data.Packer(tokenizer), [4], count=3, length=8, asked=3)
    features = torch.randn(3, 8 * 64 + 1, 12)
    sizes, changed = set(), set()
    for seed in range(12):
        left = thinning.thin(features, batch, [seed])
        kept, late = left.kept, left.late
        again = thinning.thin(features, batch, [seed])
        assert torch.equal(kept, again.kept) and torch.equal(left.features, again.features)
        assert (kept.diff(dim=1) > 0).all() and (late.diff(dim=1) > 0).all() and late.max() < kept.shape[1]
        for row in range(3):
            assert torch.equal(left.batch.things[row, 0], batch.things[row].flatten()[kept[row]])
            assert torch.equal(left.batch.tracks[row, 0], batch.tracks[row].flatten()[kept[row]])
        sizes.add((kept.shape[1], late.shape[1]))
        changed.add(torch.equal(left.features, features))
        assert torch.equal(left.features[:, -1], features[:, -1])  # the end of the video is no token of it
    assert min(size for size, _ in sizes) < 0.2 * 8 * 64 and max(size for size, _ in sizes) > 0.5 * 8 * 64
    assert any(late < kept for kept, late in sizes) and any(late == kept for kept, late in sizes)
    assert changed == {True, False}  # some are merged, some dropped


@drawn
def test_thinning_may_go_by_attention(tokenizer, monkeypatch):
    monkeypatch.setattr(thinning, "scarce", lambda things, rng: 0)  # which goes by things
    batch = data.draw(data.Packer(tokenizer), [5], count=1, length=4, asked=1)
    features, attention = torch.randn(1, 4 * 64 + 1, 12), torch.rand(4, 64)
    first = attention.argsort(-1, descending=True)[:, 0] + 64 * torch.arange(4)
    found = [
        set(first.tolist()) <= set(thinning.thin(features, batch, [seed], 0.1, given).kept[0].tolist())
        for given in (attention, None)
        for seed in range(24)
    ]
    assert sum(found[:24]) > sum(found[24:]) + 4, "what receives most stays no more often"
    shares = [thinning.thin(features, batch, [seed], 0.1).kept.shape[1] / 256 for seed in range(24)]
    assert max(shares) <= 0.105 and 0.015 <= min(shares) < 0.075


@drawn
def test_things_may_be_shown_unevenly(tokenizer):
    things = data.draw(data.Packer(tokenizer), [8], count=6, length=32, asked=1).things
    left_out = thinning.scarce(things, np.random.default_rng(0)).view_as(things).bool()
    shares = []
    for clip, out in zip(things, left_out, strict=True):
        for kind in clip.unique():
            frames = (clip == kind).any(1).nonzero().flatten().tolist()
            here = [out[frame][clip[frame] == kind] for frame in frames]
            assert all(place.all() or not place.any() for place in here), "a part of a thing in a frame"
            assert not here[0].any(), "it is not there when it comes"
            shares.append(1 - sum(place.float().mean() for place in here) / len(here))
    assert min(shares) < 0.15 and max(shares) > 0.85


def test_it_ends_half_way_between_the_weights_before_and_after():
    before, after = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    began, ended = before.weight.clone(), after.weight.clone()
    thin.between(before, after)
    assert torch.allclose(after.weight, (began + ended) / 2) and torch.equal(before.weight, began)
    assert not torch.equal(began, ended)


@pytest.fixture
def changed_by(tmp_path, monkeypatch):
    """What a short training changes of the shipped weights, and what it tells."""
    monkeypatch.setattr(thin, "LOOKING", 1)
    monkeypatch.setattr(thin, "CLIPS", 1)
    monkeypatch.setattr(thin, "PARTS", 2)

    def run(*minutes):
        thin.main(["--output", str(tmp_path), *minutes, "--questions", "4", "--threads", "1"])
        before, after = (dict(shipped.load(folder)[0].named_parameters()) for folder in (FOLDER, tmp_path / "model"))
        told = json.loads((tmp_path / "model" / "training.json").read_text())
        return {name for name in before if not torch.equal(before[name], after[name])}, told

    return run


@drawn
@trained
def test_training_goes_on_from_shipped_weights(changed_by):
    changed, told = changed_by("--minutes", "0.01", "--tower-minutes", "0")
    assert any("language_model.layers" in name for name in changed)
    assert not any("vision_tower" in name or "projector" in name for name in changed)
    facts = json.loads((FOLDER / "training.json").read_text())
    assert told["minutes"] == facts["minutes"] + 0.01 and told["steps"] > facts["steps"]
    assert told["tower_minutes"] == facts["tower_minutes"] and set(told["accuracy"]) >= {"all"}


@drawn
@trained
def test_where_the_tower_looks_changes_its_last_layer(changed_by):
    changed, _ = changed_by("--minutes", "0.02", "--tower-minutes", "0.01")
    layers = {name.split("layers.")[1][0] for name in changed if "vision_tower" in name and "layers." in name}
    assert layers == {"3"} and not any("embeddings" in name for name in changed)
    with pytest.raises(SystemExit):
        changed_by("--minutes", "1", "--tower-minutes", "1")


def test_a_recipe_without_time_for_the_language_model_is_refused_at_once(tmp_path, capsys):
    with pytest.raises(SystemExit):
        train.main(["--output", str(tmp_path / "run"), "--minutes", "5"])
    assert "--tower-minutes: leave some of --minutes" in capsys.readouterr().err and not (tmp_path / "run").exists()


@drawn
def test_each_thing_gets_the_same_share_of_looks(tokenizer):
    batch = data.draw(data.Packer(tokenizer), [7], count=6, length=4, asked=1)
    things = batch.things.flatten(0, 1)
    shares = parts.middles(things)
    assert torch.allclose(shares.sum(-1), torch.ones(24))
    for frame, share in zip(things, shares, strict=True):
        shown = frame[(frame >= 0) & (frame < len(data.THINGS))].unique()
        each = torch.stack([share[frame == thing].sum() for thing in shown])
        assert torch.allclose(each, torch.full_like(each, 1 / len(shown)))
    square = torch.full((8, 8), 14)
    square[2:5, 3:6] = 0
    assert parts.middles(square.view(1, -1)).argmax() == 3 * 8 + 4
    assert not parts.middles(torch.full((1, 64), 14)).any()


@drawn
def test_looks_are_learned_in_the_last_layer(tokenizer, module):
    batch = data.draw(data.Packer(tokenizer), [8], count=2, length=4, asked=1)
    module.zero_grad()
    module.features(batch.frames)
    loss = module.looking_loss(batch)
    loss.backward()
    found = {name for name, weight in module.named_parameters() if weight.grad is not None}
    module.zero_grad()
    assert any("layers.3.self_attn.q_proj" in name for name in found) and not any(
        "v_proj" in n for n in found if "3." in n
    )
    uniform = torch.tensor(64.0).log()  # an untrained tower looks everywhere alike
    assert abs(loss - uniform) < 0.5


def test_what_is_left_out_joins_the_most_similar_token():
    tokens = torch.tensor([[[1.0, 0.0], [3.0, 0.1], [0.0, 2.0], [0.1, 4.0], [5.0, 0.0]]])
    merged = thinning.joined(tokens, torch.tensor([[0, 3]]), own=0.25)
    expected = torch.stack(
        [0.25 * tokens[0, 0] + 0.75 * tokens[0, [1, 4]].mean(0), 0.25 * tokens[0, 3] + 0.75 * tokens[0, 2]]
    )
    assert torch.allclose(merged[0], expected)
    alone = thinning.joined(tokens, torch.arange(5)[None], own=0.25)
    assert torch.equal(alone, tokens)


def test_repeated_tokens_are_like_those_at_their_place_before():
    frames = torch.randn(1, 1, 64, 16).expand(-1, 3, -1, -1).clone()
    frames[0, 2, 10] *= -1
    told = thinning.repeated(frames.flatten(1, 2), tau=0.9).unflatten(1, (3, 64))
    assert not told[0, 0].any() and told[0, 1].all()
    assert told[0, 2].sum() == 63 and not told[0, 2, 10]


def test_a_run_of_repeats_is_its_mean():
    tokens = torch.randn(2, 5 * 64, 3)
    again = torch.zeros(2, 5, 64)
    again[0, 1:3, 7] = 1
    again[1, 4, 9] = 1
    expected = tokens.view(2, 5, 64, 3).clone()
    expected[0, :3, 7] = expected[0, :3, 7].mean(0)
    expected[1, 3:, 9] = expected[1, 3:, 9].mean(0)
    found = thinning.averaged(tokens, again.flatten(1))
    assert torch.allclose(found, expected.flatten(1, 2), atol=1e-6)


def test_soften_brings_only_sharp_heads_down_to_the_spread(tokenizer):
    torch.manual_seed(0)
    trained = parts.Trained(shape.build_model(tokenizer), tokenizer).eval()
    language = trained.model.model.language_model
    sharp = language.layers[2].self_attn
    with torch.no_grad():
        sharp.q_proj.weight[: sharp.head_dim] *= 40  # the first head
    features, tokens = torch.randn(1, 4 * 64 + 1, shape.WIDTH), torch.randint(6, 20, (1, 3, 8))

    @torch.no_grad()
    def spreads():
        trained(features, tokens)
        return torch.stack([layer.self_attn.spread for layer in language.layers])

    before = spreads()
    weights = sharp.q_proj.weight.clone()
    assert before[2, 0] > parts.SPREAD > before[2, 1:].max()
    parts.soften(language)
    assert torch.equal(sharp.q_proj.weight[sharp.head_dim :], weights[sharp.head_dim :])
    torch.testing.assert_close(spreads()[2, 0], torch.tensor(parts.SPREAD), rtol=1e-3, atol=0)


def test_gapped_positions_are_those_of_the_whole_clip():
    tokens, times = torch.zeros(1, 2, 5, dtype=torch.long), torch.tensor([[0, 7]])
    positions = parts.Trained._positions(2, 129, tokens, times)[0].tolist()
    frames = [*range(2, 66), *range(2 + 7 * 64, 2 + 8 * 64)]
    newline = 2 + 8 * 64
    assert positions == [0, 1, *frames, newline, *list(range(newline + 1, newline + 6)) * 2]


def test_save_and_load_keep_the_weights_in_float16(module, folder):
    from transformers import LlavaOnevisionForConditionalGeneration

    model, _ = shipped.load(folder)
    assert type(model) is LlavaOnevisionForConditionalGeneration
    assert model.config.text_config._attn_implementation == model.config.vision_config._attn_implementation == "sdpa"
    wanted = copy.deepcopy(module.model)
    shape.rescale(wanted, 1 / shape.STREAM)
    saved = dict(model.named_parameters())
    for name, parameter in wanted.named_parameters():
        assert torch.equal(saved[name], parameter.half().float())
    shape.rescale(model, shape.STREAM)
    for name, parameter in module.model.named_parameters():
        assert torch.allclose(saved[name], parameter, rtol=2**-10, atol=4e-6)
    assert (folder / "model.safetensors").stat().st_size < 20e6
    assert json.loads((folder / "training.json").read_text()) == FACTS


def test_rescaling_changes_no_logit(tokenizer):
    torch.manual_seed(0)
    model = shape.build_model(tokenizer).eval()
    tokens, seen = torch.randint(6, len(tokenizer), (1, 9)), torch.randint(0, 256, (1, 2, 64, 64, 3))
    pixels = to_pixels(seen)
    with torch.no_grad():
        video, newline = model.get_video_features(pixels).pooler_output, model.model.image_newline.clone()
        logits = model(tokens).logits
        shape.rescale(model, 1 / shape.STREAM)
        assert torch.allclose(model.get_video_features(pixels).pooler_output * shape.STREAM, video, rtol=1e-4)
        assert torch.allclose(model.model.image_newline * shape.STREAM, newline)
        assert torch.allclose(model(tokens).logits, logits, atol=1e-4, rtol=1e-4)
    assert model.config.text_config.rms_norm_eps == 1e-6 / shape.STREAM**2


# ---------------------------------------------------------------- the trained model


@trained
def test_it_answers_held_out_questions():
    from mmaccel.demos.training.onevision.check import accuracy

    measured = json.loads((FOLDER / "training.json").read_text())["accuracy"]
    assert measured["all"] > 0.9
    assert accuracy(FOLDER, 20, seed=7)["all"] > measured["all"] - 0.15


@trained
def test_there_are_enough_questions():
    rows = zoo.questions("tiny-onevision", 500, seed=3)
    assert len({row.frames.tobytes() for row in rows}) >= 100
    assert {row.kind for row in rows} == set(moving_questions.KINDS)
    prompts = zoo.prompts("tiny-onevision", 50, seed=1)
    assert len(set(prompts)) == 50 and prompts == zoo.prompts("tiny-onevision", 50, seed=1)


@trained
def test_a_lone_question_is_answered_by_the_plain_call():
    model, processor = zoo.load("tiny-onevision")
    row = next(row for row in zoo.questions("tiny-onevision", 20, seed=0) if row.kind == "background")
    inputs = processor(videos=[row.frames], text=row.question, return_tensors="pt")
    tokens = model.generate(**inputs)[:, inputs["input_ids"].shape[1] :]
    assert processor.batch_decode(tokens, skip_special_tokens=True) == [row.answer]
