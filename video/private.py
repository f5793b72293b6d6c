"""Private names of diffusers that mmaccel uses; a test compares them with the installed version.

diffusers' caches are hooks on a denoiser's modules. Here they are attached, separated by guidance branch, and removed
without a trace: diffusers' own `disable_cache` leaves `forward` and `_diffusers_hook` on every module it touched.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed

from mmaccel.errors import ConflictError
from mmaccel.forwards import REGISTRY, diffusers_hooks

CHILDREN = "_child_registries_cache"
CONFIG = "_cache_config"
PARALLEL = "_parallel_config"
BACKENDS = "_SUPPORTED_BACKENDS"  # of an attention processor that does not take all
FLEX = ("Kandinsky6SRTransformer3DModel", "WanAnimate2Transformer3DModel")  # whose processors do not say so
GROUPED = "group_offloading"
EXACT = "TextKVCacheConfig"  # of the cache that only spares projecting the text again
# Modules of the hooks of all others, and of our own that is put on in the same way.
CACHES = (
    "faster_cache",
    "first_block_cache",
    "mag_cache",
    "pyramid_attention_broadcast",
    "sea_cache",
    "taylorseer_cache",
    "easy_cache_hook",
)


def check_no_cache(denoiser: torch.nn.Module) -> None:
    """Raise a `ConflictError` if a cache of diffusers' own is on, unless it is exact."""
    config = getattr(denoiser, CONFIG, None)
    if config is not None and type(config).__name__ != EXACT:
        raise ConflictError(
            f"{type(denoiser).__name__} has {type(config).__name__} enabled already: call .disable_cache() on it first"
        )
    hooks = [item for module in denoiser.modules() for item in diffusers_hooks(module).items()]
    names = sorted({name for name, hook in hooks if type(hook).__module__.rpartition(".")[2] in CACHES})
    if names:
        raise ConflictError(
            f"{type(denoiser).__name__} has hooks of a cache on already: call first, for each of {', '.join(names)},"
            " HookRegistry.check_if_exists_or_initialize(transformer).remove_hook(name)"
        )


def context_group(denoiser: torch.nn.Module) -> Any:
    """The process group that shares this denoiser's tokens; None without diffusers' context parallelism."""
    config = getattr(getattr(denoiser, PARALLEL, None), "context_parallel_config", None)
    return None if config is None else config._flattened_mesh.get_group()


def shared_groups(denoiser: torch.nn.Module) -> dict[Any, str]:
    """The process groups that have to run this denoiser together, and their kind of device.

    They share its tokens (context parallelism), or its weights: tensor parallelism, or FSDP, which shards them. There
    are none of a single process, and none of replicas, which exchange nothing in a forward pass.
    """
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return {}
    from torch.distributed.tensor import DTensor

    split = getattr(getattr(denoiser, PARALLEL, None), "context_parallel_config", None)
    shared = [] if split is None else [(split._flattened_mesh, 0)]
    for weight in denoiser.parameters():
        if isinstance(weight, DTensor):
            kinds = enumerate(weight.placements)
            shared += [(weight.device_mesh, dim) for dim, placed in kinds if not placed.is_replicate()]
    return {mesh.get_group(dim): mesh.device_type for mesh, dim in dict.fromkeys(shared) if mesh.size(dim) > 1}


def execution_device(pipe: Any) -> torch.device:
    """Where a pipeline computes; an off-loaded transformer waits elsewhere between its calls."""
    return pipe._execution_device


def hooks_anew(pipe: Any) -> bool:
    """Whether a pipeline takes accelerate's hooks off its models after each call, and puts them on again."""
    return bool(getattr(pipe, "_all_hooks", ()))  # of enable_model_cpu_offload


def forget_registry(denoiser: torch.nn.Module) -> None:
    """Delete an empty hook registry, which any call within `cache_context` makes."""
    registry = vars(denoiser).get(REGISTRY)
    if registry is not None and not registry.hooks:
        delattr(denoiser, REGISTRY)


def has_registry(denoiser: torch.nn.Module) -> bool:
    """Whether diffusers has, or once had, hooks or a context on this module."""
    return REGISTRY in vars(denoiser)


def knows_blocks(denoiser: torch.nn.Module) -> bool:
    """Whether diffusers' caches of blocks know all blocks that they would put hooks on, and there are some."""
    from diffusers.hooks._common import _ALL_TRANSFORMER_BLOCK_IDENTIFIERS
    from diffusers.hooks._helpers import TransformerBlockRegistry

    TransformerBlockRegistry._register()
    lists = {name: part for name, part in denoiser.named_children() if name in _ALL_TRANSFORMER_BLOCK_IDENTIFIERS}
    blocks = [block for part in lists.values() if isinstance(part, torch.nn.ModuleList) for block in part]
    return bool(blocks) and all(type(block) in TransformerBlockRegistry._registry for block in blocks)


