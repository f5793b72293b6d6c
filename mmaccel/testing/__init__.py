"""The contract of methods, and what tests of other packages need for it."""

from .contract import check_method
from .example import Example

__all__ = ["Example", "check_method"]
