// Package node is one Table Topic server: it opens every part in order, hands each what it
// needs, and closes them in the opposite order. It is the only wiring there is; the command,
// the demo and the tests run what Open opens.
package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"github.com/apache/iceberg-go/table"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/tabletopic/tabletopic/broker"
	"github.com/tabletopic/tabletopic/broker/group"
	"github.com/tabletopic/tabletopic/broker/txn"
	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/catalog/named"
	"github.com/tabletopic/tabletopic/catalog/rest"
	"github.com/tabletopic/tabletopic/catalog/server"
	"github.com/tabletopic/tabletopic/catalog/sql"
	"github.com/tabletopic/tabletopic/coordinator"
	"github.com/tabletopic/tabletopic/coordinator/control"
	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/objectstore"
	"github.com/tabletopic/tabletopic/parquetio"
	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/schemaregistry"
	"github.com/tabletopic/tabletopic/security"
	"github.com/tabletopic/tabletopic/streamstore"
	"github.com/tabletopic/tabletopic/worker"
)

// controlPartitions is how many partitions the control topic is made with. Topics share them.
const controlPartitions = 8

// Node is a running server.
type Node struct {
	cfg     Config
	log     *slog.Logger
	metrics *prometheus.Registry

	locator      *objectstore.Locator
	meta         *metadata.Store
	backup       *metadata.Backup
	store        *streamstore.Store
	set          *partition.Set
	peers        peers
	builtin      *sql.Catalog
	restCatalog  server.Config
	external     catalog.Catalog // nil if there is none
	catalogs     *named.Catalogs
	schemas      *control.Schemas
	control      *control.Topic
	workers      *worker.Manager
	coordinators *coordinator.Manager
	groups       *group.Manager
	txns         *txn.Manager
	broker       *broker.Broker
	access       *security.Access
	tls          *security.TLS // nil if nothing uses it
	mapping      security.Mapping
	listeners    []broker.Listener // that of the other nodes first
	announced    atomic.Bool
	httpListener net.Listener
	http         *http.Server

	closers []closer // in the order of opening
}

// A closer ends one part.
type closer struct {
	name  string
	close func(ctx context.Context) error
}

