package broker

import (
	"math"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// fetchSession is what a client fetches again and again (KIP-227): its requests name only
// what changes, and its answers have only partitions with records, errors or offsets that
// moved.
//
// A session belongs to the connection that began it, to the goroutine that handles its
// requests, and ends with it: a client that comes back on another connection is told that
// its session is not known, and begins anew. So there is one session of a connection, none
// is evicted, and no one else's request can name it.
type fetchSession struct {
	b          *Broker
	id         int32
	epoch      int32 // that the next request must have
	byID       bool  // requests name topics by id, from version 13 on
	partitions map[sessionKey]*sessionPartition
	order      []*sessionPartition // those that gave records last come last
}

// sessionKey names a partition as requests do: either by the name or by the id of its topic.
type sessionKey struct {
	topic string
	id    [16]byte
	index int32
}

type sessionPartition struct {
	sessionKey
	want      kmsg.FetchRequestTopicPartition
	told      bool  // an answer had the partition, without error
	high      int64 // the offsets in it
	stable    int64
	start     int64
	forgotten bool
}

const finalEpoch = -1 // of a request that ends its session; with id 0 it has none

// enterSession finds out which session a request belongs to, nil if it has none, and makes
// req name all that the session fetches.
func (c *conn) enterSession(req *kmsg.FetchRequest) (*fetchSession, error) {
	s := c.fetches
	switch {
	case req.SessionEpoch == finalEpoch || req.SessionEpoch == 0:
		if s != nil && req.SessionID == s.id {
			c.endSession()
		}
		if req.SessionEpoch == finalEpoch || len(req.Topics) == 0 {
			return nil, nil
		}
		return c.beginSession(req), nil
	case s == nil || req.SessionID != s.id:
		return nil, kerr.FetchSessionIDNotFound
	case req.SessionEpoch != s.epoch:
		return nil, kerr.InvalidFetchSessionEpoch
	case s.byID != (req.Version >= 13):
		return nil, kerr.FetchSessionTopicIDError
	}
	if s.epoch++; s.epoch == math.MaxInt32 {
		s.epoch = 1
	}
	if !s.change(req) {
		c.endSession()
		return nil, kerr.FetchSessionIDNotFound
	}
	req.Topics = s.topics()
	return s, nil
}

// beginSession begins the session of a connection. If there is no room for it there is none,
// and the client names all its partitions each time.
func (c *conn) beginSession(req *kmsg.FetchRequest) *fetchSession {
	c.endSession()
	s := &fetchSession{b: c.b, id: c.b.newSessionID(), epoch: 1, byID: req.Version >= 13, partitions: map[sessionKey]*sessionPartition{}}
	if !s.change(req) {
		s.release()
		return nil
	}
	c.fetches = s
	req.Topics = s.topics() // each partition once
	return s
}

func (c *conn) endSession() {
	if c.fetches != nil {
		c.fetches.release()
		c.fetches = nil
	}
}

// newSessionID is never 0, which stands for none.
func (b *Broker) newSessionID() int32 {
	for {
		if id := b.lastSession.Add(1) & math.MaxInt32; id != 0 {
			return id
		}
	}
}

// release gives back the room of the session.
func (s *fetchSession) release() {
	s.b.sessionRoom.Release(int64(len(s.partitions)))
	s.b.m.sessionPartitions.Sub(float64(len(s.partitions)))
	s.partitions, s.order = nil, nil
}

// change applies what a request adds, changes and forgets. It reports whether there is room
// for it.
func (s *fetchSession) change(req *kmsg.FetchRequest) bool {
	for _, t := range req.Topics {
		for _, want := range t.Partitions {
			want.UnknownTags = kmsg.Tags{} // which would hold the frame
			key := sessionKey{t.Topic, t.TopicID, want.Partition}
			if p := s.partitions[key]; p != nil {
				p.want = want
				continue
			}
			if !s.b.sessionRoom.TryAcquire(1) {
				return false
			}
			s.b.m.sessionPartitions.Inc()
			p := &sessionPartition{sessionKey: key, want: want}
			s.partitions[key] = p
			s.order = append(s.order, p)
		}
	}
	for _, t := range req.ForgottenTopics {
		for _, index := range t.Partitions {
			if p := s.partitions[sessionKey{t.Topic, t.TopicID, index}]; p != nil {
				p.forgotten = true
				delete(s.partitions, p.sessionKey)
				s.b.sessionRoom.Release(1)
				s.b.m.sessionPartitions.Dec()
			}
		}
	}
	s.order = slices.DeleteFunc(s.order, func(p *sessionPartition) bool { return p.forgotten })
	return true
}

// topics returns the session as a request would name it, in order.
func (s *fetchSession) topics() []kmsg.FetchRequestTopic {
	var topics []kmsg.FetchRequestTopic
	all := make([]kmsg.FetchRequestTopicPartition, 0, len(s.order))
	for i, p := range s.order {
		all = append(all, p.want)
		if last := len(topics) - 1; i > 0 && topics[last].Topic == p.topic && topics[last].TopicID == p.id {
			topics[last].Partitions = topics[last].Partitions[:len(topics[last].Partitions)+1]
			continue
		}
		topics = append(topics, kmsg.FetchRequestTopic{Topic: p.topic, TopicID: p.id, Partitions: all[i : i+1 : cap(all)]})
	}
	return topics
}

// answer leaves in topics, which are those of the session in order, the partitions that the
// client must hear of, and moves those with records behind the others.
func (s *fetchSession) answer(topics []fetchTopic) []fetchTopic {
	var out []fetchTopic
	var first, last []*sessionPartition
	next := 0
	for _, t := range topics {
		var changed []fetchPartition
		for _, fp := range t.partitions {
			p := s.order[next]
			next++
			if fp.size > 0 {
				last = append(last, p)
			} else {
				first = append(first, p)
			}
			if p.news(&fp) {
				changed = append(changed, fp)
			}
		}
		if len(changed) > 0 {
			t.partitions = changed
			out = append(out, t)
		}
	}
	s.order = append(first, last...)
	return out
}

// news reports whether an answer must have the partition, and notes that it has.
func (p *sessionPartition) news(fp *fetchPartition) bool {
	if fp.err != nil {
		p.told = false // so that the client hears that it is over
		return true
	}
	r := &fp.res
	changed := fp.size > 0 || !p.told || p.high != r.HighWatermark || p.stable != r.LastStableOffset || p.start != r.LogStartOffset
	p.told, p.high, p.stable, p.start = true, r.HighWatermark, r.LastStableOffset, r.LogStartOffset
	return changed
}
