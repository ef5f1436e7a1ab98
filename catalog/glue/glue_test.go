package glue

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/apache/iceberg-go/table"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/glue"
	"github.com/aws/aws-sdk-go-v2/service/glue/types"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/catalog/awsconfig"
	"github.com/tabletopic/tabletopic/catalog/catalogtest"
	"github.com/tabletopic/tabletopic/internal/lab"
	"github.com/tabletopic/tabletopic/objectstore"
)

// The suite holds for Glue, with one account of the server for each test.
func TestConformance(t *testing.T) {
	endpoint := lab.Glue(t)
	account := 100_000_000_000
	catalogtest.Run(t, func(t *testing.T) catalogtest.Fixture {
		account++
		store := catalogtest.Store{Prefix: "file:///w/", Bucket: objectstore.NewMemory()}
		p := catalogtest.NewProxy(t, endpoint)
		p.IsCommit = func(r *http.Request, _ []byte) bool { return r.Header.Get("X-Amz-Target") == "AWSGlue.UpdateTable" }
		p.Conflict = func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/x-amz-json-1.1")
			w.Header().Set("X-Amzn-Errortype", "ConcurrentModificationException")
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(w, `{"__type":"ConcurrentModificationException","Message":"Update table failed due to concurrent modifications."}`)
		}
		return p.Arm(catalogtest.Fixture{Catalog: open(t, p.URI, account, store), Other: open(t, endpoint, account, store), Locator: store})
	})
}

func open(t *testing.T, endpoint string, account int, store catalogtest.Store) *Catalog {
	t.Helper()
	c, err := Open(t.Context(), store, Config{Warehouse: "file:///w/house", AWS: awsconfig.Config{
		Endpoint: endpoint, Region: lab.Region, AccessKeyID: lab.AccessKey, SecretAccessKey: lab.SecretKey,
		Role: fmt.Sprintf("arn:aws:iam::%d:role/tables", account), STSEndpoint: endpoint,
	}})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// What others see in Glue follows the table: lower-case names, the columns of the current
// schema, the previous metadata file; what they added stays.
func TestGlueShowsTheTable(t *testing.T) {
	endpoint := lab.Glue(t)
	store := catalogtest.Store{Prefix: "file:///w/", Bucket: objectstore.NewMemory()}
	c := open(t, endpoint, 1, store)
	id := table.Identifier{"Web", "Clicks"}
	tbl, err := c.Create(t.Context(), id, catalogtest.Schema(), nil)
	if err != nil {
		t.Fatal(err)
	}
	shown := func() *glue.GetTableOutput {
		out, err := c.pointer.client.GetTable(t.Context(), &glue.GetTableInput{DatabaseName: aws.String("web"), Name: aws.String("clicks")})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	columns := func() string {
		var out []string
		for _, c := range shown().Table.StorageDescriptor.Columns {
			out = append(out, *c.Name+" "+*c.Type)
		}
		return strings.Join(out, ", ")
	}
	if got, want := columns(), "id bigint, name string, _kafka struct<partition:int,offset:bigint>"; got != want {
		t.Errorf("columns %s, want %s", got, want)
	}
	crawled := shown().Table
	crawled.Parameters["crawled"] = "yes"
	if _, err := c.pointer.client.UpdateTable(t.Context(), &glue.UpdateTableInput{DatabaseName: crawled.DatabaseName, TableInput: &types.TableInput{
		Name: crawled.Name, TableType: crawled.TableType, Parameters: crawled.Parameters, StorageDescriptor: crawled.StorageDescriptor}}); err != nil {
		t.Fatal(err)
	}
	next, err := c.Commit(t.Context(), tbl, catalog.Commit{Schema: catalogtest.With(tbl, "Country")})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := columns(), "id bigint, name string, _kafka struct<partition:int,offset:bigint>, country string"; got != want {
		t.Errorf("columns after evolution %s, want %s", got, want)
	}
	p := shown().Table.Parameters
	if p["metadata_location"] != next.MetadataLocation() || p["previous_metadata_location"] != tbl.MetadataLocation() || p["table_type"] != "ICEBERG" || p["crawled"] != "yes" {
		t.Errorf("parameters %v", p)
	}
	if _, err := c.Load(t.Context(), table.Identifier{"web", "clicks"}); err != nil {
		t.Errorf("load in lower case: %v", err)
	}
}
