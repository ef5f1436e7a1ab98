package metadata

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"

	modernc "modernc.org/sqlite"
)

const (
	// maxStatements bounds the statements that a connection to SQLite keeps: the store has fewer, but for those whose
	// text has a number of rows in it.
	maxStatements = 128
	// maxKeptText is the longest text, in bytes, of a statement that is kept. Ours are shorter; those of a catalog have
	// their values in them, and hardly come again.
	maxKeptText = 8 << 10
)

// openSQLite opens a pool of connections that keep their statements, as those of the PostgreSQL driver do: to parse
// and plan one takes longer than to run it.
func openSQLite(dsn string) (*sql.DB, error) {
	c, err := modernc.NewConnector(dsn)
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(keeper{c}), nil
}

type keeper struct{ driver.Connector }

func (k keeper) Connect(ctx context.Context) (driver.Conn, error) {
	c, err := k.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &sqliteConn{bareConn: c.(bareConn), idle: map[string]*sqliteStmt{}}, nil
}

// bareConn is what a connection of the driver does, but for running text that was not prepared: all text is.
type bareConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.Pinger
	driver.SessionResetter
	driver.Validator
}

// A sqliteConn keeps its statements when their users close them. Package database/sql calls it, and its statements,
// from one goroutine at a time.
type sqliteConn struct {
	bareConn
	idle map[string]*sqliteStmt // by text; at most maxStatements
}

// PrepareContext returns a statement that nobody else uses.
func (c *sqliteConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	if s, ok := c.idle[query]; ok {
		delete(c.idle, query)
		return s, nil
	}
	s, err := c.bareConn.PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	return &sqliteStmt{bareStmt: s.(bareStmt), conn: c, query: query}, nil
}

// Close closes what is kept, too.
func (c *sqliteConn) Close() error {
	var err error
	for _, s := range c.idle {
		err = errors.Join(err, s.bareStmt.Close())
	}
	c.idle = nil
	return errors.Join(err, c.bareConn.Close())
}

type bareStmt interface {
	driver.Stmt
	driver.StmtExecContext
	driver.StmtQueryContext
}

type sqliteStmt struct {
	bareStmt
	conn  *sqliteConn
	query string
}

// Close keeps the statement for its next user. It has been reset: its rows, if there were any, are closed before.
func (s *sqliteStmt) Close() error {
	idle := s.conn.idle
	if idle == nil || idle[s.query] != nil || len(s.query) > maxKeptText {
		return s.bareStmt.Close()
	}
	var err error
	if len(idle) == maxStatements {
		for query, other := range idle { // any
			delete(idle, query)
			err = other.bareStmt.Close()
			break
		}
	}
	idle[s.query] = s
	return err
}
