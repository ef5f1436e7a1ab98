package schemaregistry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/tabletopic/tabletopic/metadata"
)

// Tables tells what schemas do to the tables of topics.
type Tables interface {
	// DryRun returns what becomes of the table of each topic whose records may be written with the
	// next version of a subject, if it is s. Earlier are the ids of the versions before it, newest
	// first. What cannot be told now is [TableUnknown], and no error.
	DryRun(ctx context.Context, subject string, s Schema, earlier []int32) ([]TableChange, error)
}

// A TableChange is what a schema does to the table of a topic when the first record comes that is
// written with it.
type TableChange struct {
	Topic   string         `json:"topic"`
	Part    string         `json:"part"`  // value or key
	Table   string         `json:"table"` // with its namespace
	Check   string         `json:"check"` // table.topic.schema.check: off, warn or enforce
	Outcome TableOutcome   `json:"outcome"`
	Columns []ColumnChange `json:"columns,omitempty"` // of TableCreates and TableChanges
	Reason  string         `json:"reason,omitempty"`  // of TableRefuses and TableUnknown
	Effect  string         `json:"effect,omitempty"`  // of TableRefuses: what becomes of the records
}

// A TableOutcome is what a schema does to a table in one word.
type TableOutcome string

const (
	TableFits    TableOutcome = "fits"    // the table holds it as it is
	TableCreates TableOutcome = "creates" // there is no table yet
	TableEvolves TableOutcome = "evolves" // its columns change
	TableRefuses TableOutcome = "refuses" // it cannot hold it
	TableUnknown TableOutcome = "unknown" // its catalog does not answer, or the table is not the topic's
)

// A ColumnChange is one change of a column.
type ColumnChange struct {
	Column string `json:"column"`         // its path, as it is then
	Change string `json:"change"`         // added, widened, optional or renamed
	From   string `json:"from,omitempty"` // the type of a widened column, the name of a renamed one
	Type   string `json:"type"`           // then
}

func (c TableChange) String() string {
	s := fmt.Sprintf("topic %s, table %s (%s): ", c.Topic, c.Table, c.Part)
	switch c.Outcome {
	case TableFits:
		return s + "fits as it is"
	case TableRefuses:
		return s + "cannot hold it: " + c.Reason + "; " + c.Effect
	case TableUnknown:
		return s + "cannot be read now: " + c.Reason
	}
	var all []string
	for _, col := range c.Columns {
		all = append(all, col.String())
	}
	return s + string(c.Outcome) + ": " + strings.Join(all, "; ")
}

func (c ColumnChange) String() string {
	switch c.Change {
	case "widened":
		return fmt.Sprintf("%s becomes %s (it is %s)", c.Column, c.Type, c.From)
	case "renamed":
		return fmt.Sprintf("%s is renamed to %s", c.From, c.Column)
	case "optional":
		return c.Column + " becomes optional"
	}
	return fmt.Sprintf("%s %s is added", c.Column, c.Type)
}

// dryRun asks what a schema does to tables as the next version of a subject.
func (r *Registry) dryRun(ctx context.Context, subject metadata.Subject, p parsedSchema) ([]TableChange, error) {
	if r.tables == nil {
		return nil, nil
	}
	earlier, err := r.before(ctx, subject, p.schema)
	if err != nil {
		return nil, err
	}
	return r.tables.DryRun(ctx, subject.Name, Schema{p.schema, p.dependencies}, earlier)
}

