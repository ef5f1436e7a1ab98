package broker

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/broker/group"
	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/security"
)

// request is one request: its header, and its body still as bytes.
//
// The header is version 1, or 2 if the body has flexible versions (KIP-482): then tags
// follow the client id. The client id is a plain nullable string in both.
type request struct {
	api      *api
	version  int16
	corr     int32
	clientID string // "" for none
	body     []byte
	frame    *frame // of which body is a part, until it was handled
	conn     *conn
	start    time.Time
	decoding int64         // of Broker.decMemory, until the handler has returned
	waited   time.Duration // of the handler, for what is not there yet
	mute     time.Duration // how long the connection is silent after the answer
}

// parseRequest reads the header of a request, at least 8 bytes. An error closes the connection.
func parseRequest(apis *apiTable, b []byte) (*request, error) {
	if len(b) < 8 {
		return nil, fmt.Errorf("request of %d bytes is shorter than its header", len(b))
	}
	key, version := int16(binary.BigEndian.Uint16(b)), int16(binary.BigEndian.Uint16(b[2:]))
	r := &request{api: apis.byKey(key), version: version, corr: int32(binary.BigEndian.Uint32(b[4:]))}
	if r.api == nil {
		return nil, fmt.Errorf("request of unknown or unsupported type %d (%s)", key, kmsg.NameForKey(key))
	}
	if version < r.api.min || version > r.api.max {
		if r.api.key == kmsg.ApiVersions && version > r.api.max {
			// The one exception (KIP-511): what follows may have a form that we do not
			// know, and the answer is of version 0.
			return r, nil
		}
		return nil, fmt.Errorf("%s v%d is not supported, only v%d to v%d", r.api.name(), version, r.api.min, r.api.max)
	}
	rest := b[8:]
	if len(rest) < 2 {
		return nil, errors.New("request header ends before the client id")
	}
	n := int(int16(binary.BigEndian.Uint16(rest)))
	rest = rest[2:]
	if n > len(rest) || n < -1 {
		return nil, fmt.Errorf("client id of %d bytes in a request with %d left", n, len(rest))
	}
	if n > 0 {
		r.clientID, rest = string(rest[:n]), rest[n:]
	}
	if version >= r.api.flexible {
		var err error
		if rest, err = skipTags(rest); err != nil {
			return nil, err
		}
	}
	r.body = rest
	return r, nil
}

// skipTags skips the tagged fields of KIP-482: a count, then tag, length and bytes of each.
func skipTags(b []byte) ([]byte, error) {
	errTags := errors.New("tags of the request header are malformed")
	uvarint := func() (uint32, bool) {
		v, n := binary.Uvarint(b)
		if n <= 0 || v > 1<<31-1 {
			return 0, false
		}
		b = b[n:]
		return uint32(v), true
	}
	count, ok := uvarint()
	for ; ok && count > 0; count-- {
		var size uint32
		if _, ok = uvarint(); !ok {
			break
		}
		if size, ok = uvarint(); !ok || int(size) > len(b) {
			return nil, errTags
		}
		b = b[size:]
	}
	if !ok {
		return nil, errTags
	}
	return b, nil
}

const (
	// decodeFactor is how much memory a decoded message may take per byte on the wire:
	// an array element of two bytes becomes a struct of strings, slices and tags.
	decodeFactor = 64
	// decodeMemory bounds what all requests in their handlers may have unfolded to. A
	// request that could take more has it alone.
	decodeMemory = 256 << 20
)

// decode parses the body into m; that of a Produce is read as [produceBody]. An error says that it is truncated or has lengths that
// cannot be. Bytes behind the end of the message are ignored, as Kafka does: librdkafka
// 2.16 sends three with a Metadata request for all topics.
func (r *request) decode(ctx context.Context, m kmsg.Request) error {
	weight := min(int64(len(r.body)+64)*decodeFactor, decodeMemory)
	if err := r.conn.b.decMemory.Acquire(ctx, weight); err != nil {
		return err
	}
	r.decoding = weight
	m.SetVersion(r.version)
	if err := m.ReadFrom(r.body); err != nil {
		return fmt.Errorf("a body of %d bytes is truncated or has impossible lengths: %w", len(r.body), err)
	}
	if len(r.body) > maxText && !invariant.Off("text-bounded") {
		if n, field := longText(reflect.ValueOf(m).Elem()); n > 0 {
			return fmt.Errorf("a text of %d bytes in %s: the longest are of %d", n, field, maxText)
		}
	}
	return nil
}

// maxText is the longest text of the protocol, in bytes. The compact encoding has room for longer ones, Kafka reads
// none: what names become, such as keys of __consumer_offsets, has 16 bits for the length.
const maxText = math.MaxInt16

