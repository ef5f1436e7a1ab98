package e2e

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tabletopic/tabletopic/internal/lab"
)

// A foreign catalog is one that servers register, and how engines reach it.
type foreign struct {
	kind     string   // empty: the server's own
	settings []string // KEY=VALUE of tabletopic catalog add
	s3       string   // endpoint of the files
	bucket   string
	vended   bool     // the server has no credentials of its own for the files
	spark    []string // KEY=VALUE of the engine's catalog
	trino    []string
}

// foreignCatalogs start other people's catalogs, and leave the server's own to it.
var foreignCatalogs = map[string]func(t *testing.T) foreign{
	"own": func(t *testing.T) foreign {
		s3, _, _ := lab.Versitygw(t, "lake")
		return foreign{s3: s3, bucket: "lake"}
	},
	"glue": func(t *testing.T) foreign {
		s3, _, _ := lab.Versitygw(t, "lake")
		endpoint := lab.Glue(t)
		return foreign{kind: "glue", s3: s3, bucket: "lake",
			settings: []string{"endpoint=" + endpoint, "region=" + lab.Region, "warehouse=s3://lake/tables", "access-key-id=" + lab.AccessKey, "secret-access-key=" + lab.SecretKey},
			spark:    []string{"type=glue", "glue.endpoint=" + endpoint, "warehouse=s3://lake/tables"},
			trino: []string{"iceberg.catalog.type=glue", "hive.metastore.glue.endpoint-url=" + endpoint, "hive.metastore.glue.region=" + lab.Region,
				"hive.metastore.glue.aws-access-key=" + lab.AccessKey, "hive.metastore.glue.aws-secret-key=" + lab.SecretKey, "hive.metastore.glue.default-warehouse-dir=s3://lake/tables"},
		}
	},
	"hive": func(t *testing.T) foreign {
		s3, _, _ := lab.Versitygw(t, "lake")
		uri := "thrift://" + lab.HiveMetastore(t, 5*time.Minute)
		return foreign{kind: "hive", s3: s3, bucket: "lake",
			settings: []string{"uri=" + uri, "warehouse=s3://lake/tables"},
			spark:    []string{"type=hive", "uri=" + uri, "warehouse=s3://lake/tables"},
			trino:    []string{"iceberg.catalog.type=hive_metastore", "hive.metastore.uri=" + uri},
		}
	},
	"rest": func(t *testing.T) foreign {
		s3, _, _ := lab.Versitygw(t, "lake")
		uri := lab.IcebergREST(t, "s3://lake/tables", s3)
		return foreign{kind: "rest", s3: s3, bucket: "lake",
			settings: []string{"uri=" + uri},
			spark:    []string{"type=rest", "uri=" + uri},
			trino:    []string{"iceberg.catalog.type=rest", "iceberg.rest-catalog.uri=" + uri},
		}
	},
	"another": func(t *testing.T) foreign { // another of our own servers, which vends its credentials
		s3, _, _ := lab.Versitygw(t, "lake")
		clients := filepath.Join(t.TempDir(), "clients")
		var client struct{ ID, Secret string }
		if err := json.Unmarshal([]byte(run(t, nil, binary, "catalog-client", "add", clients, "writer", "--output", "json")), &client); err != nil {
			t.Fatal(err)
		}
		credential := client.ID + ":" + client.Secret
		other := newServer(t, "--object-store", "s3://lake/other?region=us-east-1&path-style=true&endpoint="+s3,
			"--rest-catalog-clients", clients, "--rest-catalog-credentials", "own")
		other.env = s3Credentials
		other.start()
		return foreign{kind: "rest", s3: s3, vended: true,
			settings: []string{"uri=" + other.catalogURL(), "credential=" + credential},
			spark:    []string{"type=rest", "uri=" + other.catalogURL(), "credential=" + credential, "rest.auth.type=oauth2"},
			trino: []string{"iceberg.catalog.type=rest", "iceberg.rest-catalog.uri=" + other.catalogURL(),
				"iceberg.rest-catalog.security=OAUTH2", "iceberg.rest-catalog.oauth2.credential=" + credential},
		}
	},
	"sql": func(t *testing.T) foreign {
		s3, _, _ := lab.Versitygw(t, "lake")
		url := lab.Postgres(t)
		jdbc := "jdbc:postgresql://" + strings.TrimPrefix(url, "postgres://postgres@")
		return foreign{kind: "sql", s3: s3, bucket: "lake",
			settings: []string{"url=" + url, "warehouse=s3://lake/tables", "name=ice"}, // Spark tells catalogs apart by the name it gives them
			spark:    []string{"type=jdbc", "uri=" + jdbc, "jdbc.user=postgres", "jdbc.schema-version=V1", "warehouse=s3://lake/tables"},
			trino: []string{"iceberg.catalog.type=jdbc", "iceberg.jdbc-catalog.catalog-name=ice", "iceberg.jdbc-catalog.driver-class=org.postgresql.Driver",
				"iceberg.jdbc-catalog.connection-url=" + jdbc, "iceberg.jdbc-catalog.connection-user=postgres", "iceberg.jdbc-catalog.connection-password=none",
				"iceberg.jdbc-catalog.default-warehouse-dir=s3://lake/tables", "iceberg.jdbc-catalog.schema-version=V1"},
		}
	},
	"s3tables": func(t *testing.T) foreign {
		s3, uri := lab.SeaweedFS(t)
		arn := lab.TableBucket(t, s3, "lake")
		return foreign{kind: "s3tables", s3: s3, bucket: "lake",
			settings: []string{"bucket=" + arn, "endpoint=" + uri, "access-key-id=" + lab.AccessKey, "secret-access-key=" + lab.SecretKey},
			spark: []string{"type=rest", "uri=" + uri, "warehouse=" + arn, "rest.sigv4-enabled=true", "rest.signing-name=s3tables", "rest.signing-region=" + lab.Region,
				"rest.access-key-id=" + lab.AccessKey, "rest.secret-access-key=" + lab.SecretKey},
			trino: []string{"iceberg.catalog.type=rest", "iceberg.rest-catalog.uri=" + uri, "iceberg.rest-catalog.warehouse=" + arn, "iceberg.rest-catalog.view-endpoints-enabled=false",
				"iceberg.rest-catalog.security=SIGV4", "iceberg.rest-catalog.signing-name=s3tables"},
		}
	},
}

