package metadata

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tabletopic/tabletopic/objectstore"
)

// registryModel changes schemas at random, and sees what a restore makes of the snapshots.
type registryModel struct {
	t       *testing.T
	s       *Store
	random  *rand.Rand
	bucket  *objectstore.Memory
	schemas int
}

func (m *registryModel) subject() string { return fmt.Sprint("s", m.random.IntN(40)) }

func (m *registryModel) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

// step makes one change.
func (m *registryModel) step() {
	ctx, u := m.t.Context(), subject(m.t, m.s, m.subject())
	var live, deleted []SubjectVersion
	for _, v := range u.Versions {
		if v.Deleted {
			deleted = append(deleted, v)
		} else {
			live = append(live, v)
		}
	}
	numbers := func(all []SubjectVersion) (n []int) {
		for _, v := range all {
			n = append(n, v.Version)
		}
		return n
	}
	switch what := m.random.IntN(20); {
	case what == 0 && len(live) > 0, what == 1 && len(deleted) > 0:
		versions := [][]SubjectVersion{live, deleted}[what]
		if err := m.s.DeleteVersions(ctx, u, numbers(versions), what == 1); !errors.Is(err, ErrReferenceExists) {
			m.must(err)
		}
	case what == 2:
		m.must(m.s.ChangeSubjectConfig(ctx, []string{"", u.Name}[m.random.IntN(2)], func(c *SubjectConfig) {
			*c = SubjectConfig{Compatibility: []string{"", "NONE", "FULL"}[m.random.IntN(3)]}
		}))
	case what == 3:
		m.must(m.s.PutCatalog(ctx, CatalogEntry{Name: fmt.Sprint("c", m.random.IntN(3)), Kind: "rest", Config: "{}"}))
	case what == 4: // as it is pruned
		_, err := m.s.writer.Exec(`DELETE FROM change_log WHERE seq <= (SELECT max(seq) FROM change_log) - $1`, 1+m.random.IntN(10))
		m.must(err)
	default:
		schema := Schema{Type: "AVRO", Text: fmt.Sprint(m.random.IntN(m.schemas + 5))} // there already, often
		m.schemas++
		if other := subject(m.t, m.s, m.subject()); len(other.Versions) > 0 && !other.Versions[0].Deleted {
			schema.References = []SchemaReference{{"x", other.Name, other.Versions[0].Version}}
		}
		if len(u.Versions) < 4 {
			_, err := m.s.RegisterSchema(ctx, u, 0, schema)
			m.must(err)
		}
	}
}

// restore loads the newest snapshot, which must be of now, and returns how many bases it has.
func (m *registryModel) restore() (bases int) {
	m.t.Helper()
	m.must(m.s.Durable(m.t.Context()))
	_, snapshots, err := lastSnapshot(m.t.Context(), m.bucket, 1)
	m.must(err)
	to, err := connect(newSQLite(m.t), nil, time.Now)
	m.must(err)
	defer to.Close()
	_, err = to.load(m.t.Context(), snapshots, generation{2, m.s.ClusterID(), newNonce()}, nil)
	m.must(err)
	if d := cmp.Diff(contents(m.t, to), contents(m.t, m.s)); d != "" {
		m.t.Fatalf("with %d bases (-restored +lost):\n%s", len(snapshots)-1, d)
	}
	return len(snapshots) - 1
}

// Whatever was registered, deleted and set: a snapshot and what it is a difference to are all of it, and
// though old snapshots are deleted at once, none that is needed.
func TestDifferencesAreTheWhole(t *testing.T) {
	eachEngine(t, func(t *testing.T, d database) {
		most := 0
		for seed := range uint64(differenceSeeds) {
			if d.name != sqlite.name && seed > 0 {
				break // all have one database there
			}
			t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
				if d.name == sqlite.name {
					d = newSQLite(t)
				}
				m := &registryModel{t: t, s: openStore(t, d, nil), random: rand.New(rand.NewPCG(seed, 0)), bucket: objectstore.NewMemory()}
				startBackup(t, m.s, m.bucket, BackupConfig{Interval: time.Hour, Keep: 1, leastBase: 1})
				for i := range 240 {
					m.step()
					if i%6 == 0 {
						most = max(most, m.restore())
					}
				}
			})
		}
		if most < 3 {
			t.Fatalf("%d bases at most: these are no differences to differences", most)
		}
	})
}

// A restore notices that a base is gone, or another one.
func TestRestoreRefusesOtherBases(t *testing.T) {
	ctx := t.Context()
	bucket := objectstore.NewMemory()
	s := openStore(t, newSQLite(t), nil)
	startBackup(t, s, bucket, BackupConfig{Interval: time.Hour, leastBase: 1})
	for i := range 6 {
		registerSchema(t, s, fmt.Sprint("s", i), fmt.Sprint(i))
	}
	key, snapshots, err := lastSnapshot(ctx, bucket, 1)
	if err != nil {
		t.Fatal(err)
	}
	info, _, err := parseSnapshotHeader(snapshots[len(snapshots)-1])
	if err != nil || len(info.bases) == 0 {
		t.Fatalf("%s: %+v, %v, want a difference", key, info, err)
	}
	base := snapshotKey(1, info.bases[0].number)
	other, err := bucket.Get(ctx, snapshotKey(1, info.bases[0].number-1), 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	if err := bucket.Put(ctx, base, other); err != nil {
		t.Fatal(err)
	}
	if _, _, err := lastSnapshot(ctx, bucket, 1); !errors.Is(err, errCorruptSnapshot) {
		t.Errorf("another snapshot in the place of a base: %v", err)
	}
	if err := bucket.Delete(ctx, base); err != nil {
		t.Fatal(err)
	}
	if _, _, err := lastSnapshot(ctx, bucket, 1); !errors.Is(err, objectstore.ErrNotFound) {
		t.Errorf("without a base: %v", err)
	}
}
