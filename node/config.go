package node

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/tabletopic/tabletopic/broker/group"
	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/record"
)

// Config is the configuration of a node. Each field is a flag of `tabletopic serve`, a key
// of its configuration file and an environment variable; see [Config.Fields] for the names.
type Config struct {
	NodeID      int
	Rack        string
	Data        string
	ObjectStore string
	Metadata    string
	Warehouse   string

	Kafka           string
	KafkaAdvertised string
	HTTP            string

	KafkaProtocol            string
	Listeners                string
	ListenerProtocols        string
	AdvertisedListeners      string
	InterBrokerListener      string
	TLSCert                  string
	TLSKey                   string
	TLSClientCA              string
	TLSClientAuth            string
	TLSPrincipals            string
	TLSCA                    string
	SASLMechanisms           string
	Users                    string
	SuperUsers               string
	Authorization            string
	AllowWithoutACL          bool
	ReauthInterval           time.Duration
	OAuthJWKS                string
	OAuthIssuer              string
	OAuthAudience            string
	OAuthPrincipal           string
	OAuthSkew                time.Duration
	HTTPTLS                  bool
	HTTPAuthentication       string
	AllowInsecure            bool
	AuthTimeout              time.Duration
	MaxConnectionsPerAddress int

	WAL            string
	WALLinger      time.Duration
	WALIdleLinger  time.Duration
	WALInflight    int
	WALHedgeMin    time.Duration
	WALBytes       int64
	WALUnflushed   int64
	LogCache       int64
	BlockCache     int64
	ReadAhead      int64
	ReadInflight   int
	UploadBytes    int64
	UploadStreams  int
	UploadInterval time.Duration

	CompactionInterval time.Duration
	CompactionMinor    time.Duration
	CompactionMajor    time.Duration
	CompactionMemory   int64
	CompactionObjects  int
	CompactionRate     int64
	CompactionSplit    int64
	ForceSplit         time.Duration
	MinorBytes         int64
	MajorBytes         int64
	CleanupInterval    time.Duration
	CleanupBytes       int64

	MetadataSnapshotInterval time.Duration

	RetentionInterval time.Duration
	CleanerInterval   time.Duration
	CleanerDedupe     int64

	TransactionMaxTimeout     time.Duration
	TransactionalIDExpiration time.Duration
	TransactionalIDsMemory    int64
	ProducerIDExpiration      time.Duration
	MaxTransactionPartitions  int
	MaxProducers              int
	MaxAborted                int

	CleanInterval time.Duration
	DeleteGrace   time.Duration
	SweepInterval time.Duration
	SweepGrace    time.Duration

	AutoCreateTopics  bool
	AutoCreateMax     int
	DefaultPartitions int
	TopicDefaults     string
	MaxRequestBytes   int
	MaxDecompressed   int // bytes of a record batch
	MaxRequestMemory  int64
	MaxAnswerMemory   int64
	MaxInFlight       int
	IdleTimeout       time.Duration // of Kafka connections
	StallTimeout      time.Duration // of Kafka connections
	MaxConnections    int
	// MaxSessionPartitions bounds the partitions in the fetch sessions of all connections.
	MaxSessionPartitions int

	// Groups holds of groups what has a flag.
	Groups           group.Config
	GroupMigration   string
	MaxShareSessions int
	ShareRecordLock  time.Duration
	ShareDeliveries  int
	ShareRecordLocks int

	TableMemory       int64
	Garbage           int64 // bytes; of the process, so Open leaves it to its caller
	TableSweep        time.Duration
	TableSweepGrace   time.Duration
	CatalogURI        string
	CatalogWarehouse  string
	CatalogToken      string
	CatalogCredential string
	CatalogScope      string
	SecretsKey        string
	SecretsKeyFile    string

	RESTClients     string
	RESTLocations   string
	RESTCredentials string
	RESTCacheBytes  int64
	SchemaCache     int64

	ShutdownTimeout time.Duration
}

// A Field is one setting of [Config]: its name, where its value is, and what it means.
type Field struct {
	Name  string // the flag; the environment variable is TABLETOPIC_ and the name in capitals, - as _
	Value any    // *string, *int, *int64, *bool or *time.Duration, holding the default
	Usage string
}

