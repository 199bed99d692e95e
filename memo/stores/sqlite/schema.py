"""The schema, as numbered migrations. A released migration is never edited; add a new one.

Times are microseconds since 1970, texts are UTF-8 in blobs (a text may hold NUL), ids and JSON are TEXT.
"""

from __future__ import annotations

APPLICATION_ID = 0x6D656D6F  # "memo": identifies our files among other SQLite files

_RECORDS: tuple[str, ...] = (
    """CREATE TABLE records (
        position INTEGER PRIMARY KEY,
        tenant TEXT NOT NULL, kind TEXT NOT NULL, place TEXT NOT NULL, id TEXT NOT NULL,
        group_name TEXT NOT NULL, body TEXT NOT NULL,
        UNIQUE (tenant, kind, place, id)
    )""",
    "CREATE INDEX records_by_group ON records (tenant, kind, place, group_name, position)",
)

# Triggers keep pending_sessions up to date, so the code that appends messages does not depend on consolidation, and a
# scan reads only what changed. Sessions that exist before this migration become pending.
_CONSOLIDATION: tuple[str, ...] = (
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

# A deletion is a revision; the document's row stays, so that its revisions continue to grow.
_DELETIONS: tuple[str, ...] = (
    "ALTER TABLE documents ADD COLUMN deleted INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE revisions ADD COLUMN deleted INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE revisions ADD COLUMN moved TEXT",
    "ALTER TABLE changes ADD COLUMN deleted INTEGER NOT NULL DEFAULT 0",
)

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE contents (
            sha256 TEXT NOT NULL UNIQUE,
            size_bytes INTEGER NOT NULL,
            body BLOB NOT NULL
        )""",
        """CREATE TABLE documents (
            tenant TEXT NOT NULL, scope TEXT NOT NULL, owner TEXT NOT NULL, name TEXT NOT NULL,
            revision INTEGER NOT NULL, sha256 TEXT NOT NULL, size_bytes INTEGER NOT NULL, updated_at INTEGER NOT NULL,
            summary TEXT NOT NULL, tokens INTEGER NOT NULL, tokens_exact INTEGER NOT NULL,
            PRIMARY KEY (tenant, scope, owner, name)
        )""",
        """CREATE TABLE revisions (
            tenant TEXT NOT NULL, scope TEXT NOT NULL, owner TEXT NOT NULL, name TEXT NOT NULL,
            revision INTEGER NOT NULL, sha256 TEXT NOT NULL, size_bytes INTEGER NOT NULL, at INTEGER NOT NULL,
            actor TEXT NOT NULL, session TEXT, reason TEXT NOT NULL, request TEXT, redacted INTEGER NOT NULL DEFAULT 0,
            PRIMARY KEY (tenant, scope, owner, name, revision)
        )""",
        """CREATE UNIQUE INDEX revisions_by_request ON revisions (tenant, scope, owner, name, request)
            WHERE request IS NOT NULL""",
        "CREATE INDEX revisions_by_content ON revisions (sha256)",
        """CREATE TABLE artifacts (
            tenant TEXT NOT NULL, session TEXT NOT NULL, tool_call TEXT NOT NULL,
            revision INTEGER NOT NULL, sha256 TEXT NOT NULL, size_bytes INTEGER NOT NULL, at INTEGER NOT NULL,
            PRIMARY KEY (tenant, session, tool_call)
        )""",
        "CREATE INDEX artifacts_by_content ON artifacts (sha256)",
        """CREATE TABLE changes (
            cursor INTEGER PRIMARY KEY,
            kind TEXT NOT NULL, tenant TEXT NOT NULL, owner TEXT NOT NULL, name TEXT NOT NULL,
            revision INTEGER NOT NULL, sha256 TEXT NOT NULL, at INTEGER NOT NULL
        )""",
        """CREATE TABLE sessions (
            tenant TEXT NOT NULL, session TEXT NOT NULL, user_id TEXT NOT NULL, agent TEXT NOT NULL,
            created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL,
            next_position INTEGER NOT NULL DEFAULT 1, archives INTEGER NOT NULL DEFAULT 0,
            message_count INTEGER NOT NULL DEFAULT 0, message_tokens INTEGER NOT NULL DEFAULT 0,
            turns INTEGER NOT NULL DEFAULT 0, tokens INTEGER NOT NULL DEFAULT 0,
            PRIMARY KEY (tenant, session)
        )""",
        "CREATE INDEX sessions_by_user ON sessions (tenant, user_id, updated_at)",
        # Clustered by session, so that the newest 50 messages are adjacent on disk however long the session is.
        """CREATE TABLE messages (
            tenant TEXT NOT NULL, session TEXT NOT NULL, position INTEGER NOT NULL,
            body TEXT NOT NULL, tokens INTEGER NOT NULL, expands INTEGER,
            PRIMARY KEY (tenant, session, position)
        ) WITHOUT ROWID""",
        """CREATE TABLE archived_messages (
            tenant TEXT NOT NULL, session TEXT NOT NULL, archive INTEGER NOT NULL, position INTEGER NOT NULL,
            body TEXT NOT NULL, tokens INTEGER NOT NULL, expands INTEGER,
            PRIMARY KEY (tenant, session, archive, position)
        ) WITHOUT ROWID""",
        """CREATE TABLE turns (
            tenant TEXT NOT NULL, session TEXT NOT NULL, turn INTEGER NOT NULL,
            input INTEGER NOT NULL, output INTEGER NOT NULL, cache_read INTEGER NOT NULL, cache_write INTEGER NOT NULL,
            at INTEGER NOT NULL,
            PRIMARY KEY (tenant, session, turn)
        )""",
        """CREATE TABLE requests (
            tenant TEXT NOT NULL, session TEXT NOT NULL, request TEXT NOT NULL, at INTEGER NOT NULL,
            PRIMARY KEY (tenant, session, request)
        )""",
        """CREATE TABLE logs (
            tenant TEXT NOT NULL, session TEXT NOT NULL, log TEXT NOT NULL, agent TEXT NOT NULL,
            position INTEGER NOT NULL, body TEXT NOT NULL, at INTEGER NOT NULL,
            PRIMARY KEY (tenant, session, log, agent, position)
        ) WITHOUT ROWID""",
        """CREATE TABLE slots (
            tenant TEXT NOT NULL, session TEXT NOT NULL, slot TEXT NOT NULL, agent TEXT NOT NULL,
            body TEXT NOT NULL, events_before INTEGER NOT NULL, at INTEGER NOT NULL,
            PRIMARY KEY (tenant, session, slot, agent)
        )""",
    ),
    _RECORDS,
    _CONSOLIDATION,
    _DELETIONS,
)
