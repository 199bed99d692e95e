"""Budgets of calls and tokens. A budget can be part of a larger one; both must have enough left.

It only counts. What a call costs is said by whoever makes it.
"""

from __future__ import annotations

from dataclasses import dataclass

from memo.errors import MemoError


class BudgetSpent(MemoError):
    """There is nothing left for another call. What was done before it is kept."""

    code = "memo.budget_spent"
    retryable = True


@dataclass(slots=True)
class Budget:
    """Counts what is spent. None is no limit. A call is refused before it is made, not cut off while it runs."""

    calls: int | None = None
    tokens: int | None = None
    parent: Budget | None = None
    spent_calls: int = 0
    spent_tokens: int = 0

    def begin_call(self, tokens: int) -> None:
        """Ask for one call with about so many tokens of input; BudgetSpent if any budget has too little left."""
        for budget in self._chain():
            if budget.calls is not None and budget.spent_calls >= budget.calls:
                raise BudgetSpent(f"cannot make another call: the budget of {budget.calls} calls is spent")
            if budget.tokens is not None and budget.spent_tokens + tokens > budget.tokens:
                raise BudgetSpent(f"cannot make another call: the budget of {budget.tokens} tokens is spent")
        for budget in self._chain():
            budget.spent_calls += 1

    def end_call(self, tokens: int) -> None:
        """Say what the call really took, in and out."""
        for budget in self._chain():
            budget.spent_tokens += max(tokens, 0)

    def _chain(self) -> list[Budget]:
        return [self, *(self.parent._chain() if self.parent else [])]
