"""Memory in sandboxes: mirrors that follow the store, and the one writer."""

from sandboxd.memory.memory import Memory
from sandboxd.memory.outcomes import Committed, Key, Queued, WriteConflict, WriteOutcomeUnknown

__all__ = ["Committed", "Key", "Memory", "Queued", "WriteConflict", "WriteOutcomeUnknown"]
