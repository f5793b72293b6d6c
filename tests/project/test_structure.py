"""The shape of the code: small files and folders, and imports that point one way."""

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINKS = {path.resolve(): f"mmaccel.{path.name}" for path in (ROOT / "mmaccel").iterdir() if path.is_symlink()}
ROOMS = {ROOT / "mmaccel": "mmaccel", **LINKS}
LINES, FILES = 300, 20


def modules() -> dict[str, Path]:
    """Every module of the packages by its name, each in its own room."""
    found = {}
    for folder, name in ROOMS.items():
        for path in folder.rglob("*.py"):
            if path.parent.resolve() == path.parent:  # not through a link
                parts = path.relative_to(folder).with_suffix("").parts
                found[".".join([name, *parts]).removesuffix(".__init__")] = path
    return found


def test_files_and_folders_are_small():
    paths = modules().values()
    long = [f"{path}: {lines} lines" for path in paths if (lines := len(path.read_text().splitlines())) > LINES]
    folders = [path.parent for path in paths]
    full = [f"{folder}: {folders.count(folder)} files" for folder in set(folders) if folders.count(folder) > FILES]
    assert len(folders) > 700 and long == full == []


def test_no_two_public_classes_of_the_product_have_one_name():
    """Benchmarks and demos, which nothing imports, may use a plain word again."""
    paths = [path for name, path in modules().items() if not {"bench", "demos"} & set(name.split("."))]
    nodes = [node for path in paths for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)]
    names = [node.name for node in nodes if not node.name.startswith("_")]
    assert {name for name in names if names.count(name) > 1} == {"Endpoint"}  # of a server, and of speech


def test_types_are_told_instead_of_ignored():
    lines = [(path, line) for path in modules().values() for line in path.read_text().splitlines()]
    assert [f"{path}: {line.strip()}" for path, line in lines if "type: ignore" in line] == []


def test_the_random_state_is_put_back_by_one_function():
    """torch's own knows CUDA's alone before 2.13, and warns where there are several GPUs."""
    assert {name for name, path in modules().items() if "fork_rng(" in path.read_text()} == {"mmaccel.machine"}


def test_imports_make_no_circle():
    """Those inside of functions count as well; only what is imported for its type alone does not."""
    graph = imports()
    assert "mmaccel.plan" in graph["mmaccel.session"]
    assert "mmaccel.comparison.page" in graph["mmaccel.comparison.comparison"]  # inside of a function
    TopologicalSorter(graph).prepare()


def test_only_the_command_that_starts_the_demo_imports_demos():
    """Inside of functions as well."""
    users = {name for name, found in imports().items() if any(map(_is_demo, found))}
    assert {name for name in users if not _is_demo(name)} == {"mmaccel.cli.demo"}


def _is_demo(name: str) -> bool:
    return name.startswith("mmaccel.demos")


@cache
def imports() -> dict[str, set[str]]:
    """Of each module the others that it imports."""
    found = modules()
    return {name: set(imported(name, path, found)) for name, path in found.items()}


def imported(name: str, path: Path, known: dict[str, Path]) -> Iterator[str]:
    """Modules among the known ones that a module imports, wherever it does."""
    package = name if path.stem == "__init__" else name.rpartition(".")[0]
    for node in executed(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from {alias.name for alias in node.names} & known.keys()
        elif isinstance(node, ast.ImportFrom):
            above = package.rsplit(".", node.level - 1)[0] if node.level else ""
            source = ".".join(filter(None, (above, node.module)))
            names = {f"{source}.{alias.name}" for alias in node.names}
            parts = names if names <= known.keys() else {*names, source}
            yield from parts & known.keys() - {name}


def executed(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those below `if TYPE_CHECKING`."""
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            yield child
            yield from executed(child)
