package broker

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/internal/invariant"
)

// produceBody reads the body of a Produce request, a partition at a time. From version 9 on it has compact lengths and
// tags (KIP-482), before that those of 2 or 4 bytes:
//
//	transactional id, nullable    from version 3 on
//	acks                          2 bytes
//	timeout                       4 bytes, ms
//	topics                        a count, and so often
//	  topic                       its name, or from version 13 on the 16 bytes of its id
//	  partitions                  a count, and so often
//	    partition                 4 bytes
//	    records, nullable         a record batch
//	    tags
//	  tags
//	tags
//
// That it is not taken apart whole is what makes a large request cheap: of one that a client sends with a batch of a
// megabyte for each of a hundred partitions, one batch is in memory at a time.
type produceBody struct {
	version int16
	at      []byte // of what follows, what is in memory
	left    int64  // bytes of what follows

	conn   *conn         // where the rest of what follows comes from, if frame has one
	frame  *frame        // of which at is a part
	stream bool          // some of the request comes only while it is handled
	waited time.Duration // for that
	places int           // topics and partitions so far
}

// produceHead is what a Produce request begins with.
type produceHead struct {
	transactionalID *string
	acks            int16
	timeout         time.Duration
}

const (
	// maxProduceResults is how many topics and partitions a Produce request may have: each has a result in the answer.
	maxProduceResults = 1 << 17
	// produceResultBytes is about what a result takes in memory.
	produceResultBytes = 256
	// producePlaces is for how many results memory is reserved at a time, with that of the request.
	producePlaces = 1 << 10
)

// streamed is how large a request is of which [frame.rest] may be read by its handler. Clients that send batches of 1 MB,
// as most do at most, to one partition at a time stay below: theirs is read while the one before it is handled.
const streamed = 1 << 20

// streams reports whether the handler of a request, of which data is the beginning, reads the rest of it. That is so for a
// Produce of no transaction: the coordinator of one is asked about all partitions before the first is written.
func (c *conn) streams(data []byte) bool {
	if invariant.Off("produce-streams") {
		return false
	}
	r, err := parseRequest(c.b.apis, data)
	if err != nil || r.api.key != kmsg.Produce {
		return false
	}
	body := produceBody{version: r.version, at: r.body, left: int64(len(r.body))}
	head, err := body.head()
	return err == nil && head.transactionalID == nil
}

func newProduceBody(r *request) *produceBody {
	return &produceBody{version: r.version, at: r.body, left: int64(len(r.body)) + r.frame.rest, conn: r.conn, frame: r.frame, stream: r.frame.rest > 0}
}

func (p *produceBody) flexible() bool { return p.version >= 9 }

// next returns the next n bytes, which are valid until the next call.
func (p *produceBody) next(n int) ([]byte, error) {
	if int64(n) > p.left || n < 0 {
		return nil, fmt.Errorf("a body with %d bytes left is truncated or has impossible lengths", p.left)
	}
	if n > len(p.at) {
		began := time.Now()
		data, err := p.conn.readOn(p.frame, p.at, int64(n))
		p.waited += time.Since(began)
		if err != nil {
			return nil, err
		}
		p.at = data
	}
	b := p.at[:n:n]
	p.at, p.left = p.at[n:], p.left-int64(n)
	return b, nil
}

func (p *produceBody) int16() (int16, error) {
	b, err := p.next(2)
	if err != nil {
		return 0, err
	}
	return int16(binary.BigEndian.Uint16(b)), nil
}

func (p *produceBody) int32() (int32, error) {
	b, err := p.next(4)
	if err != nil {
		return 0, err
	}
	return int32(binary.BigEndian.Uint32(b)), nil
}

func (p *produceBody) uvarint() (uint32, error) {
	v := uint64(0)
	for shift := 0; shift < 35; shift += 7 {
		b, err := p.next(1)
		if err != nil {
			return 0, err
		}
		v |= uint64(b[0]&0x7f) << shift
		if b[0] < 0x80 && v < 1<<32 {
			return uint32(v), nil
		}
	}
	return 0, errors.New("a body has a length of more than 32 bits")
}

