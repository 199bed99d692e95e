"""The eight primitives of a turn: everything that enters an agent's loop is one of them, frozen and validated."""

from memo.primitives.errors import (
    InvalidIdentity,
    InvalidMedia,
    InvalidMemory,
    InvalidMessage,
    InvalidPrimitive,
    InvalidRetrievable,
    InvalidThought,
    InvalidTokenizable,
    InvalidToolCall,
)
from memo.primitives.media import Media, StashEntry
from memo.primitives.memory import Memory, Retrievable
from memo.primitives.message import Identity, Message, Thought
from memo.primitives.primitive import Primitive
from memo.primitives.readers import Readers
from memo.primitives.tokenizable import Tokenizable
from memo.primitives.tool_call import ToolCall, tool_call_checksum

__all__ = [
    "Identity",
    "InvalidIdentity",
    "InvalidMedia",
    "InvalidMemory",
    "InvalidMessage",
    "InvalidPrimitive",
    "InvalidRetrievable",
    "InvalidThought",
    "InvalidTokenizable",
    "InvalidToolCall",
    "Media",
    "Memory",
    "Message",
    "Primitive",
    "Readers",
    "Retrievable",
    "StashEntry",
    "Thought",
    "Tokenizable",
    "ToolCall",
    "tool_call_checksum",
]
