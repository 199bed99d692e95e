"""Watches of real directories: nothing is missed after `ready`, new directories are followed, bounds hold."""

from __future__ import annotations

import os
import select
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxd.models.files import FileEvent
from sandboxd.runner import protocol
from sandboxd.runner.inside import directory_watch, wire
from sandboxd.runner.inside.directory_watch import DirectoryWatch
from sandboxd.runner.inside.failure import Failure
from sandboxd.runner.inside.wire import WireError


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp") as path:  # one of the roots that the runner accepts
        yield Path(path)


class Watched:
    """A watch that is ready, and what it reports."""

    def __init__(self, path: Path, *, recursive: bool = True) -> None:
        self._path = str(path)
        self.watch = DirectoryWatch(self._path, recursive)
        assert self._take(until_ready=True)[-1].event == "ready"

    def _take(self, *, until_ready: bool = False) -> list[FileEvent]:
        events: list[FileEvent] = []
        while True:
            data, has_more = self.watch.step()
            events += protocol.read_file_events(self._path, data)
            if self.watch.is_over or (until_ready and self.watch.is_ready and not has_more):
                return events
            if not has_more and not select.select([self.watch.fd], [], [], 0)[0]:
                return events

    def events(self) -> list[tuple[str, str, str | None]]:
        """Return what happened since the last call; paths are relative."""
        return [
            (event.event, event.path.removeprefix(self._path).removeprefix("/"), event.type) for event in self._take()
        ]


def test_every_kind_of_change_is_reported_once(place: Path) -> None:
    (place / "old").write_text("old")
    (place / "gone").write_text("gone")
    watched = Watched(place, recursive=False)
    (place / "new").write_text("new")
    (place / "old").write_text("changed")
    (place / "old").write_text("changed again")
    (place / "link").symlink_to("old")
    (place / "directory").mkdir()
    (place / "gone").unlink()
    (place / "moved").touch()
    (place / "moved").rename(place / "here")
    (place / "here").chmod(0o600)
    assert watched.events() == [
        ("created", "new", "file"),
        ("changed", "old", "file"),
        ("created", "link", "symlink"),
        ("created", "directory", "directory"),
        ("removed", "gone", None),
        ("created", "moved", None),
        ("removed", "moved", None),
        ("created", "here", "file"),
    ]
    (place / "directory" / "below").touch()
    assert watched.events() == []
    watched.watch.close()


def test_what_is_created_in_a_new_directory_before_it_is_watched_is_reported_once(place: Path) -> None:
    watched = Watched(place)
    (place / "a" / "b" / "c").mkdir(parents=True)
    (place / "a" / "one").write_text("1")
    (place / "a" / "b" / "c" / "two").write_text("2")
    found = watched.events()
    created = [(path, kind) for event, path, kind in found if event == "created"]
    assert sorted(created) == [
        ("a", "directory"),
        ("a/b", "directory"),
        ("a/b/c", "directory"),
        ("a/b/c/two", "file"),
        ("a/one", "file"),
    ]
    (place / "a" / "b" / "c" / "three").touch()
    assert watched.events() == [("created", "a/b/c/three", "file")]
    (place / "a" / "one").unlink()
    (place / "a" / "one").touch()
    assert watched.events() == [("removed", "a/one", None), ("created", "a/one", "file")]
    watched.watch.close()


def test_a_directory_that_is_moved_is_removed_there_and_created_here(place: Path) -> None:
    (place / "top" / "from" / "deep").mkdir(parents=True)
    (place / "top" / "from" / "deep" / "file").touch()
    (place / "elsewhere").mkdir()
    watched = Watched(place / "top")
    (place / "top" / "from").rename(place / "top" / "to")
    events = watched.events()
    assert events[0] == ("removed", "from", "directory")
    assert sorted(events[1:]) == [
        ("created", "to", "directory"),
        ("created", "to/deep", "directory"),
        ("created", "to/deep/file", "file"),
    ]
    (place / "top" / "to" / "deep" / "file").write_text("x")
    assert watched.events() == [("changed", "to/deep/file", "file")]
    (place / "top" / "to").rename(place / "elsewhere" / "to")
    assert watched.events() == [("removed", "to", "directory")]
    (place / "elsewhere" / "to" / "deep" / "file").unlink()
    assert watched.events() == []
    assert len(watched.watch._known) == 1
    watched.watch.close()


