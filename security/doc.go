// Package security knows who a client is, and what it may do.
//
// Who: [Access.Exchange] is a SASL exchange of a Kafka connection (PLAIN, SCRAM-SHA-256,
// SCRAM-SHA-512, OAUTHBEARER), [Access.Password] and [Access.Bearer] are for HTTP, and
// [Mapping] names the owner of a TLS certificate. All lead to a principal such as
// "User:alice". Users are in metadata, as the keys that SCRAM derives of a password and a
// salt; the password itself is nowhere, and PLAIN is checked against the same keys.
//
// What: [Rules] decides, as Kafka does, and is pure. [Access] holds the rules of now, which
// it reads again when the change log of metadata says so, and writes down who was denied
// what; and [Quotas], how much a client may do. What is set at one node holds at the others within
// a second.
package security

import "github.com/twmb/franz-go/pkg/kmsg"

// Resource types of this server besides Kafka's. Kafka's tools do not know them, so they are
// shown only to those who ask for them by number.
const (
	// ResourceSubject is a subject of the schema registry.
	ResourceSubject kmsg.ACLResourceType = 100
	// ResourceTable is a table of the built-in Iceberg catalog, as namespace.table.
	ResourceTable kmsg.ACLResourceType = 101
)

// ClusterName is the name of the one resource of type Cluster.
const ClusterName = "kafka-cluster"

// Principals that are not users of metadata.
const (
	// Anonymous is who does not say who it is.
	Anonymous = "User:ANONYMOUS"
	// Node is another node of the cluster. Nobody else is called this: names of users do not
	// begin with "__".
	Node = "User:" + nodeUser

	nodeUser = "__node"
)

// A Client is who asks.
type Client struct {
	Principal string // as User:alice
	Host      string // its IP address
}
