package named

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/catalog/awsconfig"
	"github.com/tabletopic/tabletopic/catalog/glue"
	"github.com/tabletopic/tabletopic/catalog/hive"
	"github.com/tabletopic/tabletopic/catalog/rest"
	"github.com/tabletopic/tabletopic/catalog/s3tables"
	catalogsql "github.com/tabletopic/tabletopic/catalog/sql"
)

// A Setting of a kind of catalog.
type Setting struct {
	Name     string
	Usage    string
	Secret   bool // stored encrypted, never shown
	Required bool
}

// A Kind of catalog.
type Kind struct {
	Name     string
	Usage    string
	Settings []Setting

	open func(ctx context.Context, locator catalog.Locator, s *settings) (external, error)
}

// external is what each kind opens.
type external interface {
	catalog.Catalog
	// Connect tells whether the catalog answers.
	Connect(ctx context.Context) error
	Close() error
}

var timeout = Setting{Name: "timeout", Usage: "longest time of one request, as 30s; 60s if missing"}

var awsSettings = []Setting{
	{Name: "region", Usage: "AWS region; from the environment if missing"},
	{Name: "endpoint", Usage: "URL of a service that is not that of AWS"},
	{Name: "access-key-id", Usage: "key; the default chain of AWS if missing"},
	{Name: "secret-access-key", Usage: "its secret", Secret: true},
	{Name: "session-token", Usage: "its session", Secret: true},
	{Name: "role", Usage: "ARN of a role to take on"},
	{Name: "external-id", Usage: "what the role's trust asks for"},
	{Name: "sts-endpoint", Usage: "URL where the role is asked for, if it is not that of AWS"},
}

// headerPrefix is that of settings of a REST catalog which are headers.
const headerPrefix = "header."

// Kinds returns the kinds of catalogs that there are.
func Kinds() []Kind {
	kinds := []Kind{
		{"rest", "Iceberg REST catalog: Polaris, Nessie, Unity Catalog, Lakekeeper, another Table Topic …", slices.Concat([]Setting{
			{Name: "uri", Usage: "address without /v1", Required: true},
			{Name: "warehouse", Usage: "warehouse to name to the catalog"},
			{Name: "prefix", Usage: "prefix of its paths; what it says itself if missing"},
			{Name: "token", Usage: "bearer token", Secret: true},
			{Name: "credential", Usage: "OAuth2 CLIENT_ID:CLIENT_SECRET", Secret: true},
			{Name: "scope", Usage: "OAuth2 scope; catalog if missing"},
			{Name: "audience", Usage: "OAuth2 audience"},
			{Name: "resource", Usage: "OAuth2 resource"},
			{Name: "token-uri", Usage: "where OAuth2 tokens are asked for; URI/v1/oauth/tokens if missing"},
			{Name: "sigv4", Usage: "true signs requests as AWS wants it"},
			{Name: "sigv4-service", Usage: "signing name; execute-api if missing"},
			{Name: headerPrefix + "*", Usage: "a header of each request, as header.X-Realm=r1", Secret: true},
			{Name: "ca", Usage: "certificates to trust, in PEM; the system's if missing"},
			{Name: "own-credentials", Usage: "true keeps to the server's own credentials for files, also if the catalog vends some"},
			timeout,
		}, awsSettings), openREST},
		{"glue", "AWS Glue Data Catalog", slices.Concat([]Setting{
			{Name: "warehouse", Usage: "location below which tables are made; that of their database if missing"},
			{Name: "catalog-id", Usage: "AWS account of the Data Catalog; the caller's if missing"},
			{Name: "archive", Usage: "true makes Glue keep each version of a table"},
			timeout,
		}, awsSettings), openGlue},
		{"s3tables", "Amazon S3 table bucket", slices.Concat([]Setting{
			{Name: "bucket", Usage: "ARN of the table bucket", Required: true}, timeout,
		}, awsSettings), openS3Tables},
		{"hive", "Hive Metastore, version 3.1 or later", []Setting{
			{Name: "uri", Usage: "thrift://HOST:PORT, several with commas", Required: true},
			{Name: "warehouse", Usage: "location below which tables are made; that of their database if missing"},
			{Name: "tls", Usage: "true speaks TLS"},
			{Name: "ca", Usage: "certificates to trust, in PEM; the system's if missing"},
			{Name: "no-lock", Usage: "true commits without the table's lock, for metastores that compare expected_parameter_key (4.0)"},
			{Name: "lock-wait", Usage: "how long a commit waits for the lock; 60s if missing"},
			{Name: "heartbeat", Usage: "how often a lock is kept alive; 30s if missing"},
			{Name: "settle", Usage: "how long a lock is kept after a commit that got no answer; 30s if missing"},
			timeout,
		}, openHive},
		{"sql", "tables of Iceberg's JDBC catalog in PostgreSQL", []Setting{
			{Name: "url", Usage: "postgres://USER:PASSWORD@HOST:PORT/DATABASE", Secret: true, Required: true},
			{Name: "name", Usage: "name of the catalog in the database; tabletopic if missing"},
			{Name: "warehouse", Usage: "location below which tables are made", Required: true},
		}, openSQL},
	}
	for i := range kinds {
		kinds[i].Settings = append(kinds[i].Settings, storageSettings...)
	}
	return kinds
}

