package node

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/tabletopic/tabletopic/coordinator"
	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/streamstore"
)

// TableStatus says how the table of a topic is, and how far. Times are RFC 3339, lags are
// of committed records: the age is that of the oldest, by its arrival.
type TableStatus struct {
	Topic     string                 `json:"topic"` // TOPIC:RECORD if it is of a type of records of the topic
	Table     string                 `json:"table"`
	Catalog   string                 `json:"catalog,omitempty"` // the registered one; empty is the servers' own
	State     coordinator.TableState `json:"state"`
	Message   string                 `json:"message,omitempty"` // what is wrong, and what to do
	Since     *time.Time             `json:"since,omitempty"`   // when that began
	Location  string                 `json:"location,omitempty"`
	Snapshot  int64                  `json:"snapshot,omitempty"`
	Snapshots int                    `json:"snapshots"`
	Committed *time.Time             `json:"committed,omitempty"` // the last commit of this topic, unless its snapshot has expired
	CommitAge int64                  `json:"commit_age_ms,omitempty"`
	Rows      int64                  `json:"rows"`
	Files     int64                  `json:"files"`
	Waiting   int                    `json:"files_waiting"`         // written, for the next commit
	Small     *int                   `json:"small_files,omitempty"` // when the table was last looked through for them, by the server that leads partition 0
	Compacted *time.Time             `json:"compacted,omitempty"`   // the last compaction, unless its snapshot has expired

	// DeadLetters are the records that could not become rows, by cause, since their server started.
	DeadLetters map[string]int64 `json:"dead_letters,omitempty"`

	LagRecords       int64             `json:"lag_records"` // that the table lacks
	LagMillis        int64             `json:"lag_ms"`
	UnwrittenRecords int64             `json:"unwritten_records"` // that no data file has either
	UnwrittenMillis  int64             `json:"unwritten_ms"`
	Columns          []Column          `json:"columns,omitempty"`
	Partitions       []PartitionStatus `json:"partitions"`
}

// Column is a column of a table on its top level.
type Column struct {
	Name string `json:"name"`
	Type string `json:"type"`
}

// PartitionStatus compares a partition with the table.
type PartitionStatus struct {
	Partition        int32 `json:"partition"`
	LogStart         int64 `json:"log_start"`    // -1 if its leader is away
	LogEnd           int64 `json:"log_end"`      // likewise
	TableNext        int64 `json:"table_next"`   // first offset that the table does not hold; -1 if none was begun
	WrittenNext      int64 `json:"written_next"` // first offset that no data file holds; -1 likewise
	LagRecords       int64 `json:"lag_records"`
	LagMillis        int64 `json:"lag_ms"`
	UnwrittenRecords int64 `json:"unwritten_records"`
	UnwrittenMillis  int64 `json:"unwritten_ms"`

	Message string `json:"message,omitempty"` // why nothing is known of its log, and what to do
}

// handleAPI adds the administration API. Errors are {"message": …}.
//
// A topic with table.topic.fan.out has several tables: TOPIC is its own, TOPIC:RECORD that of a type of records.
//
//	GET  /api/tables?topic=T                {"tables": [TableStatus, …]}, without columns, of these topics or of all;
//	                                        with local=true as far as this node knows
//	GET  /api/tables/{topic}                TableStatus
//	POST /api/tables/{topic}/verify?deep=true&strict=true   VerifyStatus, …: JSON lines as it goes on
//	POST /api/tables/{topic}/migrate-mapping?dry-run=true   MappingStatus
//	POST /api/tables/{topic}/compact                        CompactStatus, …: JSON lines as it goes on
func (n *Node) handleAPI(mux *http.ServeMux) {
	mux.HandleFunc("GET /api/tables", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), listPatience)
		defer cancel()
		list := []TableStatus{}
		routes, err := n.routes(r.URL.Query()["topic"])
		if err != nil {
			answer(w, http.StatusNotFound, message(err))
			return
		}
		away := map[streamstore.NodeID]error{}
		for _, route := range routes {
			list = append(list, n.status(ctx, route, false, away))
		}
		if r.URL.Query().Get("local") != "true" {
			n.askStates(ctx, routes, list, away)
		}
		answer(w, http.StatusOK, map[string]any{"tables": list})
	})
	mux.HandleFunc("GET /api/tables/{topic}", func(w http.ResponseWriter, r *http.Request) {
		route, err := n.tableOf(r.PathValue("topic"))
		if err != nil {
			answer(w, http.StatusNotFound, message(err))
			return
		}
		away := map[streamstore.NodeID]error{}
		list := []TableStatus{n.status(r.Context(), route, true, away)}
		n.askStates(r.Context(), []partition.Route{route}, list, away)
		answer(w, http.StatusOK, list[0])
	})
	mux.HandleFunc("POST /api/tables/{topic}/verify", n.verifyTable)
	mux.HandleFunc("POST /api/tables/{topic}/migrate-mapping", n.migrateMapping)
	mux.HandleFunc("POST /api/tables/{topic}/compact", n.compactTable)
}

// listPatience is how long a list waits for the catalogs of its tables; those that have not
// answered by then are listed with the error.
const listPatience = 15 * time.Second

func answer(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v) // a peer that is gone needs no answer
}

func message(err error) map[string]string { return map[string]string{"message": err.Error()} }

// tableOf finds a table by the name of its route: TOPIC or TOPIC:RECORD.
func (n *Node) tableOf(name string) (partition.Route, error) {
	topic, record := partition.SplitRoute(name)
	t, ok := n.set.Topic(topic)
	if !ok {
		return partition.Route{}, fmt.Errorf("topic %s does not exist", topic)
	}
	routes, err := n.set.Routes(t)
	if err != nil {
		return partition.Route{}, err
	}
	if len(routes) == 0 {
		return partition.Route{}, fmt.Errorf("topic %s has no table: set table.topic.enable=true, as in 'tabletopic topic alter %s --config table.topic.enable=true'", topic, topic)
	}
	for _, r := range routes {
		if r.Table.Record == record {
			return r, nil
		}
	}
	return partition.Route{}, fmt.Errorf("topic %s has no table for records of type %s: add it to table.topic.fan.out", topic, record)
}

// load returns the table of a route.
func (n *Node) load(ctx context.Context, r partition.Route) (table.Identifier, *table.Table, error) {
	id, err := coordinator.Identifier(r.Table.Namespace, r.Table.Name, r.Name)
	if err != nil {
		return nil, nil, err
	}
	cat, err := n.catalog(r.Table.Catalog)
	if err != nil {
		return id, nil, err
	}
	tbl, err := cat.Load(ctx, id)
	if err == nil {
		err = coordinator.CheckOwner(tbl, r.Name)
	}
	return id, tbl, err
}

// typeName is an Iceberg type as SQL would write it: without field ids.
func typeName(t iceberg.Type) string {
	switch t := t.(type) {
	case *iceberg.StructType:
		fields := make([]string, len(t.FieldList))
		for i, f := range t.FieldList {
			fields[i] = f.Name + " " + typeName(f.Type)
		}
		return "struct<" + strings.Join(fields, ", ") + ">"
	case *iceberg.ListType:
		return "list<" + typeName(t.Element) + ">"
	case *iceberg.MapType:
		return "map<" + typeName(t.KeyType) + ", " + typeName(t.ValueType) + ">"
	}
	return t.String()
}
