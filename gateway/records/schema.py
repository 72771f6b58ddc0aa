"""The tables of the records file, as SQL statements for each version of the file.

Pure. A released version is never changed. Each later change adds an entry to `MIGRATIONS`. `PRAGMA
user_version` of a file is the number of entries that have been applied to it.
"""

from __future__ import annotations

from collections.abc import Sequence

_REQUESTS = (
    """
    CREATE TABLE request (
        id INTEGER PRIMARY KEY,
        request TEXT NOT NULL,
        ended_at_s REAL NOT NULL,
        kind TEXT NOT NULL,
        dialect TEXT NOT NULL,
        model TEXT,
        client TEXT,
        key TEXT,
        priority INTEGER,
        streamed INTEGER NOT NULL,
        instance TEXT,
        node TEXT,
        load_s REAL,
        queue_s REAL,
        prefill_s REAL,
        decode_s REAL,
        ttft_s REAL,
        seconds REAL NOT NULL,
        prompt_tokens INTEGER NOT NULL,
        cached_tokens INTEGER NOT NULL,
        completion_tokens INTEGER NOT NULL,
        finish TEXT,
        status INTEGER NOT NULL,
        error TEXT,
        row_bytes INTEGER NOT NULL
    )
    """,
    "CREATE INDEX request_by_end ON request (ended_at_s)",
    # rows and bytes of the table, available without counting
    "CREATE TABLE request_tally (rows INTEGER NOT NULL, bytes INTEGER NOT NULL)",
    "INSERT INTO request_tally VALUES (0, 0)",
    """
    CREATE TRIGGER request_added AFTER INSERT ON request BEGIN
        UPDATE request_tally SET rows = rows + 1, bytes = bytes + NEW.row_bytes;
    END
    """,
    """
    CREATE TRIGGER request_removed AFTER DELETE ON request BEGIN
        UPDATE request_tally SET rows = rows - 1, bytes = bytes - OLD.row_bytes;
    END
    """,
)

_ANSWERS = (
    """
    CREATE TABLE answer (
        id INTEGER PRIMARY KEY,
        request TEXT NOT NULL UNIQUE,
        owner TEXT NOT NULL,
        kept_at_s REAL NOT NULL,
        answer BLOB NOT NULL,
        listed BLOB NOT NULL,
        labels BLOB NOT NULL,
        row_bytes INTEGER NOT NULL,
        size_bytes INTEGER NOT NULL
    )
    """,
    "CREATE INDEX answer_by_owner ON answer (owner, id)",
    "CREATE INDEX answer_by_age ON answer (kept_at_s)",
    """
    CREATE TABLE item (
        id INTEGER PRIMARY KEY,
        owner TEXT NOT NULL,
        digest TEXT NOT NULL,
        content BLOB NOT NULL,
        item_bytes INTEGER NOT NULL,
        uses INTEGER NOT NULL DEFAULT 0,
        UNIQUE (owner, digest)
    )
    """,
    """
    CREATE TABLE answer_item (
        answer INTEGER NOT NULL,
        place INTEGER NOT NULL,
        item INTEGER NOT NULL,
        PRIMARY KEY (answer, place)
    ) WITHOUT ROWID
    """,
    # rows and bytes of each owner
    """
    CREATE TABLE answer_tally (
        owner TEXT PRIMARY KEY,
        rows INTEGER NOT NULL,
        bytes INTEGER NOT NULL
    ) WITHOUT ROWID
    """,
    """
    CREATE TRIGGER answer_added AFTER INSERT ON answer BEGIN
        INSERT INTO answer_tally VALUES (NEW.owner, 1, NEW.row_bytes)
        ON CONFLICT (owner) DO UPDATE SET rows = rows + 1, bytes = bytes + NEW.row_bytes;
    END
    """,
    """
    CREATE TRIGGER answer_changed AFTER UPDATE OF row_bytes ON answer BEGIN
        UPDATE answer_tally SET bytes = bytes + NEW.row_bytes - OLD.row_bytes
        WHERE owner = NEW.owner;
    END
    """,
    """
    CREATE TRIGGER answer_removed AFTER DELETE ON answer BEGIN
        DELETE FROM answer_item WHERE answer = OLD.id;
        UPDATE answer_tally SET rows = rows - 1, bytes = bytes - OLD.row_bytes
        WHERE owner = OLD.owner;
        DELETE FROM answer_tally WHERE owner = OLD.owner AND rows <= 0;
    END
    """,
    """
    CREATE TRIGGER item_added AFTER INSERT ON item BEGIN
        UPDATE answer_tally SET bytes = bytes + NEW.item_bytes WHERE owner = NEW.owner;
    END
    """,
    """
    CREATE TRIGGER item_removed AFTER DELETE ON item BEGIN
        UPDATE answer_tally SET bytes = bytes - OLD.item_bytes WHERE owner = OLD.owner;
    END
    """,
    """
    CREATE TRIGGER answer_item_added AFTER INSERT ON answer_item BEGIN
        UPDATE item SET uses = uses + 1 WHERE id = NEW.item;
    END
    """,
    """
    CREATE TRIGGER answer_item_removed AFTER DELETE ON answer_item BEGIN
        UPDATE item SET uses = uses - 1 WHERE id = OLD.item;
        DELETE FROM item WHERE id = OLD.item AND uses <= 0;
    END
    """,
)

