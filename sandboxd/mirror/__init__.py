"""Memory in sandboxes: mirrors that follow the store, and the one door for writes."""

from sandboxd.mirror.answers import Key, MirrorFile, Queued, Refused, WriteConflict, WriteOutcomeUnknown, Written
from sandboxd.mirror.memory import Memory

__all__ = ["Key", "Memory", "MirrorFile", "Queued", "Refused", "WriteConflict", "WriteOutcomeUnknown", "Written"]
