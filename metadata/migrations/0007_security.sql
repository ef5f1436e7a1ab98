-- Who may connect, what they may do, and how much of it.

-- mechanism is Kafka's number: 1 SCRAM-SHA-256, 2 SCRAM-SHA-512. The password itself is nowhere.
CREATE TABLE scram_credential (
    name       TEXT   NOT NULL,
    mechanism  BIGINT NOT NULL,
    iterations BIGINT NOT NULL,
    salt       BYTEA  NOT NULL,
    stored_key BYTEA  NOT NULL,
    server_key BYTEA  NOT NULL,
    PRIMARY KEY (name, mechanism)
) /*clustered*/;

-- Types, operations and permissions are Kafka's numbers.
CREATE TABLE acl (
    resource_type BIGINT NOT NULL,
    resource_name TEXT   NOT NULL,
    pattern_type  BIGINT NOT NULL,
    principal     TEXT   NOT NULL,
    host          TEXT   NOT NULL,
    operation     BIGINT NOT NULL,
    permission    BIGINT NOT NULL,
    PRIMARY KEY (resource_type, resource_name, pattern_type, principal, host, operation, permission)
) /*clustered*/;

-- entity is canonical JSON, as {"client-id":"x","user":null}, where null is the default.
CREATE TABLE client_quota (
    entity TEXT NOT NULL,
    name   TEXT NOT NULL,
    value  TEXT NOT NULL, -- a decimal number
    PRIMARY KEY (entity, name)
) /*clustered*/;

-- By which nodes of the cluster know each other.
CREATE TABLE cluster_secret (
    one    BIGINT NOT NULL PRIMARY KEY, -- always 1
    secret BYTEA  NOT NULL
);

-- Where a node is reached by each of its Kafka listeners: NAME=HOST:PORT, separated by commas.
ALTER TABLE node ADD COLUMN listeners TEXT NOT NULL DEFAULT '';
