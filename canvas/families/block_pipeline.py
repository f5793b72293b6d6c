"""diffusers' LLaDA2Pipeline: where its model, its steps and its attention are."""

from __future__ import annotations

import inspect
from typing import Any, ClassVar

from mmaccel.adapter import register_adapter
from mmaccel.errors import UnsupportedTargetError
from mmaccel.method import Method
from mmaccel.patching import attention_layers, unfit_attention
from mmaccel.session import Session

from ..caches.interval_cache import IntervalCache
from ..caches.kept import NOT_REACHED
from ..caches.prefix_cache import PrefixCache
from ..decoder import BlockDecoder
from ..method import MASKS, CanvasMethod
from .adapter import CanvasAdapter

KEEPS_TEXT = (PrefixCache, IntervalCache)  # caches of what stands before a block


@register_adapter
class BlockPipelineAdapter(CanvasAdapter[BlockDecoder]):
    """A `LLaDA2Pipeline` with any model of its contract."""

    follows = BlockDecoder
    family = MASKS
    classes: ClassVar[tuple[str, ...]] = ("LLaDA2Pipeline",)

    @property
    def reads_causally(self) -> bool:
        """Whether tokens before a block do not see it."""
        return bool(getattr(self.target.model, "reads_causally", False))

    def check(self, method: Method) -> None:
        name, scheduler = type(self.target).__name__, type(self.target.scheduler).__name__
        if "mask_token_id" not in inspect.signature(self.target.scheduler.step).parameters:
            raise UnsupportedTargetError(
                f"{scheduler} takes no mask_token_id: {method.name} needs a BlockRefinementScheduler in {name}"
            )
        taken = inspect.signature(self.target.model.forward).parameters
        lacking = [word for word in ("attention_mask", "position_ids") if word not in taken]
        if lacking and not any(each.kind is each.VAR_KEYWORD for each in taken.values()):
            raise UnsupportedTargetError(
                f"{type(self.target.model).__name__}.forward takes no {lacking[0]}, which {name} gives it: wrap it in a"
                f" torch.nn.Module with a device, whose forward leaves {lacking[0]} out"
            )
        modules = attention_layers(self.target.model)
        if not self.reads_causally and any(getattr(module, "is_causal", False) for module in modules):
            model = type(self.target.model).__name__
            raise UnsupportedTargetError(
                f"{model} attends causally, so that a masked token never sees what follows: if it was trained to fill"
                f" blocks, wrap it: {name}(canvas.BlockCausalModel(model, block_length=32), ...)"
            )
        keeps = isinstance(method, CanvasMethod) and method.keeper(self.reads_causally, lambda: None) is not None
        if keeps and (unfit := unfit_attention(modules)) is not None:
            raise UnsupportedTargetError(
                f"{method.name} does not work with attn_implementation={unfit!r}: load the model with"
                " attn_implementation='sdpa'"
            )
        if keeps and not modules:
            raise UnsupportedTargetError(f"{method.name}: {type(self.target.model).__name__} {NOT_REACHED}")

    def prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().prepare(args, kwargs)
        if self.decoder is not None:
            self.decoder.prepare(kwargs)

    def decoder_of(self, session: Session, methods: list[CanvasMethod]) -> BlockDecoder:
        exact = [m.exact or (isinstance(m, KEEPS_TEXT) and self.reads_causally) for m in session.plan.methods]
        session.report.exact = all(exact)
        return super().decoder_of(session, methods)
