package parquetio

import (
	"fmt"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
)

// A leaf is one Parquet column: the array of its values, and what lies around it.
type leaf struct {
	array arrow.Array
	path  []step // from the top-level column to the leaf
}

type step struct {
	array    arrow.Array
	nullable bool
	offsets  []int32 // of lists and maps
}

// leaves appends the leaves of an array, in the order of the Parquet schema.
func leaves(out []leaf, path []step, a arrow.Array, nullable bool) ([]leaf, error) {
	if e, ok := a.(array.ExtensionArray); ok {
		a = e.Storage()
	}
	if a.Data().Offset() != 0 {
		return nil, fmt.Errorf("write batch: arrays with an offset are not supported")
	}
	s := step{array: a, nullable: nullable}
	path = append(slices.Clip(path), s)
	var err error
	switch a := a.(type) {
	case *array.Struct:
		for i, f := range a.DataType().(*arrow.StructType).Fields() {
			if out, err = leaves(out, path, a.Field(i), f.Nullable); err != nil {
				return nil, err
			}
		}
		return out, nil
	case *array.Map:
		path[len(path)-1].offsets = a.Offsets()
		t := a.DataType().(*arrow.MapType)
		if out, err = leaves(out, path, a.Keys(), false); err != nil {
			return nil, err
		}
		return leaves(out, path, a.Items(), t.ItemField().Nullable)
	case *array.List:
		path[len(path)-1].offsets = a.Offsets()
		return leaves(out, path, a.ListValues(), a.DataType().(*arrow.ListType).ElemField().Nullable)
	}
	return append(out, leaf{a, path}), nil
}

// A leveler works out the levels of leaves, with buffers that it uses again.
type leveler struct {
	def, rep, def2, rep2 []int16
	starts, starts2      []int32
}

// levels returns the definition and repetition levels of a leaf (Parquet format, "Nested
// Encoding"), nil where the schema has none, good until the next call. It builds them from
// the leaf outwards.
func (l *leveler) levels(f leaf) (def, rep []int16) {
	maxDef, maxRep := int16(0), int16(0)
	for _, s := range f.path {
		if s.nullable {
			maxDef++
		}
		if s.offsets != nil {
			maxDef++
			maxRep++
		}
	}
	if maxDef == 0 {
		return nil, nil
	}
	def = fill(l.def[:0], f.array.Len(), maxDef)
	var starts []int32 // of each value of the current step in def; nil if it is its index
	d, r := maxDef, maxRep
	for i := len(f.path) - 1; i >= 0; i-- {
		s := f.path[i]
		if s.offsets != nil {
			d--
			def, rep, starts = l.repeat(s, def, rep, starts, d, r)
			r--
		}
		if !s.nullable {
			continue
		}
		d--
		if s.array.NullN() > 0 {
			nullLevels(def, starts, s.array, d)
		}
	}
	l.def = def
	return def, rep
}

// repeat turns the levels of the items of a list into those of the list. An empty list has
// definition level d; items behind the first have repetition level r.
func (l *leveler) repeat(s step, def, rep []int16, starts []int32, d, r int16) (def2, rep2 []int16, starts2 []int32) {
	def2, rep2, starts2 = l.def2[:0], l.rep2[:0], l.starts2[:0]
	slot := func(i int32) int {
		if starts == nil {
			return int(i)
		}
		if int(i) == len(starts) {
			return len(def)
		}
		return int(starts[i])
	}
	for i := range s.array.Len() {
		from, to := s.offsets[i], s.offsets[i+1]
		starts2 = append(starts2, int32(len(def2)))
		if from == to {
			def2, rep2 = append(def2, d), append(rep2, r-1)
			continue
		}
		at := len(rep2)
		if rep == nil {
			def2 = append(def2, def[from:to]...)
			rep2 = fill(rep2, int(to-from), r)
		} else {
			def2 = append(def2, def[slot(from):slot(to)]...)
			rep2 = append(rep2, rep[slot(from):slot(to)]...)
			for k := from; k < to; k++ {
				rep2[at+slot(k)-slot(from)] = r
			}
		}
		rep2[at] = r - 1
	}
	// What was current becomes the scratch of the next step.
	l.def, l.def2 = def2, def
	l.rep, l.rep2 = rep2, l.rep
	l.starts, l.starts2 = starts2, l.starts
	return def2, rep2, starts2
}

func nullLevels(def []int16, starts []int32, a arrow.Array, level int16) {
	bitmap := a.NullBitmapBytes()
	for i := range a.Len() {
		if bitmap[i>>3]&(1<<(i&7)) == 0 {
			at := i
			if starts != nil {
				at = int(starts[i])
			}
			def[at] = level
		}
	}
}

func fill(b []int16, n int, v int16) []int16 {
	b = slices.Grow(b, n)
	for range n {
		b = append(b, v)
	}
	return b
}
