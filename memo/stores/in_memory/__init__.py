"""The store in memory, in small modules: what is written, what was said, and the store that is both.

Nothing in it is shared between two stores, and nothing survives the process.
"""

from memo.stores.in_memory.store import InMemoryStore

__all__ = ["InMemoryStore"]
