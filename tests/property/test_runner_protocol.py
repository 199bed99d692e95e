"""Any bytes, split anywhere: frames are read whole or refused, within bounds."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.models.files import FileInfo, FileQuery
from sandboxd.runner import protocol
from sandboxd.runner.inside import wire
from sandboxd.runner.inside.failure import Failure
from sandboxd.runner.inside.patterns import compile_segment, expand_braces, matches_segment

FRAMES = st.lists(
    st.tuples(
        st.sampled_from(sorted(wire.KINDS)),
        st.integers(0, 2**32 - 1),
        st.dictionaries(st.text(max_size=5), st.text(max_size=20), max_size=3),
        st.binary(max_size=300),
    ),
    max_size=6,
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
FIELDS = ["pid", "python", "version", "started_at", "problem", "code", "message", "id", "command", "running", "size"]
FIELDS += ["items", "offset", "path", "mode", "mtime", "first", "total", "count", "truncated", "replacements"]
FIELDS += ["bytes", "inodes", "next"]


@given(FRAMES, st.data())
def test_frames_survive_any_splitting(
    frames: list[tuple[int, int, dict[str, str], bytes]], data: st.DataObject
) -> None:
    stream = b"".join(wire.pack(*frame) for frame in frames)
    reader = wire.FrameReader()
    reader.trust()
    seen = []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        seen += [(kind, call, wire.read_head(head), body) for kind, call, head, body in reader.feed(stream[:size])]
        stream = stream[size:]
    assert seen == frames


@given(st.binary(max_size=2000), st.booleans())
def test_garbage_is_either_refused_or_buffered(garbage: bytes, is_trusted: bool) -> None:
    reader = wire.FrameReader()
    if is_trusted:
        reader.trust()
    try:
        for _kind, _call, head, _data in reader.feed(garbage):
            wire.read_head(head)
    except wire.WireError:
        return


READERS: list[Callable[[protocol.Head], object]] = [
    protocol.read_hello,
    protocol.read_error,
    protocol.read_process,
    protocol.read_processes,
    protocol.read_stat,
    protocol.read_edited,
    protocol.read_usage,
    lambda head: protocol.read_text_slice(head, b"a\nb"),
    lambda head: protocol.read_process_output(head, b"a"),
    lambda head: protocol.read_glob(head, b"a\0b"),
    lambda head: protocol.read_next("/workspace", head) or "the last page",
]


@pytest.mark.parametrize("read", READERS)
@given(st.dictionaries(st.sampled_from(FIELDS), JSON))
def test_an_answer_of_any_shape_is_read_or_is_a_wire_error(
    read: Callable[[protocol.Head], object], head: dict[str, object]
) -> None:
    try:
        value = read(head)
    except wire.WireError:
        return
    assert value is not None


@given(st.binary(max_size=100))
def test_a_page_of_any_bytes_is_read_or_is_a_wire_error(data: bytes) -> None:
    try:
        entries = list(protocol.read_entries("/workspace", data))
    except wire.WireError:
        return
    assert all(entry.path.removeprefix("file://").startswith("/workspace/") for entry in entries)


NAMES = st.binary(min_size=1, max_size=255).filter(lambda name: b"/" not in name and b"\0" not in name)


@given(NAMES)
def test_every_name_survives_a_round_trip_through_json(name: bytes) -> None:
    packed = wire.ENTRY.pack(len(name), 0o100644, 1, 0.0) + name
    (entry,) = protocol.read_entries("/workspace", packed)
    path = FileInfo.model_validate_json(entry.model_dump_json()).path
    if name not in (b".", b".."):
        assert FileQuery(path=path).path.encode("utf-8", "surrogateescape") == b"/workspace/" + name


@given(st.binary(max_size=40))
def test_an_exit_of_any_shape_is_read_or_is_a_wire_error(head: bytes) -> None:
    try:
        result = protocol.read_command_result(head, b"", b"")
    except wire.WireError:
        return
    assert result.exit_code is None or 0 <= result.exit_code <= 255


@given(st.text("ab*?", max_size=12), st.text("ab", max_size=12))
def test_segments_match_as_fnmatch_does(pattern: str, name: str) -> None:
    assert matches_segment(compile_segment(pattern), name) == fnmatch.fnmatchcase(name, pattern)


@given(st.text("ab{},*[]!-/", max_size=60))
def test_any_pattern_compiles_or_is_refused(pattern: str) -> None:
    try:
        expanded = expand_braces(pattern)
    except Failure:
        return
    for text in expanded:
        for segment in text.split("/"):
            matches_segment(compile_segment(segment), "some name")
