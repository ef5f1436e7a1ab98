package sim

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
	"github.com/google/uuid"

	catalogsql "github.com/tabletopic/tabletopic/catalog/sql"
	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/objectstore"
	"github.com/tabletopic/tabletopic/streamstore"
)

// Whatever nodes, stores, catalogs, users and other writers do, a table holds each record of
// its topic once, and nothing of anybody else is lost.
func TestTableSimulation(t *testing.T) {
	plainPages(t)
	if *oneSeed >= 0 {
		runtime.GOMAXPROCS(1)
		var key [32]byte
		binary.BigEndian.PutUint64(key[:], uint64(*oneSeed))
		uuid.SetRand(rand.NewChaCha8(key)) // ids decide the order of files and snapshots
		t.Cleanup(func() { uuid.SetRand(nil) })
	}
	each(t, seeds(t, "testdata/table_seeds.txt", tableSeeds), simulateTable)
}

func simulateTable(t *testing.T, seed uint64) {
	w := newTableWorld(t, seed)
	w.simulate(w.plan.chaos+24*time.Hour, w.run)
}

// A tablePlan is what a seed decides once for a whole run.
type tablePlan struct {
	nodes, partitions int
	chaos             time.Duration // how long nodes come and go
	life, down        time.Duration // the longest that a node lives, and is away
	think             time.Duration // the longest between appends
	lag               time.Duration // of the table
	bad               float64       // share of records that cannot become rows
	mixed             bool          // some of those would fit another table of the name; this one is there before
	rewind            string        // table.topic.on.rewind
	retention, hold   time.Duration // of the topic; retention 0 and a negative hold are without end
	remote            float64       // share of the lives whose catalog is another process
	foreign           []string      // what other writers do
	foreignEvery      time.Duration // the longest between two of that
	admin             []string      // what administrators do with the topic
	away              float64       // share of the time that the catalog is away
	steps             struct{ crash, foreign, hold, fail float64 }
	held              time.Duration // the longest of a hold, and of a life that stands still
	grace             time.Duration // of files that no commit adopted: longer than an attempt to commit may take
	shared            bool          // the second topic is to fill the table of the first, which must be refused
	streams           objectstore.Faults
	mute              time.Duration // the longest that a node cannot write its log, while its bucket and catalog serve
	frozen            time.Duration // the longest that the catalog takes no data, while it answers all else
	compact           int           // small files that become one; 0 if they stay
	transactions      float64       // share of what is produced that is a transaction; half of these are aborted
	types             int           // of records that have tables of their own, beside those of the topics
}

func newTablePlan(r *rand.Rand) tablePlan {
	p := tablePlan{
		nodes: pick(r, 1, 1, 1, 2), partitions: 1 + r.IntN(3),
		chaos: 75 * time.Second,
		life:  pick(r, 10*time.Second, 60*time.Second, 5*time.Minute),
		down:  pick(r, time.Second, 20*time.Second),
		think: pick(r, time.Second, 4*time.Second),
		lag:   pick(r, time.Second, 3*time.Second, 10*time.Second),
		bad:   pick(r, 0, 0.05, 0.3),
		// By default a table that was rolled back waits for its owner, who decides at the end.
		rewind:       pick(r, "pause", "replay", "replay", "accept"),
		remote:       pick(r, 0, 0.5, 1),
		foreignEvery: pick(r, 5*time.Second, 30*time.Second),
		away:         pick(r, 0, 0, 0.3),
		held:         pick(r, 3*time.Second, time.Minute),
		grace:        20 * time.Minute,
		streams: objectstore.Faults{
			Latency:     pick(r, time.Millisecond, 30*time.Millisecond),
			Unavailable: pick(r, 0, 0.02),
			Lost:        pick(r, 0, 0.02),
		},
	}
	if r.IntN(3) == 0 {
		p.retention = pick(r, 5*time.Second, time.Minute)
		p.hold = pick(r, time.Millisecond, 10*time.Second, -time.Millisecond, -time.Millisecond)
	}
	if p.held == 3*time.Second {
		p.grace = 40 * time.Second
	}
	p.shared = p.nodes == 2 && r.IntN(3) == 0
	p.steps.crash = pick(r, 0, 0.002, 0.01)
	p.steps.foreign = pick(r, 0, 0.01, 0.05)
	p.steps.hold = pick(r, 0, 0.01, 0.03)
	p.steps.fail = pick(r, 0, 0.01, 0.08)
	p.foreign = some(r, foreignActs, 4)
	p.admin = some(r, adminActs, 3)
	if p.grace == 40*time.Second && r.IntN(3) == 0 { // for longer than the grace
		p.mute, p.life, p.chaos = 3*p.grace, 5*time.Minute, 2*p.chaos
	}
	if p.grace == 40*time.Second && r.IntN(2) == 0 { // files wait for longer than the grace
		p.frozen, p.life, p.chaos, p.steps.crash = 3*p.grace/2, 5*time.Minute, 150*time.Second, 0
	}
	if r.IntN(12) == 0 { // files must not come into a table that is not the one they are for
		p.foreign, p.foreignEvery, p.steps.foreign = []string{"replace"}, 5*time.Second, 0.05
	}
	p.transactions = pick(r, 0, 0, 0.3, 0.7)
	p.compact = pick(r, 0, 2, 2, 3)
	p.mixed = !slices.Contains(p.foreign, "drop") && !slices.Contains(p.foreign, "replace")
	return p
}

