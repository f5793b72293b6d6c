"""Pictures drawn by the batch on a device are those that the emoji world draws one by one."""

import numpy as np
import pytest
import torch

from mmaccel.demos.training.janus.data import draw
from mmaccel.demos.training.janus.drawing import LONGEST, Drawing
from mmaccel.demos.training.janus.shape import build_tokenizer, encode_captions
from mmaccel.demos.training.recipe import to_pixels
from mmaccel.zoo.worlds import emoji_world as world


@pytest.fixture(scope="module")
def drawing(emoji_font):
    return Drawing("cpu", seed=0, dropped=0.1)


def test_paper_and_things_have_the_same_statistics(drawing):
    pixels, _, _ = drawing.batch(1500)
    other = to_pixels(torch.cat([draw(0, step, 300, things=world.FEATURED)[0] for step in range(5)]))
    for batch in (pixels, other):
        assert batch.shape[1:] == (3, 64, 64) and batch.amin() >= -1 and batch.amax() <= 1
    assert (pixels.mean(0) - other.mean(0)).abs().max() < 0.1
    assert (pixels.std(0) - other.std(0)).abs().max() < 0.07
    flat = [(batch[:, :, :, 1:] - batch[:, :, :, :-1]).abs().mean() for batch in (pixels, other)]
    assert abs(flat[0] - flat[1]) < 0.02 * flat[1]


def test_smooth_grain_is_that_of_the_world(drawing):
    grain = np.random.default_rng(0).normal(0, 1, (16, 16))
    by_matrix = drawing.smoothing @ torch.from_numpy(grain).float() @ drawing.smoothing.T
    assert np.abs(by_matrix.numpy() - world.smooth(grain)).max() < 1e-5


def test_things_lie_where_their_captions_say(drawing):
    scene = torch.arange(len(drawing.sprite))
    _, alpha = drawing.things(scene)
    scenes = [scene for scene in _known() if not scene.held_out]
    assert len(scenes) == len(alpha)
    for facts, mask in list(zip(scenes, alpha[:, 0], strict=True))[::37]:
        rows, columns = (torch.nonzero(mask.amax(axis))[:, 0] for axis in (1, 0))
        top, left = (allowed for allowed in world.corners(facts))
        side = world.SIZES[facts.size]
        assert top.start * 4 <= rows.min() and rows.max() < (top.stop - 1) * 4 + side
        assert left.start * 4 <= columns.min() and columns.max() < (left.stop - 1) * 4 + side


def test_captions_tell_of_their_scene_or_are_left_out(drawing):
    tokenizer = build_tokenizer()
    _, text, lengths = drawing.batch(2000)
    assert text.shape == (2000, LONGEST)
    whole = {tuple(row) for row in _every_caption(tokenizer)}
    left_out = 0
    for row, length in zip(text.tolist(), lengths.tolist(), strict=True):
        assert row[length:] == [tokenizer.pad_token_id] * (LONGEST - length)
        words = set(row[1 : length - 1])
        left_out += words == {tokenizer.pad_token_id}
        assert words == {tokenizer.pad_token_id} or tuple(row[:length]) in whole
    assert 130 < left_out < 280


def test_a_batch_depends_on_the_seed_alone(drawing):
    one, same, other = (Drawing("cpu", seed=seed, dropped=0.1).batch(8) for seed in (7, 7, 8))
    assert all(torch.equal(part, again) for part, again in zip(one, same, strict=True))
    assert not torch.equal(one[0], other[0])


def _known():
    return [
        world.EmojiScene(name, size, background, place)
        for name in world.FEATURED
        for size in world.SIZES
        for background in world.BACKGROUNDS
        for place in (world.PLACES if size == "small" else ("center",))
    ]


def _every_caption(tokenizer):
    ways = [(size, ground, place) for size in (0, 1) for ground in (0, 1) for place in (0, 1)]
    captions = sorted({world.worded(scene, *way) for scene in _known() for way in ways})
    return encode_captions(tokenizer, captions, [False] * len(captions))