// kind returns the kind of a name.
func kind(name string) (Kind, error) {
	var names []string
	for _, k := range Kinds() {
		if k.Name == name {
			return k, nil
		}
		names = append(names, k.Name)
	}
	return Kind{}, fmt.Errorf("kind of catalog %q: want one of %s", name, strings.Join(names, ", "))
}

// setting returns the setting of a key.
func (k Kind) setting(key string) (Setting, error) {
	var names []string
	for _, s := range k.Settings {
		if stem, any := strings.CutSuffix(s.Name, "*"); s.Name == key || any && strings.HasPrefix(key, stem) && len(key) > len(stem) {
			return s, nil
		}
		names = append(names, s.Name)
	}
	return Setting{}, fmt.Errorf("setting %q: a %s catalog has %s", key, k.Name, strings.Join(names, ", "))
}

// check refuses unknown keys, empty values and what is missing.
func (k Kind) check(values map[string]string) error {
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(values)) {
		s, err := k.setting(key)
		switch {
		case err != nil:
			errs = append(errs, err)
		case values[key] == "":
			errs = append(errs, fmt.Errorf("setting %q is empty: leave it out", key))
		case !s.Secret && hasUser(values[key]):
			errs = append(errs, fmt.Errorf("setting %q is shown to everybody and has a user or a password in its address: take them out, the settings of a %s catalog that are secrets have room for them", key, k.Name))
		}
	}
	for _, s := range k.Settings {
		if s.Required && values[s.Name] == "" {
			errs = append(errs, fmt.Errorf("a %s catalog needs %s: %s", k.Name, s.Name, s.Usage))
		}
	}
	return errors.Join(errs...)
}

// hasUser reports whether a value is an address, or several, as scheme://USER@HOST.
func hasUser(value string) bool {
	for address := range strings.SplitSeq(value, ",") {
		_, rest, found := strings.Cut(address, "://")
		host, _, _ := strings.Cut(rest, "/")
		if found && strings.Contains(host, "@") {
			return true
		}
	}
	return false
}

// settings reads typed values and remembers what was wrong.
type settings struct {
	values map[string]string
	errs   []error
}

func (s *settings) text(key string) string { return s.values[key] }

func (s *settings) truth(key string) bool {
	if s.values[key] == "" {
		return false
	}
	v, err := strconv.ParseBool(s.values[key])
	if err != nil {
		s.errs = append(s.errs, fmt.Errorf("%s=%q: true or false is wanted", key, s.values[key]))
	}
	return v
}

func (s *settings) duration(key string) time.Duration {
	if s.values[key] == "" {
		return 0
	}
	d, err := time.ParseDuration(s.values[key])
	if err != nil || d <= 0 {
		s.errs = append(s.errs, fmt.Errorf("%s=%q: a time such as 30s is wanted", key, s.values[key]))
	}
	return d
}

// trust returns the TLS settings, nil for the system's.
func (s *settings) trust() *tls.Config {
	if s.values["ca"] == "" {
		return nil
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(s.values["ca"])) {
		s.errs = append(s.errs, errors.New("ca: certificates in PEM are wanted"))
	}
	return &tls.Config{RootCAs: pool}
}

