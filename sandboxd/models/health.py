"""The daemon's health: whether it is alive, and whether what it depends on answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, Self

from pydantic import ConfigDict

from sandboxd.models.wire import AnswerModel


class Health(AnswerModel):
    model_config = ConfigDict(title="HealthAnswer")

    status: Literal["ok"] = "ok"
    version: str


class Check(AnswerModel):
    """Whether something the daemon depends on answers."""

    model_config = ConfigDict(title="CheckAnswer")

    name: str
    ok: bool
    detail: str = ""


class Readiness(AnswerModel):
    """Whether the daemon can work, and what it depends on."""

    model_config = ConfigDict(title="ReadyAnswer")

    ready: bool
    engine: Check
    store: Check
    disk: Check

    @classmethod
    def of(cls, *, engine: Check, store: Check, disk: Check) -> Self:
        """Return what follows from the checks."""
        return cls(ready=engine.ok and store.ok and disk.ok, engine=engine, store=store, disk=disk)

    def checks(self) -> Iterator[tuple[str, Check]]:
        yield from (("engine", self.engine), ("store", self.store), ("disk", self.disk))
