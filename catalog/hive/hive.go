// Package hive is the Hive Metastore, from version 3.1, over Thrift.
//
// A Hive table of table_type ICEBERG names the current metadata file in its parameter
// metadata_location. The metastore has no conditional update before version 4, so a commit
// takes the table's exclusive lock, finds the base's file named, makes sure that the lock
// still is its own, alters the table and unlocks; meanwhile the lock is kept alive. Every
// writer of Iceberg tables in Hive does so. The request also says which file it expects:
// a metastore that knows this (4.0, 2.3.10) refuses it if another is named, and there the
// lock can be left out ([Config.NoLock]).
//
// # Outcomes
//
// An alter that fails is unknown, except where the metastore says that it refused it. If no
// answer came the request may still be on its way, and nothing but the lock keeps it from
// landing on another commit: it is kept for [Config.Settle] then.
//
// Columns follow the schema with each commit, so that Hive shows them; table properties stay
// in the metadata file, since Hive cuts long ones. Kerberos is not spoken.
package hive

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/apache/iceberg-go/table"
	"github.com/apache/thrift/lib/go/thrift"
	"github.com/beltran/gohive/hive_metastore"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/internal/invariant"
)

// Config of a Catalog.
type Config struct {
	// URI is thrift://host:port, or several with commas, of which the first that can be
	// reached is taken. The port is 9083 if it is missing.
	URI string
	// Warehouse is the location below which new tables are made, <warehouse>/<database>/<table>.
	// Below the location of their database if empty.
	Warehouse string
	// TLS is used if it is not nil.
	TLS *tls.Config
	// NoLock commits without the lock. Only for a metastore that compares
	// expected_parameter_key, and if every other writer does the same.
	NoLock bool
	// Timeout of one request. 60 s if zero.
	Timeout time.Duration
	// LockWait is how long a commit waits for the lock. 60 s if zero.
	LockWait time.Duration
	// Heartbeat is how often a lock is kept alive; metastores drop locks after
	// hive.txn.timeout, 300 s. 30 s if zero.
	Heartbeat time.Duration
	// Settle is how long a lock is kept after a commit that got no answer. 30 s if zero.
	Settle time.Duration
}

// Catalog is safe for concurrent use.
type Catalog struct {
	catalog.PointerCatalog
	store *metastore
}

type metastore struct {
	cfg       Config
	addresses []string

	life  context.Context // of the locks that outlive their commit
	end   context.CancelFunc
	owned sync.WaitGroup
}

// The parameters of a Hive table that make it an Iceberg table.
const (
	paramType     = "table_type"
	paramLocation = "metadata_location"
	paramPrevious = "previous_metadata_location"
	typeIceberg   = "ICEBERG"
)

// Open prepares a catalog and sends it nothing. Files are read and written with the buckets
// of locator.
func Open(locator catalog.Locator, cfg Config) (*Catalog, error) {
	for _, d := range []struct {
		value *time.Duration
		zero  time.Duration
	}{{&cfg.Timeout, time.Minute}, {&cfg.LockWait, time.Minute}, {&cfg.Heartbeat, 30 * time.Second}, {&cfg.Settle, 30 * time.Second}} {
		if *d.value == 0 {
			*d.value = d.zero
		}
	}
	cfg.Warehouse = strings.TrimRight(cfg.Warehouse, "/")
	m := &metastore{cfg: cfg}
	for _, uri := range strings.Split(cfg.URI, ",") {
		u, err := url.Parse(strings.TrimSpace(uri))
		if err != nil || u.Scheme != "thrift" || u.Hostname() == "" {
			return nil, fmt.Errorf("address %q of a Hive Metastore: thrift://HOST:PORT is wanted", uri)
		}
		port := u.Port()
		if port == "" {
			port = "9083"
		}
		m.addresses = append(m.addresses, net.JoinHostPort(u.Hostname(), port))
	}
	m.life, m.end = context.WithCancel(context.Background())
	return &Catalog{catalog.PointerCatalog{Pointer: m, Locator: locator, Recent: &catalog.Recent{}}, m}, nil
}

// Connect tells whether the metastore answers.
func (c *Catalog) Connect(ctx context.Context) error {
	return c.store.call(ctx, func(h *hive_metastore.ThriftHiveMetastoreClient) error {
		_, err := h.GetAllDatabases(ctx)
		return err
	})
}

