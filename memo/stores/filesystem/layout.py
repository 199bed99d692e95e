"""The layout on disk: which file is what, and which names there are a document's. The only place that knows.

.memo/{format, changes.jsonl, bell, pending/.indexed}        the store's own
.memo/records/T/records.{jsonl, lock, next}, .memo/spools/T/…             records, and bytes too long for one
.memo/pending/T/S                                            which sessions no consolidation has settled
tenants/T/sessions/S/{session.jsonl, messages.jsonl, messages.compactions/NNNN.jsonl, NOTES.md, TODO.md, …}
tenants/T/sessions/S/{tool-results/ID.txt, trace/events.jsonl, orchestration/…}
tenants/T/users/U/{USER.md, …, .memory-state.json}           the last: what consolidation keeps of the user
tenants/T/{sessions/S, users/U}/.memo/{lock, gate, commits.jsonl, texts/NAME/SHA256}     revisions
tenants/T/users/U/.memo/{sessions/S, lease.json}             which sessions a user has; who consolidates them
…/.memo/{staged, messages.next, memory-state.next}           what a write under way will put in place
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

from memo.documents import RESERVED_NAMES, DocumentKey, DocumentName, Scope
from memo.errors import InvalidKey
from memo.ids import OwnerId, SessionRef, TenantId, UserRef

HIDDEN: Final = ".memo"
TENANTS: Final = "tenants"
LOCK: Final = "lock"
GATE: Final = "gate"
COMMITS: Final = "commits.jsonl"
TEXTS: Final = "texts"
STAGED: Final = "staged"
STAGED_MESSAGES: Final = "messages.next"
USER_SESSIONS: Final = "sessions"
SESSION: Final = "session.jsonl"
MESSAGES: Final = "messages.jsonl"
ARCHIVES: Final = "messages.compactions"
ARTIFACTS: Final = "tool-results"
ARTIFACT_SUFFIX: Final = ".txt"

_DIRECTORIES: Final = {Scope.SESSION: "sessions", Scope.USER: "users"}
_SCOPES: Final = {directory: scope for scope, directory in _DIRECTORIES.items()}
# What editors and tools leave beside a file while they work. Names that begin with a dot or end with ~ are no
# legal document names to begin with, nor are Emacs' #names#.
_SCRATCH_SUFFIXES: Final = (".tmp", ".temp", ".bak", ".swp", ".swo", ".swx", ".orig", ".rej", ".part", ".lock", ".new")


@dataclass(frozen=True, slots=True, order=True)
class Owner:
    """Whose directory it is: a session's or a user's."""

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
        """Return whose directory this is; None if nobody's: somebody put it there by hand."""
        try:
            return cls(TenantId(tenant), _SCOPES[directory], OwnerId(owner))
        except (InvalidKey, KeyError):
            return None


def document_name(file: str) -> DocumentName | None:
    """Return the document that a file name stands for, None if it stands for none."""
    if file.lower() in RESERVED_NAMES:
        return None
    try:
        return DocumentName(file)
    except InvalidKey:
        return None


def is_adoptable(file: str) -> bool:
    """Say whether a new file from outside becomes a document by itself, unasked.

    It needs a suffix, and not one of an editor's scratch files: vim tries a directory with a file named 4913,
    sed -i works in a file like sedRkQ2XW. Such a file is read all the same when somebody asks for it by name.
    """
    stem, dot, _ = file.rpartition(".")
    return bool(stem and dot) and "___jb_" not in file and not file.lower().endswith(_SCRATCH_SUFFIXES)


def archive_name(number: int) -> str:
    return f"{number:04d}.jsonl"
