"""What all models share: three base classes, and bytes in JSON.

Bodies and queries refuse unknown fields and bodies convert nothing, so a misspelt field is an error. Answers ignore
unknown fields, so that a client understands a newer daemon.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

Encoding = Literal["text", "base64"]
OutputEncoding = Literal["text", "base64", "auto"]


class BodyModel(BaseModel):
    """The JSON body of a request."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)


class QueryModel(BaseModel):
    """The query of a request, whose values arrive as text."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class AnswerModel(BaseModel):
    """A value that the daemon returns. Its title, if it has one, is the name of its OpenAPI schema."""

    model_config = ConfigDict(
        extra="ignore",
        frozen=True,
        defer_build=True,
        validate_by_name=True,
        serialize_by_alias=True,
        # The daemon sends every field; a default is for clients, whose daemon may be older.
        json_schema_serialization_defaults_required=True,
    )


def encoding_is_optional(schema: dict[str, Any]) -> None:
    """Describe a model whose `encoding` is sent only if the request did not ask for text."""
    schema["required"] = [name for name in schema.get("required", ()) if name != "encoding"]


def decode(data: str, encoding: Encoding, field: str) -> bytes:
    if encoding == "text":
        return data.encode()
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"{field} must be base64, because encoding is base64") from None


def encode(data: bytes, encoding: Encoding) -> str:
    return data.decode("utf-8", "replace") if encoding == "text" else base64.b64encode(data).decode("ascii")


def is_text(*outputs: bytes) -> bool:
    """Return whether all of them are UTF-8, so that text loses nothing."""
    try:
        for output in outputs:
            output.decode()
    except UnicodeDecodeError:
        return False
    return True
