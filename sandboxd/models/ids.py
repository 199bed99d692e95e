"""The ids of `memo.ids` as field types: text on the wire, parsed into a type that holds only legal ids."""

from __future__ import annotations

from typing import Annotated

from pydantic import GetPydanticSchema
from pydantic_core import core_schema

from memo.ids import AgentId, SessionId, TenantId, UserId

_PARSED = GetPydanticSchema(
    lambda kind, _: core_schema.no_info_after_validator_function(kind, core_schema.str_schema())
)

Tenant = Annotated[TenantId, _PARSED]
SessionName = Annotated[SessionId, _PARSED]
User = Annotated[UserId, _PARSED]
Agent = Annotated[AgentId, _PARSED]
