package objectstore

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// maxClients bounds the buckets that a Locator keeps clients of.
const maxClients = 256

// Locator finds the Bucket of absolute locations, which is how table metadata names files.
type Locator struct {
	s3 S3Config // Bucket is not used

	mu      sync.Mutex
	roots   []root            // guarded by mu
	clients map[string]Bucket // guarded by mu; by name
	files   Bucket            // guarded by mu; of the whole file system, nil until needed

	wrap func(Bucket) Bucket
}

type root struct {
	location string // normal form, with a slash at its end
	bucket   Bucket
	lent     bool
}

// NewLocator returns a Locator whose s3:// locations are reached by cfg, whatever the
// bucket, with one client per bucket. Locators of stores with other endpoints or
// credentials share connections if their HTTPClient is one.
func NewLocator(cfg S3Config) *Locator {
	if cfg.HTTPClient == nil {
		cfg.HTTPClient = NewHTTPClient()
	}
	return &Locator{s3: cfg, clients: make(map[string]Bucket), wrap: func(b Bucket) Bucket { return b }}
}

// Wrap makes l pass the buckets that it opens itself through wrap, to observe them for
// instance. It must come before the first Resolve.
func (l *Locator) Wrap(wrap func(Bucket) Bucket) { l.wrap = wrap }

// Add lets b answer for the locations below its own: wrapped stores, Memory and a Dir
// that is open already are found this way. It does nothing if b has no location.
func (l *Locator) Add(b Bucket) {
	location := strings.TrimSuffix(Location(b, "x"), "x")
	if location == "" {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.roots = append(l.roots, root{location: location, bucket: b})
}

// Lend is Add of a bucket that somebody else names, such as a catalog that gives out keys for
// a table. It takes the place of an earlier one of the same location, but never answers for
// what a bucket of Add does, or for more than that: our own data is reached by our own keys.
func (l *Locator) Lend(b Bucket) {
	location := strings.TrimSuffix(Location(b, "x"), "x")
	if location == "" {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, r := range l.roots {
		switch {
		case !r.lent && (strings.HasPrefix(location, r.location) || strings.HasPrefix(r.location, location)):
			return
		case r.lent && r.location == location:
			l.roots[i].bucket = b
			return
		}
	}
	l.roots = append(l.roots, root{location: location, bucket: b, lent: true})
}

// Resolve returns the bucket and the key of a location: s3://bucket/key (s3a:// and s3n://
// are the same), file:///abs/path, file:/abs/path or /abs/path, mem:///key. Nothing is
// percent-decoded: a location with %20 names a file with %20.
func (l *Locator) Resolve(ctx context.Context, location string) (Bucket, string, error) {
	normal, err := normalLocation(location)
	if err != nil {
		return nil, "", err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	var best root
	for _, r := range l.roots {
		if strings.HasPrefix(normal, r.location) && len(r.location) > len(best.location) {
			best = r
		}
	}
	var key string
	switch {
	case best.bucket != nil:
		key = normal[len(best.location):]
	case strings.HasPrefix(normal, "file:///"):
		if l.files == nil {
			l.files = l.wrap(openBeside(vfs.Default, "/"))
		}
		best.bucket, key = l.files, strings.TrimPrefix(normal, "file:///")
	case strings.HasPrefix(normal, "s3://"):
		var bucket string
		bucket, key, _ = strings.Cut(strings.TrimPrefix(normal, "s3://"), "/")
		if best.bucket, err = l.client(ctx, bucket); err != nil {
			return nil, "", err
		}
	default:
		return nil, "", fmt.Errorf("location %s is in no store that is open here", location)
	}
	if err := CheckKey(key); err != nil {
		return nil, "", fmt.Errorf("location %s: %w", location, err)
	}
	return best.bucket, key, nil
}

// client returns the client of a bucket. The caller holds l.mu.
func (l *Locator) client(ctx context.Context, bucket string) (Bucket, error) {
	if c, ok := l.clients[bucket]; ok {
		return c, nil
	}
	if err := checkBucketName(bucket); err != nil {
		return nil, err
	}
	cfg := l.s3
	cfg.Bucket = bucket
	c, err := NewS3(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if len(l.clients) >= maxClients {
		clear(l.clients)
	}
	l.clients[bucket] = l.wrap(c)
	return l.clients[bucket], nil
}

// normalLocation gives the one spelling of a location that Location has. A path alone is that of a
// local file: so other writers name theirs.
func normalLocation(location string) (string, error) {
	if strings.HasPrefix(location, "/") {
		location = "file://" + location
	}
	scheme, rest, _ := strings.Cut(location, ":")
	switch scheme {
	case "s3", "s3a", "s3n", "mem":
		if !strings.HasPrefix(rest, "//") {
			return "", fmt.Errorf("location %s: want %s://…", location, scheme)
		}
		if scheme == "mem" {
			return location, nil
		}
		return "s3:" + rest, nil
	case "file":
		path, err := filePath(location)
		if err != nil {
			return "", fmt.Errorf("location %w", err)
		}
		for strings.Contains(path, "//") { // the same file, to every system
			path = strings.ReplaceAll(path, "//", "/")
		}
		return "file://" + path, nil
	}
	return "", fmt.Errorf("location %q: want s3://bucket/key or file:///absolute/path", location)
}
