"""The SQLite store, in small modules: the file, its tables, the lanes, and the store over them.

Nothing outside this package knows that there is SQL.
"""

from memo.stores.sqlite.store import SQLiteStore

__all__ = ["SQLiteStore"]