_JOBS = (
    """
    CREATE TABLE job (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        request TEXT NOT NULL UNIQUE,
        kind TEXT NOT NULL,
        path TEXT NOT NULL,
        owner TEXT NOT NULL,
        client TEXT NOT NULL,
        address TEXT NOT NULL,
        priority INTEGER NOT NULL,
        created_at_s REAL NOT NULL,
        ttl_s REAL NOT NULL,
        metadata BLOB NOT NULL,
        shown BLOB NOT NULL,
        state TEXT NOT NULL,
        attempts INTEGER NOT NULL DEFAULT 0,
        cuts INTEGER NOT NULL DEFAULT 0,
        runner TEXT,
        beat INTEGER NOT NULL DEFAULT 0,
        cancelled INTEGER NOT NULL DEFAULT 0,
        told INTEGER NOT NULL DEFAULT 0,
        ready_at_s REAL NOT NULL DEFAULT 0,
        started_at_s REAL,
        ended_at_s REAL,
        tokens INTEGER NOT NULL DEFAULT 0,
        events INTEGER NOT NULL DEFAULT 0,
        status INTEGER,
        content_type TEXT NOT NULL DEFAULT '',
        error TEXT,
        bytes INTEGER NOT NULL,
        body BLOB NOT NULL
    )
    """,
    "CREATE INDEX job_by_state ON job (state, priority, number)",
    "CREATE INDEX job_by_owner ON job (owner, number)",
    """
    CREATE TABLE job_event (
        job INTEGER NOT NULL,
        number INTEGER NOT NULL,
        data BLOB NOT NULL,
        PRIMARY KEY (job, number)
    ) WITHOUT ROWID
    """,
    """
    CREATE TRIGGER job_removed AFTER DELETE ON job BEGIN
        DELETE FROM job_event WHERE job = OLD.number;
    END
    """,
)

_CONVERSATIONS = (
    # `used` shares a sequence with the ids of answers: the last use has the largest number
    """
    CREATE TABLE conversation (
        id INTEGER PRIMARY KEY,
        request TEXT NOT NULL UNIQUE,
        owner TEXT NOT NULL,
        created_at_s REAL NOT NULL,
        changed_at_s REAL NOT NULL,
        used INTEGER NOT NULL,
        labels BLOB NOT NULL,
        items INTEGER NOT NULL DEFAULT 0,
        size_bytes INTEGER NOT NULL DEFAULT 0,
        row_bytes INTEGER NOT NULL
    )
    """,
    "CREATE INDEX conversation_by_owner ON conversation (owner, used)",
    "CREATE INDEX conversation_by_use ON conversation (used)",
    "CREATE INDEX conversation_by_age ON conversation (changed_at_s)",
    # `run` is the request that added it, empty if the conversation began with it
    """
    CREATE TABLE conversation_item (
        conversation INTEGER NOT NULL,
        place INTEGER NOT NULL,
        name TEXT NOT NULL,
        run TEXT NOT NULL,
        item INTEGER NOT NULL,
        PRIMARY KEY (conversation, place),
        UNIQUE (conversation, name)
    ) WITHOUT ROWID
    """,
    """
    CREATE TRIGGER conversation_added AFTER INSERT ON conversation BEGIN
        INSERT INTO answer_tally VALUES (NEW.owner, 1, NEW.row_bytes)
        ON CONFLICT (owner) DO UPDATE SET rows = rows + 1, bytes = bytes + NEW.row_bytes;
    END
    """,
    """
    CREATE TRIGGER conversation_changed AFTER UPDATE OF row_bytes ON conversation BEGIN
        UPDATE answer_tally SET bytes = bytes + NEW.row_bytes - OLD.row_bytes
        WHERE owner = NEW.owner;
    END
    """,
    """
    CREATE TRIGGER conversation_removed AFTER DELETE ON conversation BEGIN
        DELETE FROM conversation_item WHERE conversation = OLD.id;
        UPDATE answer_tally SET rows = rows - 1, bytes = bytes - OLD.row_bytes
        WHERE owner = OLD.owner;
        DELETE FROM answer_tally WHERE owner = OLD.owner AND rows <= 0;
    END
    """,
    """
    CREATE TRIGGER conversation_item_added AFTER INSERT ON conversation_item BEGIN
        UPDATE item SET uses = uses + 1 WHERE id = NEW.item;
        UPDATE conversation SET items = items + 1,
            size_bytes = size_bytes + (SELECT length(content) FROM item WHERE id = NEW.item),
            row_bytes = row_bytes + 48 + length(NEW.name) + length(NEW.run)
        WHERE id = NEW.conversation;
    END
    """,
    """
    CREATE TRIGGER conversation_item_removed AFTER DELETE ON conversation_item BEGIN
        UPDATE conversation SET items = items - 1,
            size_bytes = size_bytes - (SELECT length(content) FROM item WHERE id = OLD.item),
            row_bytes = row_bytes - 48 - length(OLD.name) - length(OLD.run)
        WHERE id = OLD.conversation;
        UPDATE item SET uses = uses - 1 WHERE id = OLD.item;
        DELETE FROM item WHERE id = OLD.item AND uses <= 0;
    END
    """,
)

