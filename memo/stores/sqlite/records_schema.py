"""The table of records, as one migration of the schema."""

from __future__ import annotations

RECORDS_MIGRATION: tuple[str, ...] = (
    """CREATE TABLE records (
        position INTEGER PRIMARY KEY,
        tenant TEXT NOT NULL, kind TEXT NOT NULL, place TEXT NOT NULL, id TEXT NOT NULL,
        group_name TEXT NOT NULL, body TEXT NOT NULL,
        UNIQUE (tenant, kind, place, id)
    )""",
    "CREATE INDEX records_by_group ON records (tenant, kind, place, group_name, position)",
)
