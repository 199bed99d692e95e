"""The layout on disk: the files, which of their names are documents, and the version of the format.

.memo/{format, changes.jsonl, bell, pending/.indexed-2}        of the store itself
.memo/records/T/records.{jsonl, lock, next}, .memo/spools/T/…             records, and bytes too large for a record
.memo/pending/T/S                                            sessions that no consolidation has settled
tenants/T/sessions/S/{session.jsonl, messages.jsonl, messages.compactions/NNNN.jsonl, NOTES.md, TODO.md, …}
tenants/T/sessions/S/{tool-results/ID.txt, trace/events.jsonl, orchestration/{events.jsonl, checkpoint.json}}
tenants/T/sessions/S/orchestration/agents/A/{mailbox.jsonl, mailbox.json, history.json}
tenants/T/sessions/S/orchestration/subagents/A/{mailbox.jsonl, mailbox-state.json, history.json}    read, never written
tenants/T/users/U/{USER.md, …, .memory-state.json}           the last is the state of consolidation
tenants/T/{sessions/S, users/U}/memories/projects/x.md       a document whose name has several segments
tenants/T/{sessions/S, users/U}/.memo/{lock, gate, commits.jsonl, texts/NAME/SHA256}     revisions
tenants/T/{sessions/S, users/U}/.memo/texts/memories:/projects:/x.md/SHA256     a colon marks a directory of names
tenants/T/users/U/.memo/{sessions/S, lease.json}             the user's sessions; the consolidation lease
…/.memo/{staged, messages.next, memory-state.next}           what a running write will put in place
…/.memo/removed                                              a file that a running deletion took away
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from memo.document_names import RESERVED_NAMES, DocumentName
from memo.documents import DocumentKey, Scope
from memo.errors import Corrupt, InvalidKey, Unsupported
from memo.ids import OwnerId, SessionRef, TenantId, UserRef
from memo.stores.filesystem.directory import Directory, locked

HIDDEN: Final = ".memo"
TENANTS: Final = "tenants"
LOCK: Final = "lock"
GATE: Final = "gate"
COMMITS: Final = "commits.jsonl"
TEXTS: Final = "texts"
STAGED: Final = "staged"
REMOVED: Final = "removed"
STAGED_MESSAGES: Final = "messages.next"
USER_SESSIONS: Final = "sessions"
SESSION: Final = "session.jsonl"
MESSAGES: Final = "messages.jsonl"
ARCHIVES: Final = "messages.compactions"
ARTIFACTS: Final = "tool-results"
ARTIFACT_SUFFIX: Final = ".txt"

_DIRECTORIES: Final = {Scope.SESSION: "sessions", Scope.USER: "users"}
_SCOPES: Final = {directory: scope for scope, directory in _DIRECTORIES.items()}
# Temporary files of editors and tools. Names that begin with a dot or end with ~, and Emacs' #names#, are not legal
# document names in the first place.
_SCRATCH_SUFFIXES: Final = (".tmp", ".temp", ".bak", ".swp", ".swo", ".swx", ".orig", ".rej", ".part", ".lock", ".new")
# What other programs of this layout keep in a session's directory for themselves.
_WORKING_FILES: Final = frozenset({"user-memory.json", "subagent-logs"})


@dataclass(frozen=True, slots=True, order=True)
class Owner:
    """The owner of a directory: a session or a user."""

    tenant: TenantId
    scope: Scope
    owner: OwnerId

    def __str__(self) -> str:
        return f"{self.tenant}/{_DIRECTORIES[self.scope]}/{self.owner}"

    @property
    def path(self) -> tuple[str, str, str, str]:
        return (TENANTS, self.tenant, _DIRECTORIES[self.scope], self.owner)

    def key(self, name: str) -> DocumentKey:
        return DocumentKey(self.tenant, self.owner, self.scope, DocumentName(name))

    @property
    def session(self) -> SessionRef:
        return SessionRef.of(self.tenant, self.owner)

    @classmethod
    def of(cls, key: DocumentKey) -> Self:
        return cls(key.tenant, key.scope, key.owner)

    @classmethod
    def of_session(cls, ref: SessionRef) -> Self:
        return cls(ref.tenant, Scope.SESSION, OwnerId(ref.session))

    @classmethod
    def of_user(cls, ref: UserRef) -> Self:
        return cls(ref.tenant, Scope.USER, OwnerId(ref.user))

    @classmethod
    def at(cls, tenant: str, directory: str, owner: str) -> Self | None:
        """Return the owner of a directory; None if the directory does not belong to an owner."""
        try:
            return cls(TenantId(tenant), _SCOPES[directory], OwnerId(owner))
        except (InvalidKey, KeyError):
            return None


def document_name(file: str) -> DocumentName | None:
    """Return the document name of a file's path below its owner, or None if it is not a document."""
    if file.partition("/")[0].lower() in RESERVED_NAMES:
        return None
    try:
        return DocumentName(file)
    except InvalidKey:
        return None


def is_adoptable(file: str) -> bool:
    """Return whether a file created by another program automatically becomes a document.

    It needs a suffix that is not an editor's: vim probes a directory with a file named 4913, sed -i writes to a file
    like sedRkQ2XW. Such a file can still be read by its name.
    """
    if file.partition("/")[0] in _WORKING_FILES:
        return False
    stem, dot, _ = file.rpartition("/")[2].rpartition(".")
    return bool(stem and dot) and "___jb_" not in file and not file.lower().endswith(_SCRATCH_SUFFIXES)


def texts_path(name: str) -> tuple[str, ...]:
    """Return the path of the directory that holds the texts of a document, below the hidden directory.

    The texts of `a` lie in texts/a, those of `a/b` in texts/a:/b: no name can be mistaken for another, or for a hash.
    """
    *directories, last = name.split("/")
    return (TEXTS, *(f"{directory}:" for directory in directories), last)


def archive_name(number: int) -> str:
    return f"{number:04d}.jsonl"


VERSION: Final = 1
_FORMAT: Final = "format"


def make_root(path: Path) -> None:
    missing = [p for p in (path, *path.parents) if not p.exists()]
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    for made in reversed(missing):
        with Directory.open(str(made.parent)) as parent:
            parent.sync()


def check_format(hidden: Directory) -> None:
    """Refuse a directory with a newer format; write the version to a new directory."""
    with locked(hidden.fd, hidden.path, exclusive=True):
        content = hidden.read(_FORMAT)
        if content is None:
            hidden.stage(STAGED, json.dumps({"version": VERSION}).encode() + b"\n")
            hidden.move(STAGED, hidden, _FORMAT)
            return
    try:
        version = int(json.loads(content)["version"])
    except (ValueError, KeyError, TypeError):
        raise Corrupt(f"cannot open this store: {hidden.where(_FORMAT)} is damaged; restore a backup") from None
    if version > VERSION:
        raise Unsupported(
            f"cannot open this store: its format is version {version}, newer than {VERSION}; upgrade this program"
        )