// In each catalog a topic's table is made, filled, evolved in columns and partitions, goes on
// after a kill, and is read by engines through that same catalog, row for row.
func TestCatalogs(t *testing.T) {
	t.Parallel() // mostly waits
	engines := sharedEngines(t)
	names := slices.Sorted(maps.Keys(foreignCatalogs))
	together(t, len(names), len(names), func(i int) string { return names[i] }, func(t *testing.T, i int) {
		testCatalog(t, names[i], foreignCatalogs[names[i]](t), engines)
	})
}

func testCatalog(t *testing.T, name string, f foreign, engines []string) {
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte(base64.StdEncoding.EncodeToString(make([]byte, 32))), 0o600); err != nil {
		t.Fatal(err)
	}
	s := newServer(t, "--secrets-key-file", key)
	if !f.vended {
		s.flags = append(s.flags, "--warehouse", "s3://"+f.bucket+"/own?region=us-east-1&path-style=true&endpoint="+f.s3)
		s.env = s3Credentials
	}
	s.start()
	topic := []string{"table.topic.namespace", "crm", "table.topic.partition.by", "city"}
	if f.kind == "" {
		f.spark = []string{"type=rest", "uri=" + s.catalogURL()}
		f.trino = []string{"iceberg.catalog.type=rest", "iceberg.rest-catalog.uri=" + s.catalogURL()}
	} else {
		f.add(t, s, name)
		topic = append(topic, "table.topic.catalog", name)
	}
	s.createTopic("people", 2, 500*time.Millisecond, topic...)

	// Names in mixed case, which lists of columns of Glue and Hive fold, and of another case in the next version.
	home := func(name, zip string) string {
		return fmt.Sprintf(`{"name":%q,"type":{"type":"record","name":"H","fields":[{"name":%q,"type":"string"}]}}`, name, zip)
	}
	v1 := rec(strings.Join([]string{idField, field("city", `"string"`), field("lastName", `"string"`), home("Home", "zipCode")}, ","))
	v2 := rec(strings.Join([]string{idField, field("city", `"string"`), field("lastname", `"string"`), home("home", "zipcode"), `{"name":"nick","type":["null","string"],"default":null}`}, ","))
	person := func(id int64, city, last, zip string) obj {
		return obj{"id": id, "city": city, "lastName": last, "Home": obj{"zipCode": zip}}
	}
	h1 := registerSchema(t, s, "people-value", v1)
	produceAll(t, s, "people", encoded(t, h1, v1, person(1, "Rome", "A", "00100")), encoded(t, h1, v1, person(2, "Oslo", "B", "0010")))
	waitForTable(t, s, "people", 2, time.Minute)
	setCompatibilityNone(t, s, "people-value")
	h2 := registerSchema(t, s, "people-value", v2)
	produceAll(t, s, "people", encoded(t, h2, v2, obj{"id": int64(3), "city": "Bonn", "lastname": "C", "home": obj{"zipcode": "53111"}, "nick": in("string", "ada")}))
	waitForTable(t, s, "people", 3, time.Minute)
	s.kill()
	s.start()
	if out, code := s.cli("", "topic", "alter", "people", "-c", "table.topic.partition.by=bucket(id,4),truncate(city,1)"); code != 0 {
		t.Fatalf("topic alter: %s", out)
	}
	produceAll(t, s, "people", encoded(t, h1, v1, person(4, "Lima", "D", "")))
	waitForTable(t, s, "people", 4, time.Minute)

	// A table of format version 3, with a type that the lists of columns of Hive and Glue do not have.
	v3 := rec(idField + `,{"name":"x","type":["long","string"]}`)
	s.createTopic("notes", 1, 500*time.Millisecond, append(topic[:2:2], append(topic[4:], "table.topic.format.version", "3", "table.topic.mapping.json", "variant")...)...)
	h3 := registerSchema(t, s, "notes-value", v3)
	produceAll(t, s, "notes", encoded(t, h3, v3, obj{"id": int64(1), "x": int64(5)}), encoded(t, h3, v3, obj{"id": int64(2), "x": "five"}))
	waitForTable(t, s, "notes", 2, time.Minute)

	if out, code := s.cli("", "table", "verify", "people", "--deep"); code != 0 {
		t.Errorf("verify: %s", out)
	}
	if f.kind != "" {
		f.manage(t, s, name)
	}
	var status struct{ Columns []struct{ Name string } }
	if err := s.api("/api/tables/people", &status); err != nil {
		t.Fatal(err)
	}
	var columns []string
	for _, c := range status.Columns {
		columns = append(columns, c.Name)
	}
	if want := []string{"id", "city", "lastName", "Home", "_kafka", "nick"}; !slices.Equal(columns, want) {
		t.Errorf("the columns are %v, want %v", columns, want)
	}
	const people = "SELECT id, city, lastName AS last, home.zipCode AS zip, nick FROM ice.crm.people"
	const persons = "id,city,last,zip,nick\n1,Rome,A,00100,NULL\n2,Oslo,B,0010,NULL\n3,Bonn,C,53111,ada\n4,Lima,D,,NULL\n"
	for _, c := range []struct{ engine, statement, want string }{
		{"spark", people, persons},
		{"trino", people, persons},
		{"trino", "SELECT id FROM ice.crm.people WHERE city = 'Lima'", "id\n4\n"},
		{"spark", "SELECT id FROM ice.crm.people WHERE city = 'Lima'", "id\n4\n"},
		{"spark", "SELECT id, to_json(x) AS x FROM ice.crm.notes", "id,x\n1,5\n2,\"\"\"five\"\"\"\n"},
		// The files of the first spec are of three cities, that of the second has a bucket.
		{"spark", "SELECT partition.city AS city, partition.city_trunc_1 AS c, count(partition.id_bucket_4) AS buckets FROM ice.crm.people.files GROUP BY 1, 2", "city,c,buckets\nBonn,NULL,0\nNULL,L,1\nOslo,NULL,0\nRome,NULL,0\n"},
	} {
		if got, err := f.query(engines, c.engine, c.statement); err != nil {
			t.Error(err)
		} else if got != c.want {
			t.Errorf("%s: %s: got\n%swant\n%s", c.engine, c.statement, got, c.want)
		}
	}
}

