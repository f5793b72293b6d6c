"""How likely accelerated pictures are to the model itself."""

from __future__ import annotations

from typing import Any

import torch

from .decoding.grid_decoder import GridDecoder
from .families.adapter import ImageAdapter


@torch.no_grad()
def nats_per_token(adapter: ImageAdapter, inputs: dict[str, Any], tokens: torch.Tensor) -> torch.Tensor:
    """Surprise of the model at given pictures, `[n]`, under the distribution it samples from.

    Lossless decoding has the expected surprise of plain decoding; a method that draws from something
    else shows here first.
    """
    task = adapter.begin(dict(inputs))
    decoder = GridDecoder(task, None)
    first = decoder.prefill()[:, None]
    index = torch.arange(decoder.length - 1, device=decoder.device).expand(task.batch, -1)
    rest = decoder.forward(tokens[:, :-1], index, decoder.length - 1)
    p = torch.cat([first, rest], 1).gather(2, tokens[..., None])[..., 0]
    return -p.clamp_min(1e-12).log().mean(1)
