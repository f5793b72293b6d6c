"""Caches of keys and values that the methods share."""

from .rollback import RollbackCache, RollbackLayer

__all__ = ["RollbackCache", "RollbackLayer"]
