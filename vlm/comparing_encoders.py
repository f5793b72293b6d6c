"""How `compare` runs and judges an encoder, whose call gives numbers; there is no simple alternative of their shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from mmaccel.adapter import Adapter
from mmaccel.comparison.trial import BaseTrial, Metric, Shown
from mmaccel.errors import SettingError

OFF = Metric(
    "off",
    "off by",
    "distance from the plain outputs over their size, a mean over the outputs",
    ".2%",
    higher_is_better=False,
    relative=True,
)


class EncoderTrial(BaseTrial):
    """A call of the model with its own arguments; a run begins without what the one before learned of its pictures."""

    unit: ClassVar[str] = "views"
    remembers: ClassVar[bool] = False
    metrics = (OFF,)

    def __init__(self, adapter: Adapter, inputs: dict[str, Any], processor: Any = None) -> None:
        super().__init__(adapter, inputs, processor)
        if not inputs:
            raise SettingError(f"give the arguments of a call of {type(self.target).__name__}, such as pictures")
        self.seedless = "nothing is drawn"
        self.no_simple = "with fewer or smaller pictures the outputs have other shapes"

    @torch.no_grad()
    def run(self, target: Any, seed: int, fewer: int | None = None) -> dict[str, torch.Tensor]:
        return outputs(target(**self.arguments(target, self.inputs)))

    def equal(self, one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
        return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)

    def judge(self, plain: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> dict[str, float]:
        shares = [float((other[name] - value).norm() / value.norm().clamp(min=1e-12)) for name, value in plain.items()]
        return {OFF.key: sum(shares) / len(shares)}

    def show(self, output: dict[str, torch.Tensor]) -> Shown:
        return Shown(texts=[f"mean {float(value.mean()):.4g}" for value in output.values()], names=list(output))


def outputs(result: Any) -> dict[str, torch.Tensor]:
    """The numbers that a call gave, by name.

    Examples
    --------
    >>> list(outputs({"depth": torch.ones(2), "names": ["a"]}))
    ['depth']
    >>> list(outputs(torch.ones(2)))
    ['output']
    """
    if isinstance(result, torch.Tensor):
        return {"output": result}
    named = result.items() if isinstance(result, Mapping) else enumerate(result)
    return {str(name): value for name, value in named if isinstance(value, torch.Tensor) and value.is_floating_point()}
