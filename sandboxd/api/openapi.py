"""The OpenAPI 3.1 document, generated from the declared endpoints and their pydantic models. It checks nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from sandboxd.api.models import Problem
from sandboxd.api.problems import MEDIA_TYPE
from sandboxd.api.routes import Access, Endpoint

_REF = "#/components/schemas/{model}"


def describe(endpoints: Sequence[Endpoint], version: str) -> dict[str, Any]:
    """Return the OpenAPI document of these endpoints."""
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "sandboxd",
            "summary": "A hardened container and its memory as plain files, for every AI agent.",
            "version": version,
        },
        "paths": paths,
        "components": {"schemas": _schemas(endpoints)},
    }


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    described: dict[str, Any] = {
        "tags": [endpoint.kind],
        "summary": endpoint.summary,
        "operationId": endpoint.operation_id or endpoint.run.__name__,
        "parameters": [*_path_parameters(endpoint), *_query_parameters(endpoint), *_header_parameters(endpoint)],
        "responses": {str(status): _answer(answer) for status, answer in endpoint.answers.items()},
    }
    described["responses"]["default"] = {
        "description": "A problem",
        "content": {MEDIA_TYPE: {"schema": {"$ref": _REF.format(model=Problem.__name__)}}},
    }
    if endpoint.body is not None:
        content = _content(endpoint.body)
        if endpoint.other_body is not None:
            content |= _content(endpoint.other_body)
        described["requestBody"] = {"required": True, "content": content}
    return described


def _schemas(endpoints: Iterable[Endpoint]) -> dict[str, Any]:
    models: dict[str, type[BaseModel]] = {Problem.__name__: Problem}
    for endpoint in endpoints:
        for model in (endpoint.body, *endpoint.answers.values()):
            if isinstance(model, type):
                models[model.__name__] = model
    _, definitions = models_json_schema([(model, "validation") for model in models.values()], ref_template=_REF)
    found: dict[str, Any] = definitions["$defs"]
    return found


def _content(body: type[BaseModel] | str) -> dict[str, Any]:
    if isinstance(body, str):
        kind = "object" if body == "application/json" else "string"
        return {body: {"schema": {"type": kind} if kind == "object" else {"type": kind, "format": "binary"}}}
    return {"application/json": {"schema": {"$ref": _REF.format(model=body.__name__)}}}


def _answer(answer: type[BaseModel] | str | None) -> dict[str, Any]:
    return {"description": "Done"} if answer is None else {"description": "Done", "content": _content(answer)}


def _path_parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", endpoint.path)
    ]


def _query_parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    if endpoint.query is None:
        return []
    schema = endpoint.query.model_json_schema()
    required = schema.get("required", ())
    return [
        {"name": name, "in": "query", "required": name in required, "schema": described}
        for name, described in schema["properties"].items()
    ]


def _header_parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    text = {"type": "string"}
    found = [{"name": name, "in": "header", "required": False, "schema": text} for name in endpoint.headers]
    if endpoint.access is Access.READ:
        return found
    schema = {"type": "string", "minLength": 1, "maxLength": 255}
    return [*found, {"name": "Idempotency-Key", "in": "header", "required": False, "schema": schema}]
