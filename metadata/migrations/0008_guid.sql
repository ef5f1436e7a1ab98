-- Schemas that come from another registry keep their identity there.

ALTER TABLE schema ADD COLUMN guid TEXT NOT NULL DEFAULT ''; -- if it is not the first half of the hash
CREATE UNIQUE INDEX schema_guid ON schema (guid) WHERE guid <> '';