// length returns the length of a text of up to 32 KiB (size 2), of records, or of an array (size 4); −1 for null.
func (p *produceBody) length(size int) (int, error) {
	if p.flexible() {
		n, err := p.uvarint()
		return int(n) - 1, err
	}
	if size == 2 {
		n, err := p.int16()
		return int(n), err
	}
	n, err := p.int32()
	return int(n), err
}

// count returns how many elements an array has. Each has at least so many bytes.
func (p *produceBody) count(least int) (int, error) {
	n, err := p.length(4)
	if err == nil && int64(n)*int64(least) > p.left {
		err = fmt.Errorf("a body with %d bytes left has an array of %d", p.left, n)
	}
	return max(n, 0), err
}

// place counts a topic or a partition, which has a place in the answer.
func (p *produceBody) place() error {
	if p.places++; p.places > maxProduceResults {
		return fmt.Errorf("a Produce request has more than %d topics and partitions", maxProduceResults)
	}
	if p.places%producePlaces == 0 && p.conn != nil {
		return p.conn.reserve(p.frame, producePlaces*produceResultBytes)
	}
	return nil
}

// text returns the next n bytes, which are a text.
func (p *produceBody) text(n int) (string, error) {
	if n > maxText {
		return "", fmt.Errorf("a text of %d bytes: the longest are of %d", n, maxText)
	}
	b, err := p.next(n)
	return string(b), err
}

// tags skips tagged fields: Produce has none that mean something.
func (p *produceBody) tags() error {
	if !p.flexible() {
		return nil
	}
	n, err := p.uvarint()
	for ; n > 0 && err == nil; n-- {
		if _, err = p.uvarint(); err != nil {
			break
		}
		var size uint32
		if size, err = p.uvarint(); err == nil {
			_, err = p.next(int(size))
		}
	}
	return err
}

func (p *produceBody) head() (h produceHead, err error) {
	if p.version >= 3 {
		n, err := p.length(2)
		if err != nil {
			return h, err
		}
		if n >= 0 {
			id, err := p.text(n)
			if err != nil {
				return h, err
			}
			h.transactionalID = &id
		}
	}
	if h.acks, err = p.int16(); err != nil {
		return h, err
	}
	ms, err := p.int32()
	h.timeout = time.Duration(ms) * time.Millisecond
	return h, err
}

// each reads what follows the head. It calls topic for each topic, which has so many partitions, and then partition for each
// of these. The bytes of the records are valid until partition returns. An error of its own says
// that the body is malformed, or that the rest of it did not come.
func (p *produceBody) each(topic func(t kmsg.ProduceRequestTopic), partition func(index int32, records []byte)) error {
	topics, err := p.count(3)
	for ; topics > 0 && err == nil; topics-- {
		var t kmsg.ProduceRequestTopic
		var partitions int
		if t, partitions, err = p.topic(); err != nil {
			return err
		}
		topic(t)
		for ; partitions > 0; partitions-- {
			at, err := p.next(4)
			if err != nil {
				return err
			}
			index := int32(binary.BigEndian.Uint32(at))
			if err := p.place(); err != nil {
				return err
			}
			n, err := p.length(4)
			if err != nil {
				return err
			}
			records, err := p.next(max(n, 0))
			if err != nil {
				return err
			}
			partition(index, records)
			if err := p.tags(); err != nil {
				return err
			}
		}
		err = p.tags()
	}
	if err != nil {
		return err
	}
	return p.tags()
}

// topic reads a topic, up to its partitions.
func (p *produceBody) topic() (t kmsg.ProduceRequestTopic, partitions int, err error) {
	if err := p.place(); err != nil {
		return t, 0, err
	}
	if p.version >= 13 {
		id, err := p.next(len(t.TopicID))
		if err != nil {
			return t, 0, err
		}
		t.TopicID = [16]byte(id)
	} else {
		n, err := p.length(2)
		if err != nil {
			return t, 0, err
		}
		if t.Topic, err = p.text(n); err != nil {
			return t, 0, err
		}
	}
	partitions, err = p.count(5)
	return t, partitions, err
}
