"""Training that goes on where it stopped."""

from __future__ import annotations

import copy
import json
import shutil
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tqdm import tqdm

from mmaccel.files.output import replacing

T = TypeVar("T")


def write(tensors: Mapping[str, torch.Tensor], path: Path, told: dict[str, str] | None = None) -> None:
    """Write a file of safetensors, whole or not at all: what a full disk or a stop leaves counts as not there."""
    with replacing(path) as temporary:
        save_file(dict(tensors), temporary, told)


def write_model(model: Any, folder: Path) -> None:
    """Write the folder of a part of a pipeline, whole or not at all."""
    part = folder.with_suffix(".part")
    model.save_pretrained(part)
    shutil.rmtree(folder, ignore_errors=True)
    part.rename(folder)


def write_pipeline(pipeline: Any, parts: Iterable[str], folder: Path, facts: dict[str, object]) -> None:
    """Write what `mmaccel.zoo` ships of a pipeline: parts in float16, tokenizer, configurations and facts."""
    for name in parts:
        copy.deepcopy(getattr(pipeline, name)).half().save_pretrained(folder / name)
    pipeline.tokenizer.save_pretrained(folder / "tokenizer")
    pipeline.scheduler.save_pretrained(folder / "scheduler")
    pipeline.save_config(folder)
    write_facts(facts, folder)


def write_facts(facts: Mapping[str, object], folder: Path) -> None:
    """Write what a model tells of its training."""
    (folder / "training.json").write_text(json.dumps(facts, indent=1) + "\n")


class Checkpoint:
    """Weights and optimizer state in safetensors, so that a stopped stage goes on."""

    def __init__(self, path: Path, module: torch.nn.Module, optimizers: list[torch.optim.Optimizer]) -> None:
        self.path, self.module, self.optimizers = path, module, optimizers

    def save(self, step: int) -> None:
        tensors = {f"model.{k}": v.contiguous() for k, v in self.module.state_dict().items()}
        for i, optimizer in enumerate(self.optimizers):
            for index, state in optimizer.state_dict()["state"].items():
                for name, value in state.items():
                    tensors[f"optimizer.{i}.{index}.{name}"] = torch.as_tensor(value).contiguous()
        write({k: v.clone() for k, v in tensors.items()}, self.path, {"step": str(step)})

    def load(self) -> int:
        """Restore, and return the first step still to do."""
        if not self.path.is_file():
            return 0
        tensors = load_file(self.path)
        self.module.load_state_dict({k[6:]: v for k, v in tensors.items() if k.startswith("model.")})
        for i, optimizer in enumerate(self.optimizers):
            saved: dict[int, dict[str, torch.Tensor]] = {}
            for key, value in tensors.items():
                parts = key.split(".", 3)
                if parts[0] == "optimizer" and int(parts[1]) == i:
                    saved.setdefault(int(parts[2]), {})[parts[3]] = value
            whole = optimizer.state_dict()
            optimizer.load_state_dict({**whole, "state": saved})
        with safe_open(self.path, "pt") as file:
            return int(file.metadata()["step"])


def stoppable(each: Iterable[T], save: Callable[[T], None]) -> Iterator[T]:
    """The items of a training loop, which Ctrl+C ends after the one at hand, for which `save` is called then.

    A second Ctrl+C ends it at once.
    """
    pressed: list[int] = []

    def note(number: int, _: Any) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(number)
        tqdm.write("stops and saves after this step, or with another Ctrl+C at once, without what is not saved yet")

    usual = signal.getsignal(signal.SIGINT)
    heeded = threading.current_thread() is threading.main_thread() and usual is not signal.SIG_IGN
    if heeded:
        signal.signal(signal.SIGINT, note)
    try:
        for item in each:
            yield item
            if pressed:
                save(item)
                raise KeyboardInterrupt
    finally:
        if heeded:
            signal.signal(signal.SIGINT, usual)


def steps(first: int, last: int, label: str) -> Iterator[int]:
    """Those still to do, with a progress bar."""
    yield from tqdm(range(first, last), initial=first, total=last, desc=label, mininterval=5, ncols=100)
