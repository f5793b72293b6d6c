"""A tiny model of a modality, for the contract of its methods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from ..adapter import find_adapter
from ..session import Session
from .snapshot import snapshot

Arguments = Callable[..., dict[str, Any]]


@dataclass(frozen=True)
class Example:
    """A tiny model for contract tests.

    Attributes
    ----------
    family
        The name in messages: the adapter's family, or of the many kinds in one family the kind.
    build
        `build(seed)` gives the target and `arguments(batch=1, **more)` for its call.
    module
        The module whose forward is the work; a hook on it breaks a run half-way.
    call
        Name of the method users call.
    columns
        Tokens of a row of the grid, which stand for `"columns"` in `Method.neutral`.
    without
        Names of settings that nothing of the family can follow; its runs leave them at their defaults.
    takes_generator
        Whether the accelerated call takes a `generator`. Otherwise its arguments ask for no sampling, and the
        same call must give the same output without one.
    variants
        Arguments of further calls of other shapes, such as another length of prompt.
    result
        Takes the tensor out of what the call returns.
    interrupt_after
        How many calls of `module` succeed before a run is broken; a run must make more.
    """

    family: str
    build: Callable[..., tuple[Any, Arguments]]
    module: Callable[[Any], torch.nn.Module]
    call: str = "generate"
    columns: int = 4
    without: tuple[str, ...] = ()
    takes_generator: bool = True
    variants: tuple[dict[str, Any], ...] = ()
    interrupt_after: int = 2
    result: Callable[[Any], torch.Tensor] = lambda output: output

    def settings(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Settings with the placeholder `"columns"` replaced by this example's grid, less those of `without`."""
        return {k: self.columns if v == "columns" else v for k, v in settings.items() if k not in self.without}

    def run(self, target: Any, arguments: Arguments, batch: int = 1, seed: int | None = 0, **more: Any) -> torch.Tensor:
        """Call the target; with `seed`, from a private generator if it is a session, else from the global one."""
        call = getattr(target, self.call)
        if seed is not None and not isinstance(target, Session):
            torch.manual_seed(seed)
        elif seed is not None and self.takes_generator:  # else nothing is drawn
            more["generator"] = torch.Generator().manual_seed(seed)
        return self.result(call(**arguments(batch, **more)))

    @cached_property
    def adapter_family(self) -> str:
        """The family of the adapter that is found for the target."""
        return find_adapter(self.shared[0]).family

    @cached_property
    def shared(self) -> tuple[Any, Arguments]:
        """A target, and the arguments of its call, for all clauses that need no new one."""
        return self.build()

    @cached_property
    def tried(self) -> tuple[Any, Arguments, frozenset[str], torch.Tensor]:
        """A target that has run once, the arguments of its call, the names in its snapshot before, and what it gave."""
        model, arguments = self.build()
        return model, arguments, frozenset(snapshot(model)), self.run(model, arguments)

    @cached_property
    def plain(self) -> torch.Tensor:
        """What a new target gives that no method has touched."""
        return self.tried[-1]

    def shapes(self, target: Any, arguments: Arguments) -> list[torch.Size]:
        """Shapes of what it gives: three rows and one of the first variant, of the others two and one by turns."""
        first, *others = list(self.variants) or [{}]
        calls = [(3, first), (1, first), *((2 - number % 2, each) for number, each in enumerate(others))]
        return [self.run(target, arguments, batch=batch, **variant).shape for batch, variant in calls]

    @cached_property
    def plain_shapes(self) -> list[torch.Size]:
        """The same of a new target."""
        return self.shapes(*self.build())
