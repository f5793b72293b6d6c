"""From a prompt to pictures: what reaches the model, what is counted, and what is timed."""

from types import SimpleNamespace

import pytest
import torch
from transformers import BatchFeature

import mmaccel
from mmaccel.errors import PromptError
from mmaccel.image import SpeculativeJacobi, examples, generation
from mmaccel.image.generation import ImageSettings

LENGTH = examples.ROWS * examples.COLUMNS


class TinyPainter(generation.JanusPainter):
    """The painter of Janus with a tiny model, whose prompts are tokens already."""

    def __init__(self):
        model, self.arguments = examples.janus()
        super().__init__("tiny", model, None)

    def inputs(self, prompts, settings):
        return {**self.arguments(len(prompts)), **settings.arguments()}


class Bar:
    """Stands for tqdm: remembers how far it came."""

    made = []

    def __init__(self, **settings):
        self.label, self.n, self.total, self.steps = settings["desc"], 0, None, []
        Bar.made.append(self)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None

    def update(self, count):
        self.n += count
        self.steps.append(count)


def test_every_setting_reaches_generate():
    settings = ImageSettings(count=3, guidance=2.5, temperature=0.7, top_k=11, top_p=0.9)
    wanted = {"num_return_sequences": 3, "guidance_scale": 2.5, "temperature": 0.7, "top_k": 11, "top_p": 0.9}
    assert settings.arguments() == wanted
    assert ImageSettings().arguments() == {"num_return_sequences": 1}, "the model's own defaults stay"


@pytest.mark.parametrize("target", ("plain", "fast"))
def test_a_bar_counts_tokens_to_the_end(target, monkeypatch):
    """The plain model has no callback: its passes are counted, and nothing is left on it."""
    monkeypatch.setattr(generation, "tqdm", Bar)
    Bar.made.clear()
    painter = TinyPainter()
    inner = painter.target.model.language_model
    with mmaccel.accelerate(painter.target, SpeculativeJacobi(window=4)) as fast:
        chosen = painter.target if target == "plain" else fast
        if target == "plain":
            with fast.baseline():
                painter.generate(chosen, ["a"], ImageSettings(), target)
        else:
            painter.generate(chosen, ["a"], ImageSettings(), target)
    (bar,) = Bar.made
    assert (bar.label, bar.n, bar.total) == (target, LENGTH, LENGTH) and min(bar.steps) >= 1
    assert not inner._forward_hooks


def test_the_seed_decides_and_the_global_state_stays():
    painter = TinyPainter()
    with mmaccel.accelerate(painter.target, SpeculativeJacobi(window=4)) as fast:
        for target in (fast, painter.target):
            state = torch.get_rng_state()
            one, again, other = (painter.generate(target, ["a", "b"], ImageSettings(seed=seed)) for seed in (1, 1, 2))
            assert torch.equal(one, again) and not torch.equal(one, other)
            assert torch.equal(torch.get_rng_state(), state)


def test_tokens_and_pictures_are_timed_apart(monkeypatch):
    painter = TinyPainter()
    monkeypatch.setattr(painter, "generate", lambda *_: torch.zeros(1, LENGTH, dtype=torch.long))
    monkeypatch.setattr(generation, "time", SimpleNamespace(perf_counter=iter((10.0, 13.0, 20.0)).__next__))
    painted = painter.paint(painter.target, ["a"], ImageSettings())
    assert (painted.token_seconds, painted.decode_seconds) == (3.0, 7.0)
    assert len(painted.pictures) == 1 and painted.tokens.shape == (1, LENGTH)


def emu3_painter():
    """Words are as long as they are; the target notes what it is to decode."""
    seen = {}

    def processor(text, **_):
        ids = torch.tensor([[len(words)] * 2 for words in text])
        return BatchFeature(
            {"input_ids": ids, "attention_mask": torch.ones_like(ids), "image_sizes": [[2, 3]] * len(text)}
        )

    def decode(image_tokens, height, width):
        seen.update(tokens=image_tokens, size=(height, width))
        return torch.zeros(len(image_tokens), 3, 8 * height, 8 * width)

    target = SimpleNamespace(device="cpu", decode_image_tokens=decode)
    return generation.Emu3Painter("emu3", target, processor), seen


def test_emu3_is_guided_away_from_what_is_bad():
    painter, _ = emu3_painter()
    inputs = painter.inputs(["fox", "a red heart"], ImageSettings(temperature=0.5))
    assert inputs["input_ids"][:, 0].tolist() == [3, 11]
    assert inputs["negative_prompt_ids"].tolist() == [[len(painter.NEGATIVE)] * 2] * 2
    assert inputs["negative_prompt_attention_mask"].tolist() == [[1, 1]] * 2
    assert (inputs["guidance_scale"], inputs["temperature"], inputs["do_sample"]) == (painter.GUIDANCE, 0.5, True)
    assert painter.inputs(["fox"], ImageSettings(guidance=7.0))["guidance_scale"] == 7.0


def test_pictures_of_emu3_begin_behind_the_prompt():
    painter, seen = emu3_painter()
    (picture,) = painter.pictures(torch.arange(10)[None], painter.inputs(["fox"], ImageSettings()))
    assert seen["tokens"].tolist() == [list(range(2, 10))] and seen["size"] == (2, 3)
    assert picture.size == (24, 16), "width first"


def test_pixels_are_clipped_and_rounded():
    pixels = torch.tensor([-2.0, -1.0, 0.0, 0.5, 1.0, 3.0])
    (picture,) = generation.to_pictures(pixels.view(1, 1, 6, 1).expand(1, 1, 6, 3))
    assert [picture.getpixel((x, 0))[0] for x in range(6)] == [0, 0, 128, 191, 255, 255]


def test_a_type_of_numbers_is_kept():
    assert generation.load("tiny-janus", dtype=torch.bfloat16).target.dtype == torch.bfloat16


def test_prompts_are_tried_before_any_work(monkeypatch):
    painter = TinyPainter()
    for prompts in ([], ["fox", " "]):
        with pytest.raises(PromptError, match="empty"):
            generation.check_prompts(painter, prompts)

    def refuse(prompts, settings):
        raise PromptError(f"{prompts[0]} is no word")

    monkeypatch.setattr(painter, "inputs", refuse)
    with pytest.raises(PromptError, match="fxo is no word"):
        generation.check_prompts(painter, ["fxo"])