// Fields sets every default in c and returns the settings in the order of the help.
func (c *Config) Fields() []Field {
	*c = Config{
		NodeID: 1, Data: "./tabletopic-data", Kafka: "127.0.0.1:9092", HTTP: "127.0.0.1:8081",
		KafkaProtocol: plaintext, SASLMechanisms: "SCRAM-SHA-256,SCRAM-SHA-512", OAuthPrincipal: "sub", OAuthSkew: 30 * time.Second, AuthTimeout: 10 * time.Second,
		WALLinger: 250 * time.Millisecond, WALInflight: 16, WALHedgeMin: 100 * time.Millisecond, WALBytes: 8 << 20, WALUnflushed: 256 << 20,
		LogCache: 128 << 20, ReadAhead: 16 << 20, ReadInflight: 32, UploadBytes: 32 << 20, UploadStreams: 20_000, UploadInterval: time.Minute,
		CompactionInterval: 5 * time.Minute, CompactionMinor: 10 * time.Minute, CompactionMajor: time.Hour, CompactionMemory: 200 << 20,
		CompactionObjects: 500, CompactionRate: 32 << 20, CompactionSplit: 8 << 20, ForceSplit: 2 * time.Hour, MinorBytes: 8 << 20, MajorBytes: 10 << 30,
		CleanupInterval: time.Minute, CleanupBytes: 512 << 20, RetentionInterval: 30 * time.Second, CleanerInterval: 15 * time.Second, MetadataSnapshotInterval: 10 * time.Second, CleanerDedupe: 64 << 20, CleanInterval: time.Minute,
		DeleteGrace: 10 * time.Minute, SweepInterval: 24 * time.Hour, SweepGrace: 6 * time.Hour,
		TransactionMaxTimeout: 15 * time.Minute, TransactionalIDExpiration: 7 * 24 * time.Hour, TransactionalIDsMemory: 256 << 20, ProducerIDExpiration: 24 * time.Hour, MaxTransactionPartitions: 10_000, MaxProducers: 10_000, MaxAborted: 1_000_000,
		AutoCreateTopics: true, AutoCreateMax: 100, DefaultPartitions: 1, MaxRequestBytes: 100 << 20, MaxDecompressed: 128 << 20, MaxRequestMemory: 256 << 20, MaxAnswerMemory: 256 << 20, MaxInFlight: 128, IdleTimeout: 10 * time.Minute, StallTimeout: 30 * time.Second,
		MaxConnections: 10_000, MaxSessionPartitions: 200_000,
		Groups: group.Config{
			MaxBytes: 16 << 20, MemoryBytes: 512 << 20, Retention: 7 * 24 * time.Hour,
			ConsumerSession: 45 * time.Second, ConsumerMinSession: 45 * time.Second, ConsumerMaxSession: time.Minute,
			ConsumerHeartbeat: 5 * time.Second, ConsumerMinHeartbeat: 5 * time.Second, ConsumerMaxHeartbeat: 15 * time.Second,
			ConsumerAssignment: time.Second, ConsumerMaxAssignment: 15 * time.Second, ShareAssignment: time.Second,
			ShareSession: 45 * time.Second, ShareHeartbeat: 5 * time.Second, ShareMaxSize: 200,
		},
		GroupMigration: string(group.MigrateBoth), MaxShareSessions: 2000, ShareRecordLock: 30 * time.Second, ShareDeliveries: 5, ShareRecordLocks: 2000,
		TableMemory: 256 << 20, Garbage: 32 << 20, TableSweep: 10 * time.Minute, TableSweepGrace: time.Hour,
		RESTCredentials: "none", RESTCacheBytes: 64 << 20, SchemaCache: 64 << 20, ShutdownTimeout: 30 * time.Second,
	}
	return []Field{
		{"node-id", &c.NodeID, "id of this node, also the Kafka broker id; a second process with the same id on the same store fences the first"},
		{"rack", &c.Rack, "where this node stands, as its availability zone (Kafka's broker.rack), which clients compare with their client.rack; unknown if empty"},
		{"data", &c.Data, "directory for everything that has no URL of its own"},
		{"object-store", &c.ObjectStore, "where the log lives: file:///DIR or s3://BUCKET/PREFIX?region=…&endpoint=…&path-style=true; file://DATA/objects if empty"},
		{"metadata", &c.Metadata, "metadata database: sqlite:PATH, or postgres://USER:PASSWORD@HOST:PORT/DATABASE, which several nodes may share; sqlite:DATA/metadata.db if empty"},
		{"warehouse", &c.Warehouse, "where tables of the built-in catalog live: file:///DIR or s3://BUCKET/PREFIX; OBJECT-STORE/warehouse if empty"},
		{"kafka", &c.Kafka, "listen address of the Kafka protocol"},
		{"kafka-advertised", &c.KafkaAdvertised, "HOST:PORT that clients are told to connect to; the listen address if empty"},
		{"http", &c.HTTP, "listen address of schema registry, Iceberg REST catalog, metrics and administration"},
		{"kafka-protocol", &c.KafkaProtocol, "what the listener on --kafka speaks: PLAINTEXT, SSL (TLS), SASL_PLAINTEXT or SASL_SSL"},
		{"listeners", &c.Listeners, "several Kafka listeners, instead of --kafka: NAME://HOST:PORT, separated by commas"},
		{"listener-protocols", &c.ListenerProtocols, "what they speak: NAME:PROTOCOL, separated by commas; a listener called like a protocol speaks that"},
		{"advertised-listeners", &c.AdvertisedListeners, "what their clients are told to connect to, NAME://HOST:PORT, separated by commas; the listen address if not named"},
		{"inter-broker-listener", &c.InterBrokerListener, "NAME of the listener by which nodes reach each other; the first if empty"},
		{"tls-cert", &c.TLSCert, "file of the server's certificate and those that lead to its authority, in PEM; it is read again when it changes"},
		{"tls-key", &c.TLSKey, "file of its key, in PEM"},
		{"tls-client-ca", &c.TLSClientCA, "file of the authorities whose certificates clients may have, in PEM"},
		{"tls-client-auth", &c.TLSClientAuth, "certificates of clients: none, requested or required; none if empty"},
		{"tls-principal-mapping", &c.TLSPrincipals, "user names out of the names in certificates, as Kafka's ssl.principal.mapping.rules: RULE:PATTERN/REPLACEMENT/[LU] or DEFAULT, separated by commas; the name as it is if empty"},
		{"tls-ca", &c.TLSCA, "file of the authorities that nodes trust when they connect to each other, in PEM; those of the system if empty"},
		{"sasl-mechanisms", &c.SASLMechanisms, "how clients of SASL listeners may prove who they are, separated by commas: SCRAM-SHA-256, SCRAM-SHA-512, PLAIN, OAUTHBEARER"},
		{"users", &c.Users, "users that are made if they do not exist: NAME:FILE, separated by commas, where FILE holds the password"},
		{"super-users", &c.SuperUsers, "principals that ACLs do not bind, as User:admin, separated by semicolons"},
		{"authorization", &c.Authorization, "none, or acl: what a client may do is decided by ACLs; acl if a listener authenticates its clients, else none, if empty"},
		{"allow-everyone-if-no-acl-found", &c.AllowWithoutACL, "allow what is done to a resource that no ACL names"},
		{"reauth-interval", &c.ReauthInterval, "how long a SASL session lasts that is not authenticated again; for ever if 0; a session with a token ends with it in any case"},
		{"oauth-jwks", &c.OAuthJWKS, "https:// URL or file of the keys that bearer tokens are signed with, as JWKS; no tokens are accepted if empty"},
		{"oauth-issuer", &c.OAuthIssuer, "issuer that tokens must name (iss)"},
		{"oauth-audience", &c.OAuthAudience, "audience that tokens must be for (aud)"},
		{"oauth-principal-claim", &c.OAuthPrincipal, "claim of a token that names the user"},
		{"oauth-clock-skew", &c.OAuthSkew, "how far the clocks of issuer and servers may be apart"},
		{"http-tls", &c.HTTPTLS, "use TLS on --http"},
		{"http-authentication", &c.HTTPAuthentication, "required: clients on --http say who they are, by user and password, token or certificate; or none; required if a Kafka listener authenticates its clients, else none, if empty"},
		{"allow-insecure", &c.AllowInsecure, "let listeners that others than this machine reach do without authentication, or take passwords without TLS"},
		{"auth-timeout", &c.AuthTimeout, "how long a client of Kafka may take to say who it is"},
		{"max-connections-per-address", &c.MaxConnectionsPerAddress, "most Kafka connections of one IP address at a time; no such limit if 0"},
		{"wal", &c.WAL, "write-ahead log: s3 (objects, survives the machine) or file (in DATA, survives the process; only with a file:// object store); file with file://, else s3, if empty"},
		{"wal-linger", &c.WALLinger, "how far apart write-ahead log objects are written that are not full; half of that if none is being written"},
		{"wal-idle-linger", &c.WALIdleLinger, "wait of the first records after an idle time, at most 10s; 10ms, or wal-linger if that is shorter, if 0; with 1s a node below 1 MiB/s makes 60 requests a minute at most instead of 240"},
		{"wal-inflight", &c.WALInflight, "most write-ahead log objects that are written at the same time"},
		{"wal-hedge-min", &c.WALHedgeMin, "a write-ahead log object is sent a second time when its request takes longer than 99 of 100 and this; never if negative"},
		{"wal-bytes", &c.WALBytes, "a write-ahead log object is written at this size, in bytes"},
		{"wal-unflushed-bytes", &c.WALUnflushed, "produce waits while more than this is not durable yet, in bytes"},
		{"log-cache-bytes", &c.LogCache, "memory for records that are not uploaded yet and for tail reads, in bytes"},
		{"block-cache-bytes", &c.BlockCache, "memory for blocks read back from the object store, in bytes; half as much may be in flight on top; if 0, 24 MiB with a file:// object store, else 64 MiB"},
		{"read-ahead-bytes", &c.ReadAhead, "most that is read ahead of one consumer that reads the object store in order, in bytes; at most a quarter of block-cache-bytes is used"},
		{"read-inflight", &c.ReadInflight, "reads of the object store for consumers at the same time; records in memory do not wait for them"},
		{"upload-bytes", &c.UploadBytes, "the log cache is uploaded when this much is new, in bytes"},
		{"metadata-snapshot-interval", &c.MetadataSnapshotInterval, "how often what changed in the metadata is copied to the object store, if nobody waits for it: until then, the WAL of what was uploaded is kept, and a pass over compacted topics is not over"},
		{"upload-streams", &c.UploadStreams, "… or when it holds new records of this many streams"},
		{"upload-interval", &c.UploadInterval, "the log cache is uploaded at least this often"},
		{"compaction-interval", &c.CompactionInterval, "how often uploads that several streams share are sorted into objects of single streams"},
		{"compaction-minor-interval", &c.CompactionMinor, "how often small objects of a stream are merged"},
		{"compaction-major-interval", &c.CompactionMajor, "how often the objects of a stream are linked under one index"},
		{"compaction-memory-bytes", &c.CompactionMemory, "memory for compaction, in bytes"},
		{"compaction-objects", &c.CompactionObjects, "most shared uploads that are sorted in one run"},
		{"compaction-rate-bytes", &c.CompactionRate, "bytes a second that compaction reads; a quarter of that while records wait for uploads or clients for the object store; more if a run would not end before the next"},
		{"compaction-split-bytes", &c.CompactionSplit, "a stream with this much in an upload or a run gets an object of its own, in bytes"},
		{"compaction-force-split", &c.ForceSplit, "age at which data leaves shared objects, however little it is"},
		{"compaction-minor-bytes", &c.MinorBytes, "objects of a stream below this size are merged, in bytes"},
		{"compaction-major-bytes", &c.MajorBytes, "most data that is linked under one index, in bytes"},
		{"compaction-cleanup-interval", &c.CleanupInterval, "how often linked objects that were trimmed are let go"},
		{"compaction-cleanup-bytes", &c.CleanupBytes, "trimmed data that an index must link before it is written anew, in bytes"},
		{"retention-check-interval", &c.RetentionInterval, "how often records that are older or more than retention allows are let go"},
		{"log-cleaner-interval", &c.CleanerInterval, "how often partitions of compacted topics are looked at: is enough of them dirty to be cleaned"},
		{"log-cleaner-dedupe-bytes", &c.CleanerDedupe, "memory for the keys of a pass over a compacted partition, 32 bytes each; more keys take several passes"},
		{"transaction-max-timeout", &c.TransactionMaxTimeout, "longest transaction.timeout.ms that a producer may ask for (Kafka's transaction.max.timeout.ms)"},
		{"transactional-id-expiration", &c.TransactionalIDExpiration, "how long a transactional.id without a transaction is known (Kafka's transactional.id.expiration.ms)"},
		{"transactional-ids-memory-bytes", &c.TransactionalIDsMemory, "most that transactional ids and their transactions take in memory, in all nodes together, in bytes; each partition of __transaction_state has its part, of which new ids may fill three quarters"},
		{"producer-id-expiration", &c.ProducerIDExpiration, "how long a partition knows a producer that appends nothing to it (Kafka's producer.id.expiration.ms)"},
		{"transaction-max-partitions", &c.MaxTransactionPartitions, "most partitions of a transaction"},
		{"partition-max-producers", &c.MaxProducers, "most producers with an id that a partition knows; beyond it a tenth is forgotten, of those without a transaction that were not seen for longest"},
		{"partition-max-aborted-transactions", &c.MaxAborted, "most transactions of a partition that are open, or were aborted and have records in its log; beyond it none begins"},
		{"clean-interval", &c.CleanInterval, "how often objects that hold nothing any more are looked for, and deleted"},
		{"delete-grace", &c.DeleteGrace, "how long an object that holds nothing any more is kept for readers that know it"},
		{"orphan-sweep-interval", &c.SweepInterval, "how often one node looks for objects in the store that the metadata does not know, and deletes them; never if negative"},
		{"orphan-sweep-grace", &c.SweepGrace, "how long such an object is left alone after it was written"},
		{"auto-create-topics", &c.AutoCreateTopics, "create a topic when a client that allows it asks for one that is missing"},
		{"auto-create-topics-max", &c.AutoCreateMax, "most topics that are created for one such request; clients ask again for the others"},
		{"topic-defaults", &c.TopicDefaults, "settings of tables that topics have unless they set them, as 'table.topic.enable=true;table.topic.namespace=lake'; the same on all nodes; not for internal topics and those of dead letters"},
		{"default-partitions", &c.DefaultPartitions, "partitions of a topic that is created without a number"},
		{"max-request-bytes", &c.MaxRequestBytes, "largest Kafka request, in bytes"},
		{"max-decompressed-bytes", &c.MaxDecompressed, "most that a record batch of a producer may decompress to, in bytes; larger ones are refused (MESSAGE_TOO_LARGE)"},
		{"max-request-memory", &c.MaxRequestMemory, "memory for Kafka requests that are being read or handled, in bytes; the next ones wait"},
		{"max-answer-memory", &c.MaxAnswerMemory, "memory for answers that Kafka clients have not taken yet, in bytes; requests wait for it"},
		{"max-in-flight-requests", &c.MaxInFlight, "most requests of one Kafka connection whose answers are not written yet"},
		{"connection-idle-timeout", &c.IdleTimeout, "after so long without a request a Kafka connection is closed"},
		{"connection-stall-timeout", &c.StallTimeout, "after so long without progress in the middle of a request or an answer a Kafka connection is closed; progress is 256 KiB, or a sixteenth of the request if that is more"},
		{"group-max-bytes", &c.Groups.MaxBytes, "most that the members of a group say of themselves, of all protocols, and most of one assignment of the classic one, in bytes"},
		{"groups-memory-bytes", &c.Groups.MemoryBytes, "most that groups of all protocols take in memory with their members, assignments and offsets, in all nodes together, in bytes; each partition of __consumer_offsets has its part, of which new groups may fill three quarters; at least 32 times group-max-bytes"},
		{"max-connections", &c.MaxConnections, "most Kafka connections at a time"},
		{"max-session-partitions", &c.MaxSessionPartitions, "most partitions in the fetch sessions of all Kafka connections"},
		{"offsets-retention", &c.Groups.Retention, "how long the committed offsets of a group that has no members are known, and those that consumers without a group protocol commit (Kafka's offsets.retention.minutes)"},
		{"group-consumer-session-timeout", &c.Groups.ConsumerSession, "how long a member of the consumer protocol is in its group after its last heartbeat, unless the group says it (Kafka's group.consumer.session.timeout.ms)"},
		{"group-consumer-min-session-timeout", &c.Groups.ConsumerMinSession, "least that a group may say of that"},
		{"group-consumer-max-session-timeout", &c.Groups.ConsumerMaxSession, "most that a group may say of that"},
		{"group-consumer-heartbeat-interval", &c.Groups.ConsumerHeartbeat, "how often such a member sends a heartbeat, unless the group says it (Kafka's group.consumer.heartbeat.interval.ms)"},
		{"group-consumer-min-heartbeat-interval", &c.Groups.ConsumerMinHeartbeat, "least that a group may say of that"},
		{"group-consumer-max-heartbeat-interval", &c.Groups.ConsumerMaxHeartbeat, "most that a group may say of that"},
		{"group-consumer-assignment-interval", &c.Groups.ConsumerAssignment, "how long after an assignment a group of the consumer protocol has its next one, which then takes in all that has changed, unless the group says it; at once if 0 (Kafka's group.consumer.assignment.interval.ms)"},
		{"group-consumer-min-assignment-interval", &c.Groups.ConsumerMinAssignment, "least that a group may say of that"},
		{"group-consumer-max-assignment-interval", &c.Groups.ConsumerMaxAssignment, "most that a group may say of that"},
		{"group-consumer-migration-policy", &c.GroupMigration, "whether a group with members may change its protocol (Kafka's group.consumer.migration.policy): bidirectional, upgrade (from the classic to the consumer protocol), downgrade or disabled"},
		{"group-share-session-timeout", &c.Groups.ShareSession, "how long a member of a share group is in it after its last heartbeat, unless the group says it (Kafka's group.share.session.timeout.ms)"},
		{"group-share-heartbeat-interval", &c.Groups.ShareHeartbeat, "how often such a member sends a heartbeat, unless the group says it (Kafka's group.share.heartbeat.interval.ms)"},
		{"group-share-assignment-interval", &c.Groups.ShareAssignment, "how long after an assignment a share group has its next one, unless the group says it; at once if 0 (Kafka's group.share.assignment.interval.ms)"},
		{"group-share-max-size", &c.Groups.ShareMaxSize, "most members of a share group"},
		{"group-share-max-share-sessions", &c.MaxShareSessions, "most share sessions of all Kafka connections"},
		{"group-share-record-lock-duration", &c.ShareRecordLock, "how long a member of a share group has a record, unless the group says it (Kafka's group.share.record.lock.duration.ms)"},
		{"group-share-delivery-count-limit", &c.ShareDeliveries, "how often a record is given to members of a share group, unless the group says it"},
		{"group-share-partition-max-record-locks", &c.ShareRecordLocks, "most records of a partition that a share group has in flight, unless the group says it"},
		{"table-memory-bytes", &c.TableMemory, "memory for rows on their way into data files, in bytes"},
		{"garbage-bytes", &c.Garbage, "memory that may wait for the garbage collector, in bytes, but at most half of what is in use; more if a collection would cost much; the environment variable GOGC goes before it"},
		{"table-sweep-interval", &c.TableSweep, "how often files of tables that no commit took are looked for, and deleted"},
		{"table-sweep-grace", &c.TableSweepGrace, "how long such a file is left alone after it was written or last named in the control log; half of it is longer than a request may be on its way to a catalog, and than clocks of nodes may differ"},
		{"catalog-uri", &c.CatalogURI, "external Iceberg REST catalog to commit to; the built-in catalog if empty"},
		{"catalog-warehouse", &c.CatalogWarehouse, "warehouse to name to the external catalog"},
		{"catalog-token", &c.CatalogToken, "bearer token for the external catalog"},
		{"catalog-credential", &c.CatalogCredential, "OAuth2 CLIENT_ID:CLIENT_SECRET for the external catalog"},
		{"catalog-scope", &c.CatalogScope, "OAuth2 scope for the external catalog"},
		{"secrets-key-file", &c.SecretsKeyFile, "file with the key that secrets of registered catalogs are encrypted with, base64 of 32 bytes; the same on all nodes"},
		{"secrets-key", &c.SecretsKey, "that key itself; better as an environment variable"},
		{"rest-catalog-clients", &c.RESTClients, "file of the clients that may use the built-in Iceberg REST catalog, by OAuth2; `tabletopic catalog-client add` makes it; everybody may if empty"},
		{"rest-catalog-locations", &c.RESTLocations, "locations besides the warehouse, separated by commas, below which clients of the built-in Iceberg REST catalog may place and register tables"},
		{"rest-catalog-credentials", &c.RESTCredentials, "keys for the files of a table, for clients that ask: none, own (this server's, for all of the store) or the ARN of a role that AWS STS limits to the table; own and a role only with rest-catalog-clients"},
		{"rest-catalog-cache-bytes", &c.RESTCacheBytes, "memory for table metadata that was used last, in bytes; 0 keeps none"},
		{"schema-cache-bytes", &c.SchemaCache, "memory for schemas and versions of subjects that were used last, in bytes; 0 keeps none"},
		{"shutdown-timeout", &c.ShutdownTimeout, "how long SIGTERM may take to upload and close"},
	}
}

