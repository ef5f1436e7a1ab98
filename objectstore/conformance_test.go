package objectstore_test

import (
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

// openVersitygw starts an S3 server and returns a function that opens a prefix of it.
func openVersitygw(t testing.TB) func(prefix string) objectstore.Bucket {
	endpoint, access, secret := lab.Versitygw(t)
	t.Setenv("AWS_ACCESS_KEY_ID", access)
	t.Setenv("AWS_SECRET_ACCESS_KEY", secret)
	return func(prefix string) objectstore.Bucket {
		b, err := objectstore.Open(t.Context(), "s3://bucket/"+prefix+"?region="+lab.Region+"&endpoint="+url.QueryEscape(endpoint))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
}
