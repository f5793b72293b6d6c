"""What the families have in common: methods follow the scheduler that a pipeline had when their session began."""

from __future__ import annotations

from typing import Any

from mmaccel.errors import UnsupportedTargetError
from mmaccel.session import Session


def refuse_another_scheduler(session: Session, followed: Any) -> None:
    """Raise an `UnsupportedTargetError` if the pipeline has another scheduler than the one that is followed."""
    if session.target.scheduler is not followed:
        raise UnsupportedTargetError(
            f"the pipeline has another scheduler than when {session} began, and methods follow that one: call"
            " .remove(), and accelerate it again"
        )
