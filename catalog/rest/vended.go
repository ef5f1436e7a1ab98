package rest

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/iceberg-go/catalog/rest"
	"github.com/apache/iceberg-go/table"
	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/tabletopic/tabletopic/objectstore"
)

// A Lender lets a bucket answer for the locations below its own. *objectstore.Locator is one.
type Lender interface{ Lend(objectstore.Bucket) }

// access is what a catalog says of the storage of a table.
type access struct {
	Config      map[string]string `json:"config"`
	Credentials []struct {
		Prefix string            `json:"prefix"`
		Config map[string]string `json:"config"`
	} `json:"storage-credentials"`
}

// storageOf reads what the configuration of a catalog says of where files are.
func storageOf(body []byte) map[string]string {
	var config struct {
		Defaults  map[string]string `json:"defaults"`
		Overrides map[string]string `json:"overrides"`
	}
	if json.Unmarshal(body, &config) != nil {
		return nil // iceberg-go has read it
	}
	out := map[string]string{}
	for _, from := range []map[string]string{config.Defaults, config.Overrides} {
		for _, key := range []string{"s3.endpoint", "s3.path-style-access", "s3.region", "client.region", remoteSigning} {
			if v, ok := from[key]; ok {
				out[key] = v
			}
		}
	}
	return out
}

// remoteSigning is set by catalogs that sign the requests for files themselves, one by one.
const remoteSigning = "s3.remote-signing-enabled"

// grants returns the settings by location: those of the table as a whole, and more special
// ones, on top of the catalog's. None if the catalog vends no keys.
func (a access) grants(location string, storage map[string]string) map[string]map[string]string {
	out := map[string]map[string]string{}
	add := func(at string, config map[string]string) {
		all := map[string]string{}
		for _, from := range []map[string]string{storage, a.Config, config} {
			for k, v := range from {
				all[k] = v
			}
		}
		if all["s3.access-key-id"] != "" && all["s3.secret-access-key"] != "" {
			out[at] = all
		}
	}
	add(location, nil)
	for _, c := range a.Credentials {
		at := strings.TrimRight(c.Prefix, "/")
		if bucket, _, _ := strings.Cut(strings.TrimPrefix(at, "s3://"), "/"); !strings.HasPrefix(at, "s3://") || bucket == "" || strings.HasPrefix(location+"/", at+"/") {
			at = location // for all of S3, for a bucket, or for more tables than this one
		}
		add(at, c.Config)
	}
	return out
}

// borrow makes the files of a table reachable with the credentials that its catalog vends.
func (c *Catalog) borrow(ctx context.Context, t *table.Table, body []byte) error {
	lender, ok := c.locator.(Lender)
	if !ok || c.cfg.OwnCredentials {
		return nil
	}
	var a access
	if err := json.Unmarshal(body, &a); err != nil {
		return err
	}
	grants := a.grants(strings.TrimRight(t.Location(), "/"), c.storage)
	if signs := a.Config[remoteSigning] + c.storage[remoteSigning]; len(grants) == 0 && strings.Contains(strings.ToLower(signs), "true") {
		return fmt.Errorf("table %v: the catalog wants to sign each request for files itself (%s), which is not supported: let it vend credentials for the table, or give it keys with s3.access-key-id and s3.secret-access-key", t.Identifier(), remoteSigning)
	}
	for location, config := range grants {
		if !strings.HasPrefix(location, "s3://") {
			continue
		}
		keys, renew := credentials(config, c.now())
		c.mu.Lock()
		g := c.grants[location]
		if g != nil {
			g.set(keys, renew)
		}
		c.mu.Unlock()
		if g != nil {
			continue
		}
		g = &grant{c: c, table: t.Identifier(), location: location, asking: make(chan struct{}, 1)}
		g.set(keys, renew)
		bucket, prefix, _ := strings.Cut(strings.TrimPrefix(location, "s3://"), "/")
		endpoint, region := config["s3.endpoint"], config["client.region"]
		if region == "" {
			region = config["s3.region"]
		}
		if region == "" && endpoint != "" {
			region = "us-east-1"
		}
		store, err := objectstore.NewS3(ctx, objectstore.S3Config{Bucket: bucket, Region: region, Endpoint: endpoint,
			PathStyle: config["s3.path-style-access"] == "true", Credentials: g})
		if err != nil {
			return fmt.Errorf("storage of table %v: %w", t.Identifier(), err)
		}
		below, err := objectstore.Prefix(store, prefix)
		if err != nil {
			return fmt.Errorf("storage of table %v: %w", t.Identifier(), err)
		}
		c.mu.Lock()
		c.grants[location] = g
		c.mu.Unlock()
		lender.Lend(below)
	}
	return nil
}

