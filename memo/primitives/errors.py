"""Errors for invalid primitives. The code names the primitive, and the message names every invalid field.

InvalidPrimitive
├─ InvalidTokenizable · InvalidIdentity · InvalidMessage · InvalidMedia
└─ InvalidMemory · InvalidRetrievable · InvalidThought · InvalidToolCall
"""

from __future__ import annotations

from memo.errors import MemoError


class InvalidPrimitive(MemoError):
    code = "E_INVALID_INITIAL_VALUE"


class InvalidTokenizable(InvalidPrimitive):
    code = "E_INVALID_INITIAL_TOKENIZABLE_VALUE"


class InvalidIdentity(InvalidPrimitive):
    code = "E_INVALID_INITIAL_IDENTITY_VALUE"


class InvalidMessage(InvalidPrimitive):
    code = "E_INVALID_INITIAL_MESSAGE_VALUE"


class InvalidMedia(InvalidPrimitive):
    code = "E_INVALID_INITIAL_MEDIA_VALUE"


class InvalidMemory(InvalidPrimitive):
    code = "E_INVALID_INITIAL_MEMORY_VALUE"


class InvalidRetrievable(InvalidPrimitive):
    code = "E_INVALID_INITIAL_RETRIEVABLE_VALUE"


class InvalidThought(InvalidPrimitive):
    code = "E_INVALID_INITIAL_THOUGHT_VALUE"


class InvalidToolCall(InvalidPrimitive):
    code = "E_INVALID_INITIAL_TOOL_CALL_VALUE"
