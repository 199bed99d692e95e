"""A session of the store: the request that creates one, and its record."""

from __future__ import annotations

from datetime import datetime

from pydantic import ConfigDict, Field

from sandboxd.models.ids import Agent, User
from sandboxd.models.wire import AnswerModel, BodyModel, QueryModel


class SessionBody(BodyModel):
    user: User
    agent: Agent | None = None


class SessionsQuery(QueryModel):
    user: User | None = Field(default=None, description="Only the sessions of this user.")


class Session(AnswerModel):
    model_config = ConfigDict(title="SessionAnswer", from_attributes=True)

    tenant: str
    session: str
    user: str
    agent: str
    created_at: datetime
    updated_at: datetime
    turns: int
    tokens: int
    message_count: int


class SessionList(AnswerModel):
    model_config = ConfigDict(title="SessionsAnswer")

    items: list[Session]
