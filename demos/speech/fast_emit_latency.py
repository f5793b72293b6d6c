"""Train a tiny transducer with and without FastEmit, and print how late each shows its words.

    python -m mmaccel.demos.speech.fast_emit_latency

The speech is made up: every word is a pattern of its own in noise, so that a recogniser is surer of it the longer it
waits. That is what a plain transducer loss teaches it to do. Emissions are those of the true text, by the mean over
all its alignments.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn

from mmaccel.demos.training.fast_emit import lattice_loss, transducer_loss
from mmaccel.speech.families.adapter import Word
from mmaccel.speech.stream.emission_latency import Emission, EmissionLatency, Utterance, emission_latency

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

    def aligned(self, features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Seconds at which each word of the true text comes, `[B, U]`: the mean over all alignments.

        The gradient of the loss in the log-probability of a label at a frame is minus the posterior of its coming
        there. So no word is missing, as it may be from a search, and latencies of different models compare.
        """
        log_probs = self(features, labels).detach().log_softmax(-1)
        batch, frames = features.shape[:2]
        index = labels[:, None, :, None].expand(-1, frames, -1, 1)
        emissions = log_probs[:, :, :-1].gather(-1, index).squeeze(-1).requires_grad_()
        lengths = torch.full((batch,), frames), torch.full((batch,), labels.shape[1])
        (gradient,) = torch.autograd.grad(lattice_loss(log_probs[..., BLANK], emissions, *lengths).sum(), emissions)
        seconds = FRAME * torch.arange(1, frames + 1)
        return torch.einsum("t,btu->bu", seconds, -gradient)


def train(fast_emit: float, steps: int, seed: int = 0) -> tuple[Transducer, float]:
    """A model and its last loss, trained from the same start on the same speech, whatever the setting."""
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
    return model, loss.item()


def measure(model: Transducer, count: int = 200) -> EmissionLatency:
    """Latency on speech that no training saw."""
    features, labels, spans = speech(count, torch.Generator().manual_seed(12345))
    utterances = []
    for words, times, places in zip(
        labels.tolist(), model.aligned(features, labels).tolist(), spans.tolist(), strict=True
    ):
        said = [Word(str(word), first * FRAME, last * FRAME) for word, (first, last) in zip(words, places, strict=True)]
        shown = [Emission(str(word), at) for word, at in zip(words, times, strict=True)]
        utterances.append(Utterance(shown, said))
    return emission_latency(utterances)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=1200, help="training steps of each model (default 1200)")
    parser.add_argument("--strengths", type=float, nargs="+", default=[0.0, 0.1], help="of FastEmit")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for strength in arguments.strengths:
        began = time.process_time()
        model, loss = train(strength, arguments.steps, arguments.seed)
        seconds = time.process_time() - began
        print(f"fast_emit {strength:<6g} {measure(model)}; last loss {loss:.2f}, {seconds:.0f} s of CPU", flush=True)


if __name__ == "__main__":
    main()
