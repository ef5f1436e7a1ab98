package schemaregistry

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"

	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/streamstore"
)

// A Record is one of those that Confluent's registry keeps its state in, in the topic _schemas. A
// value of null takes away what the key names.
type Record struct {
	Key   RecordKey       `json:"key"`
	Value json.RawMessage `json:"value"`
}

// A RecordKey says what a record is about. Without a subject it is about all of them.
type RecordKey struct {
	Type    string  `json:"keytype"`
	Subject *string `json:"subject,omitempty"`
	Version int     `json:"version,omitempty"` // of a SCHEMA
	Magic   int     `json:"magic"`
}

// The types of records.
const (
	recordSchema        = "SCHEMA"
	recordConfig        = "CONFIG"
	recordMode          = "MODE"
	recordDeleteSubject = "DELETE_SUBJECT" // versions up to one are deleted
	recordClearSubject  = "CLEAR_SUBJECT"  // the versions are removed for good
	recordNoop          = "NOOP"
)

// schemaRecord is the value of a SCHEMA record.
type schemaRecord struct {
	Subject    string                     `json:"subject"`
	Version    int                        `json:"version"`
	ID         int                        `json:"id"`
	GUID       string                     `json:"guid,omitempty"`
	SchemaType string                     `json:"schemaType,omitempty"` // AVRO if empty
	References []metadata.SchemaReference `json:"references,omitempty"`
	Metadata   json.RawMessage            `json:"metadata,omitempty"`
	RuleSet    json.RawMessage            `json:"ruleSet,omitempty"`
	Schema     string                     `json:"schema"`
	Deleted    bool                       `json:"deleted"`
}

// A Snapshot is what records say when they are read in their order. It holds all their texts.
type Snapshot struct {
	versions map[string]map[int]schemaRecord
	others   map[settingKey]Record
}

// A settingKey is what a CONFIG or MODE record is about.
type settingKey struct{ kind, subject string }

// NewSnapshot returns what no record says.
func NewSnapshot() *Snapshot {
	return &Snapshot{versions: map[string]map[int]schemaRecord{}, others: map[settingKey]Record{}}
}

// Apply reads the next record. An error says what is wrong with it.
func (s *Snapshot) Apply(r Record) error {
	gone := len(r.Value) == 0 || string(r.Value) == "null"
	subject := ""
	if r.Key.Subject != nil {
		subject = *r.Key.Subject
	}
	if r.Key.Type != recordNoop && r.Key.Type != recordConfig && r.Key.Type != recordMode && subject == "" {
		return fmt.Errorf("record %s: its key has no subject", r.Key.Type)
	}
	switch r.Key.Type {
	case recordNoop:
	case recordSchema:
		v := schemaRecord{Subject: subject, Version: r.Key.Version}
		if gone {
			delete(s.versions[subject], v.Version)
			return nil
		}
		if err := json.Unmarshal(r.Value, &v); err != nil {
			return fmt.Errorf("record SCHEMA, subject %q version %d: %w", subject, r.Key.Version, err)
		}
		if v.Subject != subject || v.Version != r.Key.Version || v.Version < 1 || v.ID < 1 {
			return fmt.Errorf("record SCHEMA, subject %q version %d: the value is of subject %q version %d id %d", subject, r.Key.Version, v.Subject, v.Version, v.ID)
		}
		if s.versions[subject] == nil {
			s.versions[subject] = map[int]schemaRecord{}
		}
		s.versions[subject][v.Version] = v
	case recordDeleteSubject:
		var until struct{ Version int }
		if gone {
			return nil
		}
		if err := json.Unmarshal(r.Value, &until); err != nil {
			return fmt.Errorf("record DELETE_SUBJECT, subject %q: %w", subject, err)
		}
		for n, v := range s.versions[subject] {
			if n <= until.Version {
				v.Deleted = true
				s.versions[subject][n] = v
			}
		}
	case recordClearSubject:
		delete(s.versions, subject)
	case recordConfig, recordMode:
		at := settingKey{r.Key.Type, subject}
		if s.others[at] = r; gone {
			delete(s.others, at)
		}
	default:
		return fmt.Errorf("record of the type %q: it is none of SCHEMA, CONFIG, MODE, DELETE_SUBJECT, CLEAR_SUBJECT and NOOP", r.Key.Type)
	}
	return nil
}

// Records returns records that say the same, those of what a schema refers to before it, modes last.
func (s *Snapshot) Records() ([]Record, error) {
	type place struct {
		subject string
		version int
	}
	var all []Record
	state := map[place]bool{} // false while a version waits for what it refers to
	var add func(at place) error
	add = func(at place) error {
		v, ok := s.versions[at.subject][at.version]
		if done, seen := state[at]; !ok || done {
			return nil // what is not here may be in the registry
		} else if seen {
			return fmt.Errorf("subject %q version %d refers to itself", at.subject, at.version)
		}
		state[at] = false
		for _, r := range v.References {
			if err := add(place{r.Subject, r.Version}); err != nil {
				return err
			}
		}
		state[at] = true
		r, err := newRecord(RecordKey{Type: recordSchema, Subject: &at.subject, Version: at.version, Magic: 1}, v)
		all = append(all, r)
		return err
	}
	for _, subject := range slices.Sorted(maps.Keys(s.versions)) {
		for _, version := range slices.Sorted(maps.Keys(s.versions[subject])) {
			if err := add(place{subject, version}); err != nil {
				return nil, err
			}
		}
	}
	others := slices.SortedFunc(maps.Keys(s.others), func(a, b settingKey) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.subject, b.subject)) // CONFIG, then MODE
	})
	for _, at := range others {
		all = append(all, s.others[at])
	}
	return all, nil
}

