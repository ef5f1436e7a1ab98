package parquetio

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/tabletopic/tabletopic/internal/lab"
)

// A column of few distinct texts takes about what it takes in a file by Arrow's C++ writer with
// the same compression, dictionary included: at most a tenth more.
func TestSizeOfRepeatedTexts(t *testing.T) {
	python := lab.Path(t, "python", "venv", "bin", "python")
	value, err := ParseAvro(NewRules(), one(`"string"`))
	if err != nil {
		t.Fatal(err)
	}
	table, err := noKafka.TableSchema(value)
	if err != nil {
		t.Fatal(err)
	}
	d, err := noKafka.Compile(value, table)
	if err != nil {
		t.Fatal(err)
	}
	w, err := NewTableWriter(table, specOf(0), "", WriterConfig{})
	if err != nil {
		t.Fatal(err)
	}
	const rows = 1_000_000
	texts := [][]byte{text("click on the buy button"), text("page view"), text("logout")}
	for i, x := 0, uint32(1); i < rows; i++ {
		x = (x*1103515245 + 12345) & 0x7fffffff
		if err := w.Append(d, texts[x>>16%3], RecordMeta{}); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(t.TempDir(), "ours.parquet")
	if err := w.Close(func(p Part) error { return os.WriteFile(path, bytes.Join(p.Body, nil), 0o600) }); err != nil {
		t.Fatal(err)
	}
	// The reference has the rows of our file, whatever they are.
	out, err := exec.CommandContext(t.Context(), python, "-c", `
import os, sys
import pyarrow.parquet as pq
ours = pq.read_table(sys.argv[1])
assert ours.num_rows == 1000000 and len(ours.column(0).unique()) == 3, ours
pq.write_table(ours.replace_schema_metadata(None), sys.argv[1] + ".ref", compression="zstd", compression_level=1)
print(os.path.getsize(sys.argv[1]), os.path.getsize(sys.argv[1] + ".ref"))
`, path).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	sizes := strings.Fields(string(out))
	ours, _ := strconv.Atoi(sizes[0])
	reference, _ := strconv.Atoi(sizes[1])
	if ours == 0 || ours*10 > reference*11 {
		t.Errorf("%d bytes, the reference takes %d", ours, reference)
	}
}
