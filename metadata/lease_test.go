package metadata

import (
	"errors"
	"testing"
	"time"
)

// One holder at a time; whoever takes a lease anew has a higher epoch than all before.
func TestLease(t *testing.T) {
	eachEngine(t, func(t *testing.T, d database) {
		c := newClock()
		s := openStore(t, d, c)
		take := func(holder string, wantHolder string, wantEpoch int64) Lease {
			t.Helper()
			l, ok, err := s.AcquireLease(t.Context(), "controller", holder, time.Minute)
			if err != nil || l.Holder != wantHolder || l.Epoch != wantEpoch || ok != (holder == wantHolder) {
				t.Fatalf("%s asks: got %+v, %t, %v, want %s with epoch %d", holder, l, ok, err, wantHolder, wantEpoch)
			}
			return l
		}
		take("a", "a", 1)
		take("b", "a", 1)
		c.advance(50 * time.Second)
		take("a", "a", 1) // renewed
		c.advance(50 * time.Second)
		take("b", "a", 1)
		c.advance(10 * time.Second)
		second := take("b", "b", 2)
		c.advance(2 * time.Minute)
		third := take("b", "b", 3) // it was free for a while
		for range 2 {
			if err := s.ReleaseLease(t.Context(), second); err != nil { // not the one held
				t.Fatal(err)
			}
		}
		take("a", "b", 3)
		if err := s.ReleaseLease(t.Context(), third); err != nil {
			t.Fatal(err)
		}
		take("a", "a", 4)
	})
}

func TestCatalogs(t *testing.T) {
	eachEngine(t, func(t *testing.T, d database) {
		s := openStore(t, d, nil)
		for _, c := range []CatalogEntry{{Name: "b", Kind: "rest", Config: "{}"}, {Name: "a", Kind: "glue", Config: "{}"}, {Name: "b", Kind: "hive", Config: `{"x":1}`}} {
			if err := s.PutCatalog(t.Context(), c); err != nil {
				t.Fatal(err)
			}
		}
		all, err := s.Catalogs(t.Context())
		if err != nil || len(all) != 2 || all[0].Name != "a" || all[1].Kind != "hive" || all[1].Config != `{"x":1}` || all[1].Changed.IsZero() {
			t.Fatalf("got %+v, %v", all, err)
		}
		if one, err := s.Catalog(t.Context(), "b"); err != nil || one != all[1] {
			t.Fatalf("got %+v, %v, want %+v", one, err, all[1])
		}
		if err := s.DeleteCatalog(t.Context(), "b"); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Catalog(t.Context(), "b"); !errors.Is(err, ErrCatalogNotExist) {
			t.Fatalf("got %v, want %v", err, ErrCatalogNotExist)
		}
		if err := s.DeleteCatalog(t.Context(), "b"); !errors.Is(err, ErrCatalogNotExist) {
			t.Fatalf("got %v, want %v", err, ErrCatalogNotExist)
		}
	})
}
