"""The SQLite store, the default. No SQL outside this package."""

from memo.stores.sqlite.store import SQLiteStore

__all__ = ["SQLiteStore"]
