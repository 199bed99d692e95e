"""Storage steps: operations on an agent's records as JSON-serialisable values, and durable runs of such steps."""

from memo.steps.conformance import check_handlers, check_journal
from memo.steps.handlers import Handlers, store_handlers
from memo.steps.local_files import local_storage
from memo.steps.step_journal import RunTaken, StepJournal
from memo.steps.step_records import (
    InvalidStepRecord,
    StepMessage,
    StepPart,
    StepRecord,
    StepSandbox,
    StepSession,
    StepSetup,
    record_of,
)
from memo.steps.storage_step import METHODS, InvalidStep, StorageCall, StorageStep
from memo.steps.workflow import StepDiverged, Workflow

__all__ = [
    "METHODS",
    "Handlers",
    "InvalidStep",
    "InvalidStepRecord",
    "RunTaken",
    "StepDiverged",
    "StepJournal",
    "StepMessage",
    "StepPart",
    "StepRecord",
    "StepSandbox",
    "StepSession",
    "StepSetup",
    "StorageCall",
    "StorageStep",
    "Workflow",
    "check_handlers",
    "check_journal",
    "local_storage",
    "record_of",
    "store_handlers",
]
