-- Where a node stands, in the words of clients that say where they are (client.rack).

ALTER TABLE node ADD COLUMN rack TEXT NOT NULL DEFAULT '';
