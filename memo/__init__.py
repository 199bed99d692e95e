"""What an agent remembers, and where it is kept.

A library: it knows documents, sessions and stores, and nothing of containers.
"""

from memo.changes import Change
from memo.compaction import CompactionOptions
from memo.documents import ABSENT, ANY, ArtifactKey, Author, Document, DocumentKey, DocumentName, Revision, Scope
from memo.errors import MemoError
from memo.ids import AgentId, SessionId, SessionRef, TenantId, UserId
from memo.limits import StoreLimits
from memo.opening import open_store, register_scheme
from memo.provider import Capabilities, capabilities_of
from memo.sessions import Session, SessionMeta, Usage
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
