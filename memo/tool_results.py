"""Tool-result compaction: a long result becomes an artifact, and a stub with the artifact's path replaces it.

It works on copies and never changes the given messages. The artifact is written before its stub exists.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from memo.errors import InvalidKey
from memo.ids import ToolCallId
from memo.messages import Message, result_id
from memo.paths import ArtifactPath
from memo.tokens import TokenCount, TokenCounter

WriteArtifact = Callable[[str, str], Awaitable[object]]
PREVIEW_CHARS = 200


async def compact_tool_results(
    messages: Sequence[Mapping[str, Any]],
    write_tool_result_artifact: WriteArtifact | None = None,
    *,
    max_tokens: int = 1500,
    keep_recent: int = 2,
    recent_max_tokens: int = 6000,
    counter: TokenCounter | None = None,
) -> list[Message]:
    """Return the messages with every long tool result replaced by a stub.

    The newest `keep_recent` results may be longer than the others. Without a writer the text is dropped.
    """
    results = [i for i, m in enumerate(messages) if result_id(m) is not None]
    texts = [_result_text(messages[i].get("content")) for i in results]
    counts = await (counter or TokenCounter()).count_all(texts)
    compacted: list[Message] = [dict(message) for message in messages]
    recent = set(results[len(results) - keep_recent :]) if keep_recent > 0 else set()
    for index, text, count in zip(results, texts, counts, strict=True):
        if count.tokens <= (recent_max_tokens if index in recent else max_tokens):
            continue
        artifact = artifact_id(str(result_id(messages[index])))
        if write_tool_result_artifact is not None:
            await write_tool_result_artifact(artifact, text)
        stub = stub_text(artifact if write_tool_result_artifact else None, text, count)
        compacted[index]["content"] = _with_text(messages[index].get("content"), stub)
    return compacted


def artifact_id(tool_call: str) -> ToolCallId:
    """Return the id of a call's artifact: the call's own id, or a hash of it if it is not a legal id.

    Some model APIs use call ids with `|` or with hundreds of characters; their results must be stored too.
    """
    try:
        return ToolCallId(tool_call)
    except InvalidKey:
        return ToolCallId("call-" + hashlib.sha256(tool_call.encode(errors="surrogatepass")).hexdigest()[:40])


def stub_text(artifact: ToolCallId | None, text: str, count: TokenCount) -> str:
    size = f"{count.tokens} tokens" if count.exact else f"about {count.tokens} tokens"
    where = f"Read the full text in {ArtifactPath(artifact)}." if artifact else "The full text was not kept."
    return f"[Tool result of {size}, shortened. {where}]\n{text[:PREVIEW_CHARS]}"


def _result_text(content: object) -> str:
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list | tuple) else []
    return "\n".join(b["text"] for b in blocks if isinstance(b, dict) and isinstance(b.get("text"), str))


def _with_text(content: object, stub: str) -> object:
    if isinstance(content, str):
        return stub
    blocks = content if isinstance(content, list | tuple) else []
    rest = [b for b in blocks if not (isinstance(b, dict) and isinstance(b.get("text"), str))]
    return [{"type": "text", "text": stub}, *rest]
