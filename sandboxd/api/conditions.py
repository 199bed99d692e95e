"""If-Match and If-None-Match: the precondition of a write."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request

from memo.documents import ABSENT, ANY, DocumentKey, Expected, conflict
from sandboxd.api.contracts import Memory
from sandboxd.api.requests import header
from sandboxd.errors import InvalidRequest
from sandboxd.models.document import MAX_REVISION


@dataclass(frozen=True, slots=True)
class Condition:
    expected: Expected
    must_exist: bool = False


def read_condition(request: Request) -> Condition:
    match, none_match = header(request, b"if-match"), header(request, b"if-none-match")
    if none_match is not None:
        if match is not None or none_match.strip() != "*":
            raise InvalidRequest("cannot use this condition: send If-Match with a revision, or If-None-Match: *")
        return Condition(ABSENT)
    if match is None:
        return Condition(ANY)
    text = match.strip()
    if text == "*":
        return Condition(ANY, must_exist=True)
    number = text[1:-1] if len(text) > 2 and text[0] == text[-1] == '"' else text
    if not (number.isascii() and number.isdecimal() and len(number) <= 19 and int(number) <= MAX_REVISION):
        raise InvalidRequest('cannot use If-Match: it must be one revision, such as "3"')
    return Condition(int(number))


async def expectation(condition: Condition, memory: Memory, key: DocumentKey) -> Expected:
    """Return the revision for the store to compare. For a document that must exist it is the newest one, because the
    document may be deleted in the meantime."""
    if not condition.must_exist:
        return condition.expected
    document = await memory.read(key)
    if document is None:
        deletion = await memory.deletion(key)
        raise conflict(key, ANY, None, deletion=None if deletion is None else deletion.revision)
    return document.revision