// longText finds a text in a message, or in a part of it, that is longer than maxText; 0 if there is none.
func longText(v reflect.Value) (n int, field string) {
	switch v.Kind() {
	case reflect.String:
		if v.Len() > maxText {
			return v.Len(), ""
		}
	case reflect.Pointer:
		if !v.IsNil() {
			return longText(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if n, field = longText(v.Field(i)); n > 0 {
				return n, cmp.Or(field, v.Type().Field(i).Name)
			}
		}
	case reflect.Slice:
		switch v.Type().Elem().Kind() {
		case reflect.String, reflect.Struct, reflect.Pointer:
			for i := range v.Len() {
				if n, field = longText(v.Index(i)); n > 0 {
					return n, field
				}
			}
		}
	}
	return 0, ""
}

// waits gives back the memory for the request. A handler that waits for long, as long as a client
// says, calls it before, when it holds little of the body.
func (r *request) waits() {
	r.doneDecoding()
	if !invariant.Off("waiting-holds-no-frame") {
		r.body = nil
		r.frame.release()
	}
}

// doneDecoding gives back the memory for the decoded body.
func (r *request) doneDecoding() {
	if r.decoding > 0 {
		r.conn.b.decMemory.Release(r.decoding)
		r.decoding = 0
	}
}

// once leaves out what a request names again: it is answered once. Else a request of a few MiB that names one topic, or one
// group, again and again would be answered with many GiB.
func once[T any, K comparable](list []T, key func(T) K) []T {
	seen := make(map[K]bool, len(list))
	return slices.DeleteFunc(list, func(v T) bool { return again(seen, key(v)) })
}

// again tells whether something is seen that was seen before.
func again[K comparable](seen map[K]bool, k K) bool {
	before := seen[k]
	seen[k] = true
	return before && !invariant.Off("named-once")
}

// itself is the key of names.
func itself(name string) string { return name }

// askedPartition is a partition that a request names.
type askedPartition struct {
	topic string
	id    [16]byte // in place of the name, or zero
	index int32
}

// reply encodes resp as the answer to r.
func (r *request) reply(resp kmsg.Response) *answer {
	resp.SetVersion(r.version)
	return &answer{req: r, bufs: [][]byte{resp.AppendTo(r.appendHeader(nil))}}
}

// appendHeader appends room for the length and the response header: version 1 (with
// tags) for flexible messages, but always version 0 for ApiVersions, which a client
// sends before it knows what the broker can (KIP-511).
func (r *request) appendHeader(dst []byte) []byte {
	dst = append(dst, 0, 0, 0, 0)
	dst = binary.BigEndian.AppendUint32(dst, uint32(r.corr))
	if r.version >= r.api.flexible && r.api.key != kmsg.ApiVersions {
		dst = append(dst, 0)
	}
	return dst
}

// host returns the address of the peer without its port.
func (r *request) host() string { return hostOf(r.conn.peer) }

func hostOf(peer string) string {
	host := peer
	if i := strings.LastIndexByte(host, ':'); i >= 0 {
		host = host[:i]
	}
	return strings.Trim(host, "[]")
}

// member is the client as groups know it.
func (r *request) member() group.Client {
	access, client := r.conn.b.access, r.conn.session.client
	m := group.Client{ID: r.clientID, Host: "/" + r.host(), Principal: client.Principal, Rights: access.Version()}
	if access.Enabled() {
		m.Sees = func(topic string) bool { return access.Allows(client, opDescribe, onTopic, topic) }
	}
	return m
}

// may reports whether the client may do op to a resource. That it may not is written down.
func (r *request) may(op kmsg.ACLOperation, typ kmsg.ACLResourceType, name string) bool {
	return r.conn.b.access.Authorize(r.conn.session.client, op, typ, name)
}

// allowed is may for what is refused elsewhere, or allowed by another right: it writes nothing down.
func (r *request) allowed(op kmsg.ACLOperation, typ kmsg.ACLResourceType, name string) bool {
	return r.conn.b.access.Allows(r.conn.session.client, op, typ, name)
}

// sees reports whether the client may describe a resource, for answers that leave out what it
// may not see.
func (r *request) sees(typ kmsg.ACLResourceType, name string) bool {
	return r.conn.b.access.Allows(r.conn.session.client, kmsg.ACLOperationDescribe, typ, name)
}

// The operations and types that APIs ask for; docs/security.md has the table.
const (
	opRead           = kmsg.ACLOperationRead
	opWrite          = kmsg.ACLOperationWrite
	opCreate         = kmsg.ACLOperationCreate
	opDelete         = kmsg.ACLOperationDelete
	opAlter          = kmsg.ACLOperationAlter
	opDescribe       = kmsg.ACLOperationDescribe
	opDescribeConfig = kmsg.ACLOperationDescribeConfigs
	opAlterConfig    = kmsg.ACLOperationAlterConfigs
	opIdempotent     = kmsg.ACLOperationIdempotentWrite
	opClusterAction  = kmsg.ACLOperationClusterAction

	onTopic   = kmsg.ACLResourceTypeTopic
	onGroup   = kmsg.ACLResourceTypeGroup
	onCluster = kmsg.ACLResourceTypeCluster
	onTxn     = kmsg.ACLResourceTypeTransactionalId

	cluster = security.ClusterName
)
