package parquetio

import (
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/tabletopic/tabletopic/parquetio/parquetiotest"
)

// Random messages of random schemas come back from the file as they went in, however they
// were encoded, and Google's decoder reads the bytes as the same message. A truncated copy of
// each record between them leaves no trace, if both refuse it.
func TestRandomProtobufRoundTrips(t *testing.T) {
	for seed := range uint64(protobufSeeds) {
		r := rand.New(rand.NewPCG(seed, 2))
		schema := parquetiotest.RandomProtobuf(r)
		value, err := ParseProtobuf(NewRules(), schema, "")
		if err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, schema)
		}
		if len(value.Fields) == 0 {
			continue
		}
		md := value.writer.(protobufWriter).message
		rig := rigOf(t, value)
		var want []any
		for range 30 {
			m := dynamicpb.NewMessage(md)
			parquetiotest.FillMessage(r, m, 5)
			payload := parquetiotest.EncodeProtobuf(r, m)
			again := dynamicpb.NewMessage(md)
			if err := proto.Unmarshal(payload, again); err != nil {
				t.Fatalf("seed %d: Google's decoder: %v\n%s", seed, err, schema)
			}
			want = append(want, parquetiotest.ProtobufRow(m))
			if diff := cmp.Diff(want[len(want)-1], any(parquetiotest.ProtobufRow(again)), cmp.AllowUnexported(parquetiotest.InJSON{})); diff != "" {
				t.Fatalf("seed %d: Google's decoder reads another message: %s\n%s", seed, diff, schema)
			}
			if len(payload) > 0 {
				cut := payload[:r.IntN(len(payload))]
				short := dynamicpb.NewMessage(md)
				theirs, ours := proto.Unmarshal(cut, short), rig.builder.Append(rig.decoder, cut, RecordMeta{})
				if (theirs == nil) != (ours == nil) {
					t.Fatalf("seed %d: %x: error %v, Google's decoder: %v\n%s", seed, cut, ours, theirs, schema)
				}
				if ours == nil {
					want = append(want[:len(want)-1], parquetiotest.ProtobufRow(short), want[len(want)-1])
				}
			}
			if err := rig.builder.Append(rig.decoder, payload, RecordMeta{}); err != nil {
				t.Fatalf("seed %d: %v\n%s", seed, err, schema)
			}
		}
		got := rig.rows()
		for i := range got {
			if diff := cmp.Diff(parquetiotest.Resolve(want[i], any(got[i])), any(got[i])); diff != "" {
				t.Fatalf("seed %d, row %d: %s\n%s", seed, i, diff, schema)
			}
		}
	}
}
