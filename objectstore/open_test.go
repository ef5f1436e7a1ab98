package objectstore

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"
)

func TestParseS3URL(t *testing.T) {
	for _, c := range []struct {
		url                              string
		bucket, prefix, region, endpoint string
		pathStyle                        bool
		err                              string
	}{
		{url: "s3://b", bucket: "b"},
		{url: "s3://b/", bucket: "b"},
		{url: "s3://b/p/q/?region=eu-north-1", bucket: "b", prefix: "p/q", region: "eu-north-1"},
		{url: "s3://b/a%20b", bucket: "b", prefix: "a%20b"},
		{url: "s3://b?endpoint=http://127.0.0.1:9000", bucket: "b", endpoint: "http://127.0.0.1:9000", pathStyle: true},
		{url: "s3://b?endpoint=https%3A%2F%2Fs3.example&path-style=false", bucket: "b", endpoint: "https://s3.example"},
		{url: "s3://b?path-style=true", bucket: "b", pathStyle: true},
		{url: "s3://", err: "no bucket"},
		{url: "s3://key:secret@b/p", err: "credentials do not belong"},
		{url: "s3://b c/p", err: "no bucket name"},
		{url: "s3://b//p", err: "prefix"},
		{url: "s3://b?zone=a", err: `unknown parameter "zone"`},
		{url: "s3://b?region=", err: "wants one value"},
		{url: "s3://b?region=a&region=b", err: "wants one value"},
		{url: "s3://b?path-style=maybe", err: "true or false"},
		{url: "s3://b?endpoint=127.0.0.1:9000", err: "want http://"},
		{url: "gs://b", err: "want s3://"},
	} {
		cfg, prefix, err := ParseS3URL(c.url)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: %v, want one that says %q", c.url, err, c.err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.url, err)
		}
		got := []any{cfg.Bucket, prefix, cfg.Region, cfg.Endpoint, cfg.PathStyle}
		if diff := cmp.Diff([]any{c.bucket, c.prefix, c.region, c.endpoint, c.pathStyle}, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.url, diff)
		}
	}
}

func TestOpen(t *testing.T) {
	dir := t.TempDir() + "/with space/a%20b"
	for _, url := range []string{"mem:", "mem://", "file://" + dir, "file:" + dir} {
		b, err := Open(t.Context(), url)
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		if err := b.Put(t.Context(), "k", []byte("x")); err != nil {
			t.Errorf("%s: %v", url, err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "k")); err != nil {
		t.Errorf("path was decoded: %v", err)
	}
	for url, text := range map[string]string{
		"":                    "want mem:",
		"/plain":              "want mem:",
		"http://x":            "want mem:",
		"mem:x":               "takes nothing",
		"file://host/p":       "want an absolute path",
		"file:rel":            "want an absolute path",
		"file:///p?sync=none": "takes no parameters",
		"s3://b?x=1":          "unknown parameter",
	} {
		if _, err := Open(t.Context(), url); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v, want one that says %q", url, err, text)
		}
	}
}

// Every location that a store gives leads back to it, and those of others to the right key.
func TestLocator(t *testing.T) {
	l := NewLocator(S3Config{Region: "x", Endpoint: "http://127.0.0.1:1", Credentials: staticCredentials("a", "b")})
	root := t.TempDir()
	dir := openDir(t, vfs.Default, root)
	mem := NewMemory()
	warehouse, err := Prefix(NewFaulty(dir, Faults{}), "warehouse")
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range []Bucket{dir, mem, warehouse} {
		l.Add(b)
		for _, key := range []string{"k", "a b/day=1/%20/ü"} {
			got, gotKey, err := l.Resolve(t.Context(), Location(b, key))
			if err != nil || got != b || gotKey != key {
				t.Errorf("%s is %v %q, %v, want %q", Location(b, key), got, gotKey, err, key)
			}
		}
	}
	for _, c := range []struct{ location, bucket, key string }{
		{"file:" + root + "/x", "file://" + root, "x"},
		{"file:///" + root + "//x/y", "file://" + root, "x/y"},
		{"file:" + root + "/warehouse/x", "file://" + root + "/warehouse", "x"},
		{"file:" + root + "-other/x", "file://", strings.TrimPrefix(root, "/") + "-other/x"},
		{"file:///else/a%20b", "file://", "else/a%20b"},
		{root + "/x", "file://" + root, "x"}, // other writers name local files so
		{"/else//a b", "file://", "else/a b"},
		{"s3://b1/k/l", "s3://b1", "k/l"},
		{"s3a://b1/k", "s3://b1", "k"},
		{"s3n://b2/a b", "s3://b2", "a b"},
	} {
		b, key, err := l.Resolve(t.Context(), c.location)
		if err != nil || key != c.key || Location(b, "z") != c.bucket+"/z" {
			t.Errorf("%s is %q, %v, want %s %q", c.location, key, err, c.bucket, c.key)
		}
	}
	one, _, _ := l.Resolve(t.Context(), "s3://b1/x")
	two, _, _ := l.Resolve(t.Context(), "s3a://b1/y")
	if one != two {
		t.Error("one bucket has two clients")
	}
	for _, bad := range []string{"", "k", "/", "/a/../b", "http://x/y", "s3:b/k", "s3://b", "s3://b/", "s3:///k", "s3://b/a//b", "file:x", "file:///a/../b", "file:///"} {
		if _, _, err := l.Resolve(t.Context(), bad); err == nil {
			t.Errorf("%q was resolved", bad)
		}
	}
	if _, _, err := NewLocator(S3Config{}).Resolve(t.Context(), "mem:///k"); err == nil {
		t.Error("mem: was resolved without a store")
	}
}

// What is written by a location of no known store can be read by the system's own means.
func TestLocatorWritesPlainFiles(t *testing.T) {
	path := t.TempDir() + "/new/a%20b=c"
	b, key, err := NewLocator(S3Config{}).Resolve(t.Context(), "file:"+path)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Put(t.Context(), key, []byte("x")); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); string(got) != "x" {
		t.Errorf("file holds %q, %v", got, err)
	}
}

// Whatever a foreign table names: no panic, a valid key, and the same key again by way of
// the store's own spelling.
func FuzzLocator(f *testing.F) {
	for _, s := range []string{"s3://b/k", "s3a://b/a b/%20", "file:/x//y", "file://localhost/x", "mem:///k", "s3://", "file:", ":", "s3://b/../k"} {
		f.Add(s)
	}
	l := NewLocator(S3Config{Region: "x", Endpoint: "http://127.0.0.1:1", Credentials: staticCredentials("a", "b")})
	l.Add(NewMemory())
	f.Fuzz(func(t *testing.T, location string) {
		b, key, err := l.Resolve(t.Context(), location)
		if err != nil {
			return
		}
		if err := CheckKey(key); err != nil {
			t.Fatalf("%q: %v", location, err)
		}
		again, sameKey, err := l.Resolve(t.Context(), Location(b, key))
		if err != nil || sameKey != key || Location(again, key) != Location(b, key) {
			t.Fatalf("%q is %q, and %q is %q, %v", location, key, Location(b, key), sameKey, err)
		}
	})
}
