"""`make tables` takes the tables out of a package, and nothing else."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from memo.token_tables import find_tables
from scripts.token_tables import extract, held


def test_only_tables_are_taken_and_only_undamaged_ones_count(tmp_path: Path) -> None:
    wheel, target = tmp_path / "some.whl", tmp_path / "tables"
    place = "litellm/litellm_core_utils/tokenizers"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in (
            f"{place}/{'0' * 40}",
            f"{place}/__init__.py",
            f"{place}/../../{'1' * 40}",
            f"elsewhere/{'2' * 40}",
        ):
            archive.writestr(name, "x")
    assert extract(wheel, target) == []
    assert [path.name for path in target.iterdir()] == ["0" * 40]


def test_a_carried_table_makes_its_encoding_exact(tmp_path: Path) -> None:
    tables = find_tables("cl100k_base")
    if tables is None:
        pytest.skip("no table of cl100k_base on this machine")
    wheel = tmp_path / "some.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for table in tables.iterdir():
            if len(table.name) == 40:
                archive.write(table, f"litellm/litellm_core_utils/tokenizers/{table.name}")
    assert "cl100k_base" in extract(wheel, tmp_path / "tables")
    assert "cl100k_base" in held(tmp_path / "tables")
