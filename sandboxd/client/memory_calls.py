"""The memory calls of the API: documents, artifacts, mirrors, sessions, messages. Pure, like `calls`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal
from urllib.parse import quote, urlencode

from memo.documents import DocumentName
from memo.ids import ToolCallId, UserId
from sandboxd.client.calls import Answer, Call, given, json_call, parse_json, parse_time, session_path, tenant_path
from sandboxd.client.results import (
    Artifact,
    Compaction,
    Document,
    DocumentInfo,
    MirrorFile,
    RefusedWrite,
    Revision,
    Session,
    ShortenedMessages,
    Written,
)
from sandboxd.errors import InvalidRequest

Scope = Literal["session", "user"]
Messages = Sequence[Mapping[str, Any]]

MARKDOWN = "text/markdown; charset=utf-8"
TEXT = "text/plain; charset=utf-8"
STORE_S = 60.0


def list_memo(tenant: str, owner: str, scope: Scope) -> Call[list[DocumentInfo]]:
    return json_call("GET", f"{_owner(tenant, owner, scope)}/memo", _documents)


def read_memo(tenant: str, owner: str, name: str, scope: Scope, revision: int | None) -> Call[Document]:
    return json_call("GET", _document(tenant, owner, name, scope, given(revision=revision)), _read_document)


def write_memo(
    tenant: str,
    owner: str,
    name: str,
    text: str,
    scope: Scope,
    *,
    expected: int | None,
    merge: bool,
    actor: str | None,
    reason: str | None,
    key: str | None,
) -> Call[Written]:
    target = _document(tenant, owner, name, scope, {"merge": "true"} if merge else {})
    headers = _author(actor, reason, key)
    if expected == 0:
        headers["if-none-match"] = "*"
    elif expected is not None:
        headers["if-match"] = f'"{expected}"'
    return _text_call("PUT", target, text, MARKDOWN, headers)


def append_memo(
    tenant: str,
    owner: str,
    name: str,
    text: str,
    scope: Scope,
    *,
    actor: str | None,
    reason: str | None,
    key: str | None,
) -> Call[Written]:
    return _text_call("POST", _document(tenant, owner, name, scope), text, MARKDOWN, _author(actor, reason, key))


def memo_history(tenant: str, owner: str, name: str, scope: Scope, limit: int | None) -> Call[list[Revision]]:
    return json_call("GET", _document(tenant, owner, name, scope, given(limit=limit), "/history"), _revisions)


def diff_memo(tenant: str, owner: str, name: str, scope: Scope, *, before: int | None, after: int | None) -> Call[str]:
    query = given(**{"from": before, "to": after})
    target = _document(tenant, owner, name, scope, query, "/diff")
    return json_call("GET", target, lambda answer: answer.body.decode())


def restore_memo(
    tenant: str,
    owner: str,
    name: str,
    revision: int,
    scope: Scope,
    *,
    actor: str | None,
    reason: str | None,
    key: str | None,
) -> Call[Written]:
    target = _document(tenant, owner, name, scope, part="/restore")
    headers = {"content-type": "application/json", **_author(actor, reason, key)}
    return Call("POST", target, _written, json.dumps({"revision": revision}).encode(), headers, STORE_S)


def list_artifacts(tenant: str, session: str) -> Call[list[Artifact]]:
    return json_call("GET", f"{session_path(tenant, session)}/artifacts", _artifacts)


def read_artifact(tenant: str, session: str, artifact: str) -> Call[str]:
    return json_call("GET", _artifact(tenant, session, artifact), lambda answer: answer.body.decode())


def write_artifact(tenant: str, session: str, artifact: str, text: str, key: str | None) -> Call[Written]:
    return _text_call("PUT", _artifact(tenant, session, artifact), text, TEXT, _author(None, None, key))


def refresh_mirror(tenant: str, session: str, path: str | None, content: str | None) -> Call[int]:
    target = f"{session_path(tenant, session)}/mirror/refresh"
    return json_call("POST", target, _refreshed, given(path=path, content=content), timeout_s=STORE_S)


def refresh_user_mirrors(tenant: str, user: str, name: str, content: str | None) -> Call[int]:
    target = f"{_owner(tenant, user, 'user')}/mirror/refresh"
    return json_call("POST", target, _refreshed, given(name=name, content=content), timeout_s=STORE_S)


def get_mirror(tenant: str, session: str) -> Call[list[MirrorFile]]:
    return json_call("GET", f"{session_path(tenant, session)}/mirror", _mirror, timeout_s=STORE_S)


def list_refused(tenant: str, session: str) -> Call[list[RefusedWrite]]:
    return json_call("GET", f"{session_path(tenant, session)}/mirror", _refused, timeout_s=STORE_S)


def ensure_session(tenant: str, session: str, user: str, agent: str | None, key: str | None) -> Call[Session]:
    content = given(user=user, agent=agent)
    return json_call("PUT", session_path(tenant, session), _session, content, key=key, is_idempotent=True)


def get_session(tenant: str, session: str) -> Call[Session]:
    return json_call("GET", session_path(tenant, session), _session)


def list_sessions(tenant: str, user: str | None) -> Call[list[Session]]:
    query = "" if user is None else f"?{urlencode({'user': user})}"
    return json_call("GET", f"{tenant_path(tenant)}/sessions{query}", _sessions)


def append_messages(tenant: str, session: str, messages: Messages, key: str | None) -> Call[int]:
    content = {"messages": [dict(message) for message in messages]}
    return json_call("POST", f"{session_path(tenant, session)}/messages", _appended, content, key=key)


def load_messages(
    tenant: str, session: str, *, limit: int | None, budget: int | None, full: bool
) -> Call[list[dict[str, Any]]]:
    query = urlencode(given(limit=limit, budget=budget, full="true" if full else None))
    target = f"{session_path(tenant, session)}/messages"
    return json_call("GET", f"{target}?{query}" if query else target, _items)


def append_turn(
    tenant: str, session: str, messages: Messages, usage: Mapping[str, int] | None, key: str | None
) -> Call[int]:
    content = {"messages": [dict(message) for message in messages], "usage": dict(usage or {})}
    return json_call("POST", f"{session_path(tenant, session)}/turns", _appended, content, key=key)


def compact_session(
    tenant: str,
    session: str,
    *,
    force: bool,
    trigger_tokens: int | None,
    compact_fraction: float | None,
    min_messages: int | None,
    workspace_snapshot: str | None,
    summary: str | None,
    key: str | None,
) -> Call[Compaction]:
    content = given(
        force=force or None,
        trigger_tokens=trigger_tokens,
        compact_fraction=compact_fraction,
        min_messages=min_messages,
        workspace_snapshot=workspace_snapshot,
        summary=summary,
    )
    target = f"{session_path(tenant, session)}/compaction"
    return json_call("POST", target, _compaction, content, key=key, timeout_s=STORE_S)


def compact_tool_results(
    tenant: str,
    session: str,
    messages: Messages,
    *,
    max_tokens: int | None,
    keep_recent: int | None,
    recent_max_tokens: int | None,
) -> Call[ShortenedMessages]:
    content = given(
        messages=[dict(message) for message in messages],
        max_tokens=max_tokens,
        keep_recent=keep_recent,
        recent_max_tokens=recent_max_tokens,
    )
    target = f"{session_path(tenant, session)}/tool-results"
    return json_call("POST", target, _shortened, content, timeout_s=STORE_S)


def _owner(tenant: str, owner: str, scope: Scope) -> str:
    if scope == "session":
        return session_path(tenant, owner)
    if scope == "user":
        return f"{tenant_path(tenant)}/users/{quote(UserId(owner), safe='')}"
    raise InvalidRequest("cannot use this scope: it must be session or user")


def _document(
    tenant: str, owner: str, name: str, scope: Scope, query: Mapping[str, Any] | None = None, part: str = ""
) -> str:
    target = f"{_owner(tenant, owner, scope)}/memo/{quote(DocumentName(name), safe='')}{part}"
    return f"{target}?{urlencode(query)}" if query else target


def _artifact(tenant: str, session: str, artifact: str) -> str:
    return f"{session_path(tenant, session)}/artifacts/{quote(ToolCallId(artifact), safe='')}"


def _author(actor: str | None, reason: str | None, key: str | None) -> dict[str, str]:
    headers = given(**{"x-memo-actor": actor, "x-memo-reason": reason, "idempotency-key": key})
    for name, value in headers.items():
        if not value.isprintable():
            raise InvalidRequest(f"cannot send {name}: it must be one line of printable characters")
    return headers


def _text_call(method: str, target: str, text: str, media_type: str, headers: dict[str, str]) -> Call[Written]:
    try:
        body = text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(
            "cannot send this text: it contains half of a surrogate pair, which UTF-8 cannot encode"
        ) from None
    return Call(method, target, _written, body, {"content-type": media_type, **headers}, STORE_S)


def _items(answer: Answer) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = parse_json(answer)["items"]
    return found


def _written(answer: Answer) -> Written:
    fields = parse_json(answer)
    if fields.get("queued"):
        return Written(None, None, queued=True)
    return Written(fields["revision"], fields["sha256"], merged=fields.get("merged", False))


def _read_document(answer: Answer) -> Document:
    return Document(answer.body.decode(), int((answer.headers.get("etag") or '"0"').strip('"')))


def _documents(answer: Answer) -> list[DocumentInfo]:
    return [
        DocumentInfo(
            item["name"],
            item["revision"],
            item["sha256"],
            item["size"],
            datetime.fromisoformat(item["updated_at"]),
            item["summary"],
            item["tokens"],
        )
        for item in _items(answer)
    ]


def _revisions(answer: Answer) -> list[Revision]:
    return [
        Revision(
            item["revision"],
            item["actor"],
            item["session"],
            item["reason"],
            datetime.fromisoformat(item["at"]),
            item["sha256"],
            item["size"],
            item.get("redacted", False),
        )
        for item in _items(answer)
    ]


def _artifacts(answer: Answer) -> list[Artifact]:
    return [
        Artifact(item["id"], item["revision"], item["sha256"], item["size"], parse_time(item["at"]))
        for item in _items(answer)
    ]


def _refreshed(answer: Answer) -> int:
    return int(parse_json(answer)["refreshed"])


def _appended(answer: Answer) -> int:
    return int(parse_json(answer)["appended"])


def _mirror(answer: Answer) -> list[MirrorFile]:
    return [
        MirrorFile(
            item["path"],
            item["revision"],
            item["sha256"],
            item["size"],
            item["in_sync"],
            item["lag_ms"],
            item.get("pending", False),
        )
        for item in _items(answer)
    ]


def _refused(answer: Answer) -> list[RefusedWrite]:
    return [
        RefusedWrite(item["path"], item["number"], item["size"], datetime.fromisoformat(item["at"]), item["why"])
        for item in parse_json(answer).get("refused", [])
    ]


def _session_of(fields: Mapping[str, Any]) -> Session:
    return Session(
        fields["tenant"],
        fields["session"],
        fields["user"],
        fields["agent"],
        datetime.fromisoformat(fields["created_at"]),
        datetime.fromisoformat(fields["updated_at"]),
        fields["turns"],
        fields["tokens"],
        fields["message_count"],
    )


def _session(answer: Answer) -> Session:
    return _session_of(parse_json(answer))


def _sessions(answer: Answer) -> list[Session]:
    return [_session_of(item) for item in _items(answer)]


def _compaction(answer: Answer) -> Compaction:
    fields = parse_json(answer)
    return Compaction(fields["compacted"], fields["archived"])


def _shortened(answer: Answer) -> ShortenedMessages:
    fields = parse_json(answer)
    return ShortenedMessages(fields["items"], fields["artifacts"])
