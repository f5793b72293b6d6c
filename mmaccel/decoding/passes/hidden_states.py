"""Hidden states of texts that grow by drafts, for drafters that read them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mmaccel import private
from mmaccel.patching import hook

from ..generated_text import GeneratedText, Verdicts

EVEN = {"full_attention", "linear_attention"}  # kinds of layers that turn their tokens alike


class HiddenStates:
    """What some layers of a model read of each text, kept until it is asked for.

    Parameters
    ----------
    model
        A decoder, or one with encoders beside it.
    layers
        Numbers of the layers whose input is kept; one behind the last stands for what the last puts out.
    rows
        Texts of the batch.
    stack
        Takes the hooks off again.

    Attributes
    ----------
    missed
        Whether a pass ran without the hooks, as one of a compiled model does.
    """

    def __init__(self, model: Any, layers: tuple[int, ...], rows: int, stack: ExitStack) -> None:
        self.layers, self.missed = layers, False
        self._now: dict[int, Tensor] = {}  # `[B, N, H]`, by layer
        self._pass: dict[int, Tensor] = {}  # those of the pass that verifies
        self._kept: list[list[Tensor]] = [[] for _ in range(rows)]
        self._is_prompt = True  # of which all is kept
        self._fed = self._tokens = 0  # tokens of a pass before its layers, now and in the one that verifies
        self._turned: Tensor | None = None  # what the first layer turns the tokens of a prompt with
        self._left: dict[int, Tensor] = {}  # of each row's last tokens, how many a layer has where the first had them
        kinds = getattr(model.config.get_text_config(decoder=True), "layer_types", None) or ()
        self._is_even = EVEN.issuperset(kinds) and rows > 1
        found = model.get_decoder().layers
        if any(map(private.is_compiled, (model, model.get_decoder(), *found))):
            return  # hooks would be left out of its code, or stay in it
        hook(stack, found[0], before=self._begin, in_thread=True)
        for layer in layers:
            if layer < len(found):
                hook(stack, found[layer], before=partial(self._read, layer), in_thread=True)
            else:
                hook(stack, found[-1], after=partial(self._put_out, layer), in_thread=True)

    def _begin(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._fed = (args[0] if args else kwargs["hidden_states"]).shape[-2]
        self._turned = _turned(kwargs) if self._is_prompt and self._is_even else None

    def _read(self, layer: int, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._now[layer] = args[0] if args else kwargs["hidden_states"]
        self._count(layer, kwargs)

    def _put_out(self, layer: int, module: Any, args: Any, kwargs: Any, output: Any) -> None:
        self._now[layer] = output if isinstance(output, Tensor) else output[0]
        self._count(layer, kwargs)

    def _count(self, layer: int, kwargs: dict[str, Any]) -> None:
        """Where tokens were dropped from some rows, and one kept all, the others are filled up on the left."""
        if (first := self._turned) is None:
            return
        now = _turned(kwargs)
        if now is not None and now is not first and now.shape[-2:] == first.shape[-2:]:
            moved = (now.to(first.device) != first).any(-1).flip(-1)  # `[B, N]`, or of three axes each
            moved = moved if moved.ndim == 2 else moved.any(0)
            self._left[layer] = torch.where(moved.any(1), moved.int().argmax(1), moved.shape[1])

    def took(self) -> None:
        """The pass that verifies has run; what others, such as one for guidance, read after it is not of the text."""
        self._pass, self._now, self._tokens = self._now, {}, self._fed
        self.missed |= not self._pass

    def keep(self, texts: Sequence[GeneratedText], verdicts: Verdicts, end: int | None) -> None:
        """Keep what was read of each text up to its last token before, and of the drafts that were accepted.

        Parameters
        ----------
        texts, verdicts
            One per row; the accepted tokens are in the text.
        end
            The place behind the pass, in tokens of the texts; None where its first token is the last of each text.
        """
        for row, (text, found) in enumerate(zip(texts, verdicts, strict=True)):
            if found is None:
                continue
            if end is None:
                self._append(row, [0, *(node + 1 for node in found.path)])
            else:
                behind = end - (text.ids.shape[1] - len(found.tokens)) - len(found.path)
                begin = None if self._is_prompt else -behind - len(found.path) - 1
                self._append(row, slice(begin, -behind or None))
        self._is_prompt, self._pass, self._left = False, {}, {}

    def _append(self, row: int, columns: slice | list[int]) -> None:
        if not self._pass:
            return
        states = [self._pass[layer][row] for layer in self.layers]
        if {len(each) for each in states} != {self._tokens}:  # some were dropped on the way
            columns = slice(-1, None)  # only the last is sure to be left
        elif self._left:
            columns = slice(-max(1, min(int(left[row]) for left in self._left.values())), None)
        device = states[-1].device
        self._kept[row].append(torch.cat([each[columns].to(device) for each in states], -1).detach())

    def take(self, row: int) -> Tensor:
        """The states `[N, F]` of a row that were kept since it was last asked for."""
        kept, self._kept[row] = self._kept[row], []
        return kept[0] if len(kept) == 1 else torch.cat(kept) if kept else torch.empty(0)


def _turned(kwargs: dict[str, Any]) -> Tensor | None:
    """What a layer turns its tokens with, `[B, N, D]`, or `[3, B, N, D]`; None where it is not told."""
    found = kwargs.get("position_embeddings")
    found = found[0] if isinstance(found, tuple | list) else found  # cosines, or one tensor as of DeepSeek-V2
    return found if isinstance(found, Tensor) else None
