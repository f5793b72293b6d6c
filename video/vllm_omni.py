"""Step methods in vLLM-Omni's diffusers backend, as a custom pipeline."""

from __future__ import annotations

from typing import Any, ClassVar, cast

import mmaccel
from mmaccel.method import Method
from mmaccel.plan import Plan
from mmaccel.session import Session

from .heterogeneous.heterogeneous_steps import HeterogeneousSteps


class Accelerated:
    """Stands before vLLM-Omni's `DiffusersAdapterPipeline` and accelerates the pipeline that it has loaded.

    That backend runs any pipeline of diffusers as a whole, and refuses vLLM-Omni's own caches. Methods of whole steps
    need nothing of it. Lossy or exact as the methods are; the pipeline's call, and so the backend, stay as they are.

    Class attributes
    ----------------
    methods
        What accelerates; by default ``video.HeterogeneousSteps()``.

    Attributes
    ----------
    session
        Of the pipeline, with the report of the last request.

    Raises
    ------
    UnsupportedTargetError
        When the weights have been loaded, if a method does not fit the pipeline.

    Examples
    --------
    A module of your own, which `custom_pipeline_args={"pipeline_class": "fast_pipeline.Pipeline"}` names:

    >>> class Pipeline(Accelerated, DiffusersAdapterPipeline):  # doctest: +SKIP
    ...     methods = (video.HeterogeneousSteps(budget=0.5),)
    """

    methods: ClassVar[tuple[Method | Plan, ...]] = (HeterogeneousSteps(),)
    session: Session
    _pipeline: Any  # of the backend

    def load_weights(self, *args: Any, **kwargs: Any) -> Any:
        """Load as the backend does, then accelerate what it calls."""
        found = cast(Any, super()).load_weights(*args, **kwargs)
        self.session = mmaccel.accelerate(self._pipeline, *self.methods)
        return found
