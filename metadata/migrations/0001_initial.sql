-- The first version of the metadata schema.
--
-- Times are milliseconds since 1970, flags are 0 or 1. BYTEA and the clustered mark are
-- put into the words of the engine by dialect.go; all other SQL is common to both.

CREATE TABLE cluster (
    one BIGINT NOT NULL PRIMARY KEY, -- always 1
    id  TEXT   NOT NULL
);

-- Ids are taken from here, so that they are dense and follow the order of commits.
CREATE TABLE counter (
    name  TEXT   NOT NULL PRIMARY KEY,
    value BIGINT NOT NULL -- the last one given away
) /*clustered*/;
INSERT INTO counter (name, value) VALUES
    ('change', 0), ('stream', 0), ('object', 0), ('producer', -1), ('schema', 0);

CREATE TABLE node (
    id         BIGINT NOT NULL PRIMARY KEY,
    epoch      BIGINT NOT NULL,
    registered BIGINT NOT NULL
) /*clustered*/;

-- The write-ahead logs of a node's lives that may hold data which is not in objects.
CREATE TABLE node_wal (
    node  BIGINT NOT NULL,
    epoch BIGINT NOT NULL,
    kind  TEXT   NOT NULL,
    mark  BIGINT NOT NULL,
    PRIMARY KEY (node, epoch)
) /*clustered*/;

CREATE TABLE stream (
    id           BIGINT NOT NULL PRIMARY KEY,
    epoch        BIGINT NOT NULL,
    start_offset BIGINT NOT NULL,
    end_offset   BIGINT NOT NULL,
    node         BIGINT NOT NULL,
    node_epoch   BIGINT NOT NULL,
    is_open      BIGINT NOT NULL
) /*clustered*/;
CREATE INDEX stream_open ON stream (node, id) WHERE is_open = 1;

-- Which node wrote which part of a stream: from start_offset to the next row's, by epoch.
CREATE TABLE stream_range (
    stream       BIGINT NOT NULL,
    start_offset BIGINT NOT NULL,
    epoch        BIGINT NOT NULL,
    node         BIGINT NOT NULL,
    PRIMARY KEY (stream, start_offset)
) /*clustered*/;

-- state: 1 prepared, 2 committed, 3 destroyed. since is when a prepared object expires and
-- when a destroyed one was destroyed. committed is 0 for an object that never was.
-- refs counts the rows of object_range that name the object.
CREATE TABLE object (
    id        BIGINT NOT NULL PRIMARY KEY,
    kind      BIGINT NOT NULL, -- streamstore.ObjectKind, 0 while prepared
    size      BIGINT NOT NULL,
    state     BIGINT NOT NULL,
    node      BIGINT NOT NULL,
    since     BIGINT NOT NULL,
    committed BIGINT NOT NULL,
    refs      BIGINT NOT NULL
) /*clustered*/;
CREATE INDEX object_unused ON object (state, since) WHERE state <> 2;

-- What a stream set object held when it was committed, as ranges_format.go packs it.
CREATE TABLE stream_set_object (
    object BIGINT NOT NULL PRIMARY KEY,
    ranges BYTEA  NOT NULL
);

-- The index from a stream and an offset to the object that holds it, whatever its kind.
CREATE TABLE object_range (
    stream       BIGINT NOT NULL,
    start_offset BIGINT NOT NULL,
    end_offset   BIGINT NOT NULL,
    object       BIGINT NOT NULL,
    PRIMARY KEY (stream, start_offset)
) /*clustered*/;

CREATE TABLE topic (
    id       TEXT   NOT NULL PRIMARY KEY,
    name     TEXT   NOT NULL UNIQUE,
    internal BIGINT NOT NULL,
    created  BIGINT NOT NULL
);

CREATE TABLE topic_partition (
    topic        TEXT   NOT NULL,
    idx          BIGINT NOT NULL,
    leader       BIGINT NOT NULL,
    leader_epoch BIGINT NOT NULL,
    meta_stream  BIGINT NOT NULL,
    log_stream   BIGINT NOT NULL,
    PRIMARY KEY (topic, idx)
) /*clustered*/;
CREATE INDEX topic_partition_leader ON topic_partition (leader);

-- scope is topic, and later broker or cluster; name is the topic's id.
CREATE TABLE config (
    scope TEXT NOT NULL,
    name  TEXT NOT NULL,
    key   TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (scope, name, key)
) /*clustered*/;

-- One row for each different schema; hash is the SHA-256 of type, text and references.
CREATE TABLE schema (
    id    BIGINT NOT NULL PRIMARY KEY,
    type  TEXT   NOT NULL,
    text  TEXT   NOT NULL,
    refs  TEXT   NOT NULL, -- JSON
    hash  BYTEA  NOT NULL UNIQUE
);

CREATE TABLE subject_version (
    subject   TEXT   NOT NULL,
    version   BIGINT NOT NULL,
    schema_id BIGINT NOT NULL,
    deleted   BIGINT NOT NULL,
    PRIMARY KEY (subject, version)
) /*clustered*/;
CREATE INDEX subject_version_schema ON subject_version (schema_id);

-- Which version names which: a version that others name cannot be deleted.
CREATE TABLE subject_reference (
    subject     TEXT   NOT NULL,
    version     BIGINT NOT NULL,
    ref_subject TEXT   NOT NULL,
    ref_version BIGINT NOT NULL,
    PRIMARY KEY (ref_subject, ref_version, subject, version)
) /*clustered*/;

-- The compatibility level of a subject; the subject '' is the global one.
CREATE TABLE subject_config (
    subject       TEXT NOT NULL PRIMARY KEY,
    compatibility TEXT NOT NULL
) /*clustered*/;

-- revision counts the changes of a subject's versions and never falls, so that a change
-- which was built on an older state is noticed.
CREATE TABLE subject (
    name     TEXT   NOT NULL PRIMARY KEY,
    revision BIGINT NOT NULL
) /*clustered*/;

CREATE TABLE catalog_entry (
    name   TEXT   NOT NULL PRIMARY KEY,
    kind   TEXT   NOT NULL,
    config TEXT   NOT NULL, -- JSON
    changed BIGINT NOT NULL
) /*clustered*/;

CREATE TABLE lease (
    name    TEXT   NOT NULL PRIMARY KEY,
    holder  TEXT   NOT NULL,
    epoch   BIGINT NOT NULL,
    expires BIGINT NOT NULL
) /*clustered*/;

-- One row for each transaction that changed something, for brokers to follow.
CREATE TABLE change_log (
    seq     BIGINT NOT NULL PRIMARY KEY,
    at      BIGINT NOT NULL,
    kind    TEXT   NOT NULL,
    subject TEXT   NOT NULL
) /*clustered*/;
