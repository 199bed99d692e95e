"""Artifacts on disk: tool-results/ID.txt, one file per distinct text, hard-linked under every id that has it.

An artifact is written by the store or found on disk, and is never edited: a text that no longer matches its hash is
Corrupt until it is written again. Every function works on a locked home.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from memo.documents import ArtifactEntry, ArtifactKey, sha256_of
from memo.errors import Corrupt, InvalidKey
from memo.ids import SessionRef, ToolCallId
from memo.stores.filesystem.commit_log import ArtifactVersion
from memo.stores.filesystem.directory import Directory, closing, disk_errors
from memo.stores.filesystem.home import Home, NeedsExclusiveLock
from memo.stores.filesystem.layout import ARTIFACT_SUFFIX, ARTIFACTS, STAGED
from memo.stores.prepared_text import PreparedText
from memo.stores.timestamps import from_micros, to_micros


def write(home: Home, key: ArtifactKey, text: PreparedText) -> ArtifactEntry:
    old = home.state.artifacts.get(key.tool_call)
    with home.directory.make_child(ARTIFACTS) as directory:
        if old is not None and old.sha256 == text.sha256 and _read(directory, old) == text.encoded:
            return _entry(key.session, old)
        revision = old.revision if old and old.sha256 == text.sha256 else (old.revision if old else 0) + 1
        if not _stage_twin(home, directory, text):
            home.hidden.stage(STAGED, text.encoded)
        home.hidden.sync()
        if old is not None and revision == old.revision:
            home.hidden.move(STAGED, directory, key.tool_call + ARTIFACT_SUFFIX)  # repairs a damaged file
            return _entry(key.session, old)
    version = ArtifactVersion(key.tool_call, revision, text.sha256, text.size_bytes, to_micros(home.options.clock()))
    home.commit(artifacts=(version,))
    return _entry(key.session, version)


def _stage_twin(home: Home, directory: Directory, text: PreparedText) -> bool:
    """Stage a link to an undamaged artifact with the same text, if there is one."""
    twin = home.state.artifacts.get(home.state.tool_call_with.get(text.sha256, ""))
    if twin is None or twin.sha256 != text.sha256 or _read(directory, twin) != text.encoded:
        return False
    home.hidden.remove(STAGED)
    with disk_errors(f"link {directory.where(twin.tool_call)}"):
        os.link(
            twin.tool_call + ARTIFACT_SUFFIX,
            STAGED,
            src_dir_fd=directory.fd,
            dst_dir_fd=home.hidden.fd,
            follow_symlinks=False,
        )
    return True


def read_many(home: Home | None, session: SessionRef, tool_calls: Iterable[ToolCallId]) -> dict[ToolCallId, str]:
    directory = None if home is None else home.directory.child(ARTIFACTS)
    if home is None or directory is None:
        return {}
    texts: dict[ToolCallId, str] = {}
    with directory:
        for call in tool_calls:
            version = home.state.artifacts.get(call) or _found(home, directory, call)
            if version is not None:
                texts[call] = _intact(directory, version, session).decode()
    return texts


def read_range(home: Home | None, key: ArtifactKey, start: int, length: int) -> bytes | None:
    directory = None if home is None else home.directory.child(ARTIFACTS)
    if home is None or directory is None:
        return None
    with directory:
        version = home.state.artifacts.get(key.tool_call) or _found(home, directory, key.tool_call)
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


def list_of(home: Home | None, session: SessionRef) -> list[ArtifactEntry]:
    directory = None if home is None else home.directory.child(ARTIFACTS)
    if home is None or directory is None:
        return []
    with directory:
        for file in directory.names():
            call = _call_of(file)
            if call is not None and call not in home.state.artifacts and directory.is_file(file):
                _found(home, directory, call)
    return [_entry(session, version) for _, version in sorted(home.state.artifacts.items())]


def _found(home: Home, directory: Directory, call: ToolCallId) -> ArtifactVersion | None:
    """Commit a file that another program wrote as the first revision; None if it does not exist."""
    content = directory.read(call + ARTIFACT_SUFFIX, home.options.limits.artifact_bytes)
    if content is None:
        return None
    if not home.is_exclusive:
        raise NeedsExclusiveLock
    if len(content) > (limit := home.options.limits.artifact_bytes):
        raise Corrupt(f"cannot read {directory.where(call)}: it exceeds the limit of {limit} bytes; shorten the file")
    try:
        content.decode()
    except UnicodeDecodeError as error:
        raise Corrupt(
            f"cannot read {directory.where(call)}: it is not UTF-8 at byte {error.start}; fix the file"
        ) from None
    now = to_micros(home.options.clock())
    version = ArtifactVersion(call, 1, sha256_of(content), len(content), now, outside=True)
    home.commit(artifacts=(version,))
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
    return Corrupt(
        f"cannot read artifact {version.tool_call} of session {session}: its text is damaged or missing; write it again"
    )


def _entry(session: SessionRef, version: ArtifactVersion) -> ArtifactEntry:
    key = ArtifactKey(session, ToolCallId(version.tool_call))
    return ArtifactEntry(key, version.revision, version.sha256, version.size_bytes, from_micros(version.at_micros))
