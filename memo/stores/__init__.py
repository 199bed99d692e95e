"""The stores that come with the library.

Each implements every contract; none knows of another. `memo.open_store` makes them by URL.
"""

from memo.stores.base import BaseStore
from memo.stores.filesystem import FilesystemStore
from memo.stores.in_memory import InMemoryStore
from memo.stores.options import StoreOptions
from memo.stores.sqlite import SQLiteStore

__all__ = ["BaseStore", "FilesystemStore", "InMemoryStore", "SQLiteStore", "StoreOptions"]
