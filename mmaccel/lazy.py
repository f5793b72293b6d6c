"""Packages whose public names are imported at first use.

A package lists its names once, in imports that type checkers, editors and the documentation follow; at run time nothing
is imported until somebody uses a name, so that the command line can ask a modality what it is without loading torch::

    if TYPE_CHECKING:
        from .zipar import ZipAR as ZipAR  # which says that it is public
    else:
        __getattr__, __dir__, __all__ = on_demand(__name__, __file__)
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def on_demand(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package, made from the imports below its ``if TYPE_CHECKING:``.

    A star stands for all public names of another package; the package's own come first, and are alone in `__all__`.
    """
    modules = _imports(Path(file))
    stars = [module for name, module in modules.items() if name.startswith("*")]
    own = sorted(name for name in modules if not name.startswith("*"))

    def find(name: str) -> Any:
        module = modules.get(name)
        if module is None and not name.startswith("_"):
            module = next((star for star in stars if name in import_module(star, package).__all__), None)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(module, package), name)  # not cached, so that it follows changes of the module

    def names() -> list[str]:
        shared = [name for star in stars for name in import_module(star, package).__all__]
        return sorted({*vars(sys.modules[package]), *own, *shared})

    return find, names, own


def _imports(file: Path) -> dict[str, str]:
    """Modules by the name that is imported from them; a star is followed by its module."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    found = {}
    for statement in block.body:
        assert isinstance(statement, ast.ImportFrom), f"{file}: write `from MODULE import NAME`"
        module = "." * statement.level + (statement.module or "")
        found.update({alias.name + (module if alias.name == "*" else ""): module for alias in statement.names})
    return found
