package security

import (
	"context"
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/subtle"
	"errors"
	"fmt"
	"hash"
	"slices"
	"strings"
	"sync"

	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/metadata"
)

// Numbers of SCRAM mechanisms, Kafka's.
const (
	ScramSHA256 int8 = 1
	ScramSHA512 int8 = 2
)

// Bounds of SCRAM. More iterations make a guess dearer, and a login too.
const (
	MinIterations     = 4096
	MaxIterations     = 16384
	DefaultIterations = 8192
	maxPassword       = 1024
)

func scramHash(mechanism int8) func() hash.Hash {
	if mechanism == ScramSHA512 {
		return sha512.New
	}
	return sha256.New
}

// derive makes a credential of a password that PBKDF2 has salted (RFC 5802, 3).
func derive(user string, mechanism int8, iterations int, salt, salted []byte) metadata.ScramCredential {
	h := scramHash(mechanism)
	stored := h()
	stored.Write(mac(h, salted, "Client Key"))
	return metadata.ScramCredential{User: user, Mechanism: mechanism, Iterations: iterations, Salt: salt,
		StoredKey: stored.Sum(nil), ServerKey: mac(h, salted, "Server Key")}
}

func mac(h func() hash.Hash, key []byte, text string) []byte {
	m := hmac.New(h, key)
	m.Write([]byte(text))
	return m.Sum(nil)
}

func saltPassword(mechanism int8, password string, salt []byte, iterations int) []byte {
	h := scramHash(mechanism)
	key, err := pbkdf2.Key(h, password, salt, iterations, h().Size())
	invariant.Check(err == nil, "a key of the size of its hash: %v", err)
	return key
}

// SaltedCredential makes a credential of what a client salted itself (KIP-554).
func SaltedCredential(user string, mechanism int8, iterations int, salt, salted []byte) metadata.ScramCredential {
	return derive(user, mechanism, iterations, salt, salted)
}

// CheckUserName refuses a name that could not log in, or that is not a user's to have.
func CheckUserName(name string) error {
	switch {
	case name == "" || len(name) > 255:
		return errors.New("a user name has 1 to 255 bytes")
	case strings.HasPrefix(name, "__"):
		return fmt.Errorf("user name %q: names that begin with __ are the servers' own", name)
	case strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f || r == 0xfffd }):
		return fmt.Errorf("user name %q: control characters are not allowed", name)
	}
	return nil
}

// SetPassword gives a user a password, for both SCRAM mechanisms and PLAIN.
func (a *Access) SetPassword(ctx context.Context, user, password string) error {
	if err := CheckUserName(user); err != nil {
		return err
	}
	if password == "" || len(password) > maxPassword {
		return fmt.Errorf("the password of %s: want 1 to %d bytes", user, maxPassword)
	}
	var set []metadata.ScramCredential
	for _, mechanism := range []int8{ScramSHA256, ScramSHA512} {
		salt := make([]byte, 24)
		_, _ = rand.Read(salt) // it never fails
		set = append(set, derive(user, mechanism, DefaultIterations, salt, saltPassword(mechanism, password, salt, DefaultIterations)))
	}
	return a.AlterCredentials(ctx, set, nil)
}

// AlterCredentials is that of metadata.
func (a *Access) AlterCredentials(ctx context.Context, set, remove []metadata.ScramCredential) error {
	return a.changed(ctx, a.meta.AlterCredentials(ctx, set, remove))
}

// Users returns the credentials of all users, without their keys, by name and mechanism.
func (a *Access) Users() []metadata.ScramCredential {
	var out []metadata.ScramCredential
	for _, c := range *a.users.Load() {
		out = append(out, metadata.ScramCredential{User: c.User, Mechanism: c.Mechanism, Iterations: c.Iterations})
	}
	slices.SortFunc(out, func(x, y metadata.ScramCredential) int {
		if c := strings.Compare(x.User, y.User); c != 0 {
			return c
		}
		return int(x.Mechanism) - int(y.Mechanism)
	})
	return out
}

