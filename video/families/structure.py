"""The blocks of a transformer, read from its class: which lists of equal blocks run, and what they pass on.

diffusers writes its transformers alike: lists of blocks of one class, which `forward` calls one after the other, and
blocks that return the streams of tokens that they were given. The order of the lists is read from the source of
`forward`, the streams from the last `return` of a block.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
import textwrap
from dataclasses import dataclass
from typing import Any

import torch

SELF_ATTENTION = re.compile(r"(self_)?att(n|ention)1?")


@dataclass(frozen=True)
class BlockStructure:
    """What was read of a transformer.

    Attributes
    ----------
    blocks
        Attributes that hold the blocks, in the order in which they run. Blocks of other lists, such as those of a text
        refiner, always run.
    outputs
        The streams that a block returns, in order, named like its arguments; a single one is returned bare.
    hidden
        The stream that becomes the sample.
    attention
        Attribute of a block: its self-attention, whose input are the block's tokens after norm and modulation; empty
        if there is none of a usual name.
    share
        Share of the parameters of all blocks that these have; 1 if no others run.
    """

    blocks: tuple[str, ...]
    outputs: tuple[str, ...]
    hidden: str
    attention: str
    share: float = 1.0


def block_structure(denoiser: torch.nn.Module) -> BlockStructure | None:
    """The blocks of a transformer; None if the largest list of equal blocks is not clear about its streams."""
    lists, cls = _equal_blocks(denoiser), class_of(denoiser)
    order = [name for name in _mentioned(cls) if name in lists] or list(lists)
    streams = {name: _streams(class_of(lists[name][0])) for name in order}
    sizes = {name: sum(x.numel() for x in lists[name].parameters()) for name in order}
    largest = max(order, key=lambda name: sizes[name], default="")
    outputs = streams.get(largest)
    if not outputs:
        return None
    # several streams that pass from one list to the next are the same ones; a single one may be text, or another's
    together = [name for name in order if streams[name] == outputs] if len(outputs) > 1 else [largest]
    hidden = "hidden_states" if "hidden_states" in outputs else outputs[0]
    share = sum(sizes[name] for name in together) / max(1, sum(sizes.values()))
    return BlockStructure(tuple(together), outputs, hidden, _self_attention(lists[largest][0]), share)


def class_of(module: torch.nn.Module) -> Any:
    """The class of a module, in `torch.compile`'s wrapper too, which type checkers do not take for hashable."""
    return type(getattr(module, "_orig_mod", module))


def reads_earlier(block: torch.nn.Module) -> bool:
    """Whether it reads what an early block made too: in HunyuanDiT the last the first's, the one before the next's."""
    return getattr(block, "skip_linear", None) is not None


def _equal_blocks(denoiser: torch.nn.Module) -> dict[str, Any]:
    """Lists of modules of one class."""
    lists = {name: part for name, part in denoiser.named_children() if isinstance(part, torch.nn.ModuleList)}
    return {name: part for name, part in lists.items() if len({class_of(block) for block in part}) == 1}


def _self_attention(block: torch.nn.Module) -> str:
    parts = getattr(block, "_orig_mod", block).named_children()
    return next((name for name, _ in parts if SELF_ATTENTION.fullmatch(name)), "")


@functools.cache
def _mentioned(cls: Any) -> tuple[str, ...]:
    """Attributes of `self` in the source of a class's `forward`, in order, each once."""
    found = [node for node in _walk(cls) if isinstance(node, ast.Attribute) and _is_self(node.value)]
    found.sort(key=lambda node: (node.lineno, node.col_offset))
    return tuple(dict.fromkeys(node.attr for node in found))


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


@functools.cache
def _streams(cls: Any) -> tuple[str, ...]:
    """The arguments that a block returns changed, in the order of its output; none if that is not clear.

    What it returns bare is its first argument, under whatever name.
    """
    parameters = list(inspect.signature(cls.forward).parameters)[1:]
    returns = [node for node in _walk(cls) if isinstance(node, ast.Return) and node.value is not None]
    if not returns or not parameters:
        return ()
    value = max(returns, key=lambda node: node.lineno).value
    if isinstance(value, ast.Call) and _is_own(value.func):  # another module's output, of which nothing is known here
        return ()
    if not isinstance(value, ast.Tuple):
        return (parameters[0],)
    names = tuple(item.id for item in value.elts if isinstance(item, ast.Name) and item.id in parameters)
    return names if len(names) == len(value.elts) else ()


def _is_own(function: ast.expr) -> bool:
    """Whether this is a part or method of `self`."""
    return isinstance(function, ast.Attribute) and _is_self(function.value)


def _walk(cls: Any) -> list[ast.AST]:
    """The nodes of the source of a class's `forward`; none where there is no source."""
    try:
        source = inspect.getsource(cls.forward)
    except (OSError, TypeError):
        return []
    return list(ast.walk(ast.parse(textwrap.dedent(source))))
