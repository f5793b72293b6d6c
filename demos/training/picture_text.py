"""Train a small `CLIPModel` on captioned pictures of emoji, to measure on it what methods for CLIP cost in quality.

It goes on where it stopped, until its minutes are over; the weights are not shipped::

    python -m mmaccel.demos.training.picture_text --output runs/picture-text --minutes 12 --threads 1

The loss is CLIP's own, over pictures of different things with captions that tell some of what is seen. The tower has
twelve layers, as CLIP's base models have, so that things happen at the same depths.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm
from transformers import AutoTokenizer, CLIPConfig, CLIPModel, PreTrainedTokenizerFast

from mmaccel.zoo.worlds import emoji_world as world

from .checkpoint import write_facts
from .optimizer import optimizers_of
from .recipe import Stage, begin, command_line, to_pixels
from .word_tokenizer import word_tokenizer

MARKS = ("<pad>", "<bos>", "<unk>", "<eos>")
SIDE, PATCH, LAYERS, BATCH = world.IMAGE_SIZE, 8, 12, 64
TOWER = {"num_hidden_layers": LAYERS, "hidden_size": 96, "intermediate_size": 384, "num_attention_heads": 4}
WORDS = {"num_hidden_layers": 2, "hidden_size": 96, "intermediate_size": 192, "num_attention_heads": 4}


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Every word that a caption can say is one token."""
    said = (*world.FEATURED, *world.SIZES, *world.BACKGROUNDS, *world.PLACES, "on")
    words = (word for text in said for word in text.split())
    return word_tokenizer(MARKS, words, template="<bos> $A <eos>", bos_token="<bos>", eos_token="<eos>")


def build_model(tokenizer: PreTrainedTokenizerFast) -> CLIPModel:
    """The untrained model."""
    marks = {f"{name}_token_id": MARKS.index(f"<{name}>") for name in ("pad", "bos", "eos")}
    text = {**WORDS, **marks, "vocab_size": len(tokenizer), "max_position_embeddings": 24}
    vision = {**TOWER, "image_size": SIDE, "patch_size": PATCH}
    return CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=64))


def load(folder: Path) -> tuple[Any, Any]:
    """A trained model and its tokenizer."""
    return CLIPModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)


def draw(seed: list[int], count: int) -> tuple[np.ndarray, list[world.EmojiScene]]:
    """Pictures of different things to learn from; a pure function of its arguments."""
    rng = np.random.default_rng(seed)
    scenes = [world.draw_scene(rng, False, (str(name),)) for name in rng.permutation(world.FEATURED)[:count]]
    return np.stack([world.render(scene, rng) for scene in scenes]), scenes


def held_out(seed: list[int], count: int) -> tuple[np.ndarray, list[world.EmojiScene]]:
    """Pictures of scenes that are never learned from."""
    rng = np.random.default_rng(seed)
    scenes = [world.draw_scene(rng, True, world.FEATURED) for _ in range(count)]
    return np.stack([world.render(scene, rng) for scene in scenes]), scenes


def train(model: CLIPModel, tokenizer: PreTrainedTokenizerFast, args: argparse.Namespace) -> CLIPModel:
    """All weights at once."""
    stage = Stage("pairs", model, optimizers_of(model), args.minutes, args.output)
    for _ in stage.shares(warmup=150, decay=0.5):
        pictures, scenes = draw([args.seed, stage.step], BATCH)
        rng = np.random.default_rng([args.seed, 1, stage.step])
        texts = tokenizer([world.caption(scene, rng) for scene in scenes], padding=True, return_tensors="pt")
        asked = {name: texts[name] for name in ("input_ids", "attention_mask")}
        with torch.autocast("cpu", torch.bfloat16):
            output = model(pixel_values=to_pixels(torch.from_numpy(pictures)), return_loss=True, **asked)
        right = output.logits_per_image.argmax(-1) == torch.arange(BATCH)
        stage.took(output.loss, right=right.float().mean())
        if stage.due():
            told = accuracy(stage.average.module, tokenizer, 88)
            tqdm.write(f"held out, {stage.clock.seconds / 60:.1f} minutes: {told:.3f}")
    return stage.finish()


@torch.no_grad()
def accuracy(model: CLIPModel, tokenizer: PreTrainedTokenizerFast, count: int) -> float:
    """Share of held-out pictures whose thing is named, among all names."""
    pictures, scenes = held_out([0, 7], count)
    texts = tokenizer(list(world.FEATURED), padding=True, return_tensors="pt")
    output = model(texts["input_ids"], to_pixels(torch.from_numpy(pictures)), texts["attention_mask"])
    found = [world.FEATURED[number] for number in output.logits_per_image.argmax(-1).tolist()]
    return sum(name == scene.name for name, scene in zip(found, scenes, strict=True)) / count


def main(argv: list[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--minutes", type=float, default=12)
    args = parser.parse_args(argv)
    begin(args)
    tokenizer = build_tokenizer()
    trained = train(build_model(tokenizer), tokenizer, args)
    folder = args.output / "model"
    trained.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    facts = {"seed": args.seed, "minutes": args.minutes, "right": accuracy(trained, tokenizer, 440)}
    write_facts(facts, folder)
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
