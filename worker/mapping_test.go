package worker

import (
	"context"
	"strings"
	"testing"

	"github.com/apache/iceberg-go"
	"github.com/google/go-cmp/cmp"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/parquetio"
	"github.com/tabletopic/tabletopic/record"
)

// setMapping records other rules in the table, as a migration does.
func (p *path) setMapping(rules string) {
	p.t.Helper()
	tab, err := p.load()
	if err != nil {
		p.t.Fatal(err)
	}
	if _, err := p.catalog.Catalog.Commit(context.Background(), tab, catalog.Commit{Properties: iceberg.Properties{parquetio.MappingProperty: rules}}); err != nil {
		p.t.Fatal(err)
	}
}

// A table keeps to the rules with which it was made, whatever the settings become, until it is
// migrated; and waits if a newer release did that.
func TestTableKeepsItsMapping(t *testing.T) {
	p := newPath(t, 1)
	p.typ, p.schemas[1] = "PROTOBUF", `syntax = "proto3"; message A { int64 id = 1; int32 n = 2; }`
	row := func(id byte) { p.logs[0].append(t, record.Record{Value: []byte{0, 0, 0, 0, 1, 0, 8, id}}) }
	want := func(rows ...string) {
		t.Helper()
		p.committed()
		if diff := cmp.Diff(rows, p.rows()); diff != "" {
			t.Fatal(diff)
		}
	}
	p.cfg.Rules = parquetio.NewRules()
	p.start()
	row(1)
	want(`{"id":1,"n":0}`)
	p.crash()
	p.cfg.Rules.ZeroAsNull, p.worker.Rules.ZeroAsNull = true, true
	p.start()
	row(2)
	want(`{"id":1,"n":0}`, `{"id":2,"n":0}`)
	p.setMapping(p.cfg.Rules.String()) // the coordinator sees it with its next commit, or before
	p.crash()
	p.start()
	row(3)
	want(`{"id":1,"n":0}`, `{"id":2,"n":0}`, `{"id":3,"n":null}`)
	p.crash()
	p.setMapping("9")
	row(4)
	p.start()
	p.wait(func() bool {
		err := p.commits.Trouble()
		return err != nil && strings.Contains(err.Error(), "a newer release made the table")
	}, func() string { return "the table to pause" })
	p.crash()
	p.setMapping("2")
	p.start()
	want(`{"id":1,"n":0}`, `{"id":2,"n":0}`, `{"id":3,"n":null}`, `{"id":4,"n":0}`)
}
