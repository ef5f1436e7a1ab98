package metadata

import (
	"database/sql"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/tabletopic/tabletopic/streamstore"
)

// batchRows is how many rows one statement reads or writes at most. More would save
// PostgreSQL few round trips, and cost SQLite more: its driver binds n parameters in a time
// that grows with the square of n.
const batchRows = 50

// tuples returns n rows of width parameters, "(CAST($1 AS BIGINT), CAST($2 AS BIGINT)), ($3, $4)".
// The first row gives the columns their type where no table does.
func tuples(n, width int) string {
	var b strings.Builder
	for i := range n {
		for j := range width {
			b.WriteString([]string{", ", "("}[flag(j == 0)])
			p := "$" + strconv.Itoa(i*width+j+1)
			if i == 0 {
				p = "CAST(" + p + " AS BIGINT)"
			}
			b.WriteString(p)
		}
		b.WriteString(")")
		if i < n-1 {
			b.WriteString(", ")
		}
	}
	return b.String()
}

// batch runs a statement for many rows of width values each. They take the place of %s, as
// the rows of a VALUES. All rows must be changed.
func (t *tx) batch(statement string, width int, values []any) error {
	for part := range slices.Chunk(values, batchRows*width) {
		rows := len(part) / width
		n, err := t.exec(fmt.Sprintf(statement, tuples(rows, width)), part...)
		if err != nil {
			return err
		}
		if n != int64(rows) {
			return fmt.Errorf("%d rows changed, want %d: %w", n, rows, streamstore.ErrConflict)
		}
	}
	return nil
}

func anyOf[T any](list []T) []any {
	values := make([]any, len(list))
	for i, v := range list {
		values[i] = v
	}
	return values
}

// readStreams returns the rows of those streams that exist.
func (t *tx) readStreams(ids []streamstore.StreamID) (map[streamstore.StreamID]streamRow, error) {
	all := make(map[streamstore.StreamID]streamRow, len(ids))
	for part := range slices.Chunk(ids, batchRows) {
		err := t.each(func(rows *sql.Rows) error {
			row, err := scanStream(rows.Scan)
			all[row.ID] = row
			return err
		}, `WITH asked (id) AS (VALUES `+tuples(len(part), 1)+`) `+selectStream+`WHERE id IN (SELECT id FROM asked)`, anyOf(part)...)
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}