// before returns what Earlier will, once the schema is the next version of the subject.
func (r *Registry) before(ctx context.Context, subject metadata.Subject, s metadata.Schema) ([]int32, error) {
	same, err := r.store.SameSchema(ctx, s)
	if err != nil && !errors.Is(err, metadata.ErrSchemaNotExist) {
		return nil, err
	}
	var versions []metadata.SubjectVersion // of the schema in any subject
	if err == nil {
		if versions, err = r.store.VersionsOf(ctx, same); err != nil {
			return nil, err
		}
	}
	if _, there := find(liveVersions(subject), s); !there {
		next := 1
		if n := len(subject.Versions); n > 0 {
			next = subject.Versions[n-1].Version + 1
		}
		versions = append(versions, metadata.SubjectVersion{Subject: subject.Name, Version: next})
		slices.SortStableFunc(versions, func(a, b metadata.SubjectVersion) int { return strings.Compare(a.Subject, b.Subject) })
	}
	return r.earlier(ctx, versions, int32(same), maxEarlier)
}

// maxEarlier bounds the versions that a dry run names.
const maxEarlier = 20

// checkTables refuses a schema that a table cannot hold whose topic says so, and returns the
// warnings of those that only warn.
func (r *Registry) checkTables(ctx context.Context, subject metadata.Subject, p parsedSchema) (warnings []TableChange, err error) {
	changes, err := r.dryRun(ctx, subject, p)
	if err != nil {
		return nil, err
	}
	var refused []string
	for _, c := range changes {
		switch {
		case c.Check == "off" || c.Outcome != TableRefuses && c.Outcome != TableUnknown:
		case c.Check == "warn":
			warnings = append(warnings, c)
		case c.Outcome == TableUnknown:
			return nil, tableUnknown(c.String())
		default:
			refused = append(refused, c.String())
		}
	}
	if refused != nil {
		return nil, incompatible(fmt.Sprintf("Schema being registered does not fit the tables of subject %q, details: %s", subject.Name, refused))
	}
	return warnings, nil
}

// warningHeader has what checkTables warns of, in an answer whose body is as ever: clients ignore it.
const warningHeader = "Tabletopic-Table-Warning"

// maxWarnings bounds the headers of an answer.
const maxWarnings = 10

// warn is an answer with warnings.
func warn(answer any, warnings []TableChange) any {
	if len(warnings) == 0 {
		return answer
	}
	h := http.Header{}
	for _, c := range warnings[:min(len(warnings), maxWarnings)] {
		line := strings.Map(func(c rune) rune {
			if c < ' ' || c > '~' {
				return '?'
			}
			return c
		}, c.String())
		h.Add(warningHeader, line[:min(len(line), 1000)])
	}
	return withHeader{answer, h}
}

// withHeader is an answer with a header.
type withHeader struct {
	answer any
	header http.Header
}

// dryRunAnswer says whether a schema could be registered, and what it does to tables.
type dryRunAnswer struct {
	Compatible bool          `json:"is_compatible"`
	Messages   []string      `json:"messages,omitempty"`
	Tables     []TableChange `json:"tables"`
}

// dryRunVersion is the answer to a registration that changes nothing.
func (r *Registry) dryRunVersion(req *http.Request, name string, q Request) (any, error) {
	if kind := req.URL.Query().Get("dryRun"); kind != "table" {
		return nil, badRequest(http.StatusUnprocessableEntity, "There is no dryRun=%.50s, only dryRun=table", kind)
	}
	ctx := req.Context()
	if err := checkSubject(name); err != nil {
		return nil, err
	}
	subject, err := r.readSubject(ctx, name)
	if err != nil {
		return nil, err
	}
	c, err := effective(subject.Own, subject.Global)
	if err != nil {
		return nil, err
	}
	p, err := r.parse(ctx, q, query(req, "normalize") || c.normalize())
	if err != nil {
		return nil, err
	}
	live := liveVersions(subject)
	p.schema = inherit(p.schema, live)
	a := dryRunAnswer{Compatible: true}
	if _, found := find(live, p.schema); !found {
		why, err := r.judge(ctx, c, p, live)
		if err != nil {
			return nil, err
		}
		if why != nil {
			a.Compatible, a.Messages = false, why.messages()
		}
	}
	if a.Tables, err = r.dryRun(ctx, subject, p); a.Tables == nil {
		a.Tables = []TableChange{} // [] rather than null
	}
	return a, err
}
