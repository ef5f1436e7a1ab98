package metadata

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
)

// A connection keeps its statements, up to bounds of their number and length, and one that was kept does what a new one would: beside itself, after
// it failed, after its context ended, and after another connection changed the table.
func TestConnectionsKeepTheirStatements(t *testing.T) {
	ctx := t.Context()
	open := func() *sql.DB {
		t.Helper()
		db, err := openSQLite(sqliteDSN(t.TempDir()+"/kept.db", false))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { db.Close() })
		db.SetMaxOpenConns(2)
		return db
	}
	db := open()
	c, err := db.Conn(ctx)
	if err != nil {
		t.Fatal(err)
	}
	kept := func() (n int) {
		t.Helper()
		if err := c.Raw(func(dc any) error { n = len(dc.(*sqliteConn).idle); return nil }); err != nil {
			t.Fatal(err)
		}
		return n
	}
	exec := func(q interface {
		ExecContext(context.Context, string, ...any) (sql.Result, error)
	}, query string, args ...any) {
		t.Helper()
		if _, err := q.ExecContext(ctx, query, args...); err != nil {
			t.Fatal(err)
		}
	}
	const insert = `INSERT INTO n (i) VALUES ($1)`
	exec(c, `CREATE TABLE n (i BIGINT PRIMARY KEY); CREATE TABLE other (i BIGINT)`) // a script, of which all is run
	exec(c, `INSERT INTO other VALUES (1)`)
	before := kept()
	for i := range 10 {
		exec(c, insert, i)
	}
	if got := kept(); got != before+1 {
		t.Errorf("%d statements after ten inserts, want %d", got, before+1)
	}
	if _, err := c.ExecContext(ctx, insert, 3); err == nil {
		t.Fatal("a key is there twice")
	}
	exec(c, insert, 10)
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := c.ExecContext(ended, insert, 11); err == nil {
		t.Fatal("a statement ran after its context ended")
	}
	exec(c, insert, 11)

	// In one transaction, a statement within the rows of the same.
	const above = `SELECT i FROM n WHERE i >= $1 ORDER BY i`
	tx, err := c.BeginTx(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	pairs := 0
	for range 2 {
		rows, err := tx.QueryContext(ctx, above, 9)
		if err != nil {
			t.Fatal(err)
		}
		for rows.Next() {
			var i, j int64
			if err := rows.Scan(&i); err != nil {
				t.Fatal(err)
			}
			if err := tx.QueryRowContext(ctx, above, i-9).Scan(&j); err != nil || j != i-9 {
				t.Fatalf("within row %d: %d, %v", i, j, err)
			}
			pairs++
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Commit(); err != nil || pairs != 6 {
		t.Fatalf("%d rows, want 6, %v", pairs, err)
	}

	exec(db, `ALTER TABLE n ADD COLUMN j BIGINT DEFAULT 7`) // by another connection
	exec(c, insert, 12)
	var sum int64
	if err := c.QueryRowContext(ctx, `SELECT sum(j) FROM n`).Scan(&sum); err != nil || sum != 13*7 {
		t.Errorf("the sum is %d, want %d, %v", sum, 13*7, err)
	}

	for i := range 3 * maxStatements {
		exec(c, fmt.Sprintf(`UPDATE n SET j = %d WHERE i = $1`, i), 0)
		if got := kept(); got > maxStatements {
			t.Fatalf("%d statements are kept, want %d at most", got, maxStatements)
		}
	}
	if got := kept(); got != maxStatements {
		t.Errorf("%d statements are kept, want %d", got, maxStatements)
	}
	long := fmt.Sprintf(`SELECT length('%*d')`, maxKeptText, 1)
	if err := c.QueryRowContext(ctx, long).Scan(&sum); err != nil || sum != maxKeptText {
		t.Errorf("the length is %d, want %d, %v", sum, maxKeptText, err)
	}
	if err := c.Raw(func(dc any) error {
		if dc.(*sqliteConn).idle[long] != nil {
			t.Error("a long statement is kept")
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := db.Close(); err != nil {
		t.Error(err)
	}
}
