package server

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sts"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// Credentials gives access to the files below a location, as client properties such as
// s3.access-key-id. None is an empty map: the location is not one it has keys for.
type Credentials interface {
	For(ctx context.Context, location string) (map[string]string, error)
}

// A credential is the specification's StorageCredential.
type credential struct {
	Prefix string            `json:"prefix"`
	Config map[string]string `json:"config"`
}

// vend returns credentials for a location if the client asks for them and there are any.
func (s *Server) vend(r *request, location string) ([]credential, error) {
	asked := false
	for _, line := range r.Header.Values("X-Iceberg-Access-Delegation") {
		for _, way := range strings.Split(line, ",") {
			asked = asked || strings.TrimSpace(way) == "vended-credentials"
		}
	}
	if !asked || s.cfg.Credentials == nil {
		return nil, nil
	}
	return s.credentials(r, location)
}

func (s *Server) credentials(r *request, location string) ([]credential, error) {
	// What a client could make the location of its table is not enough for rights on it.
	if err := s.checkLocation(r, location); err != nil {
		return nil, err
	}
	config, err := s.cfg.Credentials.For(r.Context(), location)
	if err != nil {
		return nil, fmt.Errorf("credentials for %s: %w", location, err)
	}
	if len(config) == 0 {
		return nil, nil
	}
	return []credential{{strings.TrimRight(location, "/") + "/", config}}, nil
}

func (s *Server) loadCredentials(r *request) (any, error) {
	t, err := s.catalog.Load(r.Context(), r.table)
	if err != nil {
		return nil, err
	}
	list, err := s.credentials(r, t.Location())
	if err != nil {
		return nil, err
	}
	if list == nil {
		list = []credential{}
	}
	return map[string]any{"storage-credentials": list}, nil
}

// properties are an S3 key as clients take it.
func properties(c aws.Credentials) map[string]string {
	p := map[string]string{"s3.access-key-id": c.AccessKeyID, "s3.secret-access-key": c.SecretAccessKey}
	if c.SessionToken != "" {
		p["s3.session-token"] = c.SessionToken
	}
	if c.CanExpire {
		p["s3.session-token-expires-at-ms"] = strconv.FormatInt(c.Expires.UnixMilli(), 10)
	}
	return p
}

// OwnCredentials gives this server's own keys to every client: for stores without roles,
// among clients that are trusted with all of them.
func OwnCredentials(keys aws.CredentialsProvider) Credentials { return own{keys} }

type own struct{ keys aws.CredentialsProvider }

func (o own) For(ctx context.Context, location string) (map[string]string, error) {
	if !strings.HasPrefix(location, "s3") {
		return nil, nil
	}
	keys, err := o.keys.Retrieve(ctx)
	if err != nil {
		return nil, err
	}
	return properties(keys), nil
}

// A Role is what AWS STS, or a store that has it, makes short-lived keys from.
type Role struct {
	ARN string
	// Lifetime of the keys. One hour if zero; STS allows 15 minutes to 12 hours.
	Lifetime time.Duration
	// Partition of the ARNs of buckets: aws, aws-cn or aws-us-gov. aws if empty.
	Partition string
}

// STS is the part of the STS client that RoleCredentials needs.
type STS interface {
	AssumeRole(ctx context.Context, in *sts.AssumeRoleInput, opts ...func(*sts.Options)) (*sts.AssumeRoleOutput, error)
}

// RoleCredentials gives keys of a role, by a session policy limited to the location they
// are for.
func RoleCredentials(client STS, role Role) Credentials {
	if role.Lifetime == 0 {
		role.Lifetime = time.Hour
	}
	if role.Partition == "" {
		role.Partition = "aws"
	}
	issued, _ := simplelru.NewLRU[string, issuedKeys](maxIssued, nil) // the size is positive
	return &assumed{client: client, role: role, issued: issued}
}

// maxIssued bounds how many locations keys are kept for.
const maxIssued = 1000

type issuedKeys struct {
	properties map[string]string
	until      time.Time
}

type assumed struct {
	client STS
	role   Role

	mu     sync.Mutex
	issued *simplelru.LRU[string, issuedKeys] // guarded by mu
}

// For gives the same keys again for the first half of their life.
func (a *assumed) For(ctx context.Context, location string) (map[string]string, error) {
	scheme, rest, _ := strings.Cut(strings.TrimRight(location, "/"), "://")
	if !strings.HasPrefix(scheme, "s3") {
		return nil, nil
	}
	bucket, prefix, _ := strings.Cut(rest, "/")
	a.mu.Lock()
	old, ok := a.issued.Get(location)
	a.mu.Unlock()
	if ok && time.Now().Before(old.until) {
		return old.properties, nil
	}
	policy, err := sessionPolicy(a.role.Partition, bucket, prefix)
	if err != nil {
		return nil, err
	}
	out, err := a.client.AssumeRole(ctx, &sts.AssumeRoleInput{RoleArn: &a.role.ARN, RoleSessionName: aws.String("tabletopic"),
		DurationSeconds: aws.Int32(int32(a.role.Lifetime.Seconds())), Policy: &policy})
	if err != nil {
		return nil, err
	}
	c := out.Credentials
	if c == nil || c.AccessKeyId == nil || c.SecretAccessKey == nil || c.Expiration == nil {
		return nil, fmt.Errorf("assume role %s: the answer has no keys", a.role.ARN)
	}
	p := properties(aws.Credentials{AccessKeyID: *c.AccessKeyId, SecretAccessKey: *c.SecretAccessKey,
		SessionToken: aws.ToString(c.SessionToken), CanExpire: true, Expires: *c.Expiration})
	a.mu.Lock()
	defer a.mu.Unlock()
	a.issued.Add(location, issuedKeys{p, time.Now().Add(time.Until(*c.Expiration) / 2)})
	return p, nil
}

// sessionPolicy allows what an engine does with a table's files, below one prefix.
func sessionPolicy(partition, bucket, prefix string) (string, error) {
	// * ? and $ mean something in a policy.
	literal := strings.NewReplacer("*", "${*}", "?", "${?}", "$", "${$}").Replace(prefix)
	arn := "arn:" + partition + ":s3:::" + bucket
	type statement struct {
		Effect    string
		Action    []string
		Resource  string
		Condition any `json:",omitempty"`
	}
	policy, err := json.Marshal(struct {
		Version   string
		Statement []statement
	}{"2012-10-17", []statement{
		{"Allow", []string{"s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts"}, arn + "/" + literal + "/*", nil},
		{"Allow", []string{"s3:ListBucket"}, arn, map[string]any{"StringLike": map[string]string{"s3:prefix": literal + "/*"}}},
		{"Allow", []string{"s3:GetBucketLocation"}, arn, nil},
	}})
	return string(policy), err
}
