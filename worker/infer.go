package worker

import (
	"errors"

	"github.com/tabletopic/tabletopic/coordinator/control"
	"github.com/tabletopic/tabletopic/parquetio"
	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/record"
)

// maxSample is how many records of a chunk are looked at for columns that the table lacks.
const maxSample = 1000

// lack asks for the columns that the table lacks for rec, of which the value or the key is plain JSON.
// It returns false then, and else makes a dead letter of rec.
func (t *task) lack(rec *record.Record) bool {
	for _, key := range []bool{false, true} {
		if t.w.cfg.format(key).Format != partition.FormatJSON || payloadOf(rec, key) == nil {
			continue
		}
		if bad := t.infer(rec, key); bad != nil {
			return t.dead(rec, bad, 0)
		}
		if t.needed != nil {
			return false
		}
	}
	return t.dead(rec, &unfit{CauseIncompatible, errNoColumn.Error()}, 0)
}

var errNoColumn = errors.New("the columns of the table do not take the record, and others would not either")

// infer asks for what the table lacks for the value of rec, or its key; for nothing if it lacks nothing.
func (t *task) infer(rec *record.Record, key bool) *unfit {
	x := t.table.inference(key)
	if err := x.Add(payloadOf(rec, key)); err != nil {
		return &unfit{CauseUndecodable, err.Error()}
	}
	if _, lacks := x.Schema(); !lacks {
		return nil
	}
	w, err := t.table.lacks(x, key)
	if err != nil {
		return &unfit{CauseIncompatible, err.Error()}
	}
	if reason, ok := t.refused[w]; ok {
		return &unfit{CauseIncompatible, reason}
	}
	t.needed, t.inference, t.inferred = &w, x, key
	return nil
}

func payloadOf(rec *record.Record, key bool) []byte {
	if key {
		return rec.Key
	}
	return rec.Value
}

func (i *tableInfo) inference(key bool) *parquetio.JSONInference {
	if key {
		return i.mapping.InferJSONKey(i.schema)
	}
	return i.mapping.InferJSON(i.schema)
}

// lacks returns what is inferred as a writer, or why no table can hold it.
func (i *tableInfo) lacks(x *parquetio.JSONInference, key bool) (w control.Writer, err error) {
	text, lacks := x.Schema()
	if !lacks {
		return w, errNoColumn
	}
	v, err := parquetio.ParseJSONSchema(i.rules, text)
	if err != nil {
		return w, err
	}
	if key {
		v = v.AsKey()
	}
	_, changed, err := i.mapping.Evolve(i.schema, i.LastColumnID, v)
	if err == nil && !changed {
		err = errNoColumn
	}
	return control.Writer{Format: control.FormatJSON, Text: text, Key: key}, err
}

// sample asks for what the records behind the one at hand need, too, so that a chunk of records
// that all differ does not take as many commits.
func (t *task) sample(reader *record.Reader, batches []record.Batch) {
	var rec record.Record
	for seen := 0; seen < maxSample; {
		ok, err := reader.Next(&rec)
		if !ok && err == nil && len(batches) > 0 {
			err = reader.Reset(batches[0])
			batches, ok = batches[1:], true
			rec.Key, rec.Value = nil, nil
		}
		if !ok || err != nil {
			break // what is damaged is met again
		}
		if payload := payloadOf(&rec, t.inferred); payload != nil {
			_ = t.inference.Add(payload) // what it cannot add becomes a dead letter in its turn
			seen++
		}
	}
	w, err := t.table.lacks(t.inference, t.inferred)
	if _, refused := t.refused[w]; err == nil && !refused {
		t.needed = &w
	}
}
