CREATE TABLE catalog_entry (
    name   TEXT   NOT NULL PRIMARY KEY,
    kind   TEXT   NOT NULL,
    config TEXT   NOT NULL, -- JSON
    changed BIGINT NOT NULL
) WITHOUT ROWID;
CREATE TABLE change_log (
    seq     BIGINT NOT NULL PRIMARY KEY,
    at      BIGINT NOT NULL,
    kind    TEXT   NOT NULL,
    subject TEXT   NOT NULL
) WITHOUT ROWID;
CREATE TABLE cluster (
    one BIGINT NOT NULL PRIMARY KEY, -- always 1
    id  TEXT   NOT NULL
);
CREATE TABLE config (
    scope TEXT NOT NULL,
    name  TEXT NOT NULL,
    key   TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (scope, name, key)
) WITHOUT ROWID;
CREATE TABLE counter (
    name  TEXT   NOT NULL PRIMARY KEY,
    value BIGINT NOT NULL -- the last one given away
) WITHOUT ROWID;
CREATE TABLE lease (
    name    TEXT   NOT NULL PRIMARY KEY,
    holder  TEXT   NOT NULL,
    epoch   BIGINT NOT NULL,
    expires BIGINT NOT NULL
) WITHOUT ROWID;
CREATE TABLE migration (
		version BIGINT NOT NULL PRIMARY KEY,
		name    TEXT   NOT NULL,
		hash    TEXT   NOT NULL,
		applied BIGINT NOT NULL
	) WITHOUT ROWID;
