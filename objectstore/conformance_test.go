package objectstore_test

import (
	"errors"
	"fmt"
	"net/url"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/tabletopic/tabletopic/internal/lab"
	"github.com/tabletopic/tabletopic/objectstore"
	"github.com/tabletopic/tabletopic/objectstore/objectstoretest"
)

func TestMemoryConformance(t *testing.T) {
	objectstoretest.Run(t, func(*testing.T) objectstore.Bucket { return objectstore.NewMemory() })
}

func TestDirConformance(t *testing.T) {
	objectstoretest.Run(t, func(t *testing.T) objectstore.Bucket {
		d, err := objectstore.OpenDir(vfs.Default, t.TempDir()+"/made/here")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		})
		return d
	})
}

// A wrapper without faults is not noticed.
func TestFaultyConformance(t *testing.T) {
	objectstoretest.Run(t, func(*testing.T) objectstore.Bucket {
		return objectstore.Observe(objectstore.NewFaulty(objectstore.NewMemory(), objectstore.Faults{}), &objectstore.Counter{})
	})
}

func TestS3Conformance(t *testing.T) {
	open := openVersitygw(t)
	var n atomic.Int64
	objectstoretest.Run(t, func(t *testing.T) objectstore.Bucket {
		return open(fmt.Sprintf("test %d/=", n.Add(1)))
	})
}

// Over TLS the body is not signed, and the server takes it.
func TestS3TLS(t *testing.T) {
	b := openVersitygwTLS(t)
	body := []byte("over TLS")
	if err := b.PutIfAbsent(t.Context(), "k", body[:3], body[3:]); err != nil {
		t.Fatal(err)
	}
	if err := b.PutIfAbsent(t.Context(), "k", body); !errors.Is(err, objectstore.ErrExists) {
		t.Fatalf("second create: %v, want %v", err, objectstore.ErrExists)
	}
	if got, err := b.Get(t.Context(), "k", 5, 3); err != nil || string(got) != "TLS" {
		t.Fatalf("get: %q, %v, want TLS", got, err)
	}
}

// openVersitygw starts an S3 server and returns a function that opens a prefix of it.
func openVersitygw(t testing.TB) func(prefix string) objectstore.Bucket {
	endpoint, access, secret := lab.Versitygw(t)
	setKeys(t, access, secret)
	return func(prefix string) objectstore.Bucket { return openS3(t, endpoint, prefix) }
}

func openVersitygwTLS(t testing.TB) objectstore.Bucket {
	endpoint, access, secret, certFile := lab.VersitygwTLS(t)
	setKeys(t, access, secret)
	t.Setenv("AWS_CA_BUNDLE", certFile)
	return openS3(t, endpoint, "tls")
}

func setKeys(t testing.TB, access, secret string) {
	t.Setenv("AWS_ACCESS_KEY_ID", access)
	t.Setenv("AWS_SECRET_ACCESS_KEY", secret)
}

func openS3(t testing.TB, endpoint, prefix string) objectstore.Bucket {
	b, err := objectstore.Open(t.Context(), "s3://bucket/"+prefix+"?region="+lab.Region+"&endpoint="+url.QueryEscape(endpoint))
	if err != nil {
		t.Fatal(err)
	}
	return b
}
