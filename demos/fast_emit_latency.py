"""Train a tiny transducer with and without FastEmit, and print how late each shows its words.

    python -m mmaccel.demos.fast_emit_latency

The speech is made up: every word is a pattern of its own in noise, so that a recogniser is surer of it the longer it
waits. That is what a plain transducer loss teaches it to do.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn

from mmaccel.speech.adapter import Word
from mmaccel.speech.emission_latency import Emission, EmissionLatency, Utterance, emission_latency
from mmaccel.speech.fast_emit import transducer_loss

FRAME = 0.04  # seconds
WORDS, FEATURES, NOISE = 6, 8, 1.5
BLANK, RATE = 0, 1e-2


def speech(batch: int, generator: torch.Generator, words: int = 3) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Features `[B, T, F]`, labels `[B, words]` and the first and last frame of each word `[B, words, 2]`."""
    patterns = torch.randn(WORDS + 1, FEATURES, generator=torch.Generator().manual_seed(7))
    frames = words * 14 + 8
    features = NOISE * torch.randn(batch, frames, FEATURES, generator=generator)
    labels = torch.randint(1, WORDS + 1, (batch, words), generator=generator)
    lengths = torch.randint(5, 11, (batch, words), generator=generator)
    pauses = torch.randint(1, 5, (batch, words), generator=generator)
    ends = (lengths + pauses).cumsum(1)
    spans = torch.stack([ends - lengths, ends], -1)
    place = torch.arange(frames)
    spoken = (place >= spans[..., :1]) & (place < spans[..., 1:])  # [B, words, T]
    return features + torch.einsum("bwt,bwf->btf", spoken.float(), patterns[labels]), labels, spans


class Transducer(nn.Module):
    """A causal encoder, a prediction network over the last label, and their joint."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.encoder = nn.GRU(FEATURES, width, batch_first=True)
        self.predictor = nn.Embedding(WORDS + 1, width)
        self.joint = nn.Linear(width, WORDS + 1)

    def forward(self, features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Logits `[B, T, U + 1, V]`."""
        encoded, _ = self.encoder(features)
        before = torch.nn.functional.pad(labels, (1, 0))
        return self.joint(torch.tanh(encoded[:, :, None] + self.predictor(before)[:, None]))

    @torch.no_grad()
    def greedy(self, features: torch.Tensor) -> list[list[Emission]]:
        """Words and when they came, at most two a frame."""
        encoded, _ = self.encoder(features)
        found: list[list[Emission]] = [[] for _ in features]
        last = torch.zeros(len(features), dtype=torch.long)
        for frame in range(encoded.shape[1]):
            for _ in range(2):
                label = self.joint(torch.tanh(encoded[:, frame] + self.predictor(last))).argmax(-1)
                for row in (label != BLANK).nonzero().flatten().tolist():
                    found[row].append(Emission(str(int(label[row])), (frame + 1) * FRAME))
                last = torch.where(label == BLANK, last, label)
        return found


def train(fast_emit: float, steps: int, seed: int = 0) -> Transducer:
    """A model trained from the same start on the same speech, whatever the setting."""
    torch.manual_seed(seed)
    model = Transducer()
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = RATE * (1 - step / steps)
        features, labels, _ = speech(16, generator)
        loss = transducer_loss(model(features, labels), labels, fast_emit=fast_emit)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
    return model


def measure(model: Transducer, count: int = 200) -> EmissionLatency:
    """Latency on speech that no training saw."""
    features, labels, spans = speech(count, torch.Generator().manual_seed(12345))
    utterances = []
    for row, shown in enumerate(model.greedy(features)):
        said = [
            Word(str(int(label)), int(first) * FRAME, int(last) * FRAME)
            for label, (first, last) in zip(labels[row], spans[row], strict=True)
        ]
        utterances.append(Utterance(shown, said))
    return emission_latency(utterances)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=1000, help="training steps of each model (default 1000)")
    parser.add_argument("--strengths", type=float, nargs="+", default=[0.0, 0.05, 0.2], help="of FastEmit")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for strength in arguments.strengths:
        began = time.process_time()
        found = measure(train(strength, arguments.steps, arguments.seed))
        print(f"fast_emit {strength:<6g} {found}; {time.process_time() - began:.0f} s of training", flush=True)


if __name__ == "__main__":
    main()
