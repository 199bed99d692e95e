"""Archives of real directories, made and extracted as the runner does it: any names, any depth, nothing outside."""

from __future__ import annotations

import io
import os
import stat
import tarfile
import tempfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandboxd.runner.inside import paths
from sandboxd.runner.inside.archive_reader import ArchiveReader
from sandboxd.runner.inside.extraction import Extraction
from sandboxd.runner.inside.failure import Failure
from sandboxd.runner.inside.tar_stream import MAX_METADATA_BYTES, MAX_NAME_BYTES, NotTar, TarEntry, TarReader

DEEP = 600
MANY = 3_000
OLD_NS = 1_234_567_890_123_456_789
NAMES = st.binary(min_size=1, max_size=120).filter(
    lambda name: b"/" not in name and b"\0" not in name and name not in (b".", b"..")
)


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp") as path:  # one of the roots that the runner accepts
        yield Path(path)


def archive(path: Path | str, size: int = 65_536) -> bytes:
    reader = ArchiveReader(str(path))
    pieces = bytearray()
    is_over = False
    try:
        while not is_over:
            piece, is_over = reader.read(size)
            assert len(piece) <= size
            pieces += piece
    finally:
        reader.close()
    return bytes(pieces)


def extract(data: bytes, path: Path | str, size: int = 65_536) -> dict[str, int]:
    extraction = Extraction(str(path))
    try:
        for start in range(0, len(data), size):
            extraction.feed(data[start : start + size])
        return extraction.finish()
    finally:
        extraction.close()


def members(data: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(data), errors="surrogateescape") as tar:
        return {member.name: member for member in tar}


def made(*entries: tuple[tarfile.TarInfo, bytes], kind: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=kind, errors="surrogateescape") as tar:
        for member, content in entries:
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.linkname, found.mode = kind, link, mode
    return found


def read(path: bytes) -> bytes:
    return Path(os.fsdecode(path)).read_bytes()


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def fill(top: Path) -> None:
    (top / "sub" / "empty").mkdir(parents=True)
    (top / "a.txt").write_text("hello")
    (top / "sub" / "run.sh").write_bytes(b"#!/bin/sh\n" * 20_000)
    (top / "sub" / "run.sh").chmod(0o751)
    (top / "sub" / "link").symlink_to("../a.txt")
    (top / "sub" / "dangling").symlink_to("/nowhere")
    os.link(top / "a.txt", top / "sub" / "twin")
    os.mkfifo(top / "fifo")
    for path in ("a.txt", "sub/run.sh", "sub/empty", "sub"):
        os.utime(top / path, ns=(OLD_NS, OLD_NS))
    (top / "sub").chmod(0o555)


def test_an_extracted_archive_is_the_tree_that_it_was_made_of(place: Path) -> None:
    source, target = place / "source", place / "new" / "target"
    source.mkdir()
    fill(source)
    before = open_descriptors()
    summary = extract(archive(source), target)
    assert open_descriptors() == before
    assert summary == {"entries": 7, "bytes": 5 + 200_000}
    assert (target / "a.txt").read_text() == "hello"
    assert (target / "sub" / "run.sh").read_bytes() == (source / "sub" / "run.sh").read_bytes()
    assert stat.S_IMODE((target / "sub" / "run.sh").stat().st_mode) == 0o751
    assert stat.S_IMODE((target / "sub").stat().st_mode) == 0o555
    assert (target / "sub" / "link").readlink() == Path("../a.txt")
    assert (target / "sub" / "dangling").readlink() == Path("/nowhere")
    assert (target / "sub" / "twin").samefile(target / "a.txt")
    assert not (target / "fifo").exists()
    for path in ("a.txt", "sub/run.sh", "sub/empty", "sub"):
        assert (target / path).stat().st_mtime_ns == OLD_NS
    for top in (source, target):
        (top / "sub").chmod(0o755)


