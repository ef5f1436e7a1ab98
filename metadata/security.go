package metadata

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
)

// A ScramCredential is what a server keeps of a password (RFC 5802): not the password.
type ScramCredential struct {
	User       string
	Mechanism  int8 // 1 SCRAM-SHA-256, 2 SCRAM-SHA-512
	Iterations int
	Salt       []byte
	StoredKey  []byte
	ServerKey  []byte
}

// ErrCredentialNotExist says that a user has no credential of a mechanism.
var ErrCredentialNotExist = errors.New("credential does not exist")

// AlterCredentials sets credentials, and deletes those of which only User and Mechanism are
// looked at; all or, with ErrCredentialNotExist, nothing.
func (s *Store) AlterCredentials(ctx context.Context, set, remove []ScramCredential) error {
	return s.updateDurably(ctx, "alter credentials", func(t *tx) error {
		for _, c := range remove {
			n, err := t.exec(`DELETE FROM scram_credential WHERE name = $1 AND mechanism = $2`, c.User, c.Mechanism)
			if err != nil {
				return err
			}
			if n == 0 {
				return fmt.Errorf("user %s: %w", c.User, ErrCredentialNotExist)
			}
			if err := t.change(ChangeUser, c.User); err != nil {
				return err
			}
		}
		for _, c := range set {
			if _, err := t.exec(`INSERT INTO scram_credential (name, mechanism, iterations, salt, stored_key, server_key) VALUES ($1, $2, $3, $4, $5, $6)
				ON CONFLICT (name, mechanism) DO UPDATE SET iterations = excluded.iterations, salt = excluded.salt, stored_key = excluded.stored_key, server_key = excluded.server_key`,
				c.User, c.Mechanism, c.Iterations, c.Salt, c.StoredKey, c.ServerKey); err != nil {
				return err
			}
			if err := t.change(ChangeUser, c.User); err != nil {
				return err
			}
		}
		return nil
	})
}

// Credentials returns all credentials, by user.
func (s *Store) Credentials(ctx context.Context) ([]ScramCredential, error) {
	var all []ScramCredential
	err := eachRow(ctx, s.readers, func(rows *sql.Rows) error {
		var c ScramCredential
		err := rows.Scan(&c.User, &c.Mechanism, &c.Iterations, &c.Salt, &c.StoredKey, &c.ServerKey)
		all = append(all, c)
		return err
	}, `SELECT name, mechanism, iterations, salt, stored_key, server_key FROM scram_credential ORDER BY name, mechanism`)
	if err != nil {
		return nil, fmt.Errorf("read credentials: %w", err)
	}
	return all, nil
}

// An ACL allows or denies an operation. Numbers are Kafka's.
type ACL struct {
	ResourceType int8
	ResourceName string
	PatternType  int8
	Principal    string
	Host         string
	Operation    int8
	Permission   int8
}

// MaxACLs bounds the ACLs of a cluster: each node has them in memory.
const MaxACLs = 100_000

// ErrTooManyACLs says that there would be more than MaxACLs.
var ErrTooManyACLs = fmt.Errorf("more than %d ACLs", MaxACLs)

// CreateACLs adds ACLs; those that exist stay.
func (s *Store) CreateACLs(ctx context.Context, acls []ACL) error {
	return s.updateDurably(ctx, "create ACLs", func(t *tx) error {
		for _, a := range acls {
			if _, err := t.exec(`INSERT INTO acl (resource_type, resource_name, pattern_type, principal, host, operation, permission) VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING`,
				a.ResourceType, a.ResourceName, a.PatternType, a.Principal, a.Host, a.Operation, a.Permission); err != nil {
				return err
			}
		}
		var n int
		if err := t.QueryRowContext(t.ctx, `SELECT count(*) FROM acl`).Scan(&n); err != nil {
			return err
		}
		if n > MaxACLs {
			return ErrTooManyACLs
		}
		return t.change(ChangeACL, "")
	})
}

