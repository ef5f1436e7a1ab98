package schemaregistry

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/objectstore"
)

// benchSchema is a schema as of a small event; n makes it another one.
func benchSchema(n int) Request {
	return Request{Schema: fmt.Sprintf(`{"type":"record","name":"Click","namespace":"shop","fields":[{"name":"id","type":"long"},{"name":"at","type":{"type":"long","logicalType":"timestamp-micros"}},`+
		`{"name":"user","type":["null","string"],"default":null},{"name":"page","type":"string"},{"name":"f%d","type":["null","double"],"default":null}]}`, n)}
}

// BenchmarkLookUp asks for schemas by id that are in the cache: in a call, and over one connection
// whose client sends requests without waiting for answers. With -cpu 1 the client is on the same core.
func BenchmarkLookUp(b *testing.B) {
	r := newRegistry(b)
	const schemas = 100
	for i := range schemas {
		if _, _, err := r.Register(b.Context(), fmt.Sprintf("subject-%d", i), benchSchema(i), false); err != nil {
			b.Fatal(err)
		}
	}
	h := r.Handler()
	var requests []*http.Request
	for i := range schemas {
		requests = append(requests, httptest.NewRequest("GET", fmt.Sprintf("/schemas/ids/%d", i+1), nil))
	}
	b.Run("call", func(b *testing.B) {
		b.ReportAllocs()
		n := 0
		for b.Loop() {
			w := nullResponse{header: http.Header{}}
			h.ServeHTTP(&w, requests[n%schemas])
			if n++; w.status != http.StatusOK {
				b.Fatal(w.status)
			}
		}
		b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "lookups/s")
	})
	b.Run("socket", func(b *testing.B) {
		s := serve(b, r)
		c, err := net.Dial("tcp", s.Listener.Addr().String())
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close()
		// Pipelined, so that this end costs little beside what it measures.
		const batch = 100
		in, out := bufio.NewReaderSize(c, 1<<16), bufio.NewWriterSize(c, 1<<16)
		n := 0
		for b.Loop() {
			for i := range batch {
				fmt.Fprintf(out, "GET /schemas/ids/%d HTTP/1.1\r\nHost: a\r\n\r\n", (n+i)%schemas+1)
			}
			if err := out.Flush(); err != nil {
				b.Fatal(err)
			}
			for range batch {
				resp, err := http.ReadResponse(in, nil)
				if err != nil || resp.StatusCode != http.StatusOK {
					b.Fatal(resp, err)
				}
				io.Copy(io.Discard, resp.Body)
				n++
			}
		}
		b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "lookups/s")
	})
}

type nullResponse struct {
	header http.Header
	status int
}

func (w *nullResponse) Header() http.Header         { return w.header }
func (w *nullResponse) WriteHeader(status int)      { w.status = status }
func (w *nullResponse) Write(b []byte) (int, error) { return len(b), nil }

// BenchmarkRegister registers new schemas: each in a subject of its own from eight clients at once; from 32
// while a directory keeps snapshots of the metadata, for which each waits; and
// as the next versions of one subject with 1,000 versions from one client.
func BenchmarkRegister(b *testing.B) {
	subjects := func(b *testing.B, clients int, r *Registry) {
		var n, failed atomic.Int64
		for b.Loop() {
			const each = 50
			var g sync.WaitGroup
			for range clients {
				g.Go(func() {
					for range each {
						i := int(n.Add(1))
						if _, _, err := r.Register(b.Context(), fmt.Sprintf("subject-%d", i), benchSchema(i), false); err != nil {
							failed.Add(1)
						}
					}
				})
			}
			g.Wait()
		}
		if failed.Load() > 0 {
			b.Fatalf("%d of %d failed", failed.Load(), n.Load())
		}
		b.ReportMetric(float64(n.Load())/b.Elapsed().Seconds(), "registrations/s")
	}
	b.Run("subjects", func(b *testing.B) { subjects(b, 8, newRegistry(b)) })
	b.Run("snapshots", func(b *testing.B) {
		r := newRegistry(b)
		bucket, err := objectstore.Open(b.Context(), "file:"+b.TempDir())
		if err != nil {
			b.Fatal(err)
		}
		backup, err := r.store.Backup(b.Context(), bucket, metadata.BackupConfig{})
		if err != nil {
			b.Fatal(err)
		}
		subjects(b, 32, r)
		if err := backup.Close(b.Context()); err != nil {
			b.Fatal(err)
		}
	})
	b.Run("versions", func(b *testing.B) {
		r := newRegistry(b)
		next := func(i int) {
			if _, _, err := r.Register(b.Context(), "subject", benchSchema(i), false); err != nil {
				b.Fatal(err)
			}
		}
		n := 0
		for ; n < 1000; n++ {
			next(n)
		}
		b.ResetTimer()
		done := 0
		for b.Loop() {
			next(n + done)
			done++
		}
		b.ReportMetric(float64(done)/b.Elapsed().Seconds(), "registrations/s")
	})
}
