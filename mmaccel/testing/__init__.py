"""The contract of methods, and what tests of other packages need for it."""

from .contract import Example, check_method

__all__ = ["Example", "check_method"]
