package node

import (
	"strings"
	"testing"
	"time"
)

// Numbers that cannot work are refused, with the name of the setting and what it may be.
func TestSettingsThatCannotWorkAreRefused(t *testing.T) {
	for says, set := range map[string]func(c *Config){
		"":                                               func(*Config) {},
		"max-request-bytes 1: want":                      func(c *Config) { c.MaxRequestBytes = 1 },
		"max-decompressed-bytes 1: want":                 func(c *Config) { c.MaxDecompressed = 1 },
		"max-decompressed-bytes 268435456: want":         func(c *Config) { c.MaxDecompressed = 256 << 20 },
		"offsets-retention 1s: want 1m0s":                func(c *Config) { c.Groups.Retention = time.Second },
		"wal-linger 1h0m0s: want":                        func(c *Config) { c.WALLinger = time.Hour },
		"wal-idle-linger 11s: want":                      func(c *Config) { c.WALIdleLinger = 11 * time.Second },
		"wal-inflight 0: want":                           func(c *Config) { c.WALInflight = 0 },
		"wal-inflight 100000000:":                        func(c *Config) { c.WALInflight = 100_000_000 },
		"want at most log-cache":                         func(c *Config) { c.WALBytes = c.LogCache + 1 },
		"at least twice upload":                          func(c *Config) { c.UploadBytes, c.LogCache = 1<<62+1, 1 },
		"compaction-interval 1ns":                        func(c *Config) { c.CompactionInterval = 1 },
		"compaction-rate-bytes 1:":                       func(c *Config) { c.CompactionRate = 1 },
		"orphan-sweep-interval 1ns:":                     func(c *Config) { c.SweepInterval = 1 },
		"table-sweep-grace 9s: want":                     func(c *Config) { c.TableSweepGrace = 9 * time.Second },
		"delete-grace 9s: want 10s":                      func(c *Config) { c.DeleteGrace = 9 * time.Second },
		"group-consumer-session-timeout 30s: want 45s":   func(c *Config) { c.Groups.ConsumerSession = 30 * time.Second },
		"group-consumer-assignment-interval 16s: want":   func(c *Config) { c.Groups.ConsumerAssignment = 16 * time.Second },
		"group-consumer-migration-policy \"both\": want": func(c *Config) { c.GroupMigration = "both" },
		"group-share-delivery-count-limit 1: want 2":     func(c *Config) { c.ShareDeliveries = 1 },
		"catalog-uri: it cannot be read, or has":         func(c *Config) { c.CatalogURI = "http://u:hush@c" },
		"transaction-max-partitions 0: want":             func(c *Config) { c.MaxTransactionPartitions = 0 },
		"partition-max-producers 0: want":                func(c *Config) { c.MaxProducers = 0 },
		"partition-max-aborted-transactions 0: want":     func(c *Config) { c.MaxAborted = 0 },
		"want User:NAME, separated by semicolons":        func(c *Config) { c.SuperUsers = "User:admin,User:eve" },
		"wal-hedge-min":                                  func(c *Config) { c.WALHedgeMin = 0 },
	} {
		var c Config
		c.Fields()
		set(&c)
		err := c.complete()
		if (err == nil) != (says == "") || err != nil && (!strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "hush")) {
			t.Errorf("got %v, want %q", err, says)
		}
	}
	var c Config
	c.Fields()
	c.SweepInterval, c.WALHedgeMin, c.RESTCacheBytes, c.SchemaCache = -1, -1, 0, 0 // never, never, none, none
	if err := c.complete(); err != nil {
		t.Error(err)
	}
}

// A directory gives blocks back at once, so that less of them is kept there than of S3's; what is set holds everywhere.
func TestDefaultOfTheBlockCacheFollowsTheStore(t *testing.T) {
	for _, test := range []struct {
		store     string
		set, want int64
	}{{"", 0, 24 << 20}, {"file:///log", 0, 24 << 20}, {"s3://log", 0, 64 << 20}, {"file:///log", 64 << 20, 64 << 20}, {"s3://log", 1, 1}} {
		var c Config
		c.Fields()
		c.Data, c.ObjectStore, c.BlockCache = t.TempDir(), test.store, test.set
		if err := c.complete(); err != nil || c.BlockCache != test.want {
			t.Errorf("%+v: %d, %v", test, c.BlockCache, err)
		}
	}
}
