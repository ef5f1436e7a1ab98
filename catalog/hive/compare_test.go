package hive

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/beltran/gohive/hive_metastore"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/catalog/catalogtest"
	"github.com/tabletopic/tabletopic/internal/lab"
)

// comparing is a metastore that looks at expected_parameter_key before it alters a table, as
// 4.0 and 2.3.10 do (HIVE-26882). It has what a commit without the lock asks for.
type comparing struct {
	hive_metastore.ThriftHiveMetastore

	mu        sync.Mutex
	databases map[string]*hive_metastore.Database
	tables    map[[2]string]*hive_metastore.Table // none is changed: another takes its place
	alters    []map[string]string                 // what came with each request that alters a table
	gateway   bool                                // a refusal is an InvalidOperationException
}

func newComparing() *comparing {
	return &comparing{databases: map[string]*hive_metastore.Database{}, tables: map[[2]string]*hive_metastore.Table{}}
}

// serve returns the metastore's address.
func (m *comparing) serve(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	lab.Metastore(t, l, m)
	return l.Addr().String()
}

func (m *comparing) GetAllDatabases(context.Context) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.databases)), nil
}

func (m *comparing) GetDatabase(_ context.Context, name string) (*hive_metastore.Database, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if d := m.databases[name]; d != nil {
		return d, nil
	}
	return nil, &hive_metastore.NoSuchObjectException{Message: name}
}

func (m *comparing) CreateDatabase(_ context.Context, d *hive_metastore.Database) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.databases[d.Name] != nil {
		return &hive_metastore.AlreadyExistsException{Message: d.Name}
	}
	m.databases[d.Name] = d
	return nil
}

func (m *comparing) GetAllTables(_ context.Context, database string) (names []string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for key := range m.tables {
		if key[0] == database {
			names = append(names, key[1])
		}
	}
	return names, nil
}

func (m *comparing) GetTableObjectsByNameReq(_ context.Context, r *hive_metastore.GetTablesRequest) (*hive_metastore.GetTablesResult_, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	found := &hive_metastore.GetTablesResult_{Tables: []*hive_metastore.Table{}}
	for _, name := range r.TblNames {
		if t := m.tables[[2]string{r.DbName, name}]; t != nil {
			found.Tables = append(found.Tables, t)
		}
	}
	return found, nil
}

func (m *comparing) GetTableReq(_ context.Context, r *hive_metastore.GetTableRequest) (*hive_metastore.GetTableResult_, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if t := m.tables[[2]string{r.DbName, r.TblName}]; t != nil {
		return &hive_metastore.GetTableResult_{Table: t}, nil
	}
	return nil, &hive_metastore.NoSuchObjectException{Message: r.TblName}
}

func (m *comparing) CreateTable(_ context.Context, t *hive_metastore.Table) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	key := [2]string{t.DbName, t.TableName}
	if m.tables[key] != nil {
		return &hive_metastore.AlreadyExistsException{Message: t.TableName}
	}
	m.tables[key] = t
	return nil
}

func (m *comparing) DropTable(_ context.Context, database, name string, _ bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.tables[[2]string{database, name}] == nil {
		return &hive_metastore.NoSuchObjectException{Message: name}
	}
	delete(m.tables, [2]string{database, name})
	return nil
}

func (m *comparing) AlterTableWithEnvironmentContext(_ context.Context, database, name string, to *hive_metastore.Table, with *hive_metastore.EnvironmentContext) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.alters = append(m.alters, with.Properties)
	now := m.tables[[2]string{database, name}]
	if now == nil {
		return &hive_metastore.InvalidOperationException{Message: "table " + name + " doesn't exist"}
	}
	key, compares := with.Properties["expected_parameter_key"]
	if expected := with.Properties["expected_parameter_value"]; compares && now.Parameters[key] != expected {
		refusal := fmt.Sprintf("The table has been modified. The parameter value for key '%s' is '%s'. The expected was value was '%s'", key, now.Parameters[key], expected)
		if m.gateway {
			return &hive_metastore.InvalidOperationException{Message: refusal}
		}
		return &hive_metastore.MetaException{Message: refusal}
	}
	m.tables[[2]string{database, name}] = to
	return nil
}