func (s *settings) aws() awsconfig.Config {
	return awsconfig.Config{
		Region: s.text("region"), Endpoint: s.text("endpoint"), AccessKeyID: s.text("access-key-id"), SecretAccessKey: s.text("secret-access-key"),
		SessionToken: s.text("session-token"), Role: s.text("role"), ExternalID: s.text("external-id"), STSEndpoint: s.text("sts-endpoint"),
	}
}

func (s *settings) err() error { return errors.Join(s.errs...) }

func openREST(_ context.Context, locator catalog.Locator, s *settings) (external, error) {
	cfg := rest.Config{
		URI: s.text("uri"), Warehouse: s.text("warehouse"), Prefix: s.text("prefix"), Token: s.text("token"), Credential: s.text("credential"),
		Scope: s.text("scope"), Audience: s.text("audience"), Resource: s.text("resource"), TokenURI: s.text("token-uri"),
		TLS: s.trust(), OwnCredentials: s.truth("own-credentials") || s.hasStorage(), Timeout: s.duration("timeout"),
	}
	if s.truth("sigv4") {
		cfg.SigV4 = &rest.SigV4{AWS: s.aws(), Service: s.text("sigv4-service")}
	}
	for key, value := range s.values {
		if header, ok := strings.CutPrefix(key, headerPrefix); ok {
			if cfg.Headers == nil {
				cfg.Headers = map[string]string{}
			}
			cfg.Headers[header] = value
		}
	}
	if err := s.err(); err != nil {
		return nil, err
	}
	return rest.Open(locator, cfg)
}

func openGlue(ctx context.Context, locator catalog.Locator, s *settings) (external, error) {
	cfg := glue.Config{AWS: s.aws(), Warehouse: s.text("warehouse"), CatalogID: s.text("catalog-id"), Archive: s.truth("archive"), Timeout: s.duration("timeout")}
	if err := s.err(); err != nil {
		return nil, err
	}
	return glue.Open(ctx, locator, cfg)
}

func openS3Tables(_ context.Context, locator catalog.Locator, s *settings) (external, error) {
	cfg := s3tables.Config{Bucket: s.text("bucket"), AWS: s.aws(), Timeout: s.duration("timeout")}
	if err := s.err(); err != nil {
		return nil, err
	}
	return s3tables.Open(locator, cfg)
}

func openHive(_ context.Context, locator catalog.Locator, s *settings) (external, error) {
	cfg := hive.Config{
		URI: s.text("uri"), Warehouse: s.text("warehouse"), NoLock: s.truth("no-lock"), LockWait: s.duration("lock-wait"),
		Heartbeat: s.duration("heartbeat"), Settle: s.duration("settle"), Timeout: s.duration("timeout"),
	}
	if s.truth("tls") {
		if cfg.TLS = s.trust(); cfg.TLS == nil {
			cfg.TLS = &tls.Config{}
		}
	}
	if err := s.err(); err != nil {
		return nil, err
	}
	return hive.Open(locator, cfg)
}

// maxConnections is those to the database of one sql catalog.
const maxConnections = 4

func openSQL(ctx context.Context, locator catalog.Locator, s *settings) (external, error) {
	parsed, err := pgx.ParseConfig(s.text("url"))
	if err != nil {
		return nil, errors.New("url: postgres://USER:PASSWORD@HOST:PORT/DATABASE is wanted") // the error may show the password
	}
	parsed.RuntimeParams["default_transaction_isolation"] = "serializable" // catalog/sql asks for it
	db := stdlib.OpenDB(*parsed)
	db.SetMaxOpenConns(maxConnections)
	c, err := catalogsql.Open(ctx, db, locator, catalogsql.Config{Name: s.text("name"), Warehouse: s.text("warehouse")})
	if err != nil {
		db.Close()
		return nil, err
	}
	return sqlCatalog{c, db}, nil
}

// sqlCatalog is a catalog with a database of its own.
type sqlCatalog struct {
	*catalogsql.Catalog
	db *sql.DB
}

func (c sqlCatalog) Connect(ctx context.Context) error { return c.db.PingContext(ctx) }
func (c sqlCatalog) Close() error                      { return c.db.Close() }
