"""Storage steps: one operation on an agent's records as a value that survives JSON, dispatched to whoever stores."""

from memo.steps.calls import METHODS, InvalidStep, StorageCall
from memo.steps.checks import check_handlers
from memo.steps.handlers import Handlers
from memo.steps.local import local_storage
from memo.steps.step import StorageStep
from memo.steps.stored import store_handlers

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
