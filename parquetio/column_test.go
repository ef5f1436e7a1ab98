package parquetio

import (
	"fmt"
	"math/bits"
)

// check returns an error if the counts of a column and those below it do not agree.
func check(cols []column, i, n int) error {
	c := &cols[i]
	if c.n != n {
		return fmt.Errorf("column %s has %d values, want %d", c.path, c.n, n)
	}
	if c.nulls > 0 {
		ones := 0
		for _, b := range c.valid {
			ones += bits.OnesCount8(b)
		}
		if len(c.valid) != (n+7)/8 || ones != n-c.nulls {
			return fmt.Errorf("column %s: bitmap of %d bytes with %d ones, for %d values and %d nulls", c.path, len(c.valid), ones, n, c.nulls)
		}
	}
	switch c.kind {
	case columnList, columnMap:
		n = int(c.offsets[n])
	}
	for _, k := range c.kids {
		if err := check(cols, k, n); err != nil {
			return err
		}
	}
	return nil
}
