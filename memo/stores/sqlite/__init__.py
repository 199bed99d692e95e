"""The SQLite store, in small modules: the file, the tables, and the store that is one transaction a method."""

from memo.stores.sqlite.store import SQLiteStore

__all__ = ["SQLiteStore"]