// HasUser reports whether a user has a password.
func (a *Access) HasUser(name string) bool {
	_, ok := a.credential(name)
	return ok
}

// credential returns what a user's password is checked against.
func (a *Access) credential(user string) (metadata.ScramCredential, bool) {
	users := *a.users.Load()
	for _, mechanism := range []int8{ScramSHA512, ScramSHA256} {
		if c, ok := users[userKey{user, mechanism}]; ok {
			return c, true
		}
	}
	return metadata.ScramCredential{}, false
}

// scramCredential is what a SCRAM exchange uses: for a user that does not exist it is one that
// nobody can prove, always the same, so that the exchange does not tell who exists.
func (a *Access) scramCredential(user string, mechanism int8) metadata.ScramCredential {
	if user == nodeUser {
		return a.node[mechanism]
	}
	if c, ok := (*a.users.Load())[userKey{user, mechanism}]; ok {
		return c
	}
	salt := mac(sha256.New, a.secret, "salt of "+user)[:24]
	h := scramHash(mechanism)
	return metadata.ScramCredential{User: user, Mechanism: mechanism, Iterations: DefaultIterations, Salt: salt,
		StoredKey: mac(h, a.local, "stored key of "+user), ServerKey: mac(h, a.local, "server key of "+user)}
}

// nodeCredentials are those of other nodes, whose password has 256 random bits.
func (a *Access) nodeCredentials() map[int8]metadata.ScramCredential {
	out, salt := map[int8]metadata.ScramCredential{}, []byte("nodes of the cluster")
	for _, mechanism := range []int8{ScramSHA256, ScramSHA512} {
		out[mechanism] = derive(nodeUser, mechanism, MinIterations, salt, saltPassword(mechanism, a.NodePassword(), salt, MinIterations))
	}
	return out
}

// NodePassword is how this node proves to others that it is of their cluster.
func (a *Access) NodePassword() string {
	return fmt.Sprintf("%x", mac(sha256.New, a.secret, "password of nodes"))
}

// NodeUser is the name that goes with it.
func (a *Access) NodeUser() string { return nodeUser }

// errCredentials is what a client learns: not whether the user exists.
var errCredentials = refuse("the user name or the password is wrong")

// Password returns the principal of a user and its password. Each check costs what the user's
// credential asks for, but for those that were right lately.
func (a *Access) Password(ctx context.Context, user, password string) (principal string, err error) {
	if user == nodeUser {
		if subtle.ConstantTimeCompare([]byte(password), []byte(a.NodePassword())) == 1 {
			return Node, nil
		}
		return "", errCredentials
	}
	c, known := a.credential(user)
	if !known {
		c = a.scramCredential(user, ScramSHA512)
	}
	if len(password) > maxPassword {
		return "", errCredentials
	}
	key := string(mac(sha256.New, a.local, user+"\x00"+password))
	if a.proven.has(key, c.StoredKey) {
		return "User:" + user, nil
	}
	if err := a.hashing.Acquire(ctx, 1); err != nil {
		return "", err
	}
	got := derive(user, c.Mechanism, c.Iterations, c.Salt, saltPassword(c.Mechanism, password, c.Salt, c.Iterations))
	a.hashing.Release(1)
	if subtle.ConstantTimeCompare(got.StoredKey, c.StoredKey) != 1 || !known {
		return "", errCredentials
	}
	a.proven.add(key, c.StoredKey)
	return "User:" + user, nil
}

// maxProven bounds the passwords that need not be hashed again.
const maxProven = 1024

// provenPasswords remembers hashes, keyed for this process, of passwords that were right, and
// what they were checked against.
type provenPasswords struct {
	mu sync.Mutex
	m  map[string][]byte // guarded by mu
}

func (p *provenPasswords) has(key string, stored []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return subtle.ConstantTimeCompare(p.m[key], stored) == 1
}

func (p *provenPasswords) add(key string, stored []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.m == nil || len(p.m) >= maxProven {
		p.m = map[string][]byte{}
	}
	p.m[key] = stored
}
