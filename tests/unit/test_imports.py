"""The import rules of the architecture, checked in the sources."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
INSIDE = ROOT / "sandboxd" / "runner" / "inside"


FROM_THE_IMAGE = {"kernel_process.py": {"jupyter_client", "zmq"}}
"""The one module that may import from the image: it runs in a process of its own, only in sandboxes with contexts."""


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path: Path) -> Iterator[str]:
    """Every module that this file names in an import, wherever the import appears in the file."""
    package = path.relative_to(ROOT).parts[:-1]
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, (base, node.module)))
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def offenders(paths: list[Path], *forbidden: str) -> list[str]:
    return [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in paths
        for name in imports(path)
        if any(name == module or name.startswith(f"{module}.") for module in forbidden)
    ]


def test_memo_imports_neither_the_daemon_nor_docker() -> None:
    assert sources("memo")
    assert offenders(sources("memo"), "sandboxd", "docker", "scripts") == []


def test_engine_and_mirror_do_not_import_each_other() -> None:
    assert offenders(sources("sandboxd/engine"), "sandboxd.memory") == []
    assert offenders(sources("sandboxd/memory"), "sandboxd.engine") == []


def test_only_the_docker_engine_imports_docker() -> None:
    adapter = sources("sandboxd/engine/docker")
    others = [path for path in sources("sandboxd", "memo") if path not in adapter]
    assert offenders(others, "docker") == []


def test_packages_never_import_scripts_tests_or_benchmarks() -> None:
    assert offenders(sources("sandboxd", "memo"), "scripts", "tests", "benchmarks", "examples") == []


@pytest.mark.parametrize("path", sources("sandboxd/runner/inside"), ids=lambda path: path.name)
def test_what_runs_in_the_container_needs_only_the_standard_library(path: Path) -> None:
    siblings = {sibling.stem for sibling in INSIDE.glob("*.py")}
    own = "sandboxd.runner.inside"
    foreign = [
        name
        for name in imports(path)
        if name.partition(".")[0] not in sys.stdlib_module_names | siblings and not f"{name}.".startswith(f"{own}.")
    ]
    assert {name.partition(".")[0] for name in foreign} == FROM_THE_IMAGE.get(path.name, set())


def test_the_runner_imports_nothing_from_the_image_indirectly() -> None:
    own = "sandboxd.runner.inside."
    seen: set[str] = set()
    waiting = ["runner"]
    while waiting:
        seen.add(name := waiting.pop())
        found = {
            part.removeprefix(own).partition(".")[0] for part in imports(INSIDE / f"{name}.py") if part.startswith(own)
        }
        waiting += [part for part in found if part not in seen and (INSIDE / f"{part}.py").exists()]
    assert not {path.removesuffix(".py") for path in FROM_THE_IMAGE} & seen


@pytest.mark.parametrize("path", sources("sandboxd/runner/inside"), ids=lambda path: path.name)
def test_what_runs_in_the_container_is_python_3_9(path: Path) -> None:
    ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 9))


def test_every_module_with_code_opens_with_a_docstring() -> None:
    trees = {path: tree_of(path) for path in sources("sandboxd", "memo", "scripts", "tests", "benchmarks", "examples")}
    silent = [str(path.relative_to(ROOT)) for path, tree in trees.items() if tree.body and not ast.get_docstring(tree)]
    assert silent == []
