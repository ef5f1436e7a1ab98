package sim

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tabletopic/tabletopic/coordinator"
)

// A failure is a way in which a catalog does not do what it is asked.
type failure struct {
	name    string
	records bool     // it is noticed with records only
	says    []string // one of these is in the message
	begin   func(w *tableWorld) (end func())
}

var failures = []failure{
	{"away", false, []string{errCatalogAway.Error()}, func(w *tableWorld) func() {
		w.catalogAway.Store(true)
		return func() { w.catalogAway.Store(false) }
	}},
	{"hangs", false, []string{"the catalog has not answered a call for", errNoAnswer.Error()}, func(w *tableWorld) func() {
		gate := make(chan struct{})
		w.catalogHangs.Store(&gate)
		return func() { w.catalogHangs.Store(nil); close(gate) }
	}},
	{"takes no data", true, []string{"the catalog is read-only", "503"}, (*tableWorld).freeze},
}

// A catalog that goes away, hangs or refuses makes its table degraded, in the catalog's own words, within
// two target lags, whenever it begins and whether records come or not; and the table is well again when
// the catalog is. In virtual time, so to the moment.
func TestFailingCatalogIsToldWithinTwoLags(t *testing.T) {
	plainPages(t)
	for _, f := range failures {
		for _, lag := range []time.Duration{time.Second, 10 * time.Second} {
			for _, records := range []bool{false, true} {
				if f.records && !records {
					continue
				}
				t.Run(fmt.Sprintf("%s/lag=%s/records=%t", f.name, lag, records), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						w := plannedTableWorld(t, 1, tablePlan{nodes: 1, partitions: 2, lag: lag, rewind: "pause", grace: 20 * time.Minute})
						w.simulate(24*time.Hour, func() {
							defer w.meta.Close()
							if err := w.tells(f, lag, records); err != nil {
								w.fail("%v", err)
							}
						})
					})
				})
			}
		}
	}
}

// tells has the catalog fail and heal ten times, at moments of their own.
func (w *tableWorld) tells(f failure, lag time.Duration, records bool) error {
	l := w.nodes[0].newLife()
	if err := l.open(); err != nil {
		return err
	}
	defer l.end()
	topic, _ := l.set.Topic(l.topic().name)
	l.append(l.ctx, topic.ID, 0, narrow)
	if err := l.caughtUp(); err != nil {
		return err
	}
	if records {
		stop := make(chan struct{})
		defer func() { close(stop); l.clients.Wait() }()
		l.clients.Go(func() {
			for i := int32(0); ; i = 1 - i {
				select {
				case <-stop:
					return
				case <-time.After(lag / 4):
					l.append(l.ctx, topic.ID, i, narrow)
				}
			}
		})
	}
	// becomes waits until the table is in a state, and returns after which time.
	becomes := func(want coordinator.TableState, most time.Duration, says ...string) (time.Duration, error) {
		step := lag / 100
		for begin := time.Now(); ; {
			s, _ := l.coordinators.Status(topic.ID, time.Now(), coordinator.Work{})
			took := time.Since(begin)
			if s.State == want {
				for _, words := range says {
					if strings.Contains(s.Ailment.Message, words) {
						return took, nil
					}
				}
				if len(says) == 0 {
					return took, nil
				}
			}
			if took > most+step {
				return took, fmt.Errorf("after %v the table is %s (%s), want %s (%s)", took, s.State, s.Ailment.Message, want, strings.Join(says, ", or "))
			}
			if err := wait(l.ctx, step); err != nil {
				return took, err
			}
		}
	}
	r := rand.New(rand.NewPCG(w.seed, 7))
	var longest time.Duration
	for range 10 {
		if _, err := becomes(coordinator.TableOK, patience); err != nil {
			return err
		}
		_ = wait(l.ctx, time.Duration(r.Int64N(int64(3*lag))))
		end := f.begin(w)
		took, err := becomes(coordinator.TableDegraded, 2*lag, f.says...)
		if err == nil {
			_ = wait(l.ctx, time.Duration(r.Int64N(int64(10*lag))))
			_, err = becomes(coordinator.TableDegraded, 0, f.says...) // it does not change its mind
		}
		end()
		if err != nil {
			return err
		}
		longest = max(longest, took)
	}
	w.t.Logf("told after %v at most", longest)
	if _, err := becomes(coordinator.TableOK, patience); err != nil {
		return err
	}
	return l.caughtUp()
}