// Close gives up the locks that are kept for commits of unknown outcome.
func (c *Catalog) Close() error {
	c.store.end()
	c.store.owned.Wait()
	return nil
}

// listBatch tables are read in one request.
const listBatch = 100

// List implements catalog.Catalog.
func (c *Catalog) List(ctx context.Context, namespace table.Identifier) (out []table.Identifier, err error) {
	if len(namespace) > 1 {
		return nil, nil // Hive has one level of namespaces
	}
	err = c.store.call(ctx, func(h *hive_metastore.ThriftHiveMetastoreClient) error {
		databases := []string(namespace)
		if len(namespace) == 0 {
			if databases, err = h.GetAllDatabases(ctx); err != nil {
				return err
			}
		}
		for _, database := range databases {
			names, err := h.GetAllTables(ctx, fold(database))
			if err != nil {
				return err
			}
			for len(names) > 0 {
				batch := names[:min(listBatch, len(names))]
				names = names[len(batch):]
				found, err := h.GetTableObjectsByNameReq(ctx, &hive_metastore.GetTablesRequest{DbName: fold(database), TblNames: batch})
				if err != nil {
					return err
				}
				for _, t := range found.Tables {
					if isIceberg(t) {
						out = append(out, table.Identifier{database, t.TableName})
					}
				}
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list tables: %w", err)
	}
	return out, nil
}

// Drop implements catalog.Catalog. A table that is not Iceberg's is left alone.
func (c *Catalog) Drop(ctx context.Context, id table.Identifier) error {
	err := c.store.call(ctx, func(h *hive_metastore.ThriftHiveMetastoreClient) error {
		if _, err := get(ctx, h, id); err != nil {
			return err
		}
		return missing(h.DropTable(ctx, fold(id[0]), fold(id[1]), false))
	})
	if err != nil {
		return fmt.Errorf("drop table %v: %w", id, err)
	}
	return nil
}

// call runs requests on a connection of their own, which ends with ctx.
func (m *metastore) call(ctx context.Context, fn func(*hive_metastore.ThriftHiveMetastoreClient) error) error {
	transport, address, err := m.dial(ctx)
	if err != nil {
		return err
	}
	defer transport.Close()
	stop := context.AfterFunc(ctx, func() { transport.Close() })
	defer stop()
	protocols := thrift.NewTBinaryProtocolFactoryConf(nil)
	err = fn(hive_metastore.NewThriftHiveMetastoreClientFactory(transport, protocols))
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	if err != nil {
		return fmt.Errorf("metastore %s: %w", address, err)
	}
	return nil
}

// dial connects to the first metastore that can be reached.
func (m *metastore) dial(ctx context.Context) (thrift.TTransport, string, error) {
	var errs []error
	for _, address := range m.addresses {
		dialer := net.Dialer{Timeout: m.cfg.Timeout}
		conn, err := dialer.DialContext(ctx, "tcp", address)
		if err == nil && m.cfg.TLS != nil {
			tlsConfig := m.cfg.TLS.Clone()
			if tlsConfig.ServerName == "" {
				tlsConfig.ServerName, _, _ = net.SplitHostPort(address)
			}
			secure := tls.Client(conn, tlsConfig)
			shaking, cancel := context.WithTimeout(ctx, m.cfg.Timeout) // one without TLS waits for more of a request
			if err = secure.HandshakeContext(shaking); err != nil {
				err = fmt.Errorf("TLS handshake with %s: %w", address, err)
				conn.Close()
			}
			cancel()
			conn = secure
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		socket := thrift.NewTSocketFromConnConf(conn, &thrift.TConfiguration{SocketTimeout: m.cfg.Timeout})
		return thrift.NewTBufferedTransport(socket, 64<<10), address, nil
	}
	return nil, "", fmt.Errorf("no metastore: %w", errors.Join(errs...))
}

// fold is a name as Hive has it.
func fold(name string) string { return strings.ToLower(name) }

func isIceberg(t *hive_metastore.Table) bool {
	return strings.EqualFold(t.Parameters[paramType], typeIceberg)
}

func missing(err error) error {
	if errors.As(err, new(*hive_metastore.NoSuchObjectException)) {
		return fmt.Errorf("%w: %w", catalog.ErrNoTable, err)
	}
	return err
}

func get(ctx context.Context, h *hive_metastore.ThriftHiveMetastoreClient, id table.Identifier) (*hive_metastore.Table, error) {
	found, err := h.GetTableReq(ctx, &hive_metastore.GetTableRequest{DbName: fold(id[0]), TblName: fold(id[1])})
	if err != nil {
		return nil, missing(err)
	}
	t := found.Table
	if !isIceberg(t) || t.Parameters[paramLocation] == "" {
		return nil, fmt.Errorf("table %s.%s is not an Iceberg table: give the topic's table another name", id[0], id[1])
	}
	return t, nil
}

// Location implements catalog.Pointer.
func (m *metastore) Location(ctx context.Context, id table.Identifier) (location string, err error) {
	err = m.call(ctx, func(h *hive_metastore.ThriftHiveMetastoreClient) error {
		t, err := get(ctx, h, id)
		if err == nil {
			location = t.Parameters[paramLocation]
		}
		return err
	})
	return location, err
}

// Parent implements catalog.Pointer.
func (m *metastore) Parent(ctx context.Context, namespace string) (parent string, err error) {
	name := fold(namespace)
	err = m.call(ctx, func(h *hive_metastore.ThriftHiveMetastoreClient) error {
		database, err := h.GetDatabase(ctx, name)
		if errors.As(err, new(*hive_metastore.NoSuchObjectException)) {
			fresh := &hive_metastore.Database{Name: name}
			if m.cfg.Warehouse != "" {
				fresh.LocationUri = m.cfg.Warehouse + "/" + catalog.PathName(name)
			}
			if err := h.CreateDatabase(ctx, fresh); err != nil && !errors.As(err, new(*hive_metastore.AlreadyExistsException)) {
				return fmt.Errorf("create database %s: %w", name, err)
			}
			database, err = h.GetDatabase(ctx, name)
		}
		if err != nil {
			return fmt.Errorf("get database %s: %w", name, err)
		}
		parent = database.LocationUri
		return nil
	})
	if err == nil && m.cfg.Warehouse != "" {
		parent = m.cfg.Warehouse + "/" + catalog.PathName(name)
	}
	return parent, err
}

// Insert implements catalog.Pointer.
func (m *metastore) Insert(ctx context.Context, t *table.Table) error {
	id := t.Identifier()
	fresh := hive_metastore.NewTable()
	fresh.DbName, fresh.TableName, fresh.TableType, fresh.Owner = fold(id[0]), fold(id[1]), "EXTERNAL_TABLE", "tabletopic"
	fresh.CreateTime = int32(time.Now().Unix())
	fresh.Parameters = map[string]string{"EXTERNAL": "TRUE", paramType: typeIceberg,
		"storage_handler": "org.apache.iceberg.mr.hive.HiveIcebergStorageHandler"}
	fresh.Sd = &hive_metastore.StorageDescriptor{
		InputFormat:  "org.apache.iceberg.mr.hive.HiveIcebergInputFormat",
		OutputFormat: "org.apache.iceberg.mr.hive.HiveIcebergOutputFormat",
		SerdeInfo:    &hive_metastore.SerDeInfo{SerializationLib: "org.apache.iceberg.mr.hive.HiveIcebergSerDe", Parameters: map[string]string{}},
		BucketCols:   []string{}, SortCols: []*hive_metastore.Order{}, Parameters: map[string]string{},
	}
	describe(fresh, t)
	return m.call(ctx, func(h *hive_metastore.ThriftHiveMetastoreClient) error {
		err := h.CreateTable(ctx, fresh)
		if errors.As(err, new(*hive_metastore.AlreadyExistsException)) {
			return fmt.Errorf("%w: %w", catalog.ErrTableExists, err)
		}
		return err
	})
}

// describe sets what of a Hive table follows from the Iceberg table.
func describe(h *hive_metastore.Table, t *table.Table) {
	h.Parameters[paramLocation] = t.MetadataLocation()
	h.Sd.Location = t.Location()
	h.Sd.Cols = nil
	for _, c := range catalog.HiveColumns(t.Schema(), "timestamp with local time zone") {
		h.Sd.Cols = append(h.Sd.Cols, &hive_metastore.FieldSchema{Name: c.Name, Type: c.Type, Comment: c.Comment})
	}
	if s := t.CurrentSnapshot(); s != nil && s.Summary != nil {
		for ours, theirs := range map[string]string{"total-records": "numRows", "total-data-files": "numFiles", "total-files-size": "totalSize"} {
			if n, ok := s.Summary.Properties[ours]; ok {
				h.Parameters[theirs] = n
			}
		}
	}
}

// Swap implements catalog.Pointer.
func (m *metastore) Swap(ctx context.Context, base, next *table.Table) error {
	id := base.Identifier()
	l, err := m.lock(ctx, id)
	if err != nil {
		return fmt.Errorf("commit %v: %w", id, err)
	}
	answered := true
	err = m.call(ctx, func(h *hive_metastore.ThriftHiveMetastoreClient) error {
		err := m.swap(ctx, h, l, base, next)
		// An exception that the metastore declares is an answer.
		answered = err == nil || !errors.As(err, new(thrift.TTransportException)) && !errors.As(err, new(thrift.TProtocolException))
		return err
	})
	switch {
	case err == nil || answered || !errors.Is(err, catalog.ErrCommitUnknown):
		l.release(m.cfg.Timeout)
	default:
		l.releaseAfter(m.cfg.Settle)
	}
	if err != nil {
		return fmt.Errorf("commit %v: %w", id, err)
	}
	return nil
}

// swap alters the table under the lock. Before its request is sent every error that may pass
// is a conflict: nothing was written, and nothing will be.
func (m *metastore) swap(ctx context.Context, h *hive_metastore.ThriftHiveMetastoreClient, l *lock, base, next *table.Table) error {
	now, err := get(ctx, h, base.Identifier())
	switch {
	case errors.Is(err, catalog.ErrNoTable):
		return err
	case err != nil:
		return fmt.Errorf("%w: %w", catalog.ErrCommitConflict, err)
	case now.Parameters[paramLocation] != base.MetadataLocation() && !invariant.Off("pointer-commit-compares"):
		return catalog.Moved(base, now.Parameters[paramLocation])
	}
	if err := l.verify(ctx, h); err != nil {
		return fmt.Errorf("%w: %w", catalog.ErrCommitConflict, err)
	}
	before := now.Sd.Cols
	altered := now
	altered.Parameters = maps.Clone(now.Parameters)
	altered.Parameters[paramPrevious] = base.MetadataLocation()
	describe(altered, next)
	err = m.alter(ctx, h, base, altered)
	if refusesColumns(err) {
		// Hive compares columns by position. What it shows may lag; what the table has must not.
		altered.Sd.Cols = before
		err = m.alter(ctx, h, base, altered)
	}
	return err
}

func (m *metastore) alter(ctx context.Context, h *hive_metastore.ThriftHiveMetastoreClient, base *table.Table, to *hive_metastore.Table) error {
	properties := map[string]string{
		"expected_parameter_key":   paramLocation,
		"expected_parameter_value": base.MetadataLocation(),
		"DO_NOT_UPDATE_STATS":      "true",
	}
	if invariant.Off("hive-names-its-base") {
		delete(properties, "expected_parameter_key")
	}
	err := h.AlterTableWithEnvironmentContext(ctx, to.DbName, to.TableName, to, &hive_metastore.EnvironmentContext{Properties: properties})
	switch {
	case err == nil:
		return nil
	case strings.Contains(err.Error(), "The table has been modified. The parameter value for key '"+paramLocation+"'"):
		// Of a metastore this is a MetaException, of a gateway before it an InvalidOperationException.
		return fmt.Errorf("%w: %w", catalog.ErrCommitConflict, err)
	case errors.As(err, new(*hive_metastore.InvalidOperationException)):
		return err // checked before anything is changed
	}
	return fmt.Errorf("%w: %w", catalog.ErrCommitUnknown, err)
}

// refusesColumns reports that the metastore found the new columns incompatible with the old
// ones (metastore.disallow.incompatible.col.type.changes).
func refusesColumns(err error) bool {
	var invalid *hive_metastore.InvalidOperationException
	return errors.As(err, &invalid) && strings.Contains(invalid.Message, "incompatible")
}