// some draws up to n of all.
func some(r *rand.Rand, all []string, n int) []string {
	drawn := slices.Clone(all)
	r.Shuffle(len(drawn), func(i, j int) { drawn[i], drawn[j] = drawn[j], drawn[i] })
	drawn = drawn[:r.IntN(n+1)]
	slices.Sort(drawn)
	return drawn
}

// A tableWorld is one run of the simulation of tables.
type tableWorld struct {
	simulation
	plan tablePlan
	disk *recorder // the bucket as it is
	meta *metadata.Store
	// catalog is the catalog without faults, as other writers use it.
	catalog *catalogsql.Catalog
	locator *objectstore.Locator
	// files reads what ever was in the bucket, for who has others, or at the end.
	files     *files
	own       sync.Map            // keys that nodes, and no other writers, created or tried to
	histories map[string]*history // by name of the table; at the end

	sent    sync.WaitGroup // requests under way
	zombies sync.WaitGroup // lives whose node goes on without them

	nodes  []*tableNode
	topics []*tableTopic // by node

	healed      atomic.Bool // no more faults
	catalogAway atomic.Bool // for all
	// catalogHangs is what all calls of nodes to the catalog wait for, if it is not nil.
	catalogHangs atomic.Pointer[chan struct{}]
	frozen       atomic.Int64      // times that the catalog takes no data from nodes
	others       chan struct{}     // cap 1: one foreign writer at a time
	byOthers     map[string]string // guarded by others; what a foreign writer did, by metadata location
	known        atomic.Bool       // the registry knows the late schema
	ids          atomic.Int64      // of records
}

func newTableWorld(t *testing.T, seed uint64) *tableWorld {
	plan := newTablePlan(rand.New(rand.NewPCG(seed, 3)))
	if seed%4 == 1 && !plan.shared {
		plan.types = 1 + int(seed/4%2)
	}
	return plannedTableWorld(t, seed, plan)
}

