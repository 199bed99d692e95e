"""Tokenizable: text that can count its tokens. Every text in the other primitives is a Tokenizable.

Counts are computed on demand and cached per encoding. The text never changes; `set` returns another Tokenizable.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, ClassVar, Self

from pydantic import (
    ConfigDict,
    ModelWrapValidatorHandler,
    PrivateAttr,
    RootModel,
    StrictStr,
    ValidationError,
    model_validator,
)

from memo.primitives.errors import InvalidPrimitive, InvalidTokenizable
from memo.primitives.primitive import refuse
from memo.tokens import TokenCount, TokenCounter


@lru_cache(maxsize=64)
def _counter(encoding: str) -> TokenCounter:
    return TokenCounter(encoding)  # one per process: a table takes megabytes, and a missing one warns once


class Tokenizable(RootModel[StrictStr]):
    model_config = ConfigDict(frozen=True)

    refusal: ClassVar[type[InvalidPrimitive]] = InvalidTokenizable

    _counts: dict[str, TokenCount] = PrivateAttr(default_factory=dict)

    @model_validator(mode="wrap")
    @classmethod
    def _refuse_with_code(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if isinstance(value, dict) and len(value) == 1 and value.keys() <= {"text", "value"}:
            (value,) = value.values()  # given by keyword
        try:
            return handler(value)
        except ValidationError as error:
            raise refuse(cls.refusal, cls.__name__, error) from None

    @property
    def text(self) -> str:
        return self.root

    def set(self, text: str) -> Tokenizable:
        """Return a Tokenizable with another text. This one does not change."""
        return Tokenizable(text)

    def estimate_tokens(self, encoding: str = "o200k_base") -> int:
        """Return the number of tokens: exact if the encoding's table is installed, otherwise estimated."""
        return self.count_tokens(encoding).tokens

    def count_tokens(self, encoding: str = "o200k_base") -> TokenCount:
        """Count in this thread. The first count of an encoding loads its table; on an event loop use `measure`."""
        if encoding not in self._counts:
            self._counts[encoding] = _counter(encoding).count(self.root)
        return self._counts[encoding]

    async def measure(self, encoding: str = "o200k_base") -> TokenCount:
        """Count off the event loop."""
        if encoding not in self._counts:
            (self._counts[encoding],) = await _counter(encoding).count_all([self.root])
        return self._counts[encoding]

    def to_json(self) -> str:
        return self.root

    @classmethod
    def from_json(cls, value: Any) -> Self:
        return cls.model_validate(value)

    def __str__(self) -> str:
        return self.root

    def __len__(self) -> int:
        return len(self.root)

    def __bool__(self) -> bool:
        return True  # an empty text is still present

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Tokenizable):
            return self.root == other.root
        return self.root == other if isinstance(other, str) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.root)
