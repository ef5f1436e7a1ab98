package named

import (
	"context"
	"errors"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/objectstore"
)

// storageSettings say where the files of a catalog's tables are, if that is another store than
// the servers' own.
var storageSettings = []Setting{
	{Name: "s3.endpoint", Usage: "URL of the S3 store of the tables' files, if it is another than the servers' own"},
	{Name: "s3.region", Usage: "its region; us-east-1 if missing"},
	{Name: "s3.path-style", Usage: "true puts the bucket behind the host name, as most stores that are not AWS want it"},
	{Name: "s3.access-key-id", Usage: "key for the tables' files; the default chain of AWS if missing"},
	{Name: "s3.secret-access-key", Usage: "its secret", Secret: true},
	{Name: "s3.session-token", Usage: "its session", Secret: true},
}

// hasStorage reports whether a catalog names a store of its own.
func (s *settings) hasStorage() bool {
	for _, o := range storageSettings {
		if s.values[o.Name] != "" {
			return true
		}
	}
	return false
}

// storage returns where the files of a catalog's tables are found: what is in S3 by its own
// settings, if it has some, all else as servers does.
func (s *settings) storage(servers catalog.Locator) (catalog.Locator, error) {
	if !s.hasStorage() {
		return servers, nil
	}
	cfg := objectstore.S3Config{Endpoint: s.text("s3.endpoint"), Region: s.text("s3.region"), PathStyle: s.truth("s3.path-style")}
	if cfg.Region == "" {
		cfg.Region = "us-east-1"
	}
	id, secret := s.text("s3.access-key-id"), s.text("s3.secret-access-key")
	if (id == "") != (secret == "") || id == "" && s.text("s3.session-token") != "" {
		return nil, errors.New("s3.access-key-id and s3.secret-access-key go together, s3.session-token with them")
	}
	if id != "" {
		cfg.Credentials = aws.NewCredentialsCache(credentials.NewStaticCredentialsProvider(id, secret, s.text("s3.session-token")))
	}
	return &storage{s3: objectstore.NewLocator(cfg), servers: servers}, s.err()
}

// storage finds what is in S3 in a catalog's own store.
type storage struct {
	s3      *objectstore.Locator
	servers catalog.Locator
}

// Resolve implements catalog.Locator.
func (s *storage) Resolve(ctx context.Context, location string) (objectstore.Bucket, string, error) {
	if scheme, _, _ := strings.Cut(location, ":"); scheme == "s3" || scheme == "s3a" || scheme == "s3n" {
		return s.s3.Resolve(ctx, location)
	}
	return s.servers.Resolve(ctx, location)
}

// Locator finds the files of a registered catalog's tables, wherever that has them now.
func (c *Catalogs) Locator(name string) catalog.Locator { return locator{c, name} }

type locator struct {
	catalogs *Catalogs
	name     string
}

// Resolve implements catalog.Locator.
func (l locator) Resolve(ctx context.Context, location string) (objectstore.Bucket, string, error) {
	c, err := l.catalogs.current(ctx, l.name)
	if err != nil {
		return nil, "", err
	}
	return c.locator.Resolve(ctx, location)
}
