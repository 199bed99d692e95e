"""The eight primitives of a turn: what enters an agent's loop enters as one of these. All frozen, all checked."""

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
from memo.primitives.identity import Identity
from memo.primitives.media import Media, StashEntry
from memo.primitives.memory import Memory
from memo.primitives.message import Message
from memo.primitives.readers import Readers
from memo.primitives.retrievable import Retrievable
from memo.primitives.thought import Thought
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
    "Readers",
    "Retrievable",
    "StashEntry",
    "Thought",
    "Tokenizable",
    "ToolCall",
    "tool_call_checksum",
]
