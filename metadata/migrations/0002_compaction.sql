-- Compaction: composite objects link stream objects, and a node's stream set objects are
-- listed. From here on object.committed is the first commit of the oldest data in an object,
-- and object.refs counts the rows of object_link that name it as a part, too.

CREATE TABLE object_link (
    object BIGINT NOT NULL, -- the composite
    part   BIGINT NOT NULL, -- the stream object that it links
    PRIMARY KEY (object, part)
) /*clustered*/;
CREATE INDEX object_link_part ON object_link (part);

CREATE INDEX object_stream_sets ON object (node, id) WHERE kind = 1 AND state = 2;