func plannedTableWorld(t *testing.T, seed uint64, plan tablePlan) *tableWorld {
	w := &tableWorld{
		simulation: newSimulation(t, seed), plan: plan, disk: newRecorder(),
		others: make(chan struct{}, 1), byOthers: map[string]string{}, histories: map[string]*history{},
	}
	w.files = newFiles(w.failing, w.disk.all)
	var err error
	if w.meta, err = metadata.Open(w.failing, "sqlite::memory:", nil); err != nil {
		t.Fatal(err)
	}
	w.locator = locate(w.disk)
	if w.catalog, err = catalogsql.Open(w.failing, w.meta.DB(), w.locator, catalogsql.Config{Warehouse: "mem:///warehouse"}); err != nil {
		t.Fatal(err)
	}
	for _, s := range historyTables {
		if _, err := w.meta.DB().ExecContext(w.failing, s); err != nil {
			t.Fatal(err)
		}
	}
	for i := range w.plan.nodes {
		n := &tableNode{w: w, id: streamstore.NodeID(i + 1), r: rand.New(rand.NewPCG(seed, uint64(i+100)))}
		w.nodes = append(w.nodes, n)
		name := fmt.Sprintf("events_%d", i+1)
		topic := &tableTopic{name: name, table: table.Identifier{"default", name}, sent: map[int64]*sentRecord{}}
		for _, record := range []string{"Payment", "Refund"}[:w.plan.types] {
			topic.types = append(topic.types, tableRoute{record: record, table: table.Identifier{"default", fmt.Sprintf("%ss_%d", strings.ToLower(record), i+1)}})
		}
		w.topics = append(w.topics, topic)
	}
	for _, topic := range w.topics {
		if !w.plan.mixed {
			break
		}
		schema, err := tableSchema(narrowSchema)
		if err != nil {
			t.Fatal(err)
		}
		// The topic's own: one of somebody else is refused as a whole when the first record does not fit.
		if _, err := w.catalog.Create(w.failing, topic.table, schema, iceberg.Properties{"tabletopic.topic": topic.name}); err != nil {
			t.Fatal(err)
		}
	}
	if w.plan.shared {
		w.topics[1].table = w.topics[0].table
	}
	w.trace.add("world", "%+v", w.plan)
	return w
}

func locate(b objectstore.Bucket) *objectstore.Locator {
	l := objectstore.NewLocator(objectstore.S3Config{})
	l.Add(b)
	return l
}

// run lets nodes come and go, then heals everything and checks what is left.
func (w *tableWorld) run() {
	defer w.meta.Close()
	ctx, cancel := context.WithTimeout(w.failing, w.plan.chaos)
	defer cancel()
	var actors sync.WaitGroup
	for _, n := range w.nodes {
		actors.Go(func() { n.run(ctx) })
	}
	actors.Go(func() { w.actForeign(ctx) })
	actors.Go(func() { w.awayAtTimes(ctx) })
	actors.Go(func() { w.freezeAtTimes(ctx) })
	actors.Wait()
	w.zombies.Wait()
	if w.failing.Err() == nil {
		w.finish()
	}
	w.sent.Wait()
}

// awayAtTimes takes the catalog away from all nodes, for some time.
func (w *tableWorld) awayAtTimes(ctx context.Context) {
	if w.plan.away == 0 {
		return
	}
	r := rand.New(rand.NewPCG(w.seed, 4))
	for ctx.Err() == nil {
		d := time.Duration(r.Int64N(int64(time.Minute)))
		_ = wait(ctx, d)
		w.trace.add("world", "the catalog is away")
		w.catalogAway.Store(true)
		_ = wait(ctx, time.Duration(w.plan.away*float64(d)))
		w.trace.add("world", "the catalog is back")
		w.catalogAway.Store(false)
	}
}

// freezeAtTimes has files wait for the catalog for some time. Where nodes cannot write their logs
// at times, they do so together: see muteAtTimes.
func (w *tableWorld) freezeAtTimes(ctx context.Context) {
	r := rand.New(rand.NewPCG(w.seed, 6))
	for w.plan.frozen > 0 && w.plan.mute == 0 && wait(ctx, time.Duration(r.Int64N(int64(w.plan.frozen/2)))) == nil {
		thaw := w.freeze()
		_ = wait(ctx, time.Duration(r.Int64N(int64(w.plan.frozen))))
		thaw()
	}
}

// freeze has the catalog take no data until thaw.
func (w *tableWorld) freeze() (thaw func()) {
	w.trace.add("world", "the catalog takes no data")
	w.frozen.Add(1)
	return func() {
		w.trace.add("world", "the catalog takes data again")
		w.frozen.Add(-1)
	}
}

// A recorder is the bucket of a world, which keeps a copy of whatever was below the warehouse.
type recorder struct {
	*objectstore.Memory
	all *objectstore.Memory
}

func newRecorder() *recorder {
	return &recorder{objectstore.NewMemory(), objectstore.NewMemory()}
}

func (b *recorder) Put(ctx context.Context, key string, body ...[]byte) error {
	return b.record(ctx, b.Memory.Put(ctx, key, body...), key, body)
}

