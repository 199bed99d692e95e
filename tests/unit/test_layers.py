"""The layers of the packages, read from the sources: a module imports only from its own group or from a lower layer.

Every import counts, also those inside functions and those for type checkers only.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Package -> layers, lowest first -> groups of modules. Groups of one layer are siblings and must not import each other;
# the modules of one group may. "" is the package's own __init__.
LAYERS: dict[str, tuple[tuple[str, ...], ...]] = {
    "memo": (
        # values, grammar and pure decisions
        (
            "content errors ids document_names documents paths limits messages tokens compaction tool_results outline "
            "memory_index",
            "keyed_lock backoff",
            "conformance",
        ),
        # contracts
        ("changes provider sessions traces orchestration inspection records leases ledger session_copy",),
        # byte stores: below the stores, because the filesystem store keeps bytes in one
        ("spool",),
        # implementations, and the turn contract
        ("stores", "wrap", "primitives turn steps"),
        ("consolidation", "store_url", "app profiles agent_http session_parts"),
        ("testing",),
        ("",),
    ),
    "sandboxd": (
        # what runs inside a container; it imports nothing else
        ("runner.inside",),
        # the base
        (
            "errors limits failpoints retries bounded permissions host_database metrics places "
            "wire_limits websocket_codec descriptors idempotency image progress debian settings_sources "
            "consolidation_settings compaction_settings history_settings",
        ),
        # the wire nouns
        ("models",),
        ("events", "network_settings"),
        # the parts of a sandbox, and the clients, which import only the base
        ("engine workspace", "runner", "memory", "network", "history", "client"),
        ("settings", "integrations"),
        ("sandboxes", "contexts"),
        ("tools", "consolidation", "inspector"),
        ("api", "mcp"),
        ("daemon",),
        ("cli",),
        ("", "__main__"),
    ),
}


@cache
def modules(package: str) -> dict[str, Path]:
    paths = sorted((ROOT / package).rglob("*.py"))
    return {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}


@cache
def imports(package: str, module: str) -> frozenset[str]:
    """Return the modules of the package that a module imports."""
    known = modules(package)
    return frozenset(name for name in _imported(known[module]) if name in known and name != module)


def _imported(path: Path) -> Iterator[str]:
    folder = path.relative_to(ROOT).parts[:-1]
    known = modules(folder[0])
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(folder[: len(folder) - node.level + 1]) if node.level else ""
            source = ".".join(filter(None, (base, node.module)))
            members = [f"{source}.{alias.name}" for alias in node.names]
            yield from (member if member in known else source for member in members)


def place(package: str, module: str) -> tuple[int, int] | None:
    """Return the layer and the group of a module; None if the table does not name it."""
    parts = module.removeprefix(package).removeprefix(".").split(".")
    if ".".join(parts[:2]) == "runner.inside":
        parts = ["runner.inside"]
    for layer, groups in enumerate(LAYERS[package]):
        for number, group in enumerate(groups):
            if parts[0] in (group.split() or [""]):
                return layer, number
    return None


@pytest.mark.parametrize("package", LAYERS)
def test_every_module_belongs_to_a_layer(package: str) -> None:
    assert [module for module in modules(package) if place(package, module) is None] == []


@pytest.mark.parametrize("package", LAYERS)
def test_the_table_names_only_modules_that_exist(package: str) -> None:
    named = {name for groups in LAYERS[package] for group in groups for name in group.split()}
    assert {name for name in named if f"{package}.{name}" not in modules(package)} == set()


@pytest.mark.parametrize("package", LAYERS)
def test_a_module_imports_only_from_its_group_or_a_lower_layer(package: str) -> None:
    offenders = []
    for module in modules(package):
        here = place(package, module)
        for name in imports(package, module):
            there = place(package, name)
            if here is not None and there is not None and here != there and there[0] >= here[0]:
                offenders.append(f"{module} imports {name}")
    assert offenders == []


def test_an_integration_imports_only_the_client_and_what_the_client_may_import() -> None:
    allowed = [place("sandboxd", name) for name in ("runner.inside", "errors", "models", "client", "integrations")]
    offenders = [
        f"{module} imports {name}"
        for module in modules("sandboxd")
        if module.startswith("sandboxd.integrations.")
        for name in imports("sandboxd", module)
        if place("sandboxd", name) not in allowed
    ]
    assert offenders == []


@pytest.mark.parametrize("package", LAYERS)
def test_no_module_is_part_of_an_import_cycle(package: str) -> None:
    graph = {module: imports(package, module) for module in modules(package)}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"import cycle: {' -> '.join(reversed(error.args[1]))}")


SHARED_NAMES = {
    "memo": set[str](),
    # the arguments of each tool; and the implementations of three Protocols of `api.contracts`
    "sandboxd": {"Arguments", "FileReader", "FileWatch", "Memory"},
}


@pytest.mark.parametrize("package", LAYERS)
def test_no_two_classes_have_the_same_name(package: str) -> None:
    written = [path for name, path in modules(package).items() if "._sync" not in name]  # _sync is generated
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in written]
    names = Counter(node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    assert {name for name, count in names.items() if count > 1} == SHARED_NAMES[package]
