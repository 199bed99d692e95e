"""The grammar of memo paths: key ⇄ path in a container. No other module parses or builds these paths.

    /workspace/memo/session/<name>                      a document of the session; a name may have several segments
    /workspace/memo/session/tool-results/<call>.txt     an artifact
    /workspace/memo/user/<name>                         a document of the session's user

Every key has exactly one path, and every text either parses to one key or raises InvalidKey.
"""

from __future__ import annotations

from dataclasses import dataclass

from memo.documents import ArtifactKey, DocumentKey, DocumentName, Scope
from memo.errors import InvalidKey
from memo.ids import SessionRef, ToolCallId, UserId

MEMO_ROOT = "/workspace/memo"
ARTIFACT_DIRECTORY = "tool-results"
ARTIFACT_SUFFIX = ".txt"


@dataclass(frozen=True, slots=True)
class DocumentPath:
    scope: Scope
    name: DocumentName

    def __str__(self) -> str:
        return f"{MEMO_ROOT}/{self.relative}"

    @property
    def relative(self) -> str:
        return f"{self.scope}/{self.name}"


@dataclass(frozen=True, slots=True)
class ArtifactPath:
    tool_call: ToolCallId

    def __str__(self) -> str:
        return f"{MEMO_ROOT}/{self.relative}"

    @property
    def relative(self) -> str:
        return f"{Scope.SESSION}/{ARTIFACT_DIRECTORY}/{self.tool_call}{ARTIFACT_SUFFIX}"


MemoPath = DocumentPath | ArtifactPath


def is_memo_path(path: str) -> bool:
    """Return whether the path is the memo directory or anything below it, legal or not."""
    return path == MEMO_ROOT or path.startswith(MEMO_ROOT + "/")


def path_of(key: DocumentKey | ArtifactKey) -> MemoPath:
    if isinstance(key, ArtifactKey):
        return ArtifactPath(key.tool_call)
    return DocumentPath(key.scope, key.name)


def parse_path(path: str) -> MemoPath:
    """Parse an absolute memo path, or raise an InvalidKey that names the invalid part."""
    if not isinstance(path, str) or not path.startswith(MEMO_ROOT + "/"):
        raise InvalidKey(f"cannot use this path: it is not under {MEMO_ROOT}")
    match path[len(MEMO_ROOT) + 1 :].split("/"):
        case ["session", "tool-results", file] if file.endswith(ARTIFACT_SUFFIX):
            return ArtifactPath(ToolCallId(file.removesuffix(ARTIFACT_SUFFIX)))
        case ["session", "tool-results", *_]:
            pass
        case ["session" | "user" as scope, *segments] if segments:
            return DocumentPath(Scope(scope), DocumentName("/".join(segments)))
    raise InvalidKey(
        "cannot use this memo path: expected session/<name>, user/<name> or session/tool-results/<tool call id>.txt"
    )


def key_at(path: str, session: SessionRef, user: UserId) -> DocumentKey | ArtifactKey:
    """Return the key of the path for this session and user."""
    parsed = parse_path(path)
    if isinstance(parsed, ArtifactPath):
        return ArtifactKey(session, parsed.tool_call)
    if parsed.scope is Scope.USER:
        return DocumentKey.of_user(session.tenant, user, parsed.name)
    return DocumentKey.of_session(session, parsed.name)
