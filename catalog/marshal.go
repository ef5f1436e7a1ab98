package catalog

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
	"github.com/google/uuid"
)

// MarshalMetadata is json.Marshal of table metadata. Most of the text are snapshots, which
// encoding/json goes over four times; here it is once, so that a commit costs little more with
// many snapshots than with few.
func MarshalMetadata(m table.Metadata) ([]byte, error) {
	if m.Version() != 2 && m.Version() != 3 || m.LastPartitionSpecID() == nil {
		return json.Marshal(m) // version 1 has fields that the interface does not show
	}
	fields := metadataFields{
		FormatVersion:       m.Version(),
		UUID:                m.TableUUID(),
		Location:            m.Location(),
		LastUpdated:         m.LastUpdatedMillis(),
		LastColumnID:        m.LastColumnID(),
		Schemas:             m.Schemas(),
		CurrentSchema:       m.CurrentSchema().ID,
		Specs:               m.PartitionSpecs(),
		DefaultSpec:         m.DefaultPartitionSpec(),
		LastPartitionID:     m.LastPartitionSpecID(),
		Properties:          m.Properties(),
		SnapshotLog:         slices.Collect(m.SnapshotLogs()),
		MetadataLog:         slices.Collect(m.PreviousFiles()),
		SortOrders:          m.SortOrders(),
		DefaultSortOrder:    m.DefaultSortOrder(),
		Refs:                maps.Collect(m.Refs()),
		Statistics:          slices.Collect(m.Statistics()),
		PartitionStatistics: slices.Collect(m.PartitionStatistics()),
		EncryptionKeys:      slices.Collect(m.EncryptionKeys()),
		LastSequence:        m.LastSequenceNumber(),
	}
	if s := m.CurrentSnapshot(); s != nil {
		fields.CurrentSnapshot = &s.SnapshotID
	}
	var document any = fields
	if m.Version() == 3 {
		document = fieldsV3{fields, fields.CurrentSnapshot, m.NextRowID()}
	}
	head, err := json.Marshal(document)
	if err != nil {
		return nil, err
	}
	snapshots := m.Snapshots()
	if len(snapshots) == 0 {
		return head, nil
	}
	out := make([]byte, 0, len(head)+1<<10*len(snapshots))
	out = append(append(out, head[:len(head)-1]...), `,"snapshots":[`...)
	for i := range snapshots {
		if i > 0 {
			out = append(out, ',')
		}
		if out, err = appendSnapshot(out, &snapshots[i]); err != nil {
			return nil, err
		}
	}
	return append(out, "]}"...), nil
}

// metadataFields are the fields of table metadata, of versions 2 and 3, but its snapshots.
type metadataFields struct {
	FormatVersion       int                             `json:"format-version"`
	UUID                uuid.UUID                       `json:"table-uuid"`
	Location            string                          `json:"location"`
	LastSequence        int64                           `json:"last-sequence-number"`
	LastUpdated         int64                           `json:"last-updated-ms"`
	LastColumnID        int                             `json:"last-column-id"`
	Schemas             []*iceberg.Schema               `json:"schemas"`
	CurrentSchema       int                             `json:"current-schema-id"`
	Specs               []iceberg.PartitionSpec         `json:"partition-specs"`
	DefaultSpec         int                             `json:"default-spec-id"`
	LastPartitionID     *int                            `json:"last-partition-id"`
	Properties          iceberg.Properties              `json:"properties,omitempty"`
	CurrentSnapshot     *int64                          `json:"current-snapshot-id,omitempty"`
	SnapshotLog         []table.SnapshotLogEntry        `json:"snapshot-log,omitempty"`
	MetadataLog         []table.MetadataLogEntry        `json:"metadata-log,omitempty"`
	SortOrders          []table.SortOrder               `json:"sort-orders"`
	DefaultSortOrder    int                             `json:"default-sort-order-id"`
	Refs                map[string]table.SnapshotRef    `json:"refs,omitempty"`
	Statistics          []table.StatisticsFile          `json:"statistics,omitempty"`
	PartitionStatistics []table.PartitionStatisticsFile `json:"partition-statistics,omitempty"`
	EncryptionKeys      []table.EncryptionKey           `json:"encryption-keys,omitempty"`
}

// fieldsV3 has the fields that version 3 always has.
type fieldsV3 struct {
	metadataFields
	CurrentSnapshot *int64 `json:"current-snapshot-id"`
	NextRowID       int64  `json:"next-row-id"`
}

func appendSnapshot(dst []byte, s *table.Snapshot) ([]byte, error) {
	if s.ManifestList == "" || s.Summary != nil && len(s.Summary.Properties) == 0 { // of version 1, or odd
		text, err := json.Marshal(s)
		return append(dst, text...), err
	}
	number := func(name string, n *int64) {
		if n != nil {
			dst = strconv.AppendInt(append(dst, name...), *n, 10)
		}
	}
	number(`{"snapshot-id":`, &s.SnapshotID)
	number(`,"parent-snapshot-id":`, s.ParentSnapshotID)
	number(`,"sequence-number":`, &s.SequenceNumber)
	number(`,"timestamp-ms":`, &s.TimestampMs)
	dst = appendString(append(dst, `,"manifest-list":`...), s.ManifestList)
	if s.Summary != nil {
		dst = append(dst, `,"summary":{`...)
		properties := s.Summary.Properties
		keys := make([]string, 0, len(properties))
		for k := range properties {
			if k != "operation" || s.Summary.Operation == "" {
				keys = append(keys, k)
			}
		}
		slices.Sort(keys)
		if s.Summary.Operation != "" {
			dst = appendString(append(dst, `"operation":`...), string(s.Summary.Operation))
		}
		for _, k := range keys {
			if dst[len(dst)-1] != '{' {
				dst = append(dst, ',')
			}
			dst = appendString(append(appendString(dst, k), ':'), properties[k])
		}
		dst = append(dst, '}')
	}
	if s.SchemaID != nil {
		dst = strconv.AppendInt(append(dst, `,"schema-id":`...), int64(*s.SchemaID), 10)
	}
	number(`,"first-row-id":`, s.FirstRowID)
	number(`,"added-rows":`, s.AddedRows)
	return append(dst, '}'), nil
}

// appendString appends s as JSON has it.
func appendString(dst []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			text, _ := json.Marshal(s) // it never fails
			return append(dst, text...)
		}
	}
	return append(append(append(dst, '"'), s...), '"')
}
