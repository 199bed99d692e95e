"""The OpenAPI document keeps its promises. `openapi.txt` lists them, one per line.

A new route or field needs no line there until it is released.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sandboxd.api.app import ENDPOINTS
from sandboxd.api.openapi import describe

PROMISED = Path(__file__).with_name("openapi.txt")


def promises(document: dict[str, Any]) -> Iterator[str]:
    """Yield every operation, parameter, media type and schema field of a document as one line."""
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            where = f"{method.upper()} {path}"
            yield f"{where} is {operation['operationId']}"
            for parameter in operation["parameters"]:
                yield f"{where} takes {parameter['in']} {parameter['name']}"
            for media, content in operation.get("requestBody", {}).get("content", {}).items():
                yield f"{where} takes {media} {_name(content)}".rstrip()
            for status, answer in operation["responses"].items():
                for media, content in answer.get("content", {"nothing": {}}).items():
                    yield f"{where} answers {status} {media} {_name(content)}".rstrip()
    for name, schema in document["components"]["schemas"].items():
        yield f"schema {name}"
        for field in schema.get("properties", {}):
            yield f"schema {name} has {field}"
        for field in schema.get("required", ()):
            yield f"schema {name} needs {field}"


def _name(content: dict[str, Any]) -> str:
    return str(content.get("schema", {}).get("$ref", "")).rpartition("/")[2]


def test_nothing_that_the_document_promised_is_removed_or_renamed() -> None:
    kept = set(promises(describe(ENDPOINTS, "0")))
    missing = [line for line in PROMISED.read_text().splitlines() if line not in kept]
    assert missing == []


def test_every_endpoint_is_described_under_a_unique_name() -> None:
    document = describe(ENDPOINTS, "1.2.3")
    assert (document["openapi"], document["info"]["version"]) == ("3.1.0", "1.2.3")
    names = [operation["operationId"] for path in document["paths"].values() for operation in path.values()]
    assert len(names) == len(set(names)) == sum(len(endpoint.operations) for endpoint in ENDPOINTS)


def test_only_declared_statuses_are_described() -> None:
    document = describe(ENDPOINTS, "0")
    for endpoint in ENDPOINTS:
        for method in endpoint.operations:
            described = document["paths"][endpoint.public_path][method.lower()]["responses"]
            assert set(described) == {str(status) for status in endpoint.answers} | {"default"}
