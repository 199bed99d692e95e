"""Memory in sandboxes: mirrors that follow the store, and the one writer."""

from sandboxd.memory.memory import Memory
from sandboxd.memory.outcomes import Key, Queued, WriteConflict, WriteOutcomeUnknown, Written

__all__ = ["Key", "Memory", "Queued", "WriteConflict", "WriteOutcomeUnknown", "Written"]
