-- Ids of schemas that are gone for good: an import may not give them to other schemas. Of
-- those that went before this version the hash is not known.
CREATE TABLE retired_schema (
    id   BIGINT NOT NULL PRIMARY KEY,
    hash BYTEA  NOT NULL
) /*clustered*/;

INSERT INTO retired_schema (id, hash)
WITH RECURSIVE ids (n) AS (
    SELECT 1 UNION ALL SELECT n + 1 FROM ids WHERE n < (SELECT value FROM counter WHERE name = 'schema')
)
SELECT n, '' FROM ids
WHERE n <= (SELECT value FROM counter WHERE name = 'schema') AND NOT EXISTS (SELECT 1 FROM schema WHERE id = n);
