package s3tables

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"testing"

	"github.com/apache/iceberg-go/table"
	"github.com/aws/aws-sdk-go-v2/credentials"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/catalog/awsconfig"
	"github.com/tabletopic/tabletopic/catalog/catalogtest"
	"github.com/tabletopic/tabletopic/internal/lab"
	"github.com/tabletopic/tabletopic/objectstore"
)

var commitPath = regexp.MustCompile(`/tables/[^/]+$`)

// The suite holds for a catalog of the kind of S3 Tables, with a table bucket for each test,
// but for races of creators, which AWS decides and SeaweedFS does not.
// The server checks the signatures.
func TestConformance(t *testing.T) {
	s3, iceberg := lab.SeaweedFS(t)
	bucket := 0
	catalogtest.Run(t, func(t *testing.T) catalogtest.Fixture {
		bucket++
		arn := lab.TableBucket(t, s3, fmt.Sprintf("tables%d", bucket))
		locator := objectstore.NewLocator(objectstore.S3Config{Endpoint: s3, Region: lab.Region, PathStyle: true,
			Credentials: credentials.NewStaticCredentialsProvider(lab.AccessKey, lab.SecretKey, "")})
		p := catalogtest.NewProxy(t, iceberg)
		p.IsCommit = func(r *http.Request, _ []byte) bool {
			return r.Method == http.MethodPost && commitPath.MatchString(r.URL.Path)
		}
		p.Conflict = func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusConflict)
			_, _ = io.WriteString(w, `{"error":{"message":"another commit came first","type":"CommitFailedException","code":409}}`)
		}
		open := func(endpoint string) *Catalog {
			c, err := Open(locator, Config{Bucket: arn, AWS: awsconfig.Config{Endpoint: endpoint, AccessKeyID: lab.AccessKey, SecretAccessKey: lab.SecretKey}})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			return c
		}
		return p.Arm(catalogtest.Fixture{Catalog: open(p.URI), Other: open(iceberg), Locator: locator, Fresh: true, Purges: true, LooseCreate: true})
	})
}

// The bucket's ARN says where its catalog is; what is no such ARN is refused.
func TestARN(t *testing.T) {
	if _, err := Open(catalogtest.Store{}, Config{Bucket: "arn:aws:s3tables:eu-central-1:123456789012:bucket/lake"}); err != nil {
		t.Error(err)
	}
	for _, arn := range []string{"", "lake", "arn:aws:s3:::lake", "arn:aws:s3tables:eu-central-1:123456789012:bucket/", "arn:aws:s3tables::1:bucket/a"} {
		if _, err := Open(catalogtest.Store{}, Config{Bucket: arn}); err == nil {
			t.Errorf("%q is not refused", arn)
		}
	}
}

// A key that the server does not know is refused, definitely.
func TestSignatureCounts(t *testing.T) {
	s3, iceberg := lab.SeaweedFS(t)
	c, err := Open(catalogtest.Store{}, Config{Bucket: lab.TableBucket(t, s3, "tables"),
		AWS: awsconfig.Config{Endpoint: iceberg, AccessKeyID: lab.AccessKey, SecretAccessKey: "wrong"}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Load(t.Context(), table.Identifier{"web", "clicks"}); err == nil || errors.Is(err, catalog.ErrNoTable) {
		t.Errorf("a wrong secret is not refused: %v", err)
	}
}
