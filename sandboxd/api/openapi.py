"""The OpenAPI 3.1 document, generated from the declared endpoints and their pydantic models. It checks nothing.

A schema is named by its model's title, which outlives the name of a class.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from sandboxd.api.problems import MEDIA_TYPE
from sandboxd.api.routes import Access, Endpoint
from sandboxd.models.problem import Problem

_REF = "#/components/schemas/{model}"


def describe(endpoints: Sequence[Endpoint], version: str) -> dict[str, Any]:
    """Return the OpenAPI document of these endpoints."""
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        for method, name in endpoint.operations.items():
            paths.setdefault(endpoint.public_path, {})[method.lower()] = _operation(endpoint, name)
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


def _operation(endpoint: Endpoint, name: str) -> dict[str, Any]:
    described: dict[str, Any] = {
        "tags": [endpoint.kind],
        "summary": endpoint.summary,
        "operationId": name,
        "parameters": [*_path_parameters(endpoint), *_query_parameters(endpoint), *_header_parameters(endpoint)],
        "responses": {str(status): _answer(answer) for status, answer in endpoint.answers.items()},
    }
    described["responses"]["default"] = {
        "description": "A problem",
        "content": {MEDIA_TYPE: {"schema": _ref(Problem)}},
    }
    if endpoint.description:
        described["description"] = endpoint.description
    if endpoint.messages:  # OpenAPI has no term for it
        described["x-websocket-messages"] = {
            sender: {"oneOf": [_ref(model) for model in models]} for sender, models in endpoint.messages.items()
        }
    if endpoint.other_answers:
        refs = [_ref(model) for model in endpoint.other_answers]
        described["responses"]["200"]["content"]["application/json"] = {"schema": {"oneOf": refs}}
    if endpoint.body is not None:
        content = _content(endpoint.body)
        if endpoint.other_body is not None:
            content |= _content(endpoint.other_body)
        described["requestBody"] = {"required": True, "content": content}
    return described


def _schemas(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """Return the schemas by title: of bodies as the daemon accepts them, of answers as it sends them."""
    bodies = {endpoint.body for endpoint in endpoints if isinstance(endpoint.body, type)}
    bodies.update(model for endpoint in endpoints for model in endpoint.messages.get("client", ()))
    answers: set[type[BaseModel]] = {Problem}
    for endpoint in endpoints:
        given = (*endpoint.answers.values(), *endpoint.other_answers, *endpoint.messages.get("server", ()))
        answers.update(model for model in given if isinstance(model, type))
    found = _definitions(bodies, "validation") | _definitions(answers, "serialization")
    names = {_REF.format(model=name): _REF.format(model=schema["title"]) for name, schema in found.items()}
    return {schema["title"]: _renamed(schema, names) for schema in found.values()}


def _definitions(models: Iterable[type[BaseModel]], mode: Literal["validation", "serialization"]) -> dict[str, Any]:
    ordered = sorted(models, key=lambda model: model.__name__)
    _, document = models_json_schema([(model, mode) for model in ordered], ref_template=_REF)
    found: dict[str, Any] = document["$defs"]
    return found


def _renamed(schema: Any, names: Mapping[str, str]) -> Any:
    """Return a schema with its references renamed."""
    if isinstance(schema, list):
        return [_renamed(item, names) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: names[value] if key == "$ref" else _renamed(value, names) for key, value in schema.items()}


def _ref(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": _REF.format(model=model.model_config.get("title") or model.__name__)}


def _content(body: type[BaseModel] | str) -> dict[str, Any]:
    if isinstance(body, str):
        kind = "object" if body == "application/json" else "string"
        return {body: {"schema": {"type": kind} if kind == "object" else {"type": kind, "format": "binary"}}}
    return {"application/json": {"schema": _ref(body)}}


def _answer(answer: type[BaseModel] | str | None) -> dict[str, Any]:
    return {"description": "Done"} if answer is None else {"description": "Done", "content": _content(answer)}


def _path_parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", endpoint.public_path)
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
    if endpoint.access is not Access.WRITE:
        return found
    schema = {"type": "string", "minLength": 1, "maxLength": 255}
    return [*found, {"name": "Idempotency-Key", "in": "header", "required": False, "schema": schema}]
