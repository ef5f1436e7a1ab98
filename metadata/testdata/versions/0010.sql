CREATE TABLE acl (
    resource_type BIGINT NOT NULL,
    resource_name TEXT   NOT NULL,
    pattern_type  BIGINT NOT NULL,
    principal     TEXT   NOT NULL,
    host          TEXT   NOT NULL,
    operation     BIGINT NOT NULL,
    permission    BIGINT NOT NULL,
    PRIMARY KEY (resource_type, resource_name, pattern_type, principal, host, operation, permission)
) WITHOUT ROWID;
INSERT INTO "acl" VALUES(2,'clicks',3,'User:alice','*',3,3);
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
INSERT INTO "change_log" VALUES(1,1700000000000,'node','1');
INSERT INTO "change_log" VALUES(2,1700000000000,'topic','7e7aaedc-6e1b-49bd-be78-7cedf75568b8');
INSERT INTO "change_log" VALUES(3,1700000000000,'object','1');
INSERT INTO "change_log" VALUES(4,1700000000000,'object','3');
INSERT INTO "change_log" VALUES(5,1700000000000,'stream','3');
INSERT INTO "change_log" VALUES(6,1700000000000,'schema','base');
INSERT INTO "change_log" VALUES(7,1700000000000,'schema','clicks-value');
INSERT INTO "change_log" VALUES(8,1700000000000,'schema','');
INSERT INTO "change_log" VALUES(9,1700000000000,'topic','5bdc73df-4e37-4e22-8226-2ccfc05fceb0');
INSERT INTO "change_log" VALUES(10,1700000000000,'object','5');
INSERT INTO "change_log" VALUES(11,1700000000000,'object','6');
INSERT INTO "change_log" VALUES(12,1700000000000,'object','7');
INSERT INTO "change_log" VALUES(13,1700000000000,'node','2');
INSERT INTO "change_log" VALUES(14,1700000000000,'node','2');
INSERT INTO "change_log" VALUES(15,1700000000000,'node','2');
INSERT INTO "change_log" VALUES(16,1700000000000,'schema','imported');
INSERT INTO "change_log" VALUES(17,1700000000000,'schema','imported');
INSERT INTO "change_log" VALUES(18,1700000000000,'schema','gone');
INSERT INTO "change_log" VALUES(19,1700000000000,'schema','gone');
INSERT INTO "change_log" VALUES(20,1700000000000,'user','');
INSERT INTO "change_log" VALUES(21,1700000000000,'user','alice');
INSERT INTO "change_log" VALUES(22,1700000000000,'acl','');
INSERT INTO "change_log" VALUES(23,1700000000000,'quota','');
INSERT INTO "change_log" VALUES(24,1700000000000,'schema','foreign');
CREATE TABLE client_quota (
    entity TEXT NOT NULL,
    name   TEXT NOT NULL,
    value  TEXT NOT NULL, -- a decimal number
    PRIMARY KEY (entity, name)
) WITHOUT ROWID;
INSERT INTO "client_quota" VALUES('{"user":"alice"}','producer_byte_rate','1024.5');
CREATE TABLE cluster (
    one BIGINT NOT NULL PRIMARY KEY, -- always 1
    id  TEXT   NOT NULL
);
INSERT INTO "cluster" VALUES(1,'lOVWaXccSguIr2ZlStrO9Q');
CREATE TABLE cluster_secret (
    one    BIGINT NOT NULL PRIMARY KEY, -- always 1
    secret BLOB  NOT NULL
);
INSERT INTO "cluster_secret" VALUES(1,X'92F65A291796F1899510F2C995E2D5594DA106D4C5E872826157C9B4B44EB752');
CREATE TABLE config (
    scope TEXT NOT NULL,
    name  TEXT NOT NULL,
    key   TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (scope, name, key)
) WITHOUT ROWID;
INSERT INTO "config" VALUES('topic','7e7aaedc-6e1b-49bd-be78-7cedf75568b8','table.topic.enable','true');
CREATE TABLE counter (
    name  TEXT   NOT NULL PRIMARY KEY,
    value BIGINT NOT NULL -- the last one given away
) WITHOUT ROWID;
INSERT INTO "counter" VALUES('change',24);
INSERT INTO "counter" VALUES('object',7);
INSERT INTO "counter" VALUES('producer',999);
INSERT INTO "counter" VALUES('schema',40);
INSERT INTO "counter" VALUES('stream',6);
CREATE TABLE generation (
    one    BIGINT NOT NULL PRIMARY KEY, -- always 1
    number BIGINT NOT NULL,
    nonce  TEXT   NOT NULL -- 32 hexadecimal digits
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
INSERT INTO "migration" VALUES(1,'0001_initial','fa9f90252c5fdbcee2278db7161f9a62964b63fbf6b00353b0617724266536a4',1700000000000);
INSERT INTO "migration" VALUES(2,'0002_compaction','f7b731e784a3fa50305228da80762111cc88d337f5ff7966b5ba29a0c3300b01',1700000000000);
INSERT INTO "migration" VALUES(3,'0003_generation','dc05a96f1bb6875aad87173c2343e50b8604463fec806dbb096a15e8a70f54f8',1700000000000);
INSERT INTO "migration" VALUES(4,'0004_takeover','ea9c8d9cf3dfc6df592619a4ebeb6a25c086a19955d3db6bc2a786762423de90',1700000000000);
INSERT INTO "migration" VALUES(5,'0005_registry','dbd785a09747a8fa8ad4c846dbd930f2f8f587c49ef22816c4a0c62529dc3da9',1700000000000);
INSERT INTO "migration" VALUES(6,'0006_retired_schema','216dc73dd8627005100a408a7a48feb67a27f7b1e006731260503a05b8b11504',1700000000000);
INSERT INTO "migration" VALUES(7,'0007_security','b1f00589a6adf9b7bb9a2b8c2d22d0322428d120943a3e20834b8e211515a5f9',1700000000000);
INSERT INTO "migration" VALUES(8,'0008_guid','490c40d649b065a96dfb14ee04d512ab89e24dfa5bccf0182320f6e9b9fc892c',1700000000000);
INSERT INTO "migration" VALUES(9,'0009_reference_subject','1fe6f7ce4df015a89e3c5a0c1d6a869c35837c5ca86b183b2db44ec6de43c7db',1700000000000);
INSERT INTO "migration" VALUES(10,'0010_rack','7c916368a3dfc50d311ea21051e8120d11c21b895437c843725dcd73477c58fd',1700000000000);
CREATE TABLE node (
    id         BIGINT NOT NULL PRIMARY KEY,
    epoch      BIGINT NOT NULL,
    registered BIGINT NOT NULL
, leader BIGINT, leader_epoch BIGINT, kafka TEXT NOT NULL DEFAULT '', http TEXT NOT NULL DEFAULT '', listeners TEXT NOT NULL DEFAULT '', rack TEXT NOT NULL DEFAULT '') WITHOUT ROWID;
INSERT INTO "node" VALUES(1,1,1700000000000,NULL,NULL,'','','','');
INSERT INTO "node" VALUES(2,2,1700000000000,1,1,'b:9092','b:8081','','');
CREATE TABLE node_wal (
    node  BIGINT NOT NULL,
    epoch BIGINT NOT NULL,
    kind  TEXT   NOT NULL,
    mark  BIGINT NOT NULL,
    PRIMARY KEY (node, epoch)
) WITHOUT ROWID;
INSERT INTO "node_wal" VALUES(1,1,'s3',8);
INSERT INTO "node_wal" VALUES(2,1,'s3',0);
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
INSERT INTO "object" VALUES(1,1,100,2,1,1700000000000,1700000000000,2);
INSERT INTO "object" VALUES(2,2,50,2,1,1700000000000,1700000000000,1);
INSERT INTO "object" VALUES(3,2,60,3,1,1700000000000,1700000000000,0);
INSERT INTO "object" VALUES(4,0,0,1,1,1700003600000,0,0);
INSERT INTO "object" VALUES(5,2,40,2,1,1700000000000,1700000000000,1);
INSERT INTO "object" VALUES(6,2,40,2,1,1700000000000,1700000000000,1);
INSERT INTO "object" VALUES(7,3,30,2,1,1700000000000,1700000000000,1);
CREATE TABLE object_link (
    object BIGINT NOT NULL, -- the composite
    part   BIGINT NOT NULL, -- the stream object that it links
    PRIMARY KEY (object, part)
) WITHOUT ROWID;
INSERT INTO "object_link" VALUES(7,5);
INSERT INTO "object_link" VALUES(7,6);
CREATE TABLE object_range (
    stream       BIGINT NOT NULL,
    start_offset BIGINT NOT NULL,
    end_offset   BIGINT NOT NULL,
    object       BIGINT NOT NULL,
    PRIMARY KEY (stream, start_offset)
) WITHOUT ROWID;
INSERT INTO "object_range" VALUES(2,0,10,1);
INSERT INTO "object_range" VALUES(2,10,30,2);
INSERT INTO "object_range" VALUES(4,0,20,1);
INSERT INTO "object_range" VALUES(6,0,20,7);
CREATE TABLE retired_schema (
    id   BIGINT NOT NULL PRIMARY KEY,
    hash BLOB  NOT NULL
) WITHOUT ROWID;
INSERT INTO "retired_schema" VALUES(30,X'C2C04E18C876F161DC5B46A61E096D5DFB31656AFF1DF276E1E9BBFFA6BB19BE');
CREATE TABLE schema (
    id    BIGINT NOT NULL PRIMARY KEY,
    type  TEXT   NOT NULL,
    text  TEXT   NOT NULL,
    refs  TEXT   NOT NULL, -- JSON
    hash  BLOB  NOT NULL UNIQUE
, metadata TEXT NOT NULL DEFAULT '', rule_set TEXT NOT NULL DEFAULT '', guid TEXT NOT NULL DEFAULT '');
INSERT INTO "schema" VALUES(1,'AVRO','"string"','[]',X'AABB8ABE989BF477AA14517D243680A3962AF59EA152113311320ABD43405FED','','','');
INSERT INTO "schema" VALUES(2,'AVRO','{"type":"array","items":"x"}','[{"name":"x","subject":"base","version":1}]',X'4BC61B7BBFC0BDCDB9BDB00CE318493881722F71DE0BCEB77C142CCCBF766AA1','','','');
INSERT INTO "schema" VALUES(40,'JSON','{}','[]',X'9BC91CFDAF3FFF2A51BAD96996C74016F922A127833DE26E6299CEAA9B8FB5A8','{"tags":{}}','{"domainRules":[]}','');
INSERT INTO "schema" VALUES(39,'AVRO','"float"','[]',X'9831343F1616C350515ABDF9D553CD2D7716DABDB24B47F4E86F585491331DAB','','','89791762-2336-186f-9674-299b90a80029');
CREATE TABLE scram_credential (
    name       TEXT   NOT NULL,
    mechanism  BIGINT NOT NULL,
    iterations BIGINT NOT NULL,
    salt       BLOB  NOT NULL,
    stored_key BLOB  NOT NULL,
    server_key BLOB  NOT NULL,
    PRIMARY KEY (name, mechanism)
) WITHOUT ROWID;
INSERT INTO "scram_credential" VALUES('alice',2,4096,X'73616C74',X'73746F726564',X'736572766572');
CREATE TABLE stream (
    id           BIGINT NOT NULL PRIMARY KEY,
    epoch        BIGINT NOT NULL,
    start_offset BIGINT NOT NULL,
    end_offset   BIGINT NOT NULL,
    node         BIGINT NOT NULL,
    node_epoch   BIGINT NOT NULL,
    is_open      BIGINT NOT NULL
) WITHOUT ROWID;
INSERT INTO "stream" VALUES(1,0,0,0,1,1,1);
INSERT INTO "stream" VALUES(2,0,0,30,1,1,1);
INSERT INTO "stream" VALUES(3,0,5,5,1,1,1);
INSERT INTO "stream" VALUES(4,0,0,20,1,1,1);
INSERT INTO "stream" VALUES(5,0,0,0,1,1,1);
INSERT INTO "stream" VALUES(6,0,0,20,1,1,1);
CREATE TABLE stream_range (
    stream       BIGINT NOT NULL,
    start_offset BIGINT NOT NULL,
    epoch        BIGINT NOT NULL,
    node         BIGINT NOT NULL,
    PRIMARY KEY (stream, start_offset)
) WITHOUT ROWID;
INSERT INTO "stream_range" VALUES(1,0,0,1);
INSERT INTO "stream_range" VALUES(2,0,0,1);
INSERT INTO "stream_range" VALUES(3,0,0,1);
INSERT INTO "stream_range" VALUES(4,0,0,1);
INSERT INTO "stream_range" VALUES(5,0,0,1);
INSERT INTO "stream_range" VALUES(6,0,0,1);
CREATE TABLE stream_set_object (
    object BIGINT NOT NULL PRIMARY KEY,
    ranges BLOB  NOT NULL
);
INSERT INTO "stream_set_object" VALUES(1,X'5454535201020200000A02000014B28A68C1');
CREATE TABLE subject (
    name     TEXT   NOT NULL PRIMARY KEY,
    revision BIGINT NOT NULL
) WITHOUT ROWID;
INSERT INTO "subject" VALUES('base',1);
INSERT INTO "subject" VALUES('clicks-value',1);
INSERT INTO "subject" VALUES('foreign',1);
INSERT INTO "subject" VALUES('gone',2);
INSERT INTO "subject" VALUES('imported',1);
CREATE TABLE subject_config (
    subject       TEXT NOT NULL PRIMARY KEY,
    compatibility TEXT NOT NULL
, settings TEXT NOT NULL DEFAULT '', mode TEXT NOT NULL DEFAULT '') WITHOUT ROWID;
INSERT INTO "subject_config" VALUES('','FULL','','');
INSERT INTO "subject_config" VALUES('imported','','{"normalize":true}','IMPORT');
CREATE TABLE subject_reference (
    subject     TEXT   NOT NULL,
    version     BIGINT NOT NULL,
    ref_subject TEXT   NOT NULL,
    ref_version BIGINT NOT NULL,
    PRIMARY KEY (ref_subject, ref_version, subject, version)
) WITHOUT ROWID;
INSERT INTO "subject_reference" VALUES('clicks-value',1,'base',1);
CREATE TABLE subject_version (
    subject   TEXT   NOT NULL,
    version   BIGINT NOT NULL,
    schema_id BIGINT NOT NULL,
    deleted   BIGINT NOT NULL,
    PRIMARY KEY (subject, version)
) WITHOUT ROWID;
INSERT INTO "subject_version" VALUES('base',1,1,0);
INSERT INTO "subject_version" VALUES('clicks-value',1,2,0);
INSERT INTO "subject_version" VALUES('foreign',1,39,0);
INSERT INTO "subject_version" VALUES('imported',7,40,0);
CREATE TABLE topic (
    id       TEXT   NOT NULL PRIMARY KEY,
    name     TEXT   NOT NULL UNIQUE,
    internal BIGINT NOT NULL,
    created  BIGINT NOT NULL
);
INSERT INTO "topic" VALUES('7e7aaedc-6e1b-49bd-be78-7cedf75568b8','clicks',0,1700000000000);
INSERT INTO "topic" VALUES('5bdc73df-4e37-4e22-8226-2ccfc05fceb0','compacted',0,1700000000000);
CREATE TABLE topic_partition (
    topic        TEXT   NOT NULL,
    idx          BIGINT NOT NULL,
    leader       BIGINT NOT NULL,
    leader_epoch BIGINT NOT NULL,
    meta_stream  BIGINT NOT NULL,
    log_stream   BIGINT NOT NULL,
    PRIMARY KEY (topic, idx)
) WITHOUT ROWID;
INSERT INTO "topic_partition" VALUES('5bdc73df-4e37-4e22-8226-2ccfc05fceb0',0,1,0,5,6);
INSERT INTO "topic_partition" VALUES('7e7aaedc-6e1b-49bd-be78-7cedf75568b8',0,1,0,1,2);
INSERT INTO "topic_partition" VALUES('7e7aaedc-6e1b-49bd-be78-7cedf75568b8',1,1,0,3,4);
CREATE INDEX stream_open ON stream (node, id) WHERE is_open = 1;
CREATE INDEX object_unused ON object (state, since) WHERE state <> 2;
CREATE INDEX topic_partition_leader ON topic_partition (leader);
CREATE INDEX subject_version_schema ON subject_version (schema_id);
CREATE INDEX object_link_part ON object_link (part);
CREATE INDEX object_stream_sets ON object (node, id) WHERE kind = 1 AND state = 2;
CREATE UNIQUE INDEX schema_guid ON schema (guid) WHERE guid <> '';
CREATE INDEX subject_reference_subject ON subject_reference (subject, version);
