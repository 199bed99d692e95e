"""Moves of files on a real filesystem, with the kernel's own refusal to overwrite and without it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxd.runner.inside import names
from sandboxd.runner.inside.failure import Failure

NO_SUCH_SYSTEM_CALL = 99_999


@pytest.fixture(params=["renameat2", "no renameat2"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    if request.param == "no renameat2":
        monkeypatch.setattr(names, "_RENAMEAT2", NO_SUCH_SYSTEM_CALL)
    with tempfile.TemporaryDirectory(dir="/tmp") as path:  # one of the roots that the runner accepts
        yield Path(path)


def test_a_move_overwrites_nothing_unless_it_may_replace(place: Path) -> None:
    (place / "one").write_text("1")
    (place / "two").write_text("2")
    (place / "link").symlink_to("nowhere")
    for target in ("two", "link", "one"):
        with pytest.raises(Failure) as refused:
            names.move(f"{place}/one", f"{place}/{target}", False)
        assert refused.value.code == "FileExists"
    assert ((place / "one").read_text(), (place / "two").read_text()) == ("1", "2")
    names.move(f"{place}/one", f"{place}/three", False)
    names.move(f"{place}/three", f"{place}/two", True)
    assert sorted(path.name for path in place.iterdir()) == ["link", "two"]
    assert (place / "two").read_text() == "1"


def test_a_directory_is_not_moved_into_itself(place: Path) -> None:
    (place / "d").mkdir()
    for replace in (False, True):
        with pytest.raises(Failure, match="into itself"):
            names.move(f"{place}/d", f"{place}/d/e", replace)
    assert (place / "d").is_dir()
