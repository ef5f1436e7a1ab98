package share

import (
	"encoding/hex"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// What a release has written is read by later ones.
func TestSavedFormat(t *testing.T) {
	want := Saved{Start: 300, Ranges: []Range{{3, Available, 2}, {1, Acknowledged, 1}, {200, Archived, 5}}}
	const fixture = "d80403" + "030002" + "010201" + "c8010405"
	b, err := hex.DecodeString(fixture)
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseSaved(b)
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
	if now := hex.EncodeToString(want.Append(nil)); now != fixture {
		t.Errorf("is written as %s, was %s", now, fixture)
	}
	for n := range b {
		if _, err := ParseSaved(b[:n]); err == nil {
			t.Errorf("%d of %d bytes are read", n, len(b))
		}
	}
}
