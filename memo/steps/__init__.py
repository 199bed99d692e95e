"""Storage steps: operations on an agent's records as JSON-serialisable values, dispatched to handlers."""

from memo.steps.conformance import check_handlers
from memo.steps.handlers import Handlers, store_handlers
from memo.steps.local_files import local_storage
from memo.steps.storage_step import METHODS, InvalidStep, StorageCall, StorageStep

__all__ = [
    "METHODS",
    "Handlers",
    "InvalidStep",
    "StorageCall",
    "StorageStep",
    "check_handlers",
    "local_storage",
    "store_handlers",
]
