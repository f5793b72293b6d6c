"""Session: a plan applied to one target, reversible bit for bit."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import wraps
from typing import Any, Generic, Self

from typing_extensions import TypeVar

from .adapter import AcceleratedTarget, Adapter
from .errors import ActiveSessionError, UsageError
from .machine import synchronize
from .method import Method
from .plan import Plan, resolve
from .report import Report

A = TypeVar("A", bound=Adapter, default=Any)

# What models and pipelines return themselves from, as in ``accelerate(model, ...).eval()``.
CHAINED = frozenset(
    ("to", "cuda", "xpu", "ipu", "mtia", "cpu", "half", "float", "double", "bfloat16", "type", "apply", "share_memory")
    + ("train", "eval", "requires_grad_")
)
REMOVED = "the session was removed: the run was without its methods"
# Which session holds an object, by id, since models need not be hashable. Weak: what a method attaches to
# the target refers to its session, so a session lives exactly as long as the target or its user keeps it.
_holders: dict[int, weakref.ref[Session]] = {}


def holder_of(part: Any) -> Session | None:
    """The live session that has a part of a target."""
    holder = _holders.get(id(part))
    live = holder() if holder is not None else None
    return None if live is None or (live._removed and not live.active) else live


def refuse_held(part: Any, own: Session | None = None) -> None:
    """Raise an `ActiveSessionError` if a part of a target belongs to another session."""
    live = holder_of(part)
    if live is not None and live is not own:
        raise ActiveSessionError(
            f"this {type(part).__name__} is already accelerated by {live}: call .remove() on that session first,"
            " which this error has as .session",
            live,
        )


def accelerate(target: Any, *methods: Method | Plan, preset: str | None = None) -> Session:
    """Make a model or pipeline faster, in place, until :meth:`Session.remove`.

    Parameters
    ----------
    target
        A transformers model or diffusers pipeline of a supported family.
    *methods
        Methods to apply; a plan stands for its methods.
    preset
        ``"exact"``, ``"balanced"`` or ``"fast"`` instead of methods.

    Raises
    ------
    UnsupportedTargetError, ConflictError, UnknownNameError
        Before anything is changed.
    ActiveSessionError
        If another live session holds the target; the error names it.

    Examples
    --------
    >>> from mmaccel import image, zoo
    >>> model, processor = zoo.load("tiny-janus")
    >>> fast = accelerate(model, image.SpeculativeJacobi())
    >>> fast.remove()
    """
    chosen, adapter = resolve(target, *methods, preset=preset)
    return Session(chosen, adapter)


class Session(AcceleratedTarget, Generic[A]):
    """A plan applied to one target. Use it as the target: calls are forwarded, and attributes read or set.

    Several threads may call `generate` of a model: each waits for its turn.

    Leaving the ``with`` block, or :meth:`remove`, removes every trace from the target.

    Attributes
    ----------
    target, plan, adapter, report
    memory
        What methods learn from one run for the next.
    around
        Entered around every run.
    lock
        Of the thread whose call it is.
    """

    target: Any
    plan: Plan
    adapter: A
    report: Report
    memory: dict[str, Any]
    around: list[Callable[[], AbstractContextManager[None]]]
    lock: threading.RLock
    _stack: ExitStack | None
    _held: list[Any]
    _removed: bool
    _running: bool

    def __init__(self, plan: Plan, adapter: A) -> None:
        self.target, self.plan, self.adapter = adapter.target, plan, adapter
        self.report = Report([str(method) for method in plan.methods], plan.exact)
        self.memory, self.around, self.lock = {}, [], threading.RLock()
        self._stack, self._held, self._removed, self._running = None, [], False, False
        try:
            for part in adapter.parts():
                self.hold(part)
            self._attach()
        except BaseException:
            self.remove()
            raise

    def hold(self, part: Any) -> None:
        """Have a part of the target to oneself until :meth:`remove`; raises an `ActiveSessionError` if another has."""
        refuse_held(part, self)
        if holder_of(part) is None:
            _holders[id(part)] = weakref.ref(self)
            self._held.append(part)

    @property
    def active(self) -> bool:
        """Whether the target is accelerated now."""
        return self._stack is not None

    def _attach(self) -> None:
        with ExitStack() as stack:
            self.attach(self.plan.methods, stack)
            self._stack = stack.pop_all()

    def attach(self, methods: Iterable[Method], stack: ExitStack) -> None:
        """Attach methods to the target, the outermost last, until `stack` closes."""
        for method in sorted(methods, key=lambda method: method.nesting):
            method.attach(self, stack)

    def _detach(self) -> None:
        stack, self._stack = self._stack, None
        if stack is not None:
            stack.close()

    def remove(self) -> None:
        """Leave the target exactly as it was, after a run of the session that goes on; again, it does nothing."""
        with self.lock:
            self._removed = True
            if self._running:  # a callback of it asks: its end takes the methods off
                return
            self._detach()
            while self._held:
                del _holders[id(self._held.pop())]

    @contextmanager
    def baseline(self) -> Iterator[Any]:
        """Run the target without methods inside this block, and keep the time as the report's baseline.

        Examples
        --------
        >>> with fast.baseline() as plain:  # doctest: +SKIP
        ...     plain.generate(**inputs, generation_mode="image")
        >>> print(fast.report)  # doctest: +SKIP
        """
        with self.detached():
            synchronize()
            began = time.perf_counter()
            yield self.target
            synchronize()
            self.report.baseline_seconds = time.perf_counter() - began

    @contextmanager
    def detached(self) -> Iterator[None]:
        """Take all methods off the target inside this block; those of the plan are attached after it.

        It waits for a run of another thread, and raises an `ActiveSessionError` within one of this thread.
        """
        with self.lock:
            if self._running:  # a callback of it asks
                raise ActiveSessionError(f"{self} is in the middle of a call: take its methods off before or after it")
            was_active = self.active
            self._detach()
        try:
            yield
        finally:
            with self.lock:
                if was_active and not self._removed:
                    self._attach()

    def __enter__(self) -> Self:
        if self._removed:
            raise ActiveSessionError(
                "this session was removed, as `with` does at its end: call mmaccel.accelerate(...) again, or write one"
                " `with` around all calls"
            )
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    @contextmanager
    def run(self) -> Iterator[None]:
        """One run: the report restarts, :attr:`around` is entered, and the time is measured.

        A run within a run belongs to the outer one. Raises an `ActiveSessionError` within that of another thread.
        """
        with self._turn():
            if self._running:
                yield
                return
            self.report.start()
            self.report.unfinished = self._running = True
            try:
                synchronize()
                began = time.perf_counter()
                with ExitStack() as stack:
                    for enter in self.around:
                        stack.enter_context(enter())
                    yield
                    synchronize()
                    self.report.wall_seconds, self.report.unfinished = time.perf_counter() - began, False
            finally:
                self._running = False
                if self._removed:
                    self.remove()

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Have the target to this thread, or raise an `ActiveSessionError` where another has it."""
        if not self.lock.acquire(blocking=False):
            raise ActiveSessionError(
                f"{type(self.target).__name__} is in the middle of another call, and serves one at a time: wait for"
                " that call, or accelerate a second one with parts of its own"
            )
        try:
            yield
        finally:
            self.lock.release()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self.adapter.call_is_run:
            return self.target(*args, **kwargs)
        with self._turn():
            for method in self.plan.methods if self.active else ():
                method.prepare(self, args, kwargs)
            with self.run():
                if self._removed:
                    self.report.warn(REMOVED)
                return self.target(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name in ("target", "adapter"):  # not built yet: raise instead of recursing
            raise AttributeError(name)
        found = getattr(self.target, name)
        if name == "generate" and self._removed:  # else the report would still be that of the last run
            self.report.start()
            self.report.warn(REMOVED)
        return self._chained(found) if name in CHAINED else found

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refused at once, and not when all weights of the target are copied already."""
        raise UsageError(
            "a Session can be neither copied nor pickled: copy its .target, which copies without methods, and"
            " accelerate that"
        )

    def __dir__(self) -> list[str]:
        """What completion shows: names of the session and of the target."""
        return sorted({*super().__dir__(), *dir(self.target)})

    def _chained(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """A method of the target that returns the session instead, with its report and :meth:`remove`."""

        @wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            found = method(*args, **kwargs)
            return self if found is self.target else found

        return call

    def __setattr__(self, name: str, value: Any) -> None:
        """What the target has, as in ``fast.scheduler = ...``, is set there."""
        if name not in Session.__annotations__ and hasattr(vars(self).get("target"), name):
            setattr(self.target, name, value)
        else:
            super().__setattr__(name, value)

    def __str__(self) -> str:
        state = "" if self.active else ", removed" if self._removed else ", detached"
        return f"Session({type(self.target).__name__}, {', '.join(self.report.methods)}{state})"

    __repr__ = __str__
