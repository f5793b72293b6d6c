"""Caches of keys and values that the methods share."""

from .branch import BranchCache
from .context_store import ContextStore
from .estimate import estimate_bytes, free_memory, require_memory
from .evicting import EvictingCache, EvictingLayer
from .ragged import RaggedLayer
from .rollback import RollbackCache, RollbackLayer
from .selecting import SelectingCache, SelectingLayer

__all__ = [
    "BranchCache",
    "ContextStore",
    "EvictingCache",
    "EvictingLayer",
    "RaggedLayer",
    "RollbackCache",
    "RollbackLayer",
    "SelectingCache",
    "SelectingLayer",
    "estimate_bytes",
    "free_memory",
    "require_memory",
]
