"""The files of the inspector's page: no parsing of HTML, nothing from elsewhere, and every import is served."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sandboxd.inspector.page_files import DIRECTORY, INDEX, PageFiles

MODULES = sorted(DIRECTORY.glob("*.js"))
IMPORT = re.compile(r'^import [^"]*?"([^"]+)";|\bimport\("([^"]+)"\)', re.MULTILINE)
PARSERS = re.compile(
    r"\b(?:innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|createContextualFragment|setHTMLUnsafe|"
    r"srcdoc|eval|Function)\b|setTimeout\(\s*[\"'`]"
)


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.name)
def test_a_module_never_parses_html_or_runs_text(module: Path) -> None:
    assert PARSERS.findall(module.read_text()) == []


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.name)
def test_a_module_imports_only_modules_that_are_served(module: Path) -> None:
    served = PageFiles.read().names
    for name in map("".join, IMPORT.findall(module.read_text())):
        assert name.startswith("./")
        assert name.removeprefix("./") in served


def test_the_document_has_nothing_that_its_policy_refuses() -> None:
    text = (DIRECTORY / INDEX).read_text()
    assert re.findall(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=|https?://", text) == []
    for name in re.findall(r'(?:href|src)="static/([^"]+)"', text):
        assert name in PageFiles.read().names


def test_the_styles_load_nothing() -> None:
    for sheet in DIRECTORY.glob("*.css"):
        assert re.findall(r"@import|url\(", sheet.read_text()) == []