// Open starts a node and returns when it serves. After an error nothing is left running.
func Open(ctx context.Context, cfg Config, log *slog.Logger) (*Node, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	n := &Node{cfg: cfg, log: log, metrics: prometheus.NewRegistry()}
	n.metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if err := n.open(ctx); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

// open opens part after part. The listeners come first: a process that cannot have its
// ports must not fence the one that has them.
func (n *Node) open(ctx context.Context) error {
	if err := n.openTLS(); err != nil {
		return err
	}
	if err := n.listenKafka(); err != nil {
		return err
	}
	var err error
	if n.httpListener, err = n.listen("http", n.cfg.HTTP); err != nil {
		return err
	}
	if err := os.MkdirAll(n.cfg.Data, 0o755); err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	bucket, err := n.openBucket(ctx)
	if err != nil {
		return err
	}
	meta, err := metadata.Open(ctx, n.cfg.Metadata, n.log)
	if err != nil {
		return err // it names the database, without its password
	}
	n.meta = meta
	n.onClose("metadata", func(context.Context) error { return meta.Close() })
	if err := n.openBuiltin(ctx, meta); err != nil {
		return err
	}
	if err := n.openAccess(ctx); err != nil {
		return err
	}
	// Before anything is acknowledged: the bucket must be this database's, and have a copy.
	err = n.patient(ctx, "snapshots of the metadata", func() (err error) {
		n.backup, err = meta.Backup(ctx, bucket, metadata.BackupConfig{Interval: n.cfg.MetadataSnapshotInterval})
		return err
	})
	if err != nil {
		return err
	}
	n.onClose("metadata backup", n.backup.Close)
	registry := schemaregistry.New(meta, n, schemaregistry.Config{CacheBytes: cmp.Or(n.cfg.SchemaCache, -1)}, n.log)
	n.schemas = control.NewSchemas(lookup(registry), registry)
	if err := n.openLog(ctx, bucket, meta, worker.NewValidator(n.schemas, registry)); err != nil {
		return err
	}
	if err := n.openExternal(ctx); err != nil {
		return err
	}
	if err := n.openCatalogs(meta); err != nil {
		return err
	}
	if err := n.openTables(ctx); err != nil {
		return err
	}
	n.groups = group.Open(n.set, n.cfg.Groups, n.peers, n.log)
	n.metrics.MustRegister(n.groups.Collectors()...)
	n.onClose("groups", func(context.Context) error { n.groups.Close(); return nil })
	n.txns = txn.Open(n.set, txn.Config{MaxTimeout: n.cfg.TransactionMaxTimeout, Expiration: n.cfg.TransactionalIDExpiration, MemoryBytes: n.cfg.TransactionalIDsMemory, MaxPartitions: n.cfg.MaxTransactionPartitions}, group.Topic, n.groups, n.peers, n.log)
	n.metrics.MustRegister(n.txns.Collectors()...)
	n.onClose("transactions", func(context.Context) error { n.txns.Close(); return nil })
	if err := n.serveHTTP(registry); err != nil {
		return err
	}
	n.broker, err = broker.Open(broker.Config{
		MaxConnections: n.cfg.MaxConnections, MaxConnectionsPerAddress: n.cfg.MaxConnectionsPerAddress, AuthTimeout: n.cfg.AuthTimeout, MaxRequestBytes: n.cfg.MaxRequestBytes,
		MaxRequestMemory: n.cfg.MaxRequestMemory, MaxAnswerMemory: n.cfg.MaxAnswerMemory, MaxInFlight: n.cfg.MaxInFlight, IdleTimeout: n.cfg.IdleTimeout, StallTimeout: n.cfg.StallTimeout,
		NoAutoCreate: !n.cfg.AutoCreateTopics, MaxAutoCreate: n.cfg.AutoCreateMax, DefaultPartitions: n.cfg.DefaultPartitions,
		MaxSessionPartitions: n.cfg.MaxSessionPartitions, Mover: n, Rack: n.cfg.Rack,
		MaxShareSessions: n.cfg.MaxShareSessions, ShareRecordLock: n.cfg.ShareRecordLock, ShareDeliveries: n.cfg.ShareDeliveries, ShareRecordLocks: n.cfg.ShareRecordLocks,
		ReservedTopics: []string{group.Topic, txn.Topic, control.TopicName},
		PeerTopic:      control.TopicName, PeerClientID: control.ClientID,
	}, n.listeners, n.access, n.set, n.groups, n.txns, meta, n.store.Node(), n.log, n.metrics)
	if err != nil {
		return err
	}
	n.onClose("broker", n.broker.Close)
	if err := n.announce(ctx); err != nil {
		return err
	}
	n.announced.Store(true)
	return nil
}

func (n *Node) onClose(name string, close func(context.Context) error) {
	n.closers = append(n.closers, closer{name, close})
}

// listen takes an address, and keeps it until the end unless its part closes it before.
func (n *Node) listen(flag, addr string) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w: end the process that has it, or choose another address with --%s", addr, err, flag)
	}
	n.onClose(flag+" listener", func(context.Context) error {
		if err := l.Close(); !errors.Is(err, net.ErrClosed) {
			return err
		}
		return nil
	})
	return l, nil
}

// openBucket opens the object store, proves that it can fence, and makes it known to
// everything that finds files by their location.
func (n *Node) openBucket(ctx context.Context) (objectstore.Bucket, error) {
	var s3 objectstore.S3Config
	for _, u := range []string{n.cfg.Warehouse, n.cfg.ObjectStore} {
		if strings.HasPrefix(u, "s3://") {
			cfg, _, err := objectstore.ParseS3URL(u)
			if err != nil {
				return nil, err
			}
			s3 = cfg
			s3.HTTPClient = objectstore.NewHTTPClient()
		}
	}
	observer := newStoreMetrics(n.metrics)
	n.locator = objectstore.NewLocator(s3)
	n.locator.Wrap(func(b objectstore.Bucket) objectstore.Bucket {
		return objectstore.WithPurpose(objectstore.Observe(b, observer), objectstore.ForTable)
	})
	bucket, err := objectstore.Open(ctx, n.cfg.ObjectStore)
	if err != nil {
		return nil, fmt.Errorf("object store: %w", err)
	}
	bucket = objectstore.Observe(bucket, observer)
	probe := objectstore.For(ctx, objectstore.ForProbe)
	if err := n.patient(ctx, "probe of conditional creation", func() error { return objectstore.Probe(probe, bucket) }); err != nil {
		return nil, fmt.Errorf("object store %s: %w", n.cfg.ObjectStore, err)
	}
	n.locator.Add(objectstore.WithPurpose(bucket, objectstore.ForTable)) // what is found by its location is a table's
	return bucket, nil
}

