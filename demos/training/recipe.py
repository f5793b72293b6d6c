"""What all recipes share: the command line, one step, the clock, the average of weights, and a stage made of these."""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from tqdm import tqdm

from .checkpoint import Checkpoint, stoppable
from .optimizer import trapezoid

SAVE_SECONDS, LOG_STEPS = 300, 50
UNITS = 10_000  # learning rates count these shares of the time as steps
AVERAGE_DECAY = 0.995
IGNORED = -100  # among labels: nothing is to be learned there


class Help(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Shows descriptions as they are, and the defaults of options that have one."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        has_one = action.default is not None and action.default is not False
        return super()._get_help_string(action) if has_one else action.help


def command_line(description: str | None, seed: int = 20) -> argparse.ArgumentParser:
    """The arguments that every recipe takes."""
    parser = argparse.ArgumentParser(description=description, formatter_class=Help)
    parser.add_argument("--output", type=Path, required=True, help="folder for checkpoints and the model")
    parser.add_argument("--seed", type=int, default=seed, help="of all that is random")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of the CPU")
    return parser


def given(args: argparse.Namespace, *names: str) -> dict[str, object]:
    """The seed and these options, for what a model tells of its training."""
    return {name: getattr(args, name) for name in ("seed", *names)}


def goes_on(parser: argparse.ArgumentParser, option: str, begun: Path, output: Path) -> None:
    """Refuse to begin with what the same folder ended with: its checkpoint is finished, and would count twice."""
    if begun.resolve() == (output / "model").resolve():
        parser.error(f"{option} {begun}: this is what --output {output} ended with, go on in another folder")


def begin(args: argparse.Namespace) -> None:
    """Make the folder, and set threads and seed; a folder goes on with the seed that it was begun with."""
    args.output.mkdir(parents=True, exist_ok=True)
    kept = args.output / "seed"
    if kept.is_file() and kept.read_text() != str(args.seed):
        raise SystemExit(f"{args.output} was begun with --seed {kept.read_text()}: give it, or another --output")
    kept.write_text(str(args.seed))
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)


def step_with(
    optimizers: list[torch.optim.Optimizer], loss: torch.Tensor, clipped: Iterable[torch.nn.Parameter] | None = None
) -> None:
    """One step of every optimizer, with the gradients of `clipped` clipped together, by default those of the last."""
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss.backward()
    if clipped is None:
        clipped = [parameter for group in optimizers[-1].param_groups for parameter in group["params"]]
    torch.nn.utils.clip_grad_norm_(clipped, 1.0)
    for optimizer in optimizers:
        optimizer.step()


def to_pixels(pictures: torch.Tensor) -> torch.Tensor:
    """uint8 `[..., H, W, 3]` to what models take: float `[..., 3, H, W]` in [-1, 1]."""
    return pictures.movedim(-1, -3).float() / 127.5 - 1


def classified(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cross entropy of labels that are not `IGNORED`, and the share of them that is likeliest; 0 and 1 without any."""
    known = labels != IGNORED
    if not known.any():
        return logits.sum() * 0, torch.ones(())
    logits, labels = logits[known].float(), labels[known]
    return F.cross_entropy(logits, labels), (logits.argmax(-1) == labels).float().mean()


class Clock:
    """Counts the seconds of a stage over all of its runs, in a buffer that a checkpoint keeps."""

    def __init__(self, module: torch.nn.Module, minutes: float) -> None:
        module.register_buffer("seconds", torch.zeros((), dtype=torch.float64))
        self.module, self.budget = module, minutes * 60

    @property
    def seconds(self) -> float:
        return float(self.module.seconds)

    def shares(self, label: str) -> Iterator[float]:
        """Before each step, the share of the time that is spent, until all of it is."""
        last = time.monotonic()
        with tqdm(total=round(self.budget), unit="s", desc=label, mininterval=5, ncols=100) as bar:
            while self.seconds < self.budget:
                yield self.seconds / self.budget
                now = time.monotonic()
                self.module.seconds += now - last
                last = now
                bar.update(int(self.seconds) - bar.n)


class Average(torch.nn.Module):
    """A running mean of all weights of a module, which samples better than the last of them."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = copy.deepcopy(module).eval().requires_grad_(False)

    @torch.no_grad()
    def update(self, module: torch.nn.Module, step: int) -> None:
        weight = max(1 - AVERAGE_DECAY, 9 / (step + 10))
        torch._foreach_lerp_(list(self.module.parameters()), list(module.parameters()), weight)


class Stage:
    """A stage that ends by the clock: the average of its weights, checkpoints, and what is told on the way."""

    def __init__(
        self,
        name: str,
        module: torch.nn.Module,
        optimizers: list[torch.optim.Optimizer],
        minutes: float,
        folder: Path,
        average: Average | None = None,
    ) -> None:
        self.name, self.module, self.optimizers = name, module, optimizers
        self.average = Average(module) if average is None else average
        both = torch.nn.ModuleDict({"trained": module, "average": self.average})
        self.clock = Clock(both, minutes)
        self.checkpoint = Checkpoint(folder / f"{name}.safetensors", both, optimizers)
        self.step, self.saved = self.checkpoint.load(), time.monotonic()
        self.running: dict[str, torch.Tensor] = {}

    def shares(self, warmup: int, decay: float) -> Iterator[float]:
        """Before each step, the share of the time that is spent; sets the learning rates."""
        for share in stoppable(self.clock.shares(self.name), lambda _: self.checkpoint.save(self.step)):
            for optimizer in self.optimizers:
                trapezoid(optimizer, int(share * UNITS), UNITS, warmup=warmup, decay=decay)
            yield share

    def took(self, loss: torch.Tensor, **measured: torch.Tensor) -> None:
        """Take the step, and write its averages now and then."""
        step_with(self.optimizers, loss)
        self.average.update(self.module, self.step)
        self.step += 1
        for key, value in {"loss": loss, **measured}.items():
            now = value.detach()
            self.running[key] = 0.95 * self.running.get(key, now) + 0.05 * now
        if self.step % LOG_STEPS == 0:
            told = " ".join(f"{key} {float(value):.3f}" for key, value in self.running.items())
            tqdm.write(f"{self.name} {self.step} minutes {self.clock.seconds / 60:.1f} {told}")

    def due(self) -> bool:
        """Whether it is time to save and check; saves if so."""
        if time.monotonic() - self.saved < SAVE_SECONDS:
            return False
        self.checkpoint.save(self.step)
        self.saved = time.monotonic()
        return True

    def finish(self) -> torch.nn.Module:
        """The averaged module."""
        self.checkpoint.save(self.step)
        return self.average.module
