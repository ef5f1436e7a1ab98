-- Another node may lead a life of a node, to recover what it left; and nodes say where they
-- are reached.

ALTER TABLE node ADD COLUMN leader BIGINT;       -- who leads the newest life in the node's place; null if the node itself does
ALTER TABLE node ADD COLUMN leader_epoch BIGINT;
ALTER TABLE node ADD COLUMN kafka TEXT NOT NULL DEFAULT ''; -- HOST:PORT, as its newest process said; '' if it never did
ALTER TABLE node ADD COLUMN http TEXT NOT NULL DEFAULT '';