CREATE TABLE node (
    id         BIGINT NOT NULL PRIMARY KEY,
    epoch      BIGINT NOT NULL,
    registered BIGINT NOT NULL
) WITHOUT ROWID;
CREATE TABLE node_wal (
    node  BIGINT NOT NULL,
    epoch BIGINT NOT NULL,
    kind  TEXT   NOT NULL,
    mark  BIGINT NOT NULL,
    PRIMARY KEY (node, epoch)
) WITHOUT ROWID;
CREATE TABLE object (
    id        BIGINT NOT NULL PRIMARY KEY,
    kind      BIGINT NOT NULL, -- streamstore.ObjectKind, 0 while prepared
    size      BIGINT NOT NULL,
    state     BIGINT NOT NULL,
    node      BIGINT NOT NULL,
    since     BIGINT NOT NULL,
    committed BIGINT NOT NULL,
    refs      BIGINT NOT NULL
) WITHOUT ROWID;
CREATE TABLE object_range (
    stream       BIGINT NOT NULL,
    start_offset BIGINT NOT NULL,
    end_offset   BIGINT NOT NULL,
    object       BIGINT NOT NULL,
    PRIMARY KEY (stream, start_offset)
) WITHOUT ROWID;
CREATE TABLE schema (
    id    BIGINT NOT NULL PRIMARY KEY,
    type  TEXT   NOT NULL,
    text  TEXT   NOT NULL,
    refs  TEXT   NOT NULL, -- JSON
    hash  BLOB  NOT NULL UNIQUE
);
CREATE TABLE stream (
    id           BIGINT NOT NULL PRIMARY KEY,
    epoch        BIGINT NOT NULL,
    start_offset BIGINT NOT NULL,
    end_offset   BIGINT NOT NULL,
    node         BIGINT NOT NULL,
    node_epoch   BIGINT NOT NULL,
    is_open      BIGINT NOT NULL
) WITHOUT ROWID;
CREATE TABLE stream_range (
    stream       BIGINT NOT NULL,
    start_offset BIGINT NOT NULL,
    epoch        BIGINT NOT NULL,
    node         BIGINT NOT NULL,
    PRIMARY KEY (stream, start_offset)
) WITHOUT ROWID;
CREATE TABLE stream_set_object (
    object BIGINT NOT NULL PRIMARY KEY,
    ranges BLOB  NOT NULL
);
CREATE TABLE subject (
    name     TEXT   NOT NULL PRIMARY KEY,
    revision BIGINT NOT NULL
) WITHOUT ROWID;
CREATE TABLE subject_config (
    subject       TEXT NOT NULL PRIMARY KEY,
    compatibility TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE subject_reference (
    subject     TEXT   NOT NULL,
    version     BIGINT NOT NULL,
    ref_subject TEXT   NOT NULL,
    ref_version BIGINT NOT NULL,
    PRIMARY KEY (ref_subject, ref_version, subject, version)
) WITHOUT ROWID;
CREATE TABLE subject_version (
    subject   TEXT   NOT NULL,
    version   BIGINT NOT NULL,
    schema_id BIGINT NOT NULL,
    deleted   BIGINT NOT NULL,
    PRIMARY KEY (subject, version)
) WITHOUT ROWID;
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
) WITHOUT ROWID;
CREATE INDEX object_unused ON object (state, since) WHERE state <> 2;
CREATE INDEX stream_open ON stream (node, id) WHERE is_open = 1;
CREATE INDEX subject_version_schema ON subject_version (schema_id);
CREATE INDEX topic_partition_leader ON topic_partition (leader);
INSERT INTO change_log (seq, at, kind, subject) VALUES (1, 1700000000000, 'node', '1');
INSERT INTO change_log (seq, at, kind, subject) VALUES (2, 1700000000000, 'topic', '2349a42a-7936-4ce7-8826-d05833619b97');
INSERT INTO change_log (seq, at, kind, subject) VALUES (3, 1700000000000, 'object', '1');
INSERT INTO change_log (seq, at, kind, subject) VALUES (4, 1700000000000, 'object', '3');
INSERT INTO change_log (seq, at, kind, subject) VALUES (5, 1700000000000, 'stream', '3');
INSERT INTO change_log (seq, at, kind, subject) VALUES (6, 1700000000000, 'schema', 'base');
INSERT INTO change_log (seq, at, kind, subject) VALUES (7, 1700000000000, 'schema', 'clicks-value');
INSERT INTO change_log (seq, at, kind, subject) VALUES (8, 1700000000000, 'schema', '');
INSERT INTO cluster (one, id) VALUES (1, 'gVk0E6pmTgSHeVki4GhThQ');
INSERT INTO config (scope, name, key, value) VALUES ('topic', '2349a42a-7936-4ce7-8826-d05833619b97', 'table.topic.enable', 'true');
INSERT INTO counter (name, value) VALUES ('change', 8);
INSERT INTO counter (name, value) VALUES ('object', 4);
INSERT INTO counter (name, value) VALUES ('producer', 999);
INSERT INTO counter (name, value) VALUES ('schema', 2);
INSERT INTO counter (name, value) VALUES ('stream', 4);
INSERT INTO migration (version, name, hash, applied) VALUES (1, '0001_initial', 'fa9f90252c5fdbcee2278db7161f9a62964b63fbf6b00353b0617724266536a4', 1700000000000);
INSERT INTO node (id, epoch, registered) VALUES (1, 1, 1700000000000);
INSERT INTO node_wal (node, epoch, kind, mark) VALUES (1, 1, 's3', 8);
INSERT INTO object (id, kind, size, state, node, since, committed, refs) VALUES (1, 1, 100, 2, 1, 1700000000000, 1700000000000, 2);
INSERT INTO object (id, kind, size, state, node, since, committed, refs) VALUES (2, 2, 50, 2, 1, 1700000000000, 1700000000000, 1);
INSERT INTO object (id, kind, size, state, node, since, committed, refs) VALUES (3, 2, 60, 3, 1, 1700000000000, 1700000000000, 0);
INSERT INTO object (id, kind, size, state, node, since, committed, refs) VALUES (4, 0, 0, 1, 1, 1700003600000, 0, 0);
INSERT INTO object_range (stream, start_offset, end_offset, object) VALUES (2, 0, 10, 1);
INSERT INTO object_range (stream, start_offset, end_offset, object) VALUES (2, 10, 30, 2);
INSERT INTO object_range (stream, start_offset, end_offset, object) VALUES (4, 0, 20, 1);
INSERT INTO schema (id, type, text, refs, hash) VALUES (1, 'AVRO', '"string"', '[]', x'aabb8abe989bf477aa14517d243680a3962af59ea152113311320abd43405fed');
INSERT INTO schema (id, type, text, refs, hash) VALUES (2, 'AVRO', '{"type":"array","items":"x"}', '[{"name":"x","subject":"base","version":1}]', x'4bc61b7bbfc0bdcdb9bdb00ce318493881722f71de0bceb77c142cccbf766aa1');
INSERT INTO stream (id, epoch, start_offset, end_offset, node, node_epoch, is_open) VALUES (1, 0, 0, 0, 1, 1, 1);
INSERT INTO stream (id, epoch, start_offset, end_offset, node, node_epoch, is_open) VALUES (2, 0, 0, 30, 1, 1, 1);
INSERT INTO stream (id, epoch, start_offset, end_offset, node, node_epoch, is_open) VALUES (3, 0, 5, 5, 1, 1, 1);
INSERT INTO stream (id, epoch, start_offset, end_offset, node, node_epoch, is_open) VALUES (4, 0, 0, 20, 1, 1, 1);
INSERT INTO stream_range (stream, start_offset, epoch, node) VALUES (1, 0, 0, 1);
INSERT INTO stream_range (stream, start_offset, epoch, node) VALUES (2, 0, 0, 1);
INSERT INTO stream_range (stream, start_offset, epoch, node) VALUES (3, 0, 0, 1);
INSERT INTO stream_range (stream, start_offset, epoch, node) VALUES (4, 0, 0, 1);
INSERT INTO stream_set_object (object, ranges) VALUES (1, x'5454535201020200000a02000014b28a68c1');
INSERT INTO subject (name, revision) VALUES ('base', 1);
INSERT INTO subject (name, revision) VALUES ('clicks-value', 1);
INSERT INTO subject_config (subject, compatibility) VALUES ('', 'FULL');
INSERT INTO subject_reference (subject, version, ref_subject, ref_version) VALUES ('clicks-value', 1, 'base', 1);
INSERT INTO subject_version (subject, version, schema_id, deleted) VALUES ('base', 1, 1, 0);
INSERT INTO subject_version (subject, version, schema_id, deleted) VALUES ('clicks-value', 1, 2, 0);
INSERT INTO topic (id, name, internal, created) VALUES ('2349a42a-7936-4ce7-8826-d05833619b97', 'clicks', 0, 1700000000000);
INSERT INTO topic_partition (topic, idx, leader, leader_epoch, meta_stream, log_stream) VALUES ('2349a42a-7936-4ce7-8826-d05833619b97', 0, 1, 0, 1, 2);
INSERT INTO topic_partition (topic, idx, leader, leader_epoch, meta_stream, log_stream) VALUES ('2349a42a-7936-4ce7-8826-d05833619b97', 1, 1, 0, 3, 4);
