"""The in-memory store: nothing is shared between two stores, and nothing survives the process."""

from memo.stores.in_memory.store import InMemoryStore

__all__ = ["InMemoryStore"]
