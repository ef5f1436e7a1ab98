package metadata

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

// A Lease is a role that one holder has at a time.
type Lease struct {
	Name    string
	Holder  string
	Epoch   int64 // rises with each new holder, and when an expired lease is taken again
	Expires time.Time
}

// AcquireLease takes the lease for holder until ttl from now, or renews it. If another holds
// it, that one's lease is returned with ok false. What a lease guards must check the epoch
// itself: clocks of nodes differ, and a holder may be slow to notice that it lost.
func (s *Store) AcquireLease(ctx context.Context, name, holder string, ttl time.Duration) (l Lease, ok bool, err error) {
	l, ok = Lease{Name: name, Holder: holder, Epoch: 1}, true
	err = s.update(ctx, fmt.Sprintf("acquire lease %s", name), func(t *tx) error {
		now := s.now()
		l.Expires = time.UnixMilli(now.Add(ttl).UnixMilli())
		var held Lease
		var expires int64
		err := t.QueryRowContext(ctx, `SELECT holder, epoch, expires FROM lease WHERE name = $1`, name).Scan(&held.Holder, &held.Epoch, &expires)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		live := err == nil && expires > now.UnixMilli()
		switch {
		case live && held.Holder != holder:
			l, ok = Lease{name, held.Holder, held.Epoch, time.UnixMilli(expires)}, false
			return nil
		case live:
			l.Epoch = held.Epoch
		default:
			l.Epoch = held.Epoch + 1
		}
		if _, err := t.exec(`INSERT INTO lease (name, holder, epoch, expires) VALUES ($1, $2, $3, $4)
			ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, epoch = excluded.epoch, expires = excluded.expires`,
			name, holder, l.Epoch, l.Expires.UnixMilli()); err != nil {
			return err
		}
		if live {
			return nil // a renewal is no news
		}
		return t.change(ChangeLease, name)
	})
	if err != nil {
		return Lease{}, false, err
	}
	return l, ok, nil
}

// ReleaseLease lets others take the lease at once, if l is still the one held.
func (s *Store) ReleaseLease(ctx context.Context, l Lease) error {
	return s.update(ctx, fmt.Sprintf("release lease %s", l.Name), func(t *tx) error {
		n, err := t.exec(`UPDATE lease SET expires = 0 WHERE name = $1 AND holder = $2 AND epoch = $3`, l.Name, l.Holder, l.Epoch)
		if err != nil || n == 0 {
			return err
		}
		return t.change(ChangeLease, l.Name)
	})
}