func (b *recorder) PutIfAbsent(ctx context.Context, key string, body ...[]byte) error {
	return b.record(ctx, b.Memory.PutIfAbsent(ctx, key, body...), key, body)
}

func (b *recorder) record(ctx context.Context, err error, key string, body [][]byte) error {
	if err != nil || !strings.HasPrefix(key, "warehouse/") {
		return err
	}
	return b.all.Put(ctx, key, body...)
}

// historyTables have the database note every change of a catalog pointer, in order.
var historyTables = []string{
	`CREATE TABLE pointers (n INTEGER PRIMARY KEY, name TEXT, old TEXT, new TEXT)`,
	`CREATE TRIGGER pointer_made AFTER INSERT ON iceberg_tables BEGIN
		INSERT INTO pointers (name, old, new) VALUES (NEW.table_name, '', NEW.metadata_location); END`,
	`CREATE TRIGGER pointer_moved AFTER UPDATE ON iceberg_tables BEGIN
		INSERT INTO pointers (name, old, new) VALUES (NEW.table_name, OLD.metadata_location, NEW.metadata_location); END`,
	`CREATE TRIGGER pointer_dropped AFTER DELETE ON iceberg_tables BEGIN
		INSERT INTO pointers (name, old, new) VALUES (OLD.table_name, OLD.metadata_location, ''); END`,
}

// A pointer is one change of what a catalog names.
type pointer struct{ old, new string }

func (w *tableWorld) pointers(name string) (all []pointer, err error) {
	rows, err := w.meta.DB().QueryContext(w.failing, `SELECT old, new FROM pointers WHERE name = $1 ORDER BY n`, name)
	if err != nil {
		return nil, err
	}
	defer func(rows *sql.Rows) { err = errors.Join(err, rows.Err(), rows.Close()) }(rows)
	for rows.Next() {
		var p pointer
		if err := rows.Scan(&p.old, &p.new); err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
}

// plainPages has data pages written as zstd frames of raw blocks. The encoders of arrow-go are
// in a pool of the process and hold channels, which belong to the simulation that made them.
func plainPages(t *testing.T) {
	codec, err := compress.GetCodec(compress.Codecs.Zstd)
	if err != nil {
		t.Fatal(err)
	}
	if _, twice := codec.(rawZstd); !twice {
		compress.RegisterCodec(compress.Codecs.Zstd, rawZstd{codec})
	}
	// The decoder that all share is made outside of simulations.
	if got := codec.Decode(nil, rawZstd{}.EncodeLevel(nil, []byte("warm"), 1)); string(got) != "warm" {
		t.Fatalf("a raw frame decodes to %q", got)
	}
}

type rawZstd struct{ compress.Codec }

func (c rawZstd) Encode(dst, src []byte) []byte { return c.EncodeLevel(dst, src, 0) }

func (c rawZstd) CompressBound(n int64) int64 { return n + 3*(n/(128<<10)+1) + 16 }

// NewReader reads all at once, for the same reason.
func (c rawZstd) NewReader(r io.Reader) io.ReadCloser {
	data, err := io.ReadAll(r)
	if err != nil {
		return io.NopCloser(errorReader{err})
	}
	return io.NopCloser(bytes.NewReader(c.Decode(nil, data)))
}

type errorReader struct{ err error }

func (r errorReader) Read([]byte) (int, error) { return 0, r.err }

// EncodeLevel appends a frame as RFC 8878 describes it: magic, a descriptor that says that a
// content size of 8 bytes follows and no dictionary, blocks of type raw.
func (c rawZstd) EncodeLevel(dst, src []byte, _ int) []byte {
	dst = append(dst[:0], 0x28, 0xb5, 0x2f, 0xfd, 0xe0)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(len(src)))
	for {
		block := src[:min(len(src), 128<<10)]
		src = src[len(block):]
		header := uint32(len(block)) << 3
		if len(src) == 0 {
			header |= 1
		}
		dst = append(dst, byte(header), byte(header>>8), byte(header>>16))
		if dst = append(dst, block...); len(src) == 0 {
			return dst
		}
	}
}
