-- Schemas have metadata and rules, subjects a mode and more settings than the level.

ALTER TABLE schema ADD COLUMN metadata TEXT NOT NULL DEFAULT ''; -- JSON, '' if there is none
ALTER TABLE schema ADD COLUMN rule_set TEXT NOT NULL DEFAULT ''; -- the same
ALTER TABLE subject_config ADD COLUMN settings TEXT NOT NULL DEFAULT ''; -- what is set besides the level: JSON
ALTER TABLE subject_config ADD COLUMN mode TEXT NOT NULL DEFAULT '';     -- what clients may do; '' if none is set