// complete fills the settings that depend on others and refuses those that cannot work.
func (c *Config) complete() error {
	abs, err := filepath.Abs(c.Data)
	if err != nil {
		return fmt.Errorf("data %s: %w", c.Data, err)
	}
	c.Data = abs
	c.Groups.Migration = group.Migration(c.GroupMigration)
	if c.ObjectStore == "" {
		c.ObjectStore = "file://" + filepath.Join(c.Data, "objects")
	}
	if c.Metadata == "" {
		c.Metadata = "sqlite:" + filepath.Join(c.Data, "metadata.db")
	}
	if c.Warehouse == "" {
		base, query, has := strings.Cut(c.ObjectStore, "?")
		c.Warehouse = strings.TrimSuffix(base, "/") + "/warehouse"
		if has {
			c.Warehouse += "?" + query
		}
	}
	local := strings.HasPrefix(c.ObjectStore, "file:")
	cluster := strings.HasPrefix(c.Metadata, "postgres")
	if c.WAL == "" {
		c.WAL = "s3"
		if local && !cluster {
			c.WAL = "file"
		}
	}
	if c.BlockCache == 0 {
		c.BlockCache = 64 << 20
		if local {
			c.BlockCache = 24 << 20
		}
	}
	return errors.Join(
		c.bounds(),
		check(len(c.Rack) <= 249 && utf8.ValidString(c.Rack) && !strings.ContainsFunc(c.Rack, unicode.IsControl), "rack %q: want at most 249 bytes of plain text", c.Rack),
		check(c.NodeID >= 0 && c.NodeID < 1<<31, "node-id %d: want 0 to 2147483647", c.NodeID),
		check(c.WAL == "s3" || c.WAL == "file", "wal %q: want s3 or file", c.WAL),
		check(c.WAL == "s3" || local, "wal file: a log in local files does not survive this machine, and the object store does: use wal s3 with %s", c.ObjectStore),
		check(c.WAL == "s3" || !cluster, "wal file: no other node of a cluster could recover it: use wal s3 with a PostgreSQL metadata database"),
		check(c.WALHedgeMin != 0, "wal-hedge-min: want more than zero, or less for never"),
		address("kafka", c.Kafka),
		address("http", c.HTTP),
		check(c.KafkaAdvertised == "" || address("", c.KafkaAdvertised) == nil, "kafka-advertised %q: want HOST:PORT", c.KafkaAdvertised),
		check(c.CatalogURI == "" || strings.HasPrefix(c.CatalogURI, "http://") || strings.HasPrefix(c.CatalogURI, "https://"), "catalog-uri %q: want http:// or https://", c.CatalogURI),
		check(!hasUser(c.CatalogURI), "catalog-uri: it cannot be read, or has a user or a password in it, which logs would show: use catalog-token or catalog-credential"),
		check(c.RESTCredentials == "none" || c.RESTCredentials == "own" || strings.HasPrefix(c.RESTCredentials, "arn:"), "rest-catalog-credentials %q: want none, own or the ARN of a role", c.RESTCredentials),
		check(c.RESTCredentials == "none" || c.RESTClients != "", "rest-catalog-credentials %s: keys for everybody who can reach this port: set rest-catalog-clients", c.RESTCredentials),
		check(c.RESTCredentials == "none" || strings.HasPrefix(c.Warehouse, "s3://"), "rest-catalog-credentials %s: the warehouse %s is not on S3", c.RESTCredentials, c.Warehouse),
		check(c.CatalogURI != "" || c.CatalogWarehouse+c.CatalogToken+c.CatalogCredential+c.CatalogScope == "", "catalog-warehouse, -token, -credential and -scope go with catalog-uri"),
		topicDefaults(c.TopicDefaults),
		c.checkSecurity(),
		check(c.SecretsKey == "" || c.SecretsKeyFile == "", "secrets-key and secrets-key-file: want one of them"),
	)
}

