"""The tables of leases and of consolidation, as one migration of the schema.

Triggers keep the pending sessions, so that whoever appends a message need not know of consolidation, and a scan reads
only what changed. Sessions from before the migration are pending, too.
"""

from __future__ import annotations

LEASES_MIGRATION: tuple[str, ...] = (
    """CREATE TABLE leases (
        tenant TEXT NOT NULL, user_id TEXT NOT NULL,
        holder TEXT NOT NULL, token INTEGER NOT NULL, expires_at INTEGER NOT NULL,
        PRIMARY KEY (tenant, user_id)
    ) WITHOUT ROWID""",
    """CREATE TABLE consolidations (
        tenant TEXT NOT NULL, user_id TEXT NOT NULL, standing TEXT NOT NULL, memory TEXT NOT NULL,
        PRIMARY KEY (tenant, user_id)
    )""",
    """CREATE TABLE pending_sessions (
        tenant TEXT NOT NULL, user_id TEXT NOT NULL, session TEXT NOT NULL,
        revision INTEGER NOT NULL, changed_at INTEGER NOT NULL,
        PRIMARY KEY (tenant, user_id, session)
    ) WITHOUT ROWID""",
    """CREATE TRIGGER sessions_become_pending AFTER UPDATE OF next_position ON sessions
        WHEN NEW.next_position > OLD.next_position
        BEGIN
            INSERT INTO pending_sessions (tenant, user_id, session, revision, changed_at)
            VALUES (NEW.tenant, NEW.user_id, NEW.session, NEW.next_position - 1, NEW.updated_at)
            ON CONFLICT (tenant, user_id, session) DO UPDATE SET
            revision = excluded.revision, changed_at = excluded.changed_at;
        END""",
    """CREATE TRIGGER pending_sessions_stay_active AFTER UPDATE OF updated_at ON sessions
        WHEN NEW.next_position = OLD.next_position
        BEGIN
            UPDATE pending_sessions SET changed_at = NEW.updated_at
            WHERE tenant = NEW.tenant AND user_id = NEW.user_id AND session = NEW.session;
        END""",
    """INSERT INTO pending_sessions (tenant, user_id, session, revision, changed_at)
        SELECT tenant, user_id, session, next_position - 1, updated_at FROM sessions WHERE next_position > 1""",
)
