"""Errors of a turn, with the codes of the turn contract.

TurnError
├─ InvalidTurnRunnerConfig   raised at construction; `problems` lists every problem
├─ InvalidTurnContext        raised by `run` before the turn starts
├─ AlreadySignalled · StreamSealed    raised in the executor
├─ ForeignOwner              raised by callbacks that are bound to a different owner
└─ ExecutorError · PipelineError · FlushError · IterationLimit    reported, never raised by `run`
"""

from __future__ import annotations

from collections.abc import Sequence

from memo.errors import MemoError


class TurnError(MemoError):
    code = "E_TURN"


class InvalidTurnRunnerConfig(TurnError):
    code = "E_INVALID_TURN_RUNNER_CONFIG"

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__(f"cannot make a turn runner: {'; '.join(problems)}")
        self.problems = tuple(problems)


class InvalidTurnContext(TurnError):
    code = "E_INVALID_TURN_CONTEXT"


class ForeignOwner(TurnError):
    code = "E_FOREIGN_OWNER"


class AlreadySignalled(TurnError):
    code = "E_LLM_EXECUTION_ALREADY_SIGNALLED"


class StreamSealed(TurnError):
    code = "E_STREAM_SEALED"


class ExecutorError(TurnError):
    """The executor raised an exception, which is the `__cause__`."""

    code = "E_LLM_EXECUTION_EXECUTOR_ERROR"


class PipelineError(TurnError):
    """A middleware raised an exception, which is the `__cause__`."""

    code = "E_TURN_PIPELINE_ERROR"


class FlushError(TurnError):
    """The changes of an iteration could not be stored. None were, unless `outcome_unknown`."""

    code = "E_LLM_EXECUTION_FLUSH_ERROR"

    def __init__(self, message: str, *, outcome_unknown: bool = False) -> None:
        super().__init__(message)
        self.outcome_unknown = outcome_unknown


class IterationLimit(TurnError):
    code = "E_LLM_EXECUTION_ITERATION_LIMIT"