// openLog takes the node's streams and partitions over from its earlier life.
func (n *Node) openLog(ctx context.Context, bucket objectstore.Bucket, meta *metadata.Store, validator partition.Validator) error {
	var err error
	n.store, err = streamstore.Open(ctx, streamstore.Config{
		WAL: streamstore.WALKind(n.cfg.WAL), WALDir: filepath.Join(n.cfg.Data, "wal"), WALBytes: n.cfg.WALBytes, WALLinger: n.cfg.WALLinger,
		WALIdleLinger: n.cfg.WALIdleLinger, WALInflight: n.cfg.WALInflight, WALHedgeMin: n.cfg.WALHedgeMin,
		CompactionInterval: n.cfg.CompactionInterval, MinorInterval: n.cfg.CompactionMinor, MajorInterval: n.cfg.CompactionMajor, CompactionBytes: n.cfg.CompactionMemory,
		CompactionObjects: n.cfg.CompactionObjects, CompactionRate: n.cfg.CompactionRate, SplitBytes: n.cfg.CompactionSplit, ForceSplit: n.cfg.ForceSplit,
		MinorBytes: n.cfg.MinorBytes, MajorBytes: n.cfg.MajorBytes, CleanupInterval: n.cfg.CleanupInterval, CleanupBytes: n.cfg.CleanupBytes,
		CleanInterval: n.cfg.CleanInterval, DeleteGrace: n.cfg.DeleteGrace, SweepInterval: n.cfg.SweepInterval, SweepGrace: n.cfg.SweepGrace,
		WALUnflushedBytes: n.cfg.WALUnflushed, LogCacheBytes: n.cfg.LogCache, BlockCacheBytes: n.cfg.BlockCache, ReadAheadBytes: n.cfg.ReadAhead, ReadInflight: n.cfg.ReadInflight,
		UploadBytes: n.cfg.UploadBytes, UploadStreams: n.cfg.UploadStreams, UploadInterval: n.cfg.UploadInterval, Settled: meta.Settled,
	}, streamstore.NodeID(n.cfg.NodeID), bucket, meta, meta, n.log)
	if err != nil {
		return err
	}
	n.onClose("stream store", n.store.Close)
	n.metrics.MustRegister(n.store.Collectors()...)
	defaults, err := partition.ParseTopicDefaults(n.cfg.TopicDefaults)
	if err != nil {
		return fmt.Errorf("topic-defaults: %w", err)
	}
	err = n.patient(ctx, "partitions", func() (err error) {
		n.set, err = partition.OpenSet(ctx, partition.Config{CheckTable: n.checkTable, LetterTable: coordinator.LetterTable, Validator: validator, Defaults: defaults, RetentionInterval: n.cfg.RetentionInterval, CleanerInterval: n.cfg.CleanerInterval, CleanerDedupeBytes: n.cfg.CleanerDedupe, MaxDecompressedBytes: n.cfg.MaxDecompressed, ProducerExpiry: n.cfg.ProducerIDExpiration, MaxProducers: n.cfg.MaxProducers, MaxAborted: n.cfg.MaxAborted, Peers: n.peers}, n.store, meta, n.log)
		return err
	})
	if err != nil {
		return fmt.Errorf("partitions: %w", err)
	}
	n.metrics.MustRegister(n.set.Collectors()...)
	n.onClose("partitions", n.set.Close)
	return nil
}

func (n *Node) openBuiltin(ctx context.Context, meta *metadata.Store) error {
	warehouse, _, _ := strings.Cut(n.cfg.Warehouse, "?")
	cacheBytes := n.cfg.RESTCacheBytes
	if cacheBytes == 0 {
		cacheBytes = -1 // none, rather than the default
	}
	var err error
	n.builtin, err = sql.Open(ctx, meta.DB(), n.locator, sql.Config{Warehouse: warehouse, Durable: meta.Durable, CacheBytes: cacheBytes})
	if err != nil {
		return fmt.Errorf("built-in catalog: %w", err)
	}
	return n.openRESTCatalog(ctx)
}

