package worker

import (
	"errors"

	"github.com/tabletopic/tabletopic/coordinator/control"
	"github.com/tabletopic/tabletopic/parquetio"
	"github.com/tabletopic/tabletopic/record"
)

// maxSample is how many records of a chunk are looked at for columns that the table lacks.
const maxSample = 1000

// lack asks for the columns that the table lacks for rec, which is plain JSON. It returns false
// then, and else makes a dead letter of rec.
func (t *task) lack(rec *record.Record) bool {
	x := t.table.mapping.InferJSON(t.table.schema)
	if err := x.Add(rec.Value); err != nil {
		return t.dead(rec, &unfit{CauseUndecodable, err.Error()}, 0)
	}
	w, err := t.table.lacks(x)
	if err != nil {
		return t.dead(rec, &unfit{CauseIncompatible, err.Error()}, 0)
	}
	if reason, ok := t.refused[w]; ok {
		return t.dead(rec, &unfit{CauseIncompatible, reason}, 0)
	}
	t.needed, t.inference = &w, x
	return false
}

// lacks returns what is inferred as a writer, or why no table can hold it.
func (i *tableInfo) lacks(x *parquetio.JSONInference) (w control.Writer, err error) {
	text, lacks := x.Schema()
	if !lacks {
		return w, errors.New("the columns of the table do not take the record, and others would not either")
	}
	v, err := parquetio.ParseJSONSchema(i.rules, text)
	if err != nil {
		return w, err
	}
	_, changed, err := i.mapping.Evolve(i.schema, i.LastColumnID, v)
	if err == nil && !changed {
		err = errors.New("the columns of the table do not take the record, and others would not either")
	}
	return control.Writer{Format: control.FormatJSON, Text: text}, err
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
			rec.Value = nil
		}
		if !ok || err != nil {
			break // what is damaged is met again
		}
		if rec.Value != nil {
			_ = t.inference.Add(rec.Value) // what it cannot add becomes a dead letter in its turn
			seen++
		}
	}
	w, err := t.table.lacks(t.inference)
	if _, refused := t.refused[w]; err == nil && !refused {
		t.needed = &w
	}
}
