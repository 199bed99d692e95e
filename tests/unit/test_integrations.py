"""The adapters for frameworks: extras, entry points, and what an import says where the framework is missing."""

from __future__ import annotations

import ast
import tomllib
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ADAPTERS = {
    "anthropic_memory": ("anthropic", "anthropic", '"sandboxd[anthropic]"'),
    "deepagents": ("deepagents", "deepagents", '"sandboxd[deepagents]"'),
    "deepagents_code": ("deepagents", "deepagents", '"sandboxd[deepagents]"'),
    "deepagents_memory": ("deepagents", "deepagents", '"sandboxd[deepagents]"'),
    "inspect_ai": ("inspect", "inspect_ai", '"sandboxd[inspect]"'),
    "langgraph": ("langgraph", "langchain_core", '"sandboxd[langgraph]"'),
    "openai_agents": ("openai-agents", "agents", '"sandboxd[openai-agents]"'),
    "swe_rex": ("swe-rex", "pexpect", "swe-rex"),
}
FRAMEWORKS = {
    *("agents", "anthropic", "deepagents", "deepagents_code", "inspect_ai", "langchain_core", "langgraph", "openai"),
    "swerex",
}


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_an_adapter_without_its_framework_names_what_to_install(adapter: str) -> None:
    extra, missing, wanted = ADAPTERS[adapter]
    with pytest.raises(ImportError) as raised:
        import_module(f"sandboxd.integrations.{adapter}")
    said = f"cannot use the {extra} integration: {missing} is not installed; install it with `pip install {wanted}`"
    assert str(raised.value) == said


def test_every_extra_of_a_framework_has_an_adapter() -> None:
    extras = {extra for extra, _, wanted in ADAPTERS.values() if "[" in wanted}
    assert extras <= set(PROJECT["optional-dependencies"])


def test_the_entry_points_name_modules_that_exist() -> None:
    groups = PROJECT["entry-points"]
    modules = {target.partition(":")[0] for group in groups.values() for target in group.values()}
    assert {module for module in modules if find_spec(module) is None} == set()


def test_nothing_else_of_the_product_imports_a_framework_or_an_adapter() -> None:
    offenders = []
    for path in sorted([*(ROOT / "sandboxd").rglob("*.py"), *(ROOT / "memo").rglob("*.py")]):
        if path.is_relative_to(ROOT / "sandboxd" / "integrations"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [str(node.module)]
            offenders += [
                f"{path.relative_to(ROOT)} imports {name}"
                for name in names
                if name.partition(".")[0] in FRAMEWORKS or name.startswith("sandboxd.integrations")
            ]
    assert offenders == []