func (n *Node) openExternal(ctx context.Context) error {
	if n.cfg.CatalogURI == "" {
		return nil
	}
	external, err := rest.Open(n.locator, rest.Config{
		URI: n.cfg.CatalogURI, Warehouse: n.cfg.CatalogWarehouse, Token: n.cfg.CatalogToken, Credential: n.cfg.CatalogCredential, Scope: n.cfg.CatalogScope,
	})
	if err != nil {
		return fmt.Errorf("catalog %s: %w", n.cfg.CatalogURI, err)
	}
	n.external = external
	n.onClose("catalog", func(context.Context) error { return external.Close() })
	first, cancel := context.WithTimeout(ctx, catalogPatience)
	defer cancel()
	switch err := external.Connect(first); {
	case errors.Is(err, rest.ErrUnavailable):
		n.log.Warn("the catalog does not answer: serving without it; tables wait until it does", "error", err)
	case err != nil:
		return fmt.Errorf("catalog %s: %w: check catalog-uri, -warehouse, -token, -credential and -scope", n.cfg.CatalogURI, err)
	}
	return nil
}

// catalogPatience is how long a start waits for an external catalog: records are taken
// without it.
const catalogPatience = 5 * time.Second

// checkTable refuses table settings that this node cannot serve: a catalog that does not
// exist, and a table that another topic has.
func (n *Node) checkTable(topic string, cfg partition.TableConfig) error {
	if _, err := n.catalog(cfg.Catalog); err != nil {
		return fmt.Errorf("table.topic.catalog: %w", err)
	}
	if err := coordinator.CheckSettings(cfg); err != nil {
		return err
	}
	taken := map[string]string{} // names of the topic's tables, and the routes that fill them
	var ids []table.Identifier
	var err error
	routes := partition.Routes(metadata.Topic{Name: topic}, partition.TopicConfig{Table: cfg})
	for _, r := range routes {
		id, err := coordinator.Identifier(r.Table.Namespace, r.Table.Name, r.Name)
		if err != nil {
			return err
		}
		name := strings.Join(id, ".")
		if other, twice := taken[name]; twice {
			return fmt.Errorf("table %s is that of %q and of %q: set table.topic.fan.out, or table.topic.name, to another name", name, other, r.Name)
		}
		taken[name], ids = r.Name, append(ids, id)
	}
	if cfg.LetterTable {
		letters, err := coordinator.LetterTable(topic, cfg)
		if other, twice := taken[letters]; err == nil && twice {
			return fmt.Errorf("table %s is that of %q and that of the dead letters: set table.topic.fan.out to another name", letters, other)
		}
	}
	if !cfg.Enable {
		return nil
	}
	for _, t := range n.set.Topics() {
		if t.Name == topic {
			continue
		}
		others, err := n.set.Routes(t)
		if err != nil || len(others) == 0 || others[0].Table.Catalog != cfg.Catalog {
			continue
		}
		for _, r := range others {
			id, err := coordinator.Identifier(r.Table.Namespace, r.Table.Name, r.Name)
			if err != nil {
				continue
			}
			if mine, is := taken[strings.Join(id, ".")]; is {
				setting := "table.topic.name"
				if mine != topic {
					setting = "table.topic.fan.out"
				}
				return fmt.Errorf("table %s is that of topic %q: set %s to another name", strings.Join(id, "."), r.Name, setting)
			}
		}
	}
	if len(routes) == 1 {
		return n.checkArrangement(cfg, ids[0])
	}
	for i, r := range routes[1:] { // one table that can follow is enough: others may lack a column
		if err = n.checkArrangement(r.Table, ids[i+1]); err == nil {
			return nil
		}
	}
	return err
}

