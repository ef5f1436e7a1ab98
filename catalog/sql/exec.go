package sql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tabletopic/tabletopic/internal/invariant"
)

// A statement changes rows.
type statement struct {
	sql  string
	args []any
	// mayChangeNothing says that it has done its work without a row too.
	mayChangeNothing bool
	// unchanged is the error if there is no row; nil is no error.
	unchanged error
}

// exec runs statements as one transaction, and returns when it is durable. It reports
// false, and nothing was changed, if one of them that has to change a row did not. The key
// of ctx is used up by the same transaction.
func (c *Catalog) exec(ctx context.Context, statements ...statement) (bool, error) {
	if key, ok := ctx.Value(keyOfRequest{}).(Key); ok {
		statements = append(c.useKey(key, 0, nil), statements...)
	}
	changed, err := c.change(ctx, statements...)
	if err != nil || !changed || c.cfg.Durable == nil || invariant.Off("sql-durable") {
		return changed, err
	}
	return true, c.cfg.Durable(ctx)
}

// maxTries is how often a transaction that concurrent ones made fail is tried.
const maxTries = 20

// change is exec without the wait. PostgreSQL may refuse a transaction because of others at
// the same time; it has changed nothing then, and sees what they did when it is tried again.
func (c *Catalog) change(ctx context.Context, statements ...statement) (bool, error) {
	for try := 1; ; try++ {
		changed, err := c.try(ctx, statements)
		if err == nil || try == maxTries || !refused(err) {
			return changed, err
		}
	}
}

func (c *Catalog) try(ctx context.Context, statements []statement) (bool, error) {
	if len(statements) == 1 {
		return changesRow(ctx, c.db, statements[0])
	}
	tx, err := c.db.BeginTx(ctx, nil)
	if err != nil {
		return false, err
	}
	defer tx.Rollback() // without effect after Commit
	for _, s := range statements {
		if changed, err := changesRow(ctx, tx, s); err != nil || !changed {
			return false, err
		}
	}
	return true, tx.Commit()
}

type execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

func changesRow(ctx context.Context, db execer, s statement) (bool, error) {
	result, err := db.ExecContext(ctx, s.sql, s.args...)
	if err != nil {
		return false, err
	}
	n, err := result.RowsAffected()
	if err != nil {
		return false, err
	}
	if n == 0 && !s.mayChangeNothing {
		return false, s.unchanged
	}
	return true, nil
}

// refused reports that a transaction met concurrent ones: serialization failure, deadlock, a row
// that came while it ran, or a table or index, which IF NOT EXISTS did not see yet.
func refused(err error) bool {
	var e interface{ SQLState() string }
	return errors.As(err, &e) && slices.Contains([]string{"40001", "40P01", "23505", "42P07", "42710"}, e.SQLState())
}

// A Key marks a request that a client may send again: its effect comes about once.
type Key struct {
	ID      string // the client's, for this request alone
	Request string // what the request asks for; a key is good for one request
}

// An Outcome is what came of a request with a [Key].
type Outcome struct {
	Request string
	Status  int    // 0 if it changed the catalog
	Answer  []byte // if it was refused
}

// ErrKeyUsed says that a request changed nothing, because another with its key was first.
var ErrKeyUsed = errors.New("the key of this request is used already")

type keyOfRequest struct{}

// WithKey makes the next change under ctx use up key, in one transaction with the change,
// or fail with ErrKeyUsed.
func WithKey(ctx context.Context, key Key) context.Context {
	return context.WithValue(ctx, keyOfRequest{}, key)
}

// KeyLifetime is how long the outcome of a request with a [Key] is kept.
const KeyLifetime = time.Hour

// sweepInterval is how often, at most, keys that nobody may ask for any more are deleted.
const sweepInterval = time.Minute

func (c *Catalog) useKey(key Key, status int, answer []byte) []statement {
	now := time.Now()
	insert := statement{sql: `INSERT INTO iceberg_request_keys (catalog_name, request_key, request, status, answer, expires_at)
			VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING`,
		args:      []any{c.cfg.Name, key.ID, key.Request, status, string(answer), now.Add(KeyLifetime).UnixMilli()},
		unchanged: ErrKeyUsed, mayChangeNothing: invariant.Off("request-key-once")}
	last := c.swept.Load()
	if now.UnixMilli()-last < sweepInterval.Milliseconds() || !c.swept.CompareAndSwap(last, now.UnixMilli()) {
		return []statement{insert}
	}
	sweep := statement{sql: `DELETE FROM iceberg_request_keys WHERE expires_at < $1`, args: []any{now.UnixMilli()}, mayChangeNothing: true}
	return []statement{sweep, insert}
}

// Refuse records that the request with key was refused, and so will be when it is sent again.
func (c *Catalog) Refuse(ctx context.Context, key Key, status int, answer []byte) error {
	if _, err := c.change(ctx, c.useKey(key, status, answer)...); err != nil {
		return fmt.Errorf("keep the outcome of request %s: %w", key.ID, err)
	}
	return nil
}

// Outcome returns what came of the request with a key, if there was one. It is durable then.
func (c *Catalog) Outcome(ctx context.Context, id string) (o Outcome, found bool, err error) {
	var answer string
	err = c.db.QueryRowContext(ctx, `SELECT request, status, answer FROM iceberg_request_keys
		WHERE catalog_name = $1 AND request_key = $2 AND expires_at >= $3`, c.cfg.Name, id, time.Now().UnixMilli()).Scan(&o.Request, &o.Status, &answer)
	if errors.Is(err, sql.ErrNoRows) {
		return o, false, nil
	}
	if err == nil && c.cfg.Durable != nil {
		err = c.cfg.Durable(ctx)
	}
	if err != nil {
		return o, false, fmt.Errorf("look for the outcome of request %s: %w", id, err)
	}
	o.Answer = []byte(answer)
	return o, true, nil
}
