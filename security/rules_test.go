package security

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/metadata"
)

// plainly decides as the rules are written down, by looking at every ACL.
func plainly(acls []metadata.ACL, orphans bool, c Client, op kmsg.ACLOperation, typ kmsg.ACLResourceType, name string) bool {
	said := func(permission kmsg.ACLPermissionType, ops ...kmsg.ACLOperation) (said, named bool) {
		for _, a := range acls {
			literal := kmsg.ACLResourcePatternType(a.PatternType) == kmsg.ACLResourcePatternTypeLiteral
			if kmsg.ACLResourceType(a.ResourceType) != typ ||
				literal && a.ResourceName != name && a.ResourceName != "*" || !literal && !strings.HasPrefix(name, a.ResourceName) {
				continue
			}
			named = true
			for _, o := range append(ops, op, kmsg.ACLOperationAll) {
				if kmsg.ACLPermissionType(a.Permission) == permission && kmsg.ACLOperation(a.Operation) == o &&
					(a.Principal == c.Principal || a.Principal == "User:*") && (a.Host == c.Host || a.Host == "*") {
					said = true
				}
			}
		}
		return said, named
	}
	var implied []kmsg.ACLOperation
	switch op {
	case kmsg.ACLOperationDescribe:
		implied = []kmsg.ACLOperation{kmsg.ACLOperationRead, kmsg.ACLOperationWrite, kmsg.ACLOperationDelete, kmsg.ACLOperationAlter}
	case kmsg.ACLOperationDescribeConfigs:
		implied = []kmsg.ACLOperation{kmsg.ACLOperationAlterConfigs}
	}
	if denied, _ := said(kmsg.ACLPermissionTypeDeny); denied {
		return false
	}
	allowed, named := said(kmsg.ACLPermissionTypeAllow, implied...)
	return allowed || !named && orphans
}

var (
	names      = []string{"a", "ab", "abc", "b", "*"}
	principals = []string{"User:x", "User:y", "User:*"}
	hosts      = []string{"10.0.0.1", "10.0.0.2", "*"}
	types      = []kmsg.ACLResourceType{kmsg.ACLResourceTypeTopic, kmsg.ACLResourceTypeGroup}
)

func pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

func randomACL(r *rand.Rand) metadata.ACL {
	return metadata.ACL{ResourceType: int8(pick(r, types)), ResourceName: pick(r, names), PatternType: int8(3 + r.IntN(2)),
		Principal: pick(r, principals), Host: pick(r, hosts), Operation: int8(2 + r.IntN(11)), Permission: int8(2 + r.IntN(2))}
}

// Whatever the ACLs, the decision is that of looking at each of them; and who may do something
// to anything is who could find a name to do it to.
func TestRulesAreThoseOfAPlainModel(t *testing.T) {
	tried := []string{"a", "ab", "abc", "abcd", "ac", "b", "bb", "c", "*x", "zz-of-no-acl"}
	allowed := 0
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 0))
		var acls []metadata.ACL
		for range r.IntN(8) {
			acls = append(acls, randomACL(r))
		}
		orphans := r.IntN(4) == 0
		rules := NewRules(acls, []string{"User:super"}, orphans)
		c := Client{pick(r, principals[:2]), pick(r, hosts[:2])}
		op, typ := kmsg.ACLOperation(3+r.IntN(10)), pick(r, types)
		anyName := false
		for _, name := range tried {
			got, want := rules.Allows(c, op, typ, name), plainly(acls, orphans, c, op, typ, name)
			if got != want {
				t.Fatalf("seed %d: %v %s %s %s: got %t, want %t by %+v", seed, c, op, typ, name, got, want, acls)
			}
			anyName = anyName || got
			if got {
				allowed++
			}
			if !rules.Allows(Client{"User:super", "h"}, op, typ, name) {
				t.Fatalf("seed %d: a super user is bound", seed)
			}
		}
		if got := rules.AllowsAny(c, op, typ); got != anyName {
			t.Fatalf("seed %d: %v %s any %s: got %t, want %t by %+v", seed, c, op, typ, got, anyName, acls)
		}
	}
	if allowed < 1000 {
		t.Fatalf("only %d of the decisions allowed something", allowed)
	}
}