func withoutLock(c *Config) { c.NoLock = true }

// The suite holds without the table's lock for a metastore that compares, and nobody has to wait
// for a request that is still on its way: the metastore refuses it when it comes.
func TestConformanceWithoutLock(t *testing.T) {
	catalogtest.Run(t, func(t *testing.T) catalogtest.Fixture {
		store, address := newStore(), newComparing().serve(t)
		p := newProxy(t, address)
		return p.arm(catalogtest.Fixture{Catalog: open(t, p.address, store, withoutLock), Other: open(t, address, store, withoutLock), Locator: store})
	})
}

// A commit names the file of its base, and if another came between its look and its request that
// is a conflict: nothing of it is in the table. So it is if a gateway says it.
func TestAlterNamesItsBase(t *testing.T) {
	for _, gateway := range []bool{false, true} {
		store, m := newStore(), newComparing()
		m.gateway = gateway
		address := m.serve(t)
		p := newProxy(t, address)
		c, other := open(t, p.address, store, withoutLock), open(t, address, store, withoutLock)
		tbl := create(t, c)
		var theirs string
		p.before.Store(lab.AlterTable, func() {
			next, err := other.Commit(t.Context(), tbl, file(t, tbl, "theirs"))
			if err != nil {
				t.Errorf("commit between: %v", err)
				return
			}
			theirs = next.MetadataLocation()
		})
		_, err := c.Commit(t.Context(), tbl, file(t, tbl, "ours"))
		if !errors.Is(err, catalog.ErrCommitConflict) || errors.Is(err, catalog.ErrCommitUnknown) {
			t.Errorf("commit after another: %v, want %v", err, catalog.ErrCommitConflict)
		}
		if got := shown(t, other).Parameters[paramLocation]; got != theirs {
			t.Errorf("the metastore names %s, want %s", got, theirs)
		}
		if len(m.alters) != 2 {
			t.Fatalf("%d requests, want theirs and ours", len(m.alters))
		}
		for _, with := range m.alters {
			if with["expected_parameter_key"] != paramLocation || with["expected_parameter_value"] != tbl.MetadataLocation() {
				t.Errorf("a request came with %v, want the base, %s", with, tbl.MetadataLocation())
			}
		}
	}
}

// A metastore behind TLS is spoken to if its certificate is trusted, and its name is looked at.
func TestTLS(t *testing.T) {
	certFile, keyFile := lab.Certificate(t)
	certificate, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{certificate}})
	if err != nil {
		t.Fatal(err)
	}
	lab.Metastore(t, l, newComparing())
	pem, err := os.ReadFile(certFile)
	if err != nil {
		t.Fatal(err)
	}
	trust := x509.NewCertPool()
	trust.AppendCertsFromPEM(pem)

	store, address := newStore(), l.Addr().String()
	c := open(t, address, store, withoutLock, func(c *Config) { c.TLS = &tls.Config{RootCAs: trust} })
	tbl := create(t, c)
	if _, err := c.Commit(t.Context(), tbl, file(t, tbl, "a")); err != nil {
		t.Errorf("commit: %v", err)
	}
	for what, cfg := range map[string]*tls.Config{"the system's trust": {}, "another name": {RootCAs: trust, ServerName: "metastore.example.com"}} {
		err := open(t, address, store, func(c *Config) { c.TLS = cfg }).Connect(t.Context())
		if !errors.As(err, new(*tls.CertificateVerificationError)) {
			t.Errorf("with %s: %v, want that the certificate is refused", what, err)
		}
	}
	plain := open(t, address, store, func(c *Config) { c.Timeout = 10 * time.Second })
	if err := plain.Connect(t.Context()); err == nil {
		t.Error("without TLS the metastore answers")
	}
}
