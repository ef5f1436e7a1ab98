package worker

import (
	"encoding/binary"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/record"
)

// A letterOrigin is what the headers of a dead letter say of it.
type letterOrigin struct {
	cause, detail     string
	schema            int64 // -1 if none
	topic             string
	id                uuid.UUID
	partition         int64
	offset, timestamp int64
}

// letterHeaders are the headers of a dead letter before those of its record. Those after the first
// letterColumns-1 may be missing.
var letterHeaders = []string{partition.HeaderSourceTopicID, partition.HeaderSourcePartition, partition.HeaderSourceOffset,
	HeaderCause, HeaderDetail, HeaderTopic, HeaderTimestamp, HeaderSchemaID, HeaderRecord}

// letterColumns is how many columns of a letter's row come from its headers.
const letterColumns = 8

// parseOrigin reads the headers of a dead letter; rest are those of its record. A record that is no
// letter has no origin, and all its headers are its own.
func parseOrigin(headers []record.Header) (o letterOrigin, rest []record.Header, ok bool) {
	own := map[string]string{}
	n := 0
	for ; n < len(headers) && n < len(letterHeaders) && headers[n].Key == letterHeaders[n]; n++ {
		own[letterHeaders[n]] = string(headers[n].Value)
	}
	var errs [5]error
	o.id, errs[0] = uuid.Parse(own[partition.HeaderSourceTopicID])
	o.partition, errs[1] = strconv.ParseInt(own[partition.HeaderSourcePartition], 10, 32)
	o.offset, errs[2] = strconv.ParseInt(own[partition.HeaderSourceOffset], 10, 64)
	o.timestamp, errs[3] = strconv.ParseInt(own[HeaderTimestamp], 10, 64)
	if o.schema = -1; own[HeaderSchemaID] != "" {
		o.schema, errs[4] = strconv.ParseInt(own[HeaderSchemaID], 10, 32)
	}
	o.cause, o.detail, o.topic = own[HeaderCause], own[HeaderDetail], own[HeaderTopic]
	if n < letterColumns-1 || errs != [5]error{} {
		return letterOrigin{}, headers, false
	}
	return o, headers[n:], true
}

// appendLetterRow appends a record of a dead letter topic as [control.LetterSchema] describes it, in
// Avro's binary encoding.
func appendLetterRow(dst []byte, r *record.Record) []byte {
	null := func() { dst = append(dst, 0) }
	number := func(v int64) { dst = binary.AppendVarint(append(dst, 2), v) }
	blob := func(v []byte) {
		if v == nil {
			null()
			return
		}
		dst = append(binary.AppendVarint(append(dst, 2), int64(len(v))), v...)
	}
	text := func(v string) { blob([]byte(strings.ToValidUTF8(v, "\uFFFD"))) }
	o, headers, ok := parseOrigin(r.Headers)
	if !ok {
		dst = append(dst, make([]byte, letterColumns)...)
	} else {
		text(o.cause)
		text(o.detail)
		if o.schema < 0 {
			null()
		} else {
			number(o.schema)
		}
		text(o.topic)
		text(o.id.String())
		number(o.partition)
		number(o.offset)
		number(o.timestamp)
	}
	blob(r.Key)
	blob(r.Value)
	if len(headers) > 0 {
		dst = binary.AppendVarint(dst, int64(len(headers)))
		for _, h := range headers {
			key := strings.ToValidUTF8(h.Key, "\uFFFD")
			dst = append(binary.AppendVarint(dst, int64(len(key))), key...)
			blob(h.Value)
		}
	}
	return append(dst, 0)
}