def test_other_programs_read_the_archive(place: Path) -> None:
    fill(place)
    found = members(archive(place))
    assert set(found) == {"a.txt", "sub", "sub/run.sh", "sub/link", "sub/dangling", "sub/empty", "sub/twin"}
    assert found["sub"].isdir()
    assert sorted(found[name].islnk() for name in ("a.txt", "sub/twin")) == [False, True]
    assert found["sub/run.sh"].mtime == pytest.approx(OLD_NS / 1e9)
    (place / "sub").chmod(0o755)


def test_a_reader_that_is_closed_unread_leaves_no_descriptor(place: Path) -> None:
    (place / "file").touch()
    before = open_descriptors()
    for path in (place, place / "file"):
        reader = ArchiveReader(str(path))
        reader.close()
        reader.close()
    assert open_descriptors() == before


def test_an_archive_of_a_file_has_one_entry_with_its_name(place: Path) -> None:
    (place / "file").write_bytes(b"x" * 1_000)
    (place / "link").symlink_to("file")
    for name in ("file", "link"):
        found = members(archive(place / name))
        assert {entry.name: entry.size for entry in found.values()} == {"file": 1_000}


@pytest.mark.parametrize("kind", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
@pytest.mark.parametrize("size", [1, 511, 65_536])
def test_every_common_format_is_extracted_from_pieces_of_any_size(place: Path, kind: int, size: int) -> None:
    length = 90 if kind == tarfile.USTAR_FORMAT else 200
    long = "/".join(["d" * length, "e" * (length // 2)])
    data = made(
        (member("./", tarfile.DIRTYPE), b""),
        (member(long), b"deep"),
        (member("caf\udce9"), b"caf"),
        (member("link", tarfile.SYMTYPE, "x" * length), b""),
        (member("twin", tarfile.LNKTYPE, "caf\udce9"), b""),
        kind=kind,
    )
    assert extract(data, place, size) == {"entries": 4, "bytes": 7}
    assert (place / long).read_text() == "deep"
    assert b"caf\xe9" in os.listdir(os.fsencode(place))
    assert os.readlink(place / "link") == "x" * length
    assert (place / "twin").read_text() == "caf"


@settings(deadline=None)
@given(
    st.dictionaries(st.lists(NAMES, min_size=1, max_size=4).map(tuple), st.binary(max_size=2_000), max_size=12),
    st.integers(1, 5_000),
)
def test_a_copy_through_an_archive_has_the_same_names_and_contents(
    files: dict[tuple[bytes, ...], bytes], size: int
) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as path:
        source, target = os.fsencode(path) + b"/source", os.fsencode(path) + b"/target"
        os.mkdir(source)
        kept = {}
        for parts, content in files.items():
            directory = b"/".join([source, *parts[:-1]])
            try:
                os.makedirs(directory, exist_ok=True)
                with open(directory + b"/" + parts[-1], "wb") as file:
                    file.write(content)
            except OSError:
                continue  # another path needs this name
            kept[parts] = content
        extract(archive(os.fsdecode(source), size), os.fsdecode(target), size)
        found = {
            tuple(os.path.join(directory, name)[len(target) + 1 :].split(b"/")): read(os.path.join(directory, name))
            for directory, _, names in os.walk(target)
            for name in names
        }
    assert found == kept


HOSTILE = {
    "absolute": (member("/tmp/stolen"), "its name is absolute"),
    "upwards": (member("../stolen"), "leads upwards"),
    "upwards inside": (member("a/../../stolen"), "leads upwards"),
    "device": (member("null", tarfile.CHRTYPE), "it is a device"),
    "block device": (member("disk", tarfile.BLKTYPE), "it is a device"),
    "fifo": (member("fifo", tarfile.FIFOTYPE), "it is a FIFO"),
    "hard link upwards": (member("passwd", tarfile.LNKTYPE, "../secret"), "leads upwards"),
    "hard link to an absolute path": (member("passwd", tarfile.LNKTYPE, "/etc/passwd"), "its name is absolute"),
    "hard link to nothing": (member("lost", tarfile.LNKTYPE, "not-there"), "not there"),
    "hard link through a link": (member("lost", tarfile.LNKTYPE, "way-out/secret"), "not there"),
    "hard link to a link": (member("lost", tarfile.LNKTYPE, "way-out"), "other than a regular file"),
    "through a link": (member("way-out/stolen"), "links are not followed"),
    "a directory over a link": (member("way-out", tarfile.DIRTYPE), "links are not followed"),
    "a file over a directory": (member("directory"), "it is a directory"),
    "no name": (member("./."), "it has no name"),
    "unknown": (member("odd", b"Z"), "is unknown"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_entry_is_refused_and_named(place: Path, case: str) -> None:
    hostile, why = HOSTILE[case]
    target = place / "target"
    (target / "directory" / "full").mkdir(parents=True)
    (place / "secret").write_text("secret")
    (target / "way-out").symlink_to("..")
    data = made((member("first"), b"1"), (hostile, b""), (member("last"), b"2"))
    before = open_descriptors()
    with pytest.raises(Failure, match=why) as caught:
        extract(data, target)
    assert open_descriptors() == before
    assert caught.value.message.startswith("cannot extract ")
    assert caught.value.message.endswith("; entries written before: 1")
    assert hostile.name in caught.value.message
    assert {path.name for path in place.iterdir()} == {"target", "secret"}
    assert {path.name for path in target.iterdir()} == {"directory", "first", "way-out"}


def test_an_archive_cannot_write_through_a_link_that_it_brings(place: Path) -> None:
    target = place / "target"
    data = made((member("out", tarfile.SYMTYPE, str(place)), b""), (member("out/stolen"), b"x"))
    with pytest.raises(Failure, match="links are not followed"):
        extract(data, target)
    data = made((member("file", tarfile.SYMTYPE, str(place / "stolen")), b""), (member("file"), b"x"))
    extract(data, target)
    assert (target / "file").read_text() == "x"
    assert not (target / "file").is_symlink()
    assert [path.name for path in place.iterdir()] == ["target"]


def test_setuid_bits_are_dropped_and_existing_files_replaced(place: Path) -> None:
    (place / "old").write_text("old")
    (place / "kept").write_text("kept")
    extract(made((member("old", mode=0o6755), b"new"), (member("d", tarfile.DIRTYPE, mode=0o7755), b"")), place)
    assert (place / "old").read_text() == "new"
    assert stat.S_IMODE((place / "old").stat().st_mode) == 0o755
    assert stat.S_IMODE((place / "d").stat().st_mode) == 0o1755
    assert (place / "kept").read_text() == "kept"


def test_the_memo_mirror_is_left_out_and_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memo = place / "memo"
    memo.mkdir()
    (memo / "USER.md").write_text("memory")
    (place / "sub" / "memo").mkdir(parents=True)
    data = archive(place)
    monkeypatch.setattr(paths, "_READ_ONLY", (os.fsencode(memo),))
    assert set(members(archive(place))) == {"sub", "sub/memo"}
    assert set(members(archive(memo))) == {"USER.md"}
    with pytest.raises(Failure, match="read-only") as caught:
        extract(data, place)
    assert caught.value.code == "ReadOnly"
    with pytest.raises(Failure, match="read-only"):
        extract(data, memo)
    with pytest.raises(Failure, match="a read-only file"):
        extract(made((member("stolen", tarfile.LNKTYPE, "memo/USER.md"), b"")), place)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x" * 512,
        bytes(100),
        made((member("file"), b"x" * 2_000))[:1_500],
        made((member("\udce9" * 50_000), b"x"), kind=tarfile.GNU_FORMAT),
    ],
)
def test_what_is_not_a_whole_archive_is_refused(place: Path, data: bytes) -> None:
    with pytest.raises(Failure, match="cannot read the archive"):
        extract(data, place)
    assert list(place.iterdir()) == []


def test_an_archive_that_is_cut_off_between_two_entries_is_refused(place: Path) -> None:
    data = made((member("file"), b"x" * 2_000))
    with pytest.raises(Failure, match="it ends in the middle; send all of it; entries written before: 1"):
        extract(data[: 512 + 2_048], place)


def test_a_file_that_grows_is_cut_and_one_that_shrinks_breaks_the_archive(place: Path) -> None:
    (place / "file").write_bytes(b"x" * 300_000)
    reader = ArchiveReader(str(place))
    first, _ = reader.read(1_000)
    with open(place / "file", "ab") as file:
        file.write(b"y" * 300_000)
    rest = b""
    is_over = False
    while not is_over:
        piece, is_over = reader.read(65_536)
        rest += piece
    assert {entry.size for entry in members(first + rest).values()} == {300_000}
    reader = ArchiveReader(str(place))
    reader.read(1_000)
    (place / "file").write_bytes(b"short")
    with pytest.raises(Failure, match="became shorter"):
        for _ in range(100):
            reader.read(65_536)
    reader.close()


def test_memory_does_not_grow_with_depth_or_width(place: Path) -> None:
    """A chain of directories far deeper than the descriptors held open, and one directory with many entries."""
    here = os.open(place, os.O_RDONLY)
    for level in range(DEEP):
        os.close(os.open("before", os.O_CREAT, 0o600, dir_fd=here))
        os.mkdir("d", dir_fd=here)
        os.close(os.open("zafter", os.O_CREAT, 0o600, dir_fd=here))
        deeper = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = deeper
        if level == 3:
            for number in range(MANY):
                os.mkdir(f"{number:05d}" + "x" * 200, dir_fd=here)
    os.close(here)
    reader = ArchiveReader(str(place))
    tar = TarReader()
    seen: set[bytes] = set()
    count = 0
    most = 0
    tracemalloc.start()
    try:
        is_over = False
        while not is_over:
            piece, is_over = reader.read(65_536)
            most = max(most, open_descriptors())
            for item in tar.feed(piece):
                assert isinstance(item, TarEntry)
                count += 1
                seen.add(item.name[-3:])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        reader.close()
    assert count == 3 * DEEP + MANY
    assert peak < 3_000_000
    assert most < 60


def test_a_name_that_no_program_could_use_is_refused(place: Path) -> None:
    here = os.open(place, os.O_RDONLY)
    for _ in range(MAX_NAME_BYTES // 200 + 1):
        os.mkdir("d" * 200, dir_fd=here)
        deeper = os.open("d" * 200, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = deeper
    os.close(here)
    with pytest.raises(Failure, match="longer than"):
        archive(place)
    reader = TarReader()
    with pytest.raises(NotTar, match="the limit is"):
        header = tarfile.TarInfo("x")
        header.type, header.size = tarfile.XHDTYPE, MAX_METADATA_BYTES + 1
        list(reader.feed(header.tobuf()))


def test_a_directory_that_is_moved_during_the_walk_is_noticed(place: Path) -> None:
    path = place / "top" / "/".join(["d"] * 40)
    path.mkdir(parents=True)
    for number in range(300):
        (path / f"{number:0200d}").touch()
    reader = ArchiveReader(str(place / "top"))
    assert sum(len(reader.read(1_536)[0]) for _ in range(60)) == 60 * 1_536  # the deepest directory is reached
    moved = place / "top" / "/".join(["d"] * 20)
    moved.rename(place / "moved")
    with pytest.raises(Failure, match="was moved"):
        for _ in range(1_000):
            reader.read(65_536)
    reader.close()


@settings(deadline=None)
@given(st.binary(max_size=3_000), st.integers(0, 5_000), st.integers(0, 255))
def test_no_damaged_archive_does_more_than_fail(noise: bytes, position: int, value: int) -> None:
    whole = bytearray(
        made((member("a/b"), b"x" * 700), (member("é" * 80), b"y"), (member("l", tarfile.SYMTYPE, "a"), b""))
    )
    if noise:
        whole = whole[: position % len(whole)] + noise + whole[position % len(whole) + len(noise) :]
    whole[position % len(whole)] = value
    with tempfile.TemporaryDirectory(dir="/tmp") as path:
        target = Path(path) / "target"
        try:
            extract(bytes(whole), target, 1_000)
        except Failure as failure:
            assert failure.message.startswith("cannot ")
        assert [entry.name for entry in Path(path).iterdir()] == ["target"]
        assert not [name for _, _, names in os.walk(target) for name in names if name.startswith(".sandboxd-")]
