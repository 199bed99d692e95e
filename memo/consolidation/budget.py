"""Budget: limits on calls and tokens. A budget can have a parent; a call must fit both.

It only counts: the caller reports what each call costs.
"""

from __future__ import annotations

from dataclasses import dataclass

from memo.errors import MemoError


class BudgetSpent(MemoError):
    """The budget does not allow another call. Completed work is kept."""

    code = "memo.budget_spent"
    retryable = True


@dataclass(slots=True)
class Budget:
    """Counts what is spent; None means unlimited. A call is refused before it starts, never cut off."""

    calls: int | None = None
    tokens: int | None = None
    parent: Budget | None = None
    spent_calls: int = 0
    spent_tokens: int = 0

    def begin_call(self, tokens: int) -> None:
        """Reserve one call with about this many input tokens, or raise BudgetSpent."""
        for budget in self._chain():
            if budget.calls is not None and budget.spent_calls >= budget.calls:
                raise BudgetSpent(f"cannot make another call: the budget of {budget.calls} calls is spent")
            if budget.tokens is not None and budget.spent_tokens + tokens > budget.tokens:
                raise BudgetSpent(f"cannot make another call: the budget of {budget.tokens} tokens is spent")
        for budget in self._chain():
            budget.spent_calls += 1

    def end_call(self, tokens: int) -> None:
        """Record what the call actually used, input and output."""
        for budget in self._chain():
            budget.spent_tokens += max(tokens, 0)

    def _chain(self) -> list[Budget]:
        return [self, *(self.parent._chain() if self.parent else [])]
