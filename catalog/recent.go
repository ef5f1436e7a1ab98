package catalog

import (
	"math"
	"strings"
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/tabletopic/tabletopic/internal/invariant"
)

const (
	// recentBytes bounds what a Recent holds.
	recentBytes = 16 << 20
	// recentShare of it, at most, is one file.
	recentShare = 4
)

// Recent holds the manifests and manifest lists that this process wrote or read last, up to 16 MiB: what a
// commit reads is mostly what the one before wrote, and each request that it saves is 20 to 100 ms of a commit.
// No file ever changes under its name. Who must know what the store has, such as a check, does without.
type Recent struct {
	mu    sync.Mutex
	files *simplelru.LRU[string, []byte] // guarded by mu; nil while empty
	bytes int                            // guarded by mu
}

// Recently returns f with the files of r, which it reads from there, and leaves what it reads and writes.
func (f *IO) Recently(r *Recent) *IO { return &IO{ctx: f.ctx, locator: f.locator, recent: r} }

// get returns a file, which must not be changed. A nil Recent has none.
func (r *Recent) get(location string) (data []byte, ok bool) {
	if r == nil {
		return nil, false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.files == nil {
		return nil, false
	}
	return r.files.Get(location)
}

// put keeps a file that is in the store.
func (r *Recent) put(location string, data []byte) {
	if r == nil || !strings.HasSuffix(location, ".avro") || len(data) > recentBytes/recentShare {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.files == nil {
		var err error
		r.files, err = simplelru.NewLRU(math.MaxInt, func(_ string, data []byte) { r.bytes -= len(data) })
		invariant.Check(err == nil, "manifests of late: %v", err)
	}
	r.files.Remove(location)
	r.files.Add(location, data)
	for r.bytes += len(data); r.bytes > recentBytes; {
		r.files.RemoveOldest()
	}
}

// remove forgets a file that is to be deleted.
func (r *Recent) remove(location string) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.files != nil {
		r.files.Remove(location)
	}
}