// unstatedLife is how long keys with a session token are taken for valid if the catalog does
// not say.
const unstatedLife = 15 * time.Minute

// credentials reads keys from the settings of a table, and when to ask for the next; never
// if zero.
func credentials(config map[string]string, now time.Time) (keys aws.Credentials, renew time.Time) {
	keys = aws.Credentials{AccessKeyID: config["s3.access-key-id"], SecretAccessKey: config["s3.secret-access-key"],
		SessionToken: config["s3.session-token"], Source: "Iceberg catalog",
		// Expired for the SDK's cache, so that it asks the grant each time.
		CanExpire: true, Expires: time.Unix(1, 0)}
	life := unstatedLife
	if millis, err := strconv.ParseInt(config["s3.session-token-expires-at-ms"], 10, 64); err == nil {
		life = time.UnixMilli(millis).Sub(now)
	} else if keys.SessionToken == "" {
		return keys, time.Time{}
	}
	return keys, now.Add(life - min(life/3, maxRenewAhead))
}

// A grant is the credentials of a location, which it renews before they end.
type grant struct {
	c        *Catalog
	table    table.Identifier
	location string
	asking   chan struct{} // held by the one who asks for new keys

	mu    sync.Mutex
	keys  aws.Credentials // guarded by mu
	renew time.Time       // guarded by mu
}

func (g *grant) set(keys aws.Credentials, renew time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.keys, g.renew = keys, renew
}

// Retrieve implements aws.CredentialsProvider. While the catalog is away the old keys are
// given, for as long as the store takes them.
func (g *grant) Retrieve(ctx context.Context) (aws.Credentials, error) {
	keys, due := g.current()
	if !due {
		return keys, nil
	}
	select {
	case g.asking <- struct{}{}:
		defer func() { <-g.asking }()
	case <-ctx.Done():
		return aws.Credentials{}, context.Cause(ctx)
	}
	if keys, due = g.current(); !due {
		return keys, nil
	}
	if client, err := g.c.connect(ctx); err == nil {
		_, _ = g.c.load(ctx, client, g.table) // it sets the new keys
	}
	keys, _ = g.current()
	return keys, nil
}

func (g *grant) current() (keys aws.Credentials, due bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.keys, !g.renew.IsZero() && !g.c.now().Before(g.renew)
}

// load asks the catalog for a table, and takes the credentials that come with it.
func (c *Catalog) load(ctx context.Context, client *rest.Catalog, id table.Identifier) (*table.Table, error) {
	var body []byte
	t, err := client.LoadTable(context.WithValue(ctx, bodyKey{}, &body), id)
	if err != nil {
		return nil, translate(err)
	}
	return t, c.borrow(ctx, t, body)
}

// borrowAgain is how often Borrow asks for a table that it has asked for: it may have been
// made again elsewhere.
const borrowAgain = 10 * time.Minute

// Borrow takes the credentials for the files of a table, as Load does, for those who write
// them and have no need to load it. It asks only now and then.
func (c *Catalog) Borrow(ctx context.Context, id table.Identifier) error {
	name := strings.Join(id, "\x1f")
	if _, ok := c.locator.(Lender); !ok || c.cfg.OwnCredentials {
		return nil
	}
	c.mu.Lock()
	fresh := c.now().Before(c.borrowed[name].Add(borrowAgain))
	c.mu.Unlock()
	if fresh {
		return nil
	}
	client, err := c.connect(ctx)
	if err == nil {
		_, err = c.load(ctx, client, id)
	}
	if err != nil {
		return fmt.Errorf("credentials for the files of table %v: %w", id, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.borrowed[name] = c.now()
	return nil
}
