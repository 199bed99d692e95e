"""Home: the directory of one owner (a session or user) while its lock is held, and how a change is committed there.

Before the commit's line is written only the hidden directory changes. After it every step can be repeated, by this
process or by the next one that opens the home. A killed writer therefore leaves either nothing or a commit that can be
finished.
"""

from __future__ import annotations

import ctypes
import errno
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from memo.documents import sha256_of
from memo.errors import Corrupt, ProviderError
from memo.stores.filesystem import commit_log
from memo.stores.filesystem.change_log import Announcement, ChangeLog
from memo.stores.filesystem.commit_log import ArtifactVersion, Commit, OwnerState, Redaction, Version
from memo.stores.filesystem.directory import Directory, disk_errors
from memo.stores.filesystem.document_files import make_parent, open_parent, remove_empty_parents, split
from memo.stores.filesystem.layout import ARTIFACT_SUFFIX, ARTIFACTS, REMOVED, STAGED, Owner, texts_path
from memo.stores.filesystem.session_log import finish_compaction
from memo.stores.options import StoreOptions
from memo.stores.timestamps import to_micros

_libc = ctypes.CDLL(None, use_errno=True)
_RENAME_NOREPLACE = 1
_RENAME_EXCHANGE = 2


class NeedsExclusiveLock(Exception):
    """A reader found something that only the holder of the exclusive lock may repair."""


class StillChanging(Exception):
    """Another program may be writing this file right now; look again in a moment."""


