"""Committing, and finishing what is committed: files in their places, then the feed.

Before the commit's line only the hidden directory changes. After it, every step can be repeated, by this process or
by the next one that opens the owner: a killed writer leaves either nothing or something that can be finished.
"""

from __future__ import annotations

import ctypes
import errno
import os
from typing import TYPE_CHECKING

from memo.documents import sha256_of
from memo.errors import Corrupt, ProviderError
from memo.stores.filesystem import commits
from memo.stores.filesystem.changelog import Announcement
from memo.stores.filesystem.commits import ArtifactVersion, Commit, Version, unfinished
from memo.stores.filesystem.disk import Directory, disk_errors
from memo.stores.filesystem.layout import ARTIFACT_SUFFIX, ARTIFACTS, STAGED, TEXTS
from memo.stores.filesystem.session_log import finish_compaction
from memo.stores.filesystem.times import to_micros

if TYPE_CHECKING:
    from memo.stores.filesystem.owners import Place

_libc = ctypes.CDLL(None, use_errno=True)
_RENAME_NOREPLACE = 1
_RENAME_EXCHANGE = 2


def keep_text(place: Place, name: str, encoded: bytes, sha256: str) -> None:
    """Make the text of a revision durable, before the commit that names it."""
    with place.hidden.make_path(TEXTS, name) as texts:
        kept = texts.stat(sha256)
        if kept is None or kept.st_size != len(encoded):
            place.hidden.stage(STAGED, encoded)
            place.hidden.move(STAGED, texts, sha256)


def read_text(place: Place, version: Version) -> bytes:
    number, sha256 = version.revision.revision, version.revision.sha256
    texts = place.hidden.descend(TEXTS, version.name)
    if texts is not None:
        with texts:
            encoded = texts.read(sha256)
        if encoded is not None and sha256_of(encoded) == sha256:
            return encoded
    raise Corrupt(f"cannot read revision {number} of {version.name} of {place.owner}: its text is damaged or gone")


def commit(place: Place, change: Commit) -> None:
    """Commit and finish. An error before the line is written means nothing happened; after it, outcome unknown."""
    commits.append(place.state, place.hidden, change)
    try:
        _finish(place, change)
    except (OSError, ProviderError) as error:
        raise unfinished("finish the change", error) from error


def finish_again(place: Place) -> None:
    """Finish the last commit, which somebody was kept from finishing, unless yet another did it."""
    last = place.state.last
    if last is not None and not place.log.is_published(place.owner, last.number, last.log_end):
        for version in last.documents:
            if not version.outside:
                place.hidden.stage(STAGED, read_text(place, version))
                _install_document(place, version)
        _finish(place, last, is_again=True)
    place.state.is_finished = True


def _finish(place: Place, change: Commit, *, is_again: bool = False) -> None:
    for version in change.documents:
        if not version.outside and not is_again:
            _install_document(place, version)
    for artifact in change.artifacts:
        if not artifact.outside:
            _install_artifact(place, artifact)
    if change.redaction is not None:
        texts = place.hidden.descend(TEXTS, change.redaction.name)
        if texts is not None:
            with texts:
                texts.remove(change.redaction.sha256)
                texts.sync()
    if change.session is not None:
        finish_compaction(place.directory, place.hidden, change.session)
    place.log.publish(place.owner, change.number, _announcements(change))
    place.state.is_finished = True


def _announcements(change: Commit) -> list[Announcement]:
    documents = [
        Announcement(v.name, v.revision.revision, v.revision.sha256, to_micros(v.revision.at)) for v in change.documents
    ]
    artifacts = [Announcement(a.tool_call, a.revision, a.sha256, a.at_micros, artifact=True) for a in change.artifacts]
    return documents + artifacts


def _install_document(place: Place, version: Version) -> None:
    """Swap the staged text with the file, and look at what came out: an outside edit must not vanish under ours.

    If somebody saved the file since we looked, theirs goes back, and will be the next revision.
    """
    target, name = place.directory, version.name
    before = place.state.documents[name][-2] if len(place.state.documents[name]) > 1 else None
    ours = {version.revision.sha256, before.revision.sha256 if before else version.revision.sha256}
    with disk_errors(f"write {target.where(name)}"):
        if target.stat(name) is None:
            try:
                _rename(place.hidden, STAGED, target, name, _RENAME_NOREPLACE)
            except FileExistsError:
                return  # made from outside a moment ago; it will be the next revision
        else:
            _rename(place.hidden, STAGED, target, name, _RENAME_EXCHANGE)
            replaced = place.hidden.read(STAGED)
            if replaced is not None and sha256_of(replaced) not in ours:
                _rename(place.hidden, STAGED, target, name, _RENAME_EXCHANGE)
            place.hidden.remove(STAGED)
        os.fsync(target.fd)


def _install_artifact(place: Place, artifact: ArtifactVersion) -> None:
    file = artifact.tool_call + ARTIFACT_SUFFIX
    with place.directory.make_child(ARTIFACTS) as artifacts:
        staged = place.hidden.read(STAGED)
        if staged is not None and sha256_of(staged) == artifact.sha256:
            place.hidden.move(STAGED, artifacts, file)
            return
        shown = artifacts.read(file)
        if shown is None or sha256_of(shown) != artifact.sha256:
            raise Corrupt(f"cannot finish artifact {artifact.tool_call} of {place.owner}: its text is gone")


def _rename(source: Directory, name: str, target: Directory, new_name: str, flags: int) -> None:
    """renameat2, which the standard library lacks; a plain rename on a filesystem that knows no better."""
    if _libc.renameat2(source.fd, os.fsencode(name), target.fd, os.fsencode(new_name), flags) == 0:
        return
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS):
        os.rename(name, new_name, src_dir_fd=source.fd, dst_dir_fd=target.fd)
        return
    raise OSError(code, os.strerror(code), new_name)
