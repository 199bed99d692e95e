"""A fork: the request for copies of a session and its sandbox, and the sandboxes that it made."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator

from sandboxd.models.ids import SessionName
from sandboxd.models.sandbox import SandboxView
from sandboxd.models.wire import AnswerModel, BodyModel

MAX_FORKS = 100
ForkMemory = Literal["copy", "none"]


class ForkRequest(BodyModel):
    """The sessions to make: one name, several, or a number of them whose names the daemon makes up."""

    model_config = ConfigDict(title="ForkBody")

    session: SessionName | None = Field(default=None, description="The new session.")
    sessions: Annotated[list[SessionName], Field(min_length=1, max_length=MAX_FORKS)] | None = Field(
        default=None, description="Several new sessions. All of them are made, or none."
    )
    count: int | None = Field(
        default=None, ge=1, le=MAX_FORKS, description="How many new sessions, if the daemon is to make up their names."
    )
    memory: ForkMemory = Field(
        default="copy",
        description="Whether they begin with the messages, documents and artifacts of this session, or with none.",
    )

    @model_validator(mode="after")
    def _names_or_a_number(self) -> ForkRequest:
        if sum(value is not None for value in (self.session, self.sessions, self.count)) != 1:
            raise ValueError("name the new session with session, several with sessions, or set count")
        if self.sessions is not None and len(set(self.sessions)) != len(self.sessions):
            raise ValueError("sessions must not name one session twice")
        return self

    @property
    def names(self) -> list[SessionName] | None:
        """The names of the new sessions; None if the daemon is to make them up."""
        return self.sessions if self.session is None else [self.session]


class ForkView(AnswerModel):
    model_config = ConfigDict(title="ForkAnswer")

    items: list[SandboxView]
    left_out: list[str] = Field(default_factory=list, description="What the store cannot copy, each as a phrase.")
