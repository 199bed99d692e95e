"""Spooled artifacts as fields of primitives: in JSON they are `{"spool": id}`, and a reader is found at load."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import InstanceOf, PlainSerializer, ValidationInfo, WrapValidator
from pydantic.functional_validators import ModelWrapValidatorHandler

from memo.primitives.readers import readers_of
from memo.spool.artifact import SpooledArtifact


def is_artifact(value: Any) -> bool:
    return isinstance(value, SpooledArtifact) or (isinstance(value, dict) and value.keys() == {"spool"})


def _load(value: Any, handler: ModelWrapValidatorHandler[Any], info: ValidationInfo) -> Any:
    readers = readers_of(info.context)
    if readers is not None and isinstance(value, dict) and isinstance(value.get("spool"), str):
        return SpooledArtifact(readers.spool(value["spool"]), value["spool"])
    return handler(value)


def _dump(artifact: SpooledArtifact) -> dict[str, str]:
    return {"spool": artifact.id}


ArtifactField = Annotated[InstanceOf[SpooledArtifact], WrapValidator(_load), PlainSerializer(_dump)]