// checkArrangement refuses engines, partitions and a sort order that the table, if there is one, cannot
// have. If its catalog does not answer, the coordinator finds out.
func (n *Node) checkArrangement(cfg partition.TableConfig, id table.Identifier) error {
	if cfg.PartitionBy == "" && cfg.SortBy == "" && (cfg.Engines == "" || cfg.Engines == "generic") {
		return nil
	}
	cat, err := n.catalog(cfg.Catalog)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookupPatience)
	defer cancel()
	t, err := cat.Load(ctx, id)
	if err != nil || len(t.Schema().Fields()) == 1 && t.Schema().Field(0).Name == cfg.KafkaColumn {
		return nil // the columns come with the first record that becomes a row
	}
	if err := coordinator.CheckEngines(cfg.Engines, t); err != nil {
		return err
	}
	if err := coordinator.CheckPartitionBy(cfg.PartitionBy, t); err != nil {
		return err
	}
	return coordinator.CheckSortBy(cfg.SortBy, t)
}

// lookup reads schemas of the registry in this process.
func lookup(registry *schemaregistry.Registry) control.Lookup {
	return func(ctx context.Context, id int32) (control.RegisteredSchema, error) {
		s, err := registry.Schema(ctx, int(id))
		return registered(s), err
	}
}

// registered is a schema of the registry as the parts of a table take it.
func registered(s schemaregistry.Schema) control.RegisteredSchema {
	r := control.RegisteredSchema{Type: s.Type, Text: s.Text}
	for _, d := range s.Dependencies {
		r.References = append(r.References, parquetio.Reference(d))
	}
	return r
}

// openTables starts the workers and the coordinators of the topics that have tables.
func (n *Node) openTables(ctx context.Context) error {
	toPeers, err := n.kafkaToPeers()
	if err != nil {
		return err
	}
	ctl, err := control.OpenTopic(ctx, n.set, controlPartitions, toPeers...)
	if err != nil {
		return err
	}
	n.control = ctl
	n.onClose("control log", func(context.Context) error { ctl.Close(); return nil })
	shared := worker.NewShared(runtime.GOMAXPROCS(0), n.cfg.TableMemory, worker.NewMetrics(n.metrics))
	shared.Grace = n.cfg.TableSweepGrace
	n.workers = worker.Open(n.set, ctl, n.schemas, n.locatorOf, shared, n.log)
	n.onClose("workers", func(context.Context) error { n.workers.Close(); return nil })
	sweep := coordinator.SweepConfig{Interval: n.cfg.TableSweep, Grace: n.cfg.TableSweepGrace}
	n.coordinators = coordinator.Open(n.set, ctl, n.catalog, n.schemas, n.locatorOf, sweep, shared, coordinator.NewMetrics(n.metrics), n.log)
	n.onClose("coordinators", func(context.Context) error { n.coordinators.Close(); return nil })
	n.metrics.MustRegister(stateMetrics{n})
	borrowing, stop := context.WithCancel(context.WithoutCancel(ctx))
	borrowed := make(chan struct{})
	go func() {
		defer close(borrowed)
		n.borrow(borrowing)
	}()
	n.onClose("credentials of catalogs", func(context.Context) error { stop(); <-borrowed; return nil })
	return nil
}

// KafkaAddr is where the Kafka protocol is served.
func (n *Node) KafkaAddr() string { return n.listeners[0].Addr().String() }

// HTTPAddr is where registry, catalog and administration are served.
func (n *Node) HTTPAddr() string { return n.httpListener.Addr().String() }

// Wait returns when ctx ends, with nil, or when the node may acknowledge nothing more, with
// the reason.
func (n *Node) Wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-n.store.Fenced():
		return fmt.Errorf("node %d stops: %w", n.cfg.NodeID, n.store.Err())
	case <-n.backup.Superseded():
		return fmt.Errorf("node %d stops: %w", n.cfg.NodeID, n.backup.Err())
	}
}

// Close stops taking requests, uploads what is pending and ends every part.
func (n *Node) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), n.cfg.ShutdownTimeout)
	defer cancel()
	var errs []error
	for len(n.closers) > 0 {
		last := n.closers[len(n.closers)-1]
		n.closers = n.closers[:len(n.closers)-1]
		begin := time.Now()
		if err := last.close(ctx); err != nil {
			errs = append(errs, fmt.Errorf("close %s: %w", last.name, err))
		}
		if d := time.Since(begin); d > time.Second {
			n.log.Info("slow close", "part", last.name, "duration", d.Round(time.Millisecond))
		}
	}
	return errors.Join(errs...)
}
