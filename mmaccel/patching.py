"""Changes to one instance: each function here pushes onto a stack what restores it exactly.

Classes are never changed, so other instances are not affected. The last change runs first, and is removed first.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import threading
import weakref
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch

from . import private
from .forwards import BELOW_HOOK, FORWARD, forward_place, forward_places
from .session import Session

# `(original, kwargs) -> result`: what a method does in place of a call of `generate`, its arguments by name
Generate = Callable[[Callable[..., Any], dict[str, Any]], Any]

Before = Callable[[torch.nn.Module, tuple[Any, ...], dict[str, Any]], Any]
After = Callable[[torch.nn.Module, tuple[Any, ...], dict[str, Any], Any], Any]

# Arguments of attention functions that change the result in ways that only the model's own attention knows.
UNKNOWN_ARGUMENTS = ("softcap", "s_aux", "position_bias", "head_mask", "cache")

_numbers = itertools.count()
# What intercept_attention routes through, by its name in transformers' table. Weak, since a model that is dropped
# together with its session would live on in what is global; parts that outlive it run plainly.
_routed: weakref.WeakValueDictionary[str, functools.partial[Any]] = weakref.WeakValueDictionary()


def override(stack: ExitStack, owner: Any, name: str, value: Any) -> None:
    """Set an attribute on one instance, until `stack` closes.

    Where the name came from the class, the instance attribute is deleted again, so that
    ``owner.__dict__`` has the same keys as before.
    """
    had, old = name in vars(owner), vars(owner).get(name)

    def restore() -> None:
        if had:
            setattr(owner, name, old)
        else:
            delattr(owner, name)

    setattr(owner, name, value)
    stack.callback(restore)


class Wrapped:
    """Replaces one method of an instance.

    A copy of the owner gets its own plain method: pipelines copy schedulers. Below a wrapper that another library put
    around it meanwhile it stays and only forwards calls; hooks of accelerate and diffusers get the original back.
    """

    # so that a wrapper around this one, which takes over its attributes, has none of the session's
    __slots__ = ("original", "owner", "function", "name", "had", "live", "__dict__", "__weakref__")

    def __init__(self, owner: Any, name: str, function: Callable[..., Any], holder: Any = None) -> None:
        holder = owner if holder is None else holder  # a hook, where that keeps the owner's method
        functools.update_wrapper(self, getattr(holder, name))
        self.original = getattr(holder, name)
        self.owner, self.function = owner, function
        self.name = FORWARD if name == BELOW_HOOK else name  # that of the class
        self.had = name in vars(holder)
        self.live = True
        setattr(holder, name, self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self.original, *args, **kwargs) if self.live else self.original(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        copied = memo.get(id(self.owner))
        if copied is None:
            return self
        own: Any = inspect.getattr_static(type(copied), self.name)  # which may be a static method
        return own.__get__(copied, type(copied))

    def __reduce__(self) -> Any:
        return getattr, (self.owner, self.name)  # so that what is pickled is plain, too

    def remove(self) -> None:
        self.live = False
        self._leave(self.owner, self.name)
        if self.name == FORWARD:  # which hooks move as they come and go, in off-loaded pipelines each call
            for holder, name in forward_places(self.owner):
                self._leave(holder, name)

    def _leave(self, holder: Any, name: str) -> None:
        above = vars(holder).get(name)
        if above is not self:
            while isinstance(above, Wrapped) and above.original is not self:
                above = above.original
            if isinstance(above, Wrapped):  # of ours, and attached later
                above.original, above.had = self.original, self.had
            return
        if self.had or holder is not self.owner or name != self.name:
            setattr(holder, name, self.original)
        else:
            delattr(holder, name)


def wrap_method(stack: ExitStack, owner: Any, name: str, function: Callable[..., Any]) -> None:
    """Put ``function(original, *args, **kwargs)`` in place of a method of one instance, until `stack` closes."""
    stack.callback(Wrapped(owner, name, function).remove)


def wrap_in_thread(stack: ExitStack, owner: Any, name: str, function: Callable[..., Any]) -> None:
    """The same for calls of this thread alone; those of other threads get the method itself."""
    wrap_method(stack, owner, name, _in_this_thread(function, _plainly))


def _in_this_thread(function: Callable[..., Any], otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """A function for calls of this thread, and another one for those of other threads."""
    thread = threading.get_ident()
    return lambda *given, **more: (function if threading.get_ident() == thread else otherwise)(*given, **more)


def _plainly(original: Callable[..., Any], *given: Any, **more: Any) -> Any:
    return original(*given, **more)


def _leave(*_: Any) -> None:
    """Of a hook, which then changes nothing."""


def wrap_forward(stack: ExitStack, module: torch.nn.Module, function: Callable[..., Any]) -> None:
    """:func:`wrap_method` for what a module runs: its `forward`, below hooks that come and go, or its compiled call."""
    holder, name = (module, private.COMPILED_CALL) if private.is_compiled(module) else forward_place(module)
    stack.callback(Wrapped(module, name, function, holder).remove)


def wrap_generate(
    stack: ExitStack,
    session: Session,
    function: Generate,
    model: Any = None,
    applies: Callable[[dict[str, Any]], bool] | None = None,
) -> None:
    """Put ``function(original, kwargs)`` in place of `generate` of one model, as a run of the session.

    The report restarts with the outermost call, and the time of that call is measured. Of several methods on one
    model, the one attached last is outermost: the others run within its `original`. A `generate` that calls
    itself gets the model's own, and one of another thread waits for its turn.

    Parameters
    ----------
    function
        Takes the original `generate` and all arguments by name; returns the result.
    model
        The model instance, the session's target by default.
    applies
        Whether a call with these arguments counts as a run; other calls pass through. May change the arguments. By
        default every call counts.
    """
    owner = session.target if model is None else model
    names = list(inspect.signature(owner.generate).parameters)
    within: list[bool] = []
    removed: list[bool] = []

    def generate(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with session.lock:
            if within or removed:  # while this call waited
                return original(*args, **kwargs)
            kwargs.update(zip(names, args, strict=False))
            if applies is not None and not applies(kwargs):
                return original(**kwargs)
            session.adapter.check_call(kwargs)
            within.append(True)
            try:
                with session.run():
                    return function(original, kwargs)
            finally:
                within.clear()

    wrap_method(stack, owner, "generate", generate)
    stack.callback(removed.append, True)


@dataclass(frozen=True)
class _Hook:
    """A hook of one module, which does nothing on copies of it."""

    module: torch.nn.Module | None
    function: Callable[..., Any]

    def __call__(self, called: torch.nn.Module, *rest: Any) -> Any:
        return self.function(called, *rest) if called is self.module else None

    def __reduce__(self) -> Any:
        return _Hook, (None, print)


def hook(
    stack: ExitStack,
    module: torch.nn.Module,
    before: Before | None = None,
    after: After | None = None,
    always: bool = False,
    in_thread: bool = False,
) -> None:
    """Observe each call of one module, and change it where a function returns something, until `stack` closes.

    A copy of the module takes over its hooks, which then do nothing.

    Parameters
    ----------
    before
        ``before(module, args, kwargs)``; may return other ``(args, kwargs)``.
    after
        ``after(module, args, kwargs, output)``; may return another output.
    always
        Whether `after` also runs after an `Exception`, without an output; torch leaves it out when Ctrl-C interrupts.
    in_thread
        Whether calls of other threads are left alone.
    """
    if in_thread:
        before = before and _in_this_thread(before, _leave)
        after = after and _in_this_thread(after, _leave)
    if after is not None:
        placed = module.register_forward_hook(_Hook(module, after), with_kwargs=True, always_call=always)
        stack.callback(placed.remove)
    if before is not None:
        stack.callback(module.register_forward_pre_hook(_Hook(module, before), with_kwargs=True).remove)


def attention_layers(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The self-attention of each layer, in order, of a model whose attention goes through transformers' table."""
    found: list[Any] = [
        module
        for module in model.modules()
        if isinstance(getattr(module, "layer_idx", None), int)
        and hasattr(module, "config")
        and not getattr(module, "is_cross_attention", False)
        and private.uses_attention_interface(module)
    ]
    return sorted(found, key=lambda module: int(module.layer_idx))


