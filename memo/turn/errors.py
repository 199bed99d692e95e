"""What can go wrong in a turn. Each has the code that agent builders know.

TurnError
├─ InvalidTurnRunnerConfig   raised at construction; `problems` lists all that is wrong
├─ InvalidTurnContext        raised by `run`, before anything happens
├─ AlreadySignalled · StreamSealed    raised at the executor
├─ ForeignOwner              raised by callbacks that were made for another owner than the context's
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
    """Something that the executor raised; it is the `__cause__`."""

    code = "E_LLM_EXECUTION_EXECUTOR_ERROR"


class PipelineError(TurnError):
    """Something that a middleware raised; it is the `__cause__`."""

    code = "E_TURN_PIPELINE_ERROR"


class FlushError(TurnError):
    """The changes of an iteration could not be stored: none of them is, unless `outcome_unknown`."""

    code = "E_LLM_EXECUTION_FLUSH_ERROR"

    def __init__(self, message: str, *, outcome_unknown: bool = False) -> None:
        super().__init__(message)
        self.outcome_unknown = outcome_unknown


class IterationLimit(TurnError):
    code = "E_LLM_EXECUTION_ITERATION_LIMIT"
