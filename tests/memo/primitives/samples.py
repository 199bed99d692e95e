"""One valid value of every primitive, as keyword arguments that a test changes one at a time."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from memo.primitives import (
    Identity,
    Media,
    Memory,
    Message,
    Retrievable,
    Thought,
    Tokenizable,
    ToolCall,
    tool_call_checksum,
)
from memo.spool import BytesReader, SpooledArtifact

NOW = datetime(2024, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)
ARGS = {"path": "/a", "lines": [1, 2], "deep": {"ü": None}}
TIMES = {"created_at": NOW, "updated_at": NOW}


def picture(id: str = "pic") -> Media:
    return Media(**GOOD[Media] | {"id": id})


def artifact(id: str = "log") -> SpooledArtifact:
    return SpooledArtifact(BytesReader(b"one\ntwo\n"), id)


GOOD: dict[type[Any], dict[str, Any]] = {
    Identity: {"identifier": "u-1", "representation": "Ada"},
    Message: {"id": "m", "role": "user", "content": "hello", "identity": "ada", **TIMES},
    Media: {
        "id": "pic",
        "kind": "image",
        "mime_type": "image/png",
        "filename": "a.png",
        "reader": BytesReader(b"\x89PNG"),
        "trust_tier": "first-party",
        "modality_hazard": "opaque-perceptual",
        "source": "camera",
        "stash": {"caption": {"value": "a cat", "trust_tier": "third-party-public", "derived_from_media": "pic"}},
    },
    Memory: {"id": "y", "content": "likes tea", "confidence": 0.5, "importance": 1, **TIMES},
    Retrievable: {
        "id": "r", "content": "a page", "trust_tier": "third-party-public", "source": "web", "kind": "page",
        "score": 0.25, **TIMES,
    },
    Thought: {"id": "t", "content": "hm", "payload": {"x": [1]}, "replay_compatibility": "vendor-1", **TIMES},
    ToolCall: {
        "id": "c", "tool": "read", "args": ARGS, "results": "text", "is_error": False,
        "checksum": tool_call_checksum("read", ARGS), "completed_at": NOW, **TIMES,
    },
}  # fmt: skip
CODES: dict[type[Any], str] = {
    Tokenizable: "E_INVALID_INITIAL_TOKENIZABLE_VALUE",
    Identity: "E_INVALID_INITIAL_IDENTITY_VALUE",
    Message: "E_INVALID_INITIAL_MESSAGE_VALUE",
    Media: "E_INVALID_INITIAL_MEDIA_VALUE",
    Memory: "E_INVALID_INITIAL_MEMORY_VALUE",
    Retrievable: "E_INVALID_INITIAL_RETRIEVABLE_VALUE",
    Thought: "E_INVALID_INITIAL_THOUGHT_VALUE",
    ToolCall: "E_INVALID_INITIAL_TOOL_CALL_VALUE",
}