// A filter finds what comparing field by field finds (KIP-290).
func TestFilters(t *testing.T) {
	acl := func(name string, pattern kmsg.ACLResourcePatternType) metadata.ACL {
		return metadata.ACL{ResourceType: 2, ResourceName: name, PatternType: int8(pattern), Principal: "User:x", Host: "*", Operation: 3, Permission: 3}
	}
	literal, prefixed := kmsg.ACLResourcePatternTypeLiteral, kmsg.ACLResourcePatternTypePrefixed
	subject := acl("s", literal)
	subject.ResourceType = int8(ResourceSubject)
	rules := NewRules([]metadata.ACL{acl("foo", literal), acl("f", prefixed), acl("foo", prefixed), acl("*", literal), subject}, nil, false)
	foo, any := "foo", Filter{ResourceType: kmsg.ACLResourceTypeAny, PatternType: kmsg.ACLResourcePatternTypeAny, Operation: kmsg.ACLOperationAny, Permission: kmsg.ACLPermissionTypeAny}
	for i, c := range []struct {
		name    *string
		pattern kmsg.ACLResourcePatternType
		typ     kmsg.ACLResourceType
		want    string
	}{
		{nil, kmsg.ACLResourcePatternTypeAny, kmsg.ACLResourceTypeAny, "foo-3 f-4 foo-4 *-3"},
		{&foo, kmsg.ACLResourcePatternTypeAny, kmsg.ACLResourceTypeAny, "foo-3 foo-4"},
		{&foo, kmsg.ACLResourcePatternTypeMatch, kmsg.ACLResourceTypeTopic, "foo-3 f-4 foo-4 *-3"},
		{&foo, literal, kmsg.ACLResourceTypeTopic, "foo-3"},
		{nil, prefixed, kmsg.ACLResourceTypeTopic, "f-4 foo-4"},
		{nil, kmsg.ACLResourcePatternTypeAny, kmsg.ACLResourceTypeGroup, ""},
		{nil, kmsg.ACLResourcePatternTypeAny, ResourceSubject, "s-3"}, // only by number
	} {
		f := any
		f.ResourceName, f.PatternType, f.ResourceType = c.name, c.pattern, c.typ
		var got []string
		for _, a := range rules.ACLs(f) {
			got = append(got, fmt.Sprintf("%s-%d", a.ResourceName, a.PatternType))
		}
		if d := cmp.Diff(strings.Join(got, " "), c.want); d != "" {
			t.Errorf("%d (-got +want): %s", i, d)
		}
	}
}

func TestACLsThatCannotBeMeant(t *testing.T) {
	good := metadata.ACL{ResourceType: 2, ResourceName: "t", PatternType: 3, Principal: "User:x", Host: "*", Operation: 3, Permission: 3}
	if err := CheckACL(good); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*metadata.ACL){
		"type":      func(a *metadata.ACL) { a.ResourceType = 6 },
		"no name":   func(a *metadata.ACL) { a.ResourceName = "" },
		"pattern":   func(a *metadata.ACL) { a.PatternType = 2 },
		"principal": func(a *metadata.ACL) { a.Principal = "alice" },
		"host":      func(a *metadata.ACL) { a.Host = "" },
		"operation": func(a *metadata.ACL) { a.Operation = int8(kmsg.ACLOperationClusterAction) },
		"any":       func(a *metadata.ACL) { a.Operation = int8(kmsg.ACLOperationAny) },
		"allowed":   func(a *metadata.ACL) { a.Permission = 1 },
		"cluster":   func(a *metadata.ACL) { a.ResourceType, a.Operation = 4, 8 },
		"long":      func(a *metadata.ACL) { a.ResourceName = strings.Repeat("x", maxName+1) },
	} {
		a := good
		change(&a)
		if CheckACL(a) == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
