"""The default image's name follows its inputs, and nothing else."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from sandboxd.image import INPUTS, default_image, inputs_hash


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    return Path(shutil.copytree(INPUTS, tmp_path / "images"))


def test_name_is_the_hash_of_the_inputs() -> None:
    assert default_image() == f"sandboxd-agent:{inputs_hash()[:12]}"


def test_a_copy_of_the_inputs_has_the_same_hash(inputs: Path) -> None:
    assert inputs_hash(inputs) == inputs_hash()


def test_a_changed_byte_in_any_input_changes_the_hash(inputs: Path) -> None:
    seen = {inputs_hash(inputs)}
    names = sorted(path.name for path in inputs.iterdir())
    for name in names:
        path = inputs / name
        path.write_bytes(path.read_bytes() + b"#")
        seen.add(inputs_hash(inputs))
    assert len(seen) == len(names) + 1


def test_times_and_modes_and_hidden_files_do_not_change_the_hash(inputs: Path) -> None:
    before = inputs_hash(inputs)
    os.utime(inputs / "Dockerfile", (0, 0))
    (inputs / "finish.sh").chmod(0o600)
    (inputs / ".packages.txt.swp").write_text("an editor was here")
    assert inputs_hash(inputs) == before


def test_a_line_moved_to_the_next_file_changes_the_hash(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for directory, a, b in ((one, "xy", "z"), (other, "x", "yz")):
        directory.mkdir()
        (directory / "a").write_text(a)
        (directory / "b").write_text(b)
    assert inputs_hash(one) != inputs_hash(other)


def test_a_directory_without_inputs_is_an_error_not_a_name(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="cannot name the agent image"):
        inputs_hash(tmp_path)