// hasUser reports whether an address has a user or a password in it, or cannot be read.
func hasUser(address string) bool {
	u, err := url.Parse(address)
	return err != nil || u.User != nil
}

// bounds refuses numbers that cannot work, such as those of another unit.
func (c *Config) bounds() error {
	const (
		tick  = 10 * time.Millisecond
		long  = 365 * 24 * time.Hour
		large = 1 << 50 // bytes
	)
	return errors.Join(
		within("wal-linger", c.WALLinger, time.Millisecond, maxLinger),
		within("wal-idle-linger", c.WALIdleLinger, 0, maxLinger),
		within("wal-inflight", c.WALInflight, 1, 1000),
		within("wal-bytes", c.WALBytes, 1, 512<<20),
		within("wal-unflushed-bytes", c.WALUnflushed, 1, large),
		within("log-cache-bytes", c.LogCache, 1, large),
		check(c.UploadBytes <= c.LogCache/2, "log-cache-bytes %d: want at least twice upload-bytes (%d), or records wait for every upload", c.LogCache, c.UploadBytes),
		check(c.WALBytes <= c.LogCache, "wal-bytes %d: want at most log-cache-bytes (%d), where it has to find room", c.WALBytes, c.LogCache),
		within("block-cache-bytes", c.BlockCache, 1, large),
		within("read-ahead-bytes", c.ReadAhead, 1, large),
		within("read-inflight", c.ReadInflight, 1, 10_000),
		within("upload-bytes", c.UploadBytes, 1, large),
		within("upload-streams", c.UploadStreams, 1, 1_000_000),
		within("upload-interval", c.UploadInterval, tick, long),
		within("compaction-interval", c.CompactionInterval, tick, long),
		within("compaction-minor-interval", c.CompactionMinor, tick, long),
		within("compaction-major-interval", c.CompactionMajor, tick, long),
		within("compaction-memory-bytes", c.CompactionMemory, 1, large),
		within("compaction-objects", c.CompactionObjects, 2, 100_000),
		within("compaction-rate-bytes", c.CompactionRate, 64<<10, large),
		within("compaction-split-bytes", c.CompactionSplit, 1, large),
		within("compaction-force-split", c.ForceSplit, tick, long),
		within("compaction-minor-bytes", c.MinorBytes, 1, large),
		within("compaction-major-bytes", c.MajorBytes, 1, large),
		within("compaction-cleanup-interval", c.CleanupInterval, tick, long),
		within("compaction-cleanup-bytes", c.CleanupBytes, 1, large),
		within("retention-check-interval", c.RetentionInterval, tick, long),
		within("metadata-snapshot-interval", c.MetadataSnapshotInterval, tick, time.Hour),
		within("log-cleaner-interval", c.CleanerInterval, tick, long),
		within("log-cleaner-dedupe-bytes", c.CleanerDedupe, 1<<10, large),
		within("transaction-max-timeout", c.TransactionMaxTimeout, tick, long),
		within("transactional-id-expiration", c.TransactionalIDExpiration, tick, long),
		within("transactional-ids-memory-bytes", c.TransactionalIDsMemory, 1<<20, large),
		within("producer-id-expiration", c.ProducerIDExpiration, tick, long),
		within("transaction-max-partitions", c.MaxTransactionPartitions, 1, 1_000_000),
		within("partition-max-producers", c.MaxProducers, 1, 1_000_000),
		within("partition-max-aborted-transactions", c.MaxAborted, 1, 10_000_000),
		within("clean-interval", c.CleanInterval, tick, long),
		// Longer than the pause before a commit is repeated; see Config.DeleteGrace of package streamstore.
		within("delete-grace", c.DeleteGrace, 10*time.Second, long),
		check(c.SweepInterval < 0 || c.SweepInterval >= tick, "orphan-sweep-interval %v: want %v or more, or less than zero for never", c.SweepInterval, tick),
		within("orphan-sweep-grace", c.SweepGrace, tick, long),
		within("table-sweep-interval", c.TableSweep, tick, long),
		within("table-sweep-grace", c.TableSweepGrace, 10*time.Second, long),
		within("auto-create-topics-max", c.AutoCreateMax, 1, 100_000),
		within("default-partitions", c.DefaultPartitions, 1, 10_000),
		within("max-request-bytes", c.MaxRequestBytes, 4<<10, 1<<30),
		within("max-decompressed-bytes", c.MaxDecompressed, 64<<10, record.DefaultLimit),
		within("max-request-memory", c.MaxRequestMemory, int64(c.MaxRequestBytes), large),
		within("max-answer-memory", c.MaxAnswerMemory, 1<<20, large),
		within("max-in-flight-requests", c.MaxInFlight, 1, 10_000),
		within("connection-idle-timeout", c.IdleTimeout, time.Second, long),
		within("connection-stall-timeout", c.StallTimeout, time.Second, long),
		within("group-max-bytes", c.Groups.MaxBytes, 64<<10, 60<<20),
		// A partition has room for a group that says as much of itself as it may, and what it is assigned.
		within("groups-memory-bytes", c.Groups.MemoryBytes, 32*int64(c.Groups.MaxBytes), large),
		within("offsets-retention", c.Groups.Retention, time.Minute, long),
		within("max-connections", c.MaxConnections, 1, 1_000_000),
		within("auth-timeout", c.AuthTimeout, 100*time.Millisecond, long),
		within("reauth-interval", c.ReauthInterval, 0, long),
		within("oauth-clock-skew", c.OAuthSkew, 0, time.Hour),
		within("max-session-partitions", c.MaxSessionPartitions, 1, 10_000_000),
		within("group-consumer-min-session-timeout", c.Groups.ConsumerMinSession, time.Second, long),
		within("group-consumer-max-session-timeout", c.Groups.ConsumerMaxSession, c.Groups.ConsumerMinSession, long),
		within("group-consumer-session-timeout", c.Groups.ConsumerSession, c.Groups.ConsumerMinSession, c.Groups.ConsumerMaxSession),
		within("group-consumer-min-heartbeat-interval", c.Groups.ConsumerMinHeartbeat, 100*time.Millisecond, long),
		within("group-consumer-max-heartbeat-interval", c.Groups.ConsumerMaxHeartbeat, c.Groups.ConsumerMinHeartbeat, long),
		within("group-consumer-heartbeat-interval", c.Groups.ConsumerHeartbeat, c.Groups.ConsumerMinHeartbeat, c.Groups.ConsumerMaxHeartbeat),
		check(c.Groups.ConsumerHeartbeat < c.Groups.ConsumerSession, "group-consumer-heartbeat-interval %v: want less than group-consumer-session-timeout (%v)", c.Groups.ConsumerHeartbeat, c.Groups.ConsumerSession),
		within("group-consumer-min-assignment-interval", c.Groups.ConsumerMinAssignment, 0, time.Minute),
		within("group-consumer-max-assignment-interval", c.Groups.ConsumerMaxAssignment, max(c.Groups.ConsumerMinAssignment, time.Millisecond), time.Minute),
		within("group-consumer-assignment-interval", c.Groups.ConsumerAssignment, c.Groups.ConsumerMinAssignment, c.Groups.ConsumerMaxAssignment),
		within("group-share-assignment-interval", c.Groups.ShareAssignment, 0, 15*time.Second),
		check(slices.Contains(group.Migrations, c.Groups.Migration), "group-consumer-migration-policy %q: want one of %v", c.GroupMigration, group.Migrations),
		within("group-share-session-timeout", c.Groups.ShareSession, time.Second, 30*time.Minute),
		within("group-share-heartbeat-interval", c.Groups.ShareHeartbeat, 100*time.Millisecond, 10*time.Minute),
		check(c.Groups.ShareHeartbeat < c.Groups.ShareSession, "group-share-heartbeat-interval %v: want less than group-share-session-timeout (%v)", c.Groups.ShareHeartbeat, c.Groups.ShareSession),
		within("group-share-max-size", c.Groups.ShareMaxSize, 1, 1000),
		within("group-share-max-share-sessions", c.MaxShareSessions, 1, 1_000_000),
		within("group-share-record-lock-duration", c.ShareRecordLock, time.Second, time.Hour),
		within("group-share-delivery-count-limit", c.ShareDeliveries, 2, 100),
		within("group-share-partition-max-record-locks", c.ShareRecordLocks, 100, 10_000),
		within("table-memory-bytes", c.TableMemory, 1, large),
		within("garbage-bytes", c.Garbage, 1, large),
		within("rest-catalog-cache-bytes", c.RESTCacheBytes, 0, large),
		within("schema-cache-bytes", c.SchemaCache, 0, large),
		within("shutdown-timeout", c.ShutdownTimeout, tick, long),
	)
}

// maxLinger leaves room below the 30 s after which producers give up.
const maxLinger = 10 * time.Second

func within[T int | int64 | time.Duration](name string, v, least, most T) error {
	return check(v >= least && v <= most, "%s %v: want %v to %v", name, v, least, most)
}

func check(ok bool, format string, args ...any) error {
	if ok {
		return nil
	}
	return fmt.Errorf(format, args...)
}

func topicDefaults(text string) error {
	if _, err := partition.ParseTopicDefaults(text); err != nil {
		return fmt.Errorf("topic-defaults: %w", err)
	}
	return nil
}

func address(name, hostport string) error {
	if _, _, err := net.SplitHostPort(hostport); err != nil {
		return fmt.Errorf("%s %q: want HOST:PORT", name, hostport)
	}
	return nil
}