@dataclass(frozen=True, slots=True)
class Home:
    """Valid until its lock is released. `hidden` holds the commits and the text of every revision."""

    owner: Owner
    directory: Directory
    hidden: Directory
    state: OwnerState
    log: ChangeLog
    options: StoreOptions
    is_exclusive: bool
    settle_s: float
    """How long a file must have been unchanged to count as complete."""

    def keep_text(self, name: str, encoded: bytes, sha256: str) -> None:
        """Make the text of a revision durable, before the commit that names it."""
        with self.hidden.make_path(*texts_path(name)) as texts:
            kept = texts.stat(sha256)
            if kept is None or kept.st_size != len(encoded):
                self.hidden.stage(STAGED, encoded)
                self.hidden.move(STAGED, texts, sha256)

    def read_text(self, version: Version) -> bytes:
        number, sha256 = version.revision.revision, version.revision.sha256
        texts = self.hidden.descend(*texts_path(version.name))
        if texts is not None:
            with texts:
                encoded = texts.read(sha256)
            if encoded is not None and sha256_of(encoded) == sha256:
                return encoded
        raise Corrupt(
            f"cannot read revision {number} of {version.name} of {self.owner}: its text is damaged or missing"
        )

    def commit(
        self,
        *,
        documents: tuple[Version, ...] = (),
        artifacts: tuple[ArtifactVersion, ...] = (),
        redaction: Redaction | None = None,
        session: dict[str, Any] | None = None,
    ) -> None:
        """Commit and finish. An error before the line is written means no change; after it, the outcome is unknown."""
        change = Commit(self.state.next_number, self.log.end(), documents, artifacts, redaction, session)
        commit_log.append(self.state, self.hidden, change)
        try:
            self._finish(change)
        except (OSError, ProviderError) as error:
            # Committed, but not in place yet: the next process that opens this home finishes it.
            raise ProviderError(f"cannot finish the change: {error}", outcome_unknown=True) from error

    def finish_last_commit(self) -> None:
        """Finish the last commit if its writer was interrupted."""
        last = self.state.last
        if last is not None and not self.log.is_published(self.owner, last.number, last.log_end):
            for version in last.documents:
                if version.outside:
                    continue
                if version.revision.deleted:
                    self._remove_document(version)
                else:
                    self.hidden.stage(STAGED, self.read_text(version))
                    self._install_document(version)
            self._finish(last, is_again=True)
        self.state.is_finished = True

    def _finish(self, change: Commit, *, is_again: bool = False) -> None:
        for version in change.documents:
            if version.outside or is_again:
                continue
            if version.revision.deleted:
                self._remove_document(version)
            else:
                self._install_document(version)
        for artifact in change.artifacts:
            if not artifact.outside:
                self._install_artifact(artifact)
        if change.redaction is not None:
            texts = self.hidden.descend(*texts_path(change.redaction.name))
            if texts is not None:
                with texts:
                    texts.remove(change.redaction.sha256)
                    texts.sync()
        if change.session is not None:
            finish_compaction(self.directory, self.hidden, change.session)
        self.log.publish(self.owner, change.number, _announcements(change))
        self.state.is_finished = True

    def _install_document(self, version: Version) -> None:
        """Swap the staged text with the visible file, then check the old file, so that no outside edit is lost.

        A file that was saved since it was last read is swapped back and becomes the next revision.
        """
        name = split(version.name)[1]
        with make_parent(self.directory, version.name) as target, disk_errors(f"write {target.where(name)}"):
            if target.stat(name) is None:
                try:
                    _rename(self.hidden, STAGED, target, name, _RENAME_NOREPLACE)
                except FileExistsError:
                    return  # created by another program a moment ago; it becomes the next revision
            else:
                _rename(self.hidden, STAGED, target, name, _RENAME_EXCHANGE)
                replaced = self.hidden.read(STAGED)
                if replaced is not None and sha256_of(replaced) not in self._own_hashes(version):
                    _rename(self.hidden, STAGED, target, name, _RENAME_EXCHANGE)
                self.hidden.remove(STAGED)
            os.fsync(target.fd)

    def _remove_document(self, version: Version) -> None:
        """Take the visible file away, then check it, so that no outside edit is lost.

        A file that was saved since it was last read is put back and becomes the next revision. So is one that an
        interrupted attempt took away.
        """
        name = split(version.name)[1]
        parent, is_there = open_parent(self.directory, version.name)
        with parent, disk_errors(f"remove {parent.where(name)}"):
            if is_there:
                self._take_away(version, parent, name)
        remove_empty_parents(self.directory, version.name)

    def _take_away(self, version: Version, parent: Directory, name: str) -> None:
        if self.hidden.stat(REMOVED) is None and parent.is_file(name):
            os.rename(name, REMOVED, src_dir_fd=parent.fd, dst_dir_fd=self.hidden.fd)
        removed = self.hidden.read(REMOVED)
        if removed is not None and sha256_of(removed) not in self._own_hashes(version):
            with suppress(FileExistsError):
                _rename(self.hidden, REMOVED, parent, name, _RENAME_NOREPLACE)
        self.hidden.remove(REMOVED)
        os.fsync(parent.fd)

    def _own_hashes(self, version: Version) -> set[str]:
        """Return the hashes of what the visible file may hold without an outside edit: this revision and the last."""
        versions = self.state.documents[version.name]
        before = versions[-2] if len(versions) > 1 else version
        return {version.revision.sha256, before.revision.sha256}

    def _install_artifact(self, artifact: ArtifactVersion) -> None:
        file = artifact.tool_call + ARTIFACT_SUFFIX
        with self.directory.make_child(ARTIFACTS) as artifacts:
            staged = self.hidden.read(STAGED)
            if staged is not None and sha256_of(staged) == artifact.sha256:
                self.hidden.move(STAGED, artifacts, file)
                return
            shown = artifacts.read(file)
            if shown is None or sha256_of(shown) != artifact.sha256:
                raise Corrupt(f"cannot finish artifact {artifact.tool_call} of {self.owner}: its text is missing")


def _announcements(change: Commit) -> list[Announcement]:
    documents = [
        Announcement(
            v.name, v.revision.revision, v.revision.sha256, to_micros(v.revision.at), deleted=v.revision.deleted
        )
        for v in change.documents
    ]
    artifacts = [Announcement(a.tool_call, a.revision, a.sha256, a.at_micros, artifact=True) for a in change.artifacts]
    return documents + artifacts


def _rename(source: Directory, name: str, target: Directory, new_name: str, flags: int) -> None:
    """Call renameat2, which the standard library lacks; fall back to a plain rename where it is not supported."""
    if _libc.renameat2(source.fd, os.fsencode(name), target.fd, os.fsencode(new_name), flags) == 0:
        return
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS):
        os.rename(name, new_name, src_dir_fd=source.fd, dst_dir_fd=target.fd)
        return
    raise OSError(code, os.strerror(code), new_name)