def test_the_end_of_the_directory_ends_the_watch(place: Path) -> None:
    for end in ("removed", "moved"):
        top = place / "top"
        top.mkdir()
        watched = Watched(top)
        top.rmdir() if end == "removed" else top.rename(place / "away")
        assert watched.events() == [("removed", "", "directory")]
        assert watched.watch.is_over
        watched.watch.close()


def test_drafts_are_not_reported_until_they_get_their_name(place: Path) -> None:
    watched = Watched(place)
    draft = place / ".sandboxd-0123456789abcdef.tmp"
    draft.write_text("x")
    draft.rename(place / "file")
    assert watched.events() == [("created", "file", "file")]
    watched.watch.close()


def test_links_are_not_followed(place: Path) -> None:
    (place / "outside" / "deep").mkdir(parents=True)
    (place / "top").mkdir()
    (place / "top" / "link").symlink_to("../outside")
    watched = Watched(place / "top")
    (place / "outside" / "secret").touch()
    (place / "top" / "second").symlink_to("../outside")
    assert watched.events() == [("created", "second", "symlink")]
    (place / "outside" / "deep" / "secret").touch()
    assert watched.events() == []
    watched.watch.close()


def test_an_overflow_is_reported_and_directories_that_it_hid_are_watched(place: Path) -> None:
    watched = Watched(place)
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    (place / "a").touch()
    (place / "b").touch()
    for _ in range(limit // 2 + 10):  # equal neighbours in the queue are merged, so they alternate
        os.utime(place / "a")
        os.utime(place / "b")
    (place / "hidden").mkdir()
    events = watched.events()
    assert ("overflow", "", "directory") in events
    assert ("created", "hidden", "directory") not in events
    (place / "hidden" / "file").touch()
    assert watched.events() == [("created", "hidden/file", "file")]
    watched.watch.close()


def test_too_many_directories_are_refused_at_first_and_an_overflow_later(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory_watch, "MAX_DIRECTORIES", 4)
    for number in range(3):
        (place / str(number)).mkdir()
    watched = Watched(place)
    (place / "3").mkdir()
    events = watched.events()
    assert events == [("created", "3", "directory"), ("overflow", "", "directory")]
    watched.watch.close()
    with pytest.raises(Failure, match="more directories than can be watched"):
        Watched(place)


def test_only_a_directory_inside_the_roots_is_watched(place: Path) -> None:
    (place / "file").touch()
    with pytest.raises(Failure, match="not a directory"):
        DirectoryWatch(str(place / "file"), False)
    with pytest.raises(Failure, match="leads outside"):
        DirectoryWatch("/etc", False)
    (place / "link").symlink_to("/etc")
    with pytest.raises(Failure, match="leads outside"):
        DirectoryWatch(str(place / "link"), False)
    before = len(os.listdir("/proc/self/fd"))
    Watched(place).watch.close()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    "data",
    [
        b"\x01",
        wire.WATCHED.pack(9, 0, 0),
        wire.WATCHED.pack(1, 9, 0),
        wire.WATCHED.pack(1, 1, 10) + b"short",
        wire.WATCHED.pack(1, 1, 4) + b"../a",
        wire.WATCHED.pack(1, 1, 4) + b"a//b",
        wire.WATCHED.pack(1, 1, 3) + b"a\0b",
        wire.WATCHED.pack(1, 1, 5_000) + b"a" * 5_000,
    ],
)
def test_the_daemon_accepts_no_invalid_event(data: bytes) -> None:
    with pytest.raises(WireError):
        list(protocol.read_file_events("/workspace", data))


def test_an_event_of_a_name_that_is_not_utf8_carries_a_uri() -> None:
    [event] = protocol.read_file_events("/workspace", wire.WATCHED.pack(wire.CREATED, 1, 4) + b"caf\xe9")
    assert event == FileEvent(event="created", path="file:///workspace/caf%E9", type="file")
