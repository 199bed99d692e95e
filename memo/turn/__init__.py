"""One turn of an agent: 27 callbacks to a store, an executor, and changes that are stored atomically."""

from memo.turn.abort_signal import AbortSignal
from memo.turn.callbacks import noop_callbacks
from memo.turn.conformance import check_callbacks
from memo.turn.context import DispatchContext, TurnContext
from memo.turn.delta import Delta, TurnSet, UnitOfWork
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
from memo.turn.reporter import Ghost, Reporter
from memo.turn.runner import RawTurnContext, TurnResult, TurnRunner
from memo.turn.store_adapter import store_callbacks
from memo.turn.tools import Tool, ToolRegistry, artifact_tools

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