def knows_attention(denoiser: torch.nn.Module, places: tuple[str, ...]) -> bool:
    """Whether diffusers' caches of attention find any at these places, which are regular expressions."""
    from diffusers.hooks._common import _ATTENTION_CLASSES

    found = {name: module for name, module in denoiser.named_modules() if isinstance(module, _ATTENTION_CLASSES)}
    names = [name for name, module in found.items() if not getattr(module, "is_cross_attention", False)]
    return any(re.search(place, name) for place in places for name in names)


def masks_blocks(denoiser: torch.nn.Module) -> bool:
    """Whether its self-attention takes a mask of blocks, for which diffusers has no kernel but flex attention."""
    processors = [getattr(module, "processor", None) for module in denoiser.modules()]
    needs_flex = any("native" not in getattr(processor, BACKENDS, ("native",)) for processor in processors)
    is_nabla = getattr(denoiser, "attention_type", None) == "nabla"  # Kandinsky 5's
    return needs_flex or is_nabla or any(cls.__name__ in FLEX for cls in type(denoiser).__mro__)


def bringing(module: torch.nn.Module) -> Any:
    """The module of its group that brings its weights before its own forward, in diffusers' group offloading."""
    hook = diffusers_hooks(module).get(GROUPED)
    return None if hook is None else hook.group.onload_leader


class Hooks:
    """The hooks of one cache on one denoiser.

    Parameters
    ----------
    denoiser
        The module to which `apply` attaches them.
    apply
        Such as ``lambda denoiser: apply_first_block_cache(denoiser, config)``.

    Notes
    -----
    A hook on the denoiser itself would stand outside of whatever follows the pipeline's steps, where the branch is not
    known yet: :meth:`call` goes through it instead.
    """

    def __init__(self, denoiser: torch.nn.Module, apply: Callable[[Any], Any]) -> None:
        self.denoiser = denoiser
        self.before = {module: {"forward", REGISTRY} & vars(module).keys() for module in denoiser.modules()}
        self.known = {module: set(diffusers_hooks(module)) for module in self.before}
        self.hooks: list[Any] = []
        self.outer: list[Any] = []
        self.kept: dict[str, list[Any]] = {}
        try:
            apply(denoiser)
        except BaseException:
            self.remove()
            raise
        for module, names in self.known.items():
            added = [hook for name, hook in diffusers_hooks(module).items() if name not in names]
            (self.outer if module is denoiser else self.hooks).extend(added)
        self._take_off(denoiser)
        _stale(denoiser)

    def call(self, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """The denoiser's forward, through the hooks on the denoiser itself."""
        if not self.outer:
            return forward(*args, **kwargs)
        (hook,) = self.outer
        hook.fn_ref.original_forward = forward
        return hook.new_forward(self.denoiser, *args, **kwargs)

    def select(self, branch: str) -> bool:
        """Let the next call see what the calls of this branch have left, and nothing of the others.

        Returns whether this is the branch's first call.
        """
        from diffusers.hooks.hooks import CacheContext

        for manager in self._managers():
            manager.set_context(CacheContext(branch))
        plain = [hook for hook in (*self.outer, *self.hooks) if "state" in vars(hook)]
        is_first = branch not in self.kept
        if is_first:
            self.kept[branch] = [type(hook.state)() for hook in plain]
        for hook, state in zip(plain, self.kept[branch], strict=True):
            hook.state = state
        return is_first

    def current(self) -> list[Any]:
        """The states of the selected branch that the managers of the cache keep."""
        shared = {id(manager): manager for manager in self._managers()}.values()
        return [manager.get_state() for manager in shared]

    def states(self) -> list[Any]:
        """The state of all branches, each object once."""
        shared = {id(manager): manager for manager in self._managers()}.values()
        return [s for m in shared for s in m._state_cache.values()] + [s for kept in self.kept.values() for s in kept]

    def remove(self) -> None:
        """Remove everything that was attached."""
        for module in self.before:
            self._take_off(module)
        self.kept.clear()
        _stale(self.denoiser)

    def _managers(self) -> Iterator[Any]:
        from diffusers.hooks.hooks import StateManager

        for hook in (*self.outer, *self.hooks):
            yield from (value for value in vars(hook).values() if isinstance(value, StateManager))

    def _take_off(self, module: torch.nn.Module) -> None:
        for name in set(diffusers_hooks(module)) - self.known[module]:
            vars(module)[REGISTRY].remove_hook(name, recurse=False)
        for name in ("forward", REGISTRY):
            if name in vars(module) and name not in self.before[module]:
                delattr(module, name)


def _stale(denoiser: torch.nn.Module) -> None:
    """Have the lists of child registries made anew: they were taken before hooks came or went."""
    for module in denoiser.modules():
        registry = vars(module).get(REGISTRY)
        if registry is not None and CHILDREN in vars(registry):
            delattr(registry, CHILDREN)