func newRecord(key RecordKey, value any) (Record, error) {
	b, err := json.Marshal(value)
	return Record{key, b}, err
}

// exportSubjects is how many subjects are in one answer of exportRecords.
const exportSubjects = 100

// exportRecords returns what is kept of the subjects behind the one that the query names; those of
// "" first.
func (r *Registry) exportRecords(req *http.Request) (any, error) {
	ctx := req.Context()
	names, err := r.store.SubjectNames(ctx, req.URL.Query().Get("after"), exportSubjects)
	if err != nil {
		return nil, err
	}
	answer := struct {
		Records []Record `json:"records"`
		Next    string   `json:"next,omitempty"` // there may be more behind this subject
	}{Records: []Record{}}
	if !req.URL.Query().Has("after") {
		names = slices.Insert(names, 0, global)
	}
	for _, name := range names {
		subject, err := r.store.Subject(ctx, name)
		if err != nil {
			return nil, err
		}
		records, err := subjectRecords(subject)
		if err != nil {
			return nil, err
		}
		answer.Records = append(answer.Records, records...)
		answer.Next = name
	}
	if len(names) < exportSubjects {
		answer.Next = ""
	}
	return answer, nil
}

// subjectRecords is what is kept of a subject.
func subjectRecords(u metadata.Subject) (all []Record, err error) {
	add := func(key RecordKey, value any) {
		r, rerr := newRecord(key, value)
		err = cmp.Or(err, rerr)
		all = append(all, r)
	}
	for _, v := range u.Versions {
		s := schemaRecord{Subject: v.Subject, Version: v.Version, ID: v.Schema.ID, GUID: v.Schema.GUID.String(), References: v.Schema.References,
			Metadata: json.RawMessage(v.Schema.Metadata), RuleSet: json.RawMessage(v.Schema.RuleSet), Schema: v.Schema.Text, Deleted: v.Deleted}
		if v.Schema.Type != typeAvro {
			s.SchemaType = v.Schema.Type
		}
		add(RecordKey{Type: recordSchema, Subject: &u.Name, Version: v.Version, Magic: 1}, s)
	}
	subject := &u.Name
	if u.Name == global {
		subject = nil
	}
	c, derr := decodeConfig(u.Own)
	if derr != nil {
		return nil, derr
	}
	if c.level != "" || c.settings != (settings{}) {
		add(RecordKey{Type: recordConfig, Subject: subject}, struct {
			Subject *string `json:"subject"`
			configAnswer
		}{subject, configAnswer{c.level, c.settings}})
	}
	if c.mode != "" {
		add(RecordKey{Type: recordMode, Subject: subject}, struct {
			Subject *string `json:"subject"`
			modeAnswer
		}{subject, modeAnswer{c.mode}})
	}
	return all, err
}

// importAnswer says what became of records.
type importAnswer struct {
	Added int `json:"added"`
	There int `json:"there"` // what they say was so already
	GUIDs int `json:"guids"` // schemas that were here before, under another GUID
}

// importRecords takes records as [Snapshot.Records] returns them, one after the other, and stops at the
// first that conflicts with what is there. What was taken before stays; the same records may come again.
func (r *Registry) importRecords(req *http.Request) (any, error) {
	var body struct{ Records []Record }
	if err := readBody(req, &body); err != nil {
		return nil, err
	}
	var a importAnswer
	for _, record := range body.Records {
		added, err := r.importRecord(req.Context(), record, &a)
		if err != nil {
			return nil, err
		}
		if added {
			a.Added++
		} else {
			a.There++
		}
	}
	return a, nil
}

func (r *Registry) importRecord(ctx context.Context, record Record, a *importAnswer) (added bool, err error) {
	subject := global
	if record.Key.Subject != nil {
		subject = *record.Key.Subject
		if err := checkSubject(subject); err != nil {
			return false, err
		}
	}
	switch record.Key.Type {
	case recordSchema:
		var v schemaRecord
		if err := json.Unmarshal(record.Value, &v); err != nil {
			return false, invalidSchema("subject %q version %d: %v", subject, record.Key.Version, err)
		}
		for {
			added, err := r.importVersion(ctx, v, a)
			if !errors.Is(err, streamstore.ErrConflict) || ctx.Err() != nil {
				return added, err
			}
		}
	case recordConfig:
		return r.importConfig(ctx, subject, record.Value)
	case recordMode:
		return r.importMode(ctx, subject, record.Value)
	}
	return false, badRequest(http.StatusUnprocessableEntity, "A record of the type %.50q cannot be imported by itself", record.Key.Type)
}

