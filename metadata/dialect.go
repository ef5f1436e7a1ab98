package metadata

import (
	"fmt"
	"net/url"
	"strings"
)

// A dialect is all that differs between the engines; every statement elsewhere is common SQL
// with $1 parameters, upserts and RETURNING.
type dialect struct {
	driver string // of database/sql
	// lockRow ends a SELECT whose row must not change until the transaction ends.
	lockRow string
	// blob and clustered are the words for BYTEA and for a table stored in its primary key.
	blob, clustered string
}

// SQLite takes one writer at a time, by BEGIN IMMEDIATE: rows need no locks of their own.
var sqlite = dialect{driver: "sqlite", blob: "BLOB", clustered: "WITHOUT ROWID"}

// ddl puts a migration into the words of the engine.
func (d dialect) ddl(text string) string {
	return strings.NewReplacer("BYTEA", d.blob, "/*clustered*/", d.clustered).Replace(text)
}

// sqliteDSN names the database for the driver: WAL journal, and a commit returns only after
// fsync. The pragmas are set on every connection.
func sqliteDSN(path string, memory bool) string {
	q := url.Values{
		"_txlock": {"immediate"},
		"_pragma": {"busy_timeout(10000)", "journal_mode(WAL)", "synchronous(FULL)", "cache_size(-16384)"},
	}
	if memory {
		q.Set("vfs", "memdb")
	}
	return "file:" + (&url.URL{Path: path}).EscapedPath() + "?" + q.Encode()
}

// parseURL splits the URL of a metadata database.
func parseURL(u string) (path string, memory bool, err error) {
	scheme, rest, ok := strings.Cut(u, ":")
	switch {
	case !ok || scheme != "sqlite" || rest == "":
		return "", false, fmt.Errorf("metadata URL %q: want sqlite::memory: or sqlite:/path/to/metadata.db", u)
	case rest == ":memory:":
		return "", true, nil
	}
	return rest, false, nil
}
