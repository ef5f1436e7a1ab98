package objectstore

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tabletopic/tabletopic/internal/invariant"
)

// probeRacers create one key at the same time.
const probeRacers = 8

// Probe proves that b creates conditionally, which is all that stands between a node that
// was declared dead and the log: PutIfAbsent works, does not work twice, and of several
// at the same time one does. It removes what it wrote.
func Probe(ctx context.Context, b Bucket) error {
	base := "probe/" + rand.Text()
	once, raced := base+"/once", base+"/raced"
	defer func() {
		// Also when ctx has ended. Leftovers are harmless: nobody reads them.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		_ = b.Delete(ctx, once, raced)
	}()
	if err := probeTwice(ctx, b, once); err != nil {
		return fmt.Errorf("probe of the object store: %w", err)
	}
	if err := probeRace(ctx, b, raced); err != nil {
		return fmt.Errorf("probe of the object store: %w", err)
	}
	return nil
}

func probeTwice(ctx context.Context, b Bucket, key string) error {
	first, second := []byte(rand.Text()), []byte(rand.Text())
	err := b.PutIfAbsent(ctx, key, first)
	if err != nil && !errors.Is(err, ErrExists) { // that would be our own, its answer lost
		return err
	}
	err = b.PutIfAbsent(ctx, key, second)
	if err != nil && !errors.Is(err, ErrExists) {
		return err
	}
	twice := err == nil
	got, err := b.Get(ctx, key, 0, -1)
	if err != nil {
		return err
	}
	if (twice || !bytes.Equal(got, first)) && !invariant.Off("probe-create-twice") {
		return notConditional("a second create of one key was not refused")
	}
	return nil
}

func probeRace(ctx context.Context, b Bucket, key string) error {
	var (
		wg    sync.WaitGroup
		nonce [probeRacers][]byte
		errs  [probeRacers]error
	)
	for i := range nonce {
		nonce[i] = []byte(rand.Text())
		wg.Go(func() { errs[i] = b.PutIfAbsent(ctx, key, nonce[i]) })
	}
	wg.Wait()
	got, err := b.Get(ctx, key, 0, -1)
	if err != nil {
		return errors.Join(append(errs[:], err)...)
	}
	for i, err := range errs {
		// Not every winner knows it, but who thinks so must be right.
		if err == nil && !bytes.Equal(got, nonce[i]) && !invariant.Off("probe-race") {
			return notConditional("two creates of one key at the same time both succeeded")
		}
		if err != nil && !errors.Is(err, ErrExists) {
			return err
		}
	}
	return nil
}

func notConditional(what string) error {
	return fmt.Errorf("%s: the store does not honour If-None-Match on PUT, so a node that was replaced could overwrite the log. "+
		"Use a store that does (AWS S3, MinIO, Ceph and others in a current version), or a local directory by file:///path", what)
}
