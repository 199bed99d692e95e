"""Artifacts on disk: tool-results/ID.txt, one file for one text of a session, linked under every id that has it.

An artifact is written by the store or found there, and is not edited: a text that no longer has its hash is Corrupt,
until it is written again. Every function works on a locked place.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from memo.documents import ArtifactEntry, ArtifactKey, sha256_of
from memo.errors import Corrupt, InvalidKey
from memo.ids import SessionRef, ToolCallId
from memo.stores.filesystem.commits import ArtifactVersion, Commit
from memo.stores.filesystem.disk import Directory, closing, disk_errors
from memo.stores.filesystem.finishing import commit
from memo.stores.filesystem.layout import ARTIFACT_SUFFIX, ARTIFACTS, STAGED
from memo.stores.filesystem.owners import Place, Stale
from memo.stores.filesystem.times import from_micros, to_micros
from memo.stores.prepared import PreparedText


def write(place: Place, key: ArtifactKey, text: PreparedText) -> ArtifactEntry:
    old = place.state.artifacts.get(key.tool_call)
    with place.directory.make_child(ARTIFACTS) as directory:
        if old is not None and old.sha256 == text.sha256 and _read(directory, old) == text.encoded:
            return _entry(key.session, old)
        revision = old.revision if old and old.sha256 == text.sha256 else (old.revision if old else 0) + 1
        if not _stage_twin(place, directory, text):
            place.hidden.stage(STAGED, text.encoded)
        place.hidden.sync()
        if old is not None and revision == old.revision:
            place.hidden.move(STAGED, directory, key.tool_call + ARTIFACT_SUFFIX)  # mends a damaged file
            return _entry(key.session, old)
    version = ArtifactVersion(key.tool_call, revision, text.sha256, text.size_bytes, to_micros(place.options.clock()))
    commit(place, Commit(place.state.next_number, place.log.end(), artifacts=(version,)))
    return _entry(key.session, version)


def _stage_twin(place: Place, directory: Directory, text: PreparedText) -> bool:
    """Stage a link to an artifact with the same text, if there is one that is intact."""
    twin = place.state.artifacts.get(place.state.tool_call_with.get(text.sha256, ""))
    if twin is None or twin.sha256 != text.sha256 or _read(directory, twin) != text.encoded:
        return False
    place.hidden.remove(STAGED)
    with disk_errors(f"link {directory.where(twin.tool_call)}"):
        os.link(
            twin.tool_call + ARTIFACT_SUFFIX,
            STAGED,
            src_dir_fd=directory.fd,
            dst_dir_fd=place.hidden.fd,
            follow_symlinks=False,
        )
    return True


def read_many(place: Place | None, session: SessionRef, tool_calls: Iterable[ToolCallId]) -> dict[ToolCallId, str]:
    directory = None if place is None else place.directory.child(ARTIFACTS)
    if place is None or directory is None:
        return {}
    texts: dict[ToolCallId, str] = {}
    with directory:
        for call in tool_calls:
            version = place.state.artifacts.get(call) or _found(place, directory, call)
            if version is not None:
                texts[call] = _intact(directory, version, session).decode()
    return texts


def read_range(place: Place | None, key: ArtifactKey, start: int, length: int) -> bytes | None:
    directory = None if place is None else place.directory.child(ARTIFACTS)
    if place is None or directory is None:
        return None
    with directory:
        version = place.state.artifacts.get(key.tool_call) or _found(place, directory, key.tool_call)
        if version is None:
            return None
        fd = directory.open_file(key.tool_call + ARTIFACT_SUFFIX)
        if fd is None:
            raise _damaged(version, key.session)
        with closing(fd), disk_errors(f"read artifact {key}"):
            if os.fstat(fd).st_size != version.size_bytes:
                raise _damaged(version, key.session)
            begin = min(max(start, 0), version.size_bytes)
            return os.pread(fd, min(max(length, 0), version.size_bytes - begin), begin)


def list_of(place: Place | None, session: SessionRef) -> list[ArtifactEntry]:
    directory = None if place is None else place.directory.child(ARTIFACTS)
    if place is None or directory is None:
        return []
    with directory:
        for file in directory.names():
            call = _call_of(file)
            if call is not None and call not in place.state.artifacts and directory.is_file(file):
                _found(place, directory, call)
    return [_entry(session, version) for _, version in sorted(place.state.artifacts.items())]


def _found(place: Place, directory: Directory, call: ToolCallId) -> ArtifactVersion | None:
    """Take a file nobody wrote through the store for its first revision; None if there is no file."""
    content = directory.read(call + ARTIFACT_SUFFIX, place.options.limits.artifact_bytes)
    if content is None:
        return None
    if not place.is_exclusive:
        raise Stale
    if len(content) > place.options.limits.artifact_bytes:
        raise Corrupt(f"cannot read {directory.where(call)}: it is longer than the limit")
    try:
        content.decode()
    except UnicodeDecodeError as error:
        raise Corrupt(f"cannot read {directory.where(call)}: it is not UTF-8 at byte {error.start}") from None
    now = to_micros(place.options.clock())
    version = ArtifactVersion(call, 1, sha256_of(content), len(content), now, outside=True)
    commit(place, Commit(place.state.next_number, place.log.end(), artifacts=(version,)))
    return version


def _call_of(file: str) -> ToolCallId | None:
    if not file.endswith(ARTIFACT_SUFFIX):
        return None
    try:
        return ToolCallId(file.removesuffix(ARTIFACT_SUFFIX))
    except InvalidKey:
        return None


def _read(directory: Directory, version: ArtifactVersion) -> bytes | None:
    return directory.read(version.tool_call + ARTIFACT_SUFFIX, version.size_bytes)


def _intact(directory: Directory, version: ArtifactVersion, session: SessionRef) -> bytes:
    content = _read(directory, version)
    if content is None or sha256_of(content) != version.sha256:
        raise _damaged(version, session)
    return content


def _damaged(version: ArtifactVersion, session: SessionRef) -> Corrupt:
    return Corrupt(f"cannot read artifact {version.tool_call} of session {session}: its text is damaged or gone")


def _entry(session: SessionRef, version: ArtifactVersion) -> ArtifactEntry:
    key = ArtifactKey(session, ToolCallId(version.tool_call))
    return ArtifactEntry(key, version.revision, version.sha256, version.size_bytes, from_micros(version.at_micros))
