"""What an agent remembers, and where it is stored.

A library of documents, sessions and stores that does not depend on containers. A name is imported when it is first
used, because many callers need the errors and values but not the stores.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memo.changes import Change
    from memo.compaction import CompactionOptions
    from memo.documents import ABSENT, ANY, ArtifactKey, Author, Document, DocumentKey, DocumentName, Revision, Scope
    from memo.errors import MemoError
    from memo.ids import AgentId, SessionId, SessionRef, TenantId, UserId
    from memo.limits import StoreLimits
    from memo.provider import Capabilities, capabilities_of
    from memo.sessions import Session, SessionMeta, Usage
    from memo.store_url import open_store, register_scheme
    from memo.stores import FilesystemStore, InMemoryStore, SQLiteStore, StoreOptions
    from memo.tool_results import compact_tool_results

__all__ = [
    "ABSENT",
    "ANY",
    "AgentId",
    "ArtifactKey",
    "Author",
    "Capabilities",
    "Change",
    "CompactionOptions",
    "Document",
    "DocumentKey",
    "DocumentName",
    "FilesystemStore",
    "InMemoryStore",
    "MemoError",
    "Revision",
    "SQLiteStore",
    "Scope",
    "Session",
    "SessionId",
    "SessionMeta",
    "SessionRef",
    "StoreLimits",
    "StoreOptions",
    "TenantId",
    "Usage",
    "UserId",
    "capabilities_of",
    "compact_tool_results",
    "open_store",
    "register_scheme",
]

_HOMES = {
    "memo.changes": ("Change",),
    "memo.compaction": ("CompactionOptions",),
    "memo.documents": (
        "ABSENT",
        "ANY",
        "ArtifactKey",
        "Author",
        "Document",
        "DocumentKey",
        "DocumentName",
        "Revision",
        "Scope",
    ),
    "memo.errors": ("MemoError",),
    "memo.ids": ("AgentId", "SessionId", "SessionRef", "TenantId", "UserId"),
    "memo.limits": ("StoreLimits",),
    "memo.store_url": ("open_store", "register_scheme"),
    "memo.provider": ("Capabilities", "capabilities_of"),
    "memo.sessions": ("Session", "SessionMeta", "Usage"),
    "memo.stores": ("FilesystemStore", "InMemoryStore", "SQLiteStore", "StoreOptions"),
    "memo.tool_results": ("compact_tool_results",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if (home := _HOME_OF.get(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
