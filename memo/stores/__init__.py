"""The stores of the library.

Each implements every contract, and none depends on another. `memo.open_store` opens them by URL.
"""

from memo.stores.base_store import BaseStore
from memo.stores.filesystem import FilesystemStore
from memo.stores.in_memory import InMemoryStore
from memo.stores.options import StoreOptions
from memo.stores.sqlite import SQLiteStore

__all__ = ["BaseStore", "FilesystemStore", "InMemoryStore", "SQLiteStore", "StoreOptions"]