def unfit_attention(modules: Iterable[torch.nn.Module]) -> str | None:
    """The first attention implementation of these modules that :func:`intercept_attention` cannot stand before."""
    names = (private.attention_name(private.plain_config(module.config)) for module in modules)
    return next((name for name in names if name not in ("sdpa", None)), None)


def intercept_attention(
    stack: ExitStack, modules: Iterable[torch.nn.Module], attend: Callable[..., Any], in_thread: bool = False
) -> None:
    """Route the attention of transformers' modules through `attend`, until `stack` closes.

    It is called as ``attend(original, module, query, key, value, attention_mask, **kwargs)``, where `original` takes
    the same from `module` on. Masks are those that SDPA takes. With `in_thread` calls of other threads are left alone.

    Each module gets a configuration that asks for a new name, ``mmaccel_0`` and so on, in transformers' table. Only
    modules without an :func:`unfit_attention` can be routed: transformers' flash attention, for one, loads what the
    configuration names. Where the model's attention is set to another later, as continuous batching does, that runs.
    """
    names: dict[str | None, str] = {}
    attend = _in_this_thread(attend, _plainly) if in_thread else attend
    for module in modules:
        config: Any = module.config
        asked = private.attention_name(config)
        if asked not in names:
            names[asked] = name = f"mmaccel_{next(_numbers)}"
            routed = functools.partial(attend, private.attention_function(asked, module))
            plain = private.attention_name(private.plain_config(config))
            private.register_attention(name, functools.partial(_unless_switched, plain, name))
            _routed[name] = routed
            stack.callback(_unregister, name, routed)
        override(stack, module, "config", private.with_attention(config, names[asked]))


def _unregister(name: str, routed: Callable[..., Any]) -> None:
    """Take a name off the table; the stack that will call this keeps what the name stands for."""
    private.unregister_attention(name)


def attending(module: Any) -> Callable[..., Any] | None:
    """What :func:`intercept_attention` routes the attention of a module through now; None for its own."""
    routed = _routed.get(private.attention_name(module.config) or "")
    return None if routed is None else routed.func


def _unless_switched(plain: str | None, own: str, module: Any, *given: Any, **more: Any) -> Any:
    """Attention by what is routed by its `own` name, or by what the model was set to since its own was `plain`."""
    name, routed = private.attention_name(config := private.plain_config(module.config)), _routed.get(own)
    if name == plain and routed is not None:
        return routed(module, *given, **more)
    with ExitStack() as stack:
        override(stack, module, "config", config)  # whose name flash attention goes by
        return private.attention_function(name, module)(module, *given, **more)
