package catalog

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"strconv"
	"strings"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
	"github.com/google/uuid"
)

// DataLocation is the location of a new data file of t, by the table's own
// write.data.path if it is set.
func DataLocation(t *table.Table, name string) string {
	return location(t.Location(), t.Properties(), "write.data.path", "data", name)
}

// metadataLocation is the location of a new manifest, manifest list or metadata file of the table
// at root.
func metadataLocation(root string, props iceberg.Properties, name string) string {
	return location(root, props, "write.metadata.path", "metadata", name)
}

func location(root string, props iceberg.Properties, property, folder, name string) string {
	dir := props.Get(property, strings.TrimSuffix(root, "/")+"/"+folder)
	return strings.TrimSuffix(dir, "/") + "/" + name
}

// NewMetadata is the metadata of a new, unpartitioned table, with the field ids of schema
// as they are. The property format-version, 2 if it is missing, chooses the version.
func NewMetadata(schema *iceberg.Schema, location string, properties iceberg.Properties) (table.Metadata, error) {
	version, rest, err := splitFormatVersion(properties)
	if err != nil {
		return nil, err
	}
	builder, err := table.NewMetadataBuilder(version)
	if err != nil {
		return nil, err
	}
	// The builder writes ids into the schema that it gets.
	unsorted := table.UnsortedSortOrder
	own := iceberg.NewSchemaWithIdentifiers(0, schema.IdentifierFieldIDs, schema.Fields()...)
	for _, step := range []func() error{
		func() error { return builder.SetUUID(uuid.New()) },
		func() error { return builder.AddSchema(own) },
		func() error { return builder.SetCurrentSchemaID(-1) },
		func() error { return builder.AddPartitionSpec(iceberg.UnpartitionedSpec, true) },
		func() error { return builder.SetDefaultSpecID(-1) },
		func() error { return builder.AddSortOrder(&unsorted) },
		func() error { return builder.SetDefaultSortOrderID(-1) },
		func() error { return builder.SetLoc(location) },
		func() error { return builder.SetProperties(rest) },
	} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return builder.Build()
}

func splitFormatVersion(properties iceberg.Properties) (int, iceberg.Properties, error) {
	version := 2
	rest := iceberg.Properties{}
	for k, v := range properties {
		if k != table.PropertyFormatVersion {
			rest[k] = v
			continue
		}
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 || n > 3 {
			return 0, nil, fmt.Errorf("format-version %q: 1, 2 or 3 is wanted", v)
		}
		version = n
	}
	return version, rest, nil
}

// ParseMetadata reads table metadata, also such as iceberg-go refuses: fields of a newer
// format version in an older one are left out, as other readers do.
func ParseMetadata(data []byte) (table.Metadata, error) {
	m, err := table.ParseMetadataBytes(data)
	if errors.Is(err, table.ErrInvalidMetadataFormatVersion) {
		if stripped, ok := StripNewerFields(data); ok {
			return table.ParseMetadataBytes(stripped)
		}
	}
	return m, err
}

// newer are the metadata fields that came with format version 3. Some catalogs send them
// in version 2 as well; the specification lets readers ignore what they do not know.
var newer = []string{"next-row-id", "encryption-keys"}

// StripNewerFields removes fields of format version 3 from a JSON document that is table
// metadata of an older version, or that holds it as "metadata". It reports whether
// there was something to remove.
func StripNewerFields(document []byte) ([]byte, bool) {
	if !bytes.Contains(document, []byte(`"next-row-id"`)) && !bytes.Contains(document, []byte(`"encryption-keys"`)) {
		return document, false
	}
	var object map[string]json.RawMessage
	if json.Unmarshal(document, &object) != nil {
		return document, false
	}
	changed := false
	if inner, ok := object["metadata"]; ok {
		object["metadata"], changed = StripNewerFields(inner)
	}
	if version, err := strconv.Atoi(string(bytes.TrimSpace(object["format-version"]))); err == nil && version < 3 {
		for _, field := range newer {
			if _, ok := object[field]; ok {
				delete(object, field)
				changed = true
			}
		}
	}
	if !changed {
		return document, false
	}
	out, err := json.Marshal(object)
	return out, err == nil
}

// ReadMetadata reads a metadata file, compressed by gzip if its name says so.
func ReadMetadata(fs *IO, location string) (table.Metadata, error) {
	data, err := fs.ReadFile(location)
	if err != nil {
		return nil, err
	}
	if strings.HasSuffix(location, ".gz.metadata.json") || strings.HasSuffix(location, ".metadata.json.gz") {
		if data, err = unzip(data, maxMetadata); err != nil {
			return nil, fmt.Errorf("read %s: %w", location, err)
		}
	}
	m, err := ParseMetadata(data)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", location, err)
	}
	return m, nil
}

// maxMetadata bounds what a compressed metadata file may hold: several hundred thousand snapshots.
const maxMetadata = 256 << 20

func unzip(data []byte, limit int) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	out, err := io.ReadAll(io.LimitReader(r, int64(limit)+1))
	if err == nil && len(out) > limit {
		err = fmt.Errorf("it holds more than %d bytes of metadata: expire snapshots of the table", limit)
	}
	return out, err
}

// WriteMetadata creates the metadata file that follows previous, "" for a new table, and
// returns its location: <version>-<attempt>.metadata.json.
func WriteMetadata(fs *IO, m table.Metadata, previous string, attempt uuid.UUID) (string, error) {
	data, err := MarshalMetadata(m)
	if err != nil {
		return "", err
	}
	if zips(m.Properties()) {
		var zipped bytes.Buffer
		w := gzip.NewWriter(&zipped)
		if _, err := w.Write(data); err != nil {
			return "", err
		}
		if err := w.Close(); err != nil {
			return "", err
		}
		data = zipped.Bytes()
	}
	location := metadataFile(m.Location(), m.Properties(), previous, attempt)
	return location, fs.WriteFile(location, data)
}

// metadataFile is the location of the metadata file that follows previous.
func metadataFile(root string, props iceberg.Properties, previous string, attempt uuid.UUID) string {
	suffix := ".metadata.json"
	if zips(props) {
		suffix = ".gz.metadata.json"
	}
	return metadataLocation(root, props, fmt.Sprintf("%05d-%s%s", metadataVersion(previous)+1, attempt, suffix))
}

// zips tells whether the metadata files of a table are compressed.
func zips(props iceberg.Properties) bool {
	return props.Get(table.MetadataCompressionKey, "none") == table.MetadataCompressionCodecGzip
}

var metadataName = regexp.MustCompile(`^v?(\d+)[-.]`)

// metadataVersion is the number in the name of a metadata file, -1 if there is none.
func metadataVersion(location string) int {
	match := metadataName.FindStringSubmatch(path.Base(location))
	if match == nil {
		return -1
	}
	n, err := strconv.Atoi(match[1])
	if err != nil {
		return -1
	}
	return n
}