// conflicts is the answer to a record that contradicts what is there.
func conflicts(subject, format string, args ...any) error {
	return &apiError{http.StatusConflict, http.StatusConflict, fmt.Sprintf("Subject %q: ", subject) + fmt.Sprintf(format, args...)}
}

func (r *Registry) importVersion(ctx context.Context, v schemaRecord, a *importAnswer) (added bool, err error) {
	subject, err := r.readSubject(ctx, v.Subject)
	if err != nil {
		return false, err
	}
	p, err := r.parse(ctx, Request{Schema: v.Schema, SchemaType: v.SchemaType, References: v.References, Metadata: v.Metadata, RuleSet: v.RuleSet}, false)
	if err != nil {
		return false, fmt.Errorf("subject %q version %d: %w", v.Subject, v.Version, err)
	}
	identity, err := p.schema.Identity()
	if err != nil {
		return false, err
	}
	if v.GUID != "" {
		if p.schema.GUID, err = uuid.Parse(v.GUID); err != nil {
			return false, invalidSchema("subject %q version %d: its guid %.50q: %v", v.Subject, v.Version, v.GUID, err)
		}
	}
	compare := func(is uuid.UUID) {
		if v.GUID != "" && is != p.schema.GUID {
			a.GUIDs++
		}
	}
	if i := slices.IndexFunc(subject.Versions, func(o metadata.SubjectVersion) bool { return o.Version == v.Version }); i >= 0 {
		there := subject.Versions[i]
		other, err := there.Schema.Identity()
		switch {
		case err != nil:
			return false, err
		case other != identity || there.Schema.ID != v.ID:
			return false, conflicts(v.Subject, "version %d is another schema here, with the id %d, than the one to import, with the id %d", v.Version, there.Schema.ID, v.ID)
		case there.Deleted != v.Deleted:
			return false, conflicts(v.Subject, "version %d is deleted %t here, and %t in what is to be imported", v.Version, there.Deleted, v.Deleted)
		}
		compare(there.Schema.GUID)
		return false, nil
	}
	c, err := effective(subject.Own, subject.Global)
	if err == nil {
		err = c.checkWritable(v.Subject)
	}
	if err != nil {
		return false, err
	}
	p.schema.ID = v.ID
	stored, err := r.store.AddVersion(ctx, subject, metadata.SubjectVersion{Subject: v.Subject, Version: v.Version, Deleted: v.Deleted, Schema: p.schema})
	if errors.Is(err, metadata.ErrSchemaIDTaken) {
		return false, conflicts(v.Subject, "version %d cannot have the id %d and the GUID %q: %v", v.Version, v.ID, v.GUID, err)
	}
	if err != nil {
		return false, err
	}
	r.remember(subject, stored)
	compare(stored.Schema.GUID)
	return true, nil
}

func (r *Registry) importConfig(ctx context.Context, subject string, value json.RawMessage) (added bool, err error) {
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(value, &raw); err != nil {
		return false, badRequest(http.StatusUnprocessableEntity, "The settings of subject %q: %v", subject, err)
	}
	delete(raw, "subject")
	maps.DeleteFunc(raw, func(_ string, v json.RawMessage) bool { return string(v) == "null" })
	if l, ok := raw["compatibilityLevel"]; ok {
		raw["compatibility"] = l
		delete(raw, "compatibilityLevel")
	}
	var want config
	if len(raw) == 0 {
		return false, nil
	}
	if err := applyConfig(&want, raw); err != nil {
		return false, err
	}
	return r.importOwn(ctx, subject, "settings", func(c config) string {
		b, _ := json.Marshal(configAnswer{c.level, c.settings}) // of strings and a flag
		return string(b)
	}, func(c *config) { c.level, c.settings = want.level, want.settings })
}

func (r *Registry) importMode(ctx context.Context, subject string, value json.RawMessage) (added bool, err error) {
	var want modeAnswer
	if err := json.Unmarshal(value, &want); err != nil || !slices.Contains(modes, want.Mode) {
		return false, invalidMode(string(want.Mode))
	}
	return r.importOwn(ctx, subject, "mode", func(c config) string { return string(c.mode) }, func(c *config) { c.mode = want.Mode })
}

// importOwn makes change to what is set for a subject, if what part tells is not set, or is the same.
func (r *Registry) importOwn(ctx context.Context, subject, what string, part func(config) string, change func(*config)) (added bool, err error) {
	var conflict error
	err = r.changeOwnConfig(ctx, subject, func(c *config) {
		then := *c
		change(&then)
		switch is, want := part(*c), part(then); {
		case is == want:
		case is != part(config{}):
			conflict = conflicts(subject, "its %s are %s here, and %s in what is to be imported", what, is, want)
		default:
			*c, added = then, true
		}
	})
	return added, cmp.Or(err, conflict)
}