// DeleteACLs removes ACLs; those that are gone already are passed over.
func (s *Store) DeleteACLs(ctx context.Context, acls []ACL) error {
	return s.updateDurably(ctx, "delete ACLs", func(t *tx) error {
		for _, a := range acls {
			if _, err := t.exec(`DELETE FROM acl WHERE resource_type = $1 AND resource_name = $2 AND pattern_type = $3 AND principal = $4 AND host = $5 AND operation = $6 AND permission = $7`,
				a.ResourceType, a.ResourceName, a.PatternType, a.Principal, a.Host, a.Operation, a.Permission); err != nil {
				return err
			}
		}
		return t.change(ChangeACL, "")
	})
}

// ACLs returns all ACLs.
func (s *Store) ACLs(ctx context.Context) ([]ACL, error) {
	var all []ACL
	err := eachRow(ctx, s.readers, func(rows *sql.Rows) error {
		var a ACL
		err := rows.Scan(&a.ResourceType, &a.ResourceName, &a.PatternType, &a.Principal, &a.Host, &a.Operation, &a.Permission)
		all = append(all, a)
		return err
	}, `SELECT resource_type, resource_name, pattern_type, principal, host, operation, permission FROM acl ORDER BY resource_type, resource_name, pattern_type, principal, host, operation, permission`)
	if err != nil {
		return nil, fmt.Errorf("read ACLs: %w", err)
	}
	return all, nil
}

// A ClientQuota is one limit of an entity, which is text that the caller made canonical.
type ClientQuota struct {
	Entity string
	Name   string
	Value  float64
}

// AlterQuotas sets limits, and removes those of which only Entity and Name are looked at.
func (s *Store) AlterQuotas(ctx context.Context, set, remove []ClientQuota) error {
	return s.updateDurably(ctx, "alter quotas", func(t *tx) error {
		for _, q := range remove {
			if _, err := t.exec(`DELETE FROM client_quota WHERE entity = $1 AND name = $2`, q.Entity, q.Name); err != nil {
				return err
			}
		}
		for _, q := range set {
			if _, err := t.exec(`INSERT INTO client_quota (entity, name, value) VALUES ($1, $2, $3) ON CONFLICT (entity, name) DO UPDATE SET value = excluded.value`,
				q.Entity, q.Name, strconv.FormatFloat(q.Value, 'g', -1, 64)); err != nil {
				return err
			}
		}
		return t.change(ChangeQuota, "")
	})
}

// Quotas returns all limits, by entity.
func (s *Store) Quotas(ctx context.Context) ([]ClientQuota, error) {
	var all []ClientQuota
	err := eachRow(ctx, s.readers, func(rows *sql.Rows) error {
		var q ClientQuota
		var value string
		err := rows.Scan(&q.Entity, &q.Name, &value)
		if err == nil {
			q.Value, err = strconv.ParseFloat(value, 64)
		}
		all = append(all, q)
		return err
	}, `SELECT entity, name, value FROM client_quota ORDER BY entity, name`)
	if err != nil {
		return nil, fmt.Errorf("read quotas: %w", err)
	}
	return all, nil
}

// ClusterSecret returns the 32 bytes by which nodes of the cluster know each other. Whoever
// asks first draws them.
func (s *Store) ClusterSecret(ctx context.Context) (secret []byte, err error) {
	drawn := make([]byte, 32)
	_, _ = rand.Read(drawn) // it never fails
	err = s.update(ctx, "read the secret of the cluster", func(t *tx) error {
		n, err := t.exec(`INSERT INTO cluster_secret (one, secret) VALUES (1, $1) ON CONFLICT (one) DO NOTHING`, drawn)
		if err == nil && n > 0 {
			err = t.change(ChangeUser, "")
		}
		if err != nil {
			return err
		}
		return t.QueryRowContext(ctx, `SELECT secret FROM cluster_secret`).Scan(&secret)
	})
	return secret, err
}
