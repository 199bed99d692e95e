"""One turn of an agent: 27 callbacks to a store, an executor, and changes that happen all or not at all."""

from memo.turn.abort import AbortSignal
from memo.turn.artifact_tools import artifact_tools
from memo.turn.checks import check_callbacks
from memo.turn.contexts import DispatchContext, TurnContext
from memo.turn.deltas import Delta, UnitOfWork
from memo.turn.errors import (
    AlreadySignalled,
    ExecutorError,
    FlushError,
    ForeignOwner,
    InvalidTurnContext,
    InvalidTurnRunnerConfig,
    IterationLimit,
    PipelineError,
    StreamSealed,
    TurnError,
)
from memo.turn.noop import noop_callbacks
from memo.turn.reporter import Ghost, Reporter
from memo.turn.runner import RawTurnContext, TurnResult, TurnRunner
from memo.turn.sets import TurnSet
from memo.turn.stored import store_callbacks
from memo.turn.tools import Tool, ToolRegistry

__all__ = [
    "AbortSignal",
    "AlreadySignalled",
    "Delta",
    "DispatchContext",
    "ExecutorError",
    "FlushError",
    "ForeignOwner",
    "Ghost",
    "InvalidTurnContext",
    "InvalidTurnRunnerConfig",
    "IterationLimit",
    "PipelineError",
    "RawTurnContext",
    "Reporter",
    "StreamSealed",
    "Tool",
    "ToolRegistry",
    "TurnContext",
    "TurnError",
    "TurnResult",
    "TurnRunner",
    "TurnSet",
    "UnitOfWork",
    "artifact_tools",
    "check_callbacks",
    "noop_callbacks",
    "store_callbacks",
]