// add registers the catalog with a server.
func (f foreign) add(t *testing.T, s *server, name string) {
	t.Helper()
	args := []string{"catalog", "add", name, f.kind}
	for _, kv := range f.settings {
		args = append(args, "--set", kv)
	}
	if out, code := s.cli("", args...); code != 0 {
		t.Fatalf("catalog add: %s", out)
	}
}

// manage tries the commands about a catalog that is in use.
func (f foreign) manage(t *testing.T, s *server, name string) {
	t.Helper()
	if out, code := s.cli("", "catalog", "test", name); code != 0 {
		t.Errorf("catalog test: %s", out)
	}
	if out, code := s.cli("", "catalog", "list"); code != 0 || !strings.Contains(out, name) || !strings.Contains(out, "people") || strings.Contains(out, lab.SecretKey) {
		t.Errorf("catalog list: %s", out)
	}
	if out, code := s.cli("", "catalog", "remove", name); code != 1 || !strings.Contains(out, "people") {
		t.Errorf("remove of a catalog that is in use: %s", out)
	}
}

// query runs SQL in spark or trino through the catalog and returns sorted CSV.
func (f foreign) query(engines []string, engine, statement string) (string, error) {
	settings := f.spark
	if engine == "trino" {
		settings = f.trino
	}
	args := []string{engine, "--sort", "--s3-endpoint", f.s3}
	for _, kv := range settings {
		args = append(args, "--set", kv)
	}
	return tryRun(append(engines[:len(engines):len(engines)], s3Credentials...), "lab/query", append(args, statement)...)
}
