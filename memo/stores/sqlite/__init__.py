"""The SQLite store, the default. Nothing outside this package knows SQL."""

from memo.stores.sqlite.store import SQLiteStore

__all__ = ["SQLiteStore"]
