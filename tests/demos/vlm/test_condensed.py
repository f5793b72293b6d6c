"""The script that measures TCA, on untrained models and pictures of noise."""

import numpy as np
import pytest
import torch
from transformers import CLIPConfig, CLIPModel

from mmaccel.comparison import results
from mmaccel.demos.training import picture_text
from mmaccel.demos.vlm import condensed_pictures
from mmaccel.testing.snapshot import snapshot
from mmaccel.testing.untrained import untrained
from mmaccel.vlm import TCA
from mmaccel.zoo.worlds import emoji_world

TINY = {"num_hidden_layers": 4, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}


def noise(seed, count):
    rng = np.random.default_rng(seed)
    scenes = [emoji_world.random_scene(rng, emoji_world.FEATURED[:3]) for _ in range(count)]
    return rng.integers(0, 256, (count, 64, 64, 3), dtype=np.uint8), scenes


def tiny(**vision):
    config = CLIPConfig(vision_config={**TINY, **vision}, text_config=TINY)
    return untrained(lambda: CLIPModel(config))


def test_layers_get_the_share_of_tokens_that_the_page_says():
    assert condensed_pictures.mean_share({}, 12) == 1
    assert condensed_pictures.mean_share({1: 0.5, 3: 0.2}, 4) == pytest.approx((1 + 0.5 + 0.5 + 0.2) / 4)
    shares = TCA(keep=0.3).shares(12)
    sizes = [1.0] * 3 + [share for share in shares.values() for _ in range(3)]
    assert condensed_pictures.mean_share(shares, 12) == pytest.approx(sum(sizes) / 12)


def test_the_most_attended_stay_and_chance_draws():
    patches, scores = torch.arange(24.0).view(2, 6, 2), torch.tensor([[0.0, 5, 1, 4, 2, 3], [9.0, 8, 7, 6, 5, 4]])
    best = condensed_pictures.Simpler([], 0.5, chance=False).left(patches, scores, 2)
    assert torch.equal(best, torch.stack([patches[0, [1, 3]], patches[1, [0, 1]]]))
    drawn = condensed_pictures.Simpler([], 0.5, chance=True).left(patches, scores, 6)
    assert torch.equal(drawn.sort(1).values, patches), "each once"


@torch.no_grad()
def test_every_way_is_on_the_page_and_leaves_the_model_as_it_was(monkeypatch):
    monkeypatch.setattr(picture_text, "held_out", noise)
    monkeypatch.setattr(condensed_pictures, "base_model", lambda: tiny(patch_size=32))
    tokenizer = picture_text.build_tokenizer()
    model = untrained(lambda: picture_text.build_model(tokenizer))
    before = snapshot(model)
    rows = [*condensed_pictures.right(model, tokenizer, 2, 0), *condensed_pictures.times((1, 2), 1)]
    assert snapshot(model) == before
    page = condensed_pictures.page(results.result(rows))
    ways = condensed_pictures.ways(model)
    assert len(rows) == len(ways) * (len(condensed_pictures.SHIFTS) + 2)
    assert all(page.count(f"| {way} |") == 2 for way in ways) and "of 88 things" in page
    quality = [row for row in rows if "shift" in row]
    assert all(0 <= row["right"] <= row["of"] == 2 for row in quality)


def test_shifts_keep_the_size_of_a_picture():
    pictures, _ = noise(1, 1)
    for name, shift in condensed_pictures.SHIFTS.items():
        shifted = shift(pictures[0], np.random.default_rng(0))
        assert shifted.shape == (64, 64, 3) and shifted.dtype == np.uint8
        assert np.array_equal(shifted, pictures[0]) == (name == "as trained")
