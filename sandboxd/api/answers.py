"""JSON answers: a model is dumped once with `to_json`, and sent in pieces if it holds much output."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic_core import to_json
from starlette.responses import Response

from sandboxd.api.budget import SMALL_BYTES, Allotment
from sandboxd.api.pieces import object_answer
from sandboxd.models.wire import AnswerModel, Encoding, OutputEncoding, is_text


def json_answer(content: AnswerModel | dict[str, Any], status: int = 200) -> Response:
    return Response(to_json(content), status, media_type="application/json")


def output_answer(value: BaseModel, names: tuple[str, ...], encoding: OutputEncoding, memory: Allotment) -> Response:
    """Answer with a value whose named fields hold output as bytes; release the reserved memory that it does not need.

    This is where a command's bytes become the wire's text or base64.
    """
    fields = dict(vars(value))  # not model_dump, which costs more: to_json also dumps nested models
    outputs = {name: fields.pop(name) for name in names}
    memory.shrink(sum(map(len, outputs.values())))
    chosen = lossless(*outputs.values()) if encoding == "auto" else encoding
    if encoding != "text":
        fields["encoding"] = chosen
    else:
        fields.pop("encoding", None)
    return object_answer(fields, outputs, memory, is_base64=chosen == "base64")


def lossless(*outputs: bytes) -> Encoding:
    """Return text for small UTF-8 outputs. A large one is not scanned: base64 is as fast to write."""
    return "text" if sum(map(len, outputs)) <= SMALL_BYTES and is_text(*outputs) else "base64"
