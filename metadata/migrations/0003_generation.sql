-- Which generation of the cluster's metadata this database is. The bucket has an object of
-- the same number and nonce, and none of a higher number, or the database is not to be used.

CREATE TABLE generation (
    one    BIGINT NOT NULL PRIMARY KEY, -- always 1
    number BIGINT NOT NULL,
    nonce  TEXT   NOT NULL -- 32 hexadecimal digits
) /*clustered*/;