_LISTS = ("CREATE INDEX job_by_time ON job (owner, created_at_s, request)",)

_TRACES = (
    """
    CREATE TABLE trace (
        id INTEGER PRIMARY KEY,
        request TEXT NOT NULL,
        ended_at_s REAL NOT NULL,
        began_at_s REAL NOT NULL,
        seconds REAL NOT NULL,
        why TEXT NOT NULL,
        spans INTEGER NOT NULL,
        sums BLOB NOT NULL,
        trace BLOB NOT NULL,
        model TEXT,
        status INTEGER NOT NULL,
        error TEXT,
        row_bytes INTEGER NOT NULL
    )
    """,
    "CREATE INDEX trace_by_request ON trace (request)",
    "CREATE INDEX trace_by_end ON trace (ended_at_s)",
    "CREATE TABLE trace_tally (rows INTEGER NOT NULL, bytes INTEGER NOT NULL)",
    "INSERT INTO trace_tally VALUES (0, 0)",
    """
    CREATE TRIGGER trace_added AFTER INSERT ON trace BEGIN
        UPDATE trace_tally SET rows = rows + 1, bytes = bytes + NEW.row_bytes;
    END
    """,
    """
    CREATE TRIGGER trace_removed AFTER DELETE ON trace BEGIN
        UPDATE trace_tally SET rows = rows - 1, bytes = bytes - OLD.row_bytes;
    END
    """,
)

_CLIENTS = (
    """
    CREATE TABLE client (
        process INTEGER NOT NULL,
        kind TEXT NOT NULL,
        name TEXT NOT NULL,
        requests INTEGER NOT NULL,
        refused INTEGER NOT NULL,
        failed INTEGER NOT NULL,
        prompt_tokens INTEGER NOT NULL,
        completion_tokens INTEGER NOT NULL,
        first_at_s REAL NOT NULL,
        seen_at_s REAL NOT NULL,
        PRIMARY KEY (process, kind, name)
    ) WITHOUT ROWID
    """,
)

_AGE = (
    # one row; `now_s` is NULL until it is first set
    "CREATE TABLE age_clock (now_s REAL, noted_at REAL NOT NULL)",
    "INSERT INTO age_clock VALUES (NULL, 0)",
)

MIGRATIONS: tuple[Sequence[str], ...] = (
    _REQUESTS,
    _ANSWERS,
    _JOBS,
    (*_CONVERSATIONS, *_LISTS),
    _TRACES,
    _CLIENTS,
    _AGE,
)
"""The statements of each version, which migrate a file from the previous version. The first entry
starts from an empty file."""
VERSION = len(MIGRATIONS)


def statements_from(version: int) -> list[str]:
    """Return the statements that migrate a file from a version (0: empty) to the current one, in
    order. Raises ValueError for an unknown version."""
    if not 0 <= version <= VERSION:
        raise ValueError(f"unknown version {version}; this shoal supports up to {VERSION}")
    return [statement for added in MIGRATIONS[version:] for statement in added]
