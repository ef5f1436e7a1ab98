package security

import (
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/metadata"
)

const anyone = "User:*"

// Rules are the ACLs of a cluster at one moment, ready to be asked. They never change.
//
// The rules are those of Kafka's StandardAuthorizer: super users may do everything; else a
// DENY that matches decides; else an ALLOW that matches; else, if no ACL at all names the
// resource, the setting for that; else the answer is no. An ACL names a resource literally,
// by a prefix of its name, or all of a type by the literal name "*".
type Rules struct {
	supers  map[string]bool
	orphans bool // allow what no ACL names
	all     []metadata.ACL
	types   map[int8]*typeRules
}

// typeRules are the ACLs of one type of resource.
type typeRules struct {
	literal  map[string][]metadata.ACL
	prefixed map[string][]metadata.ACL
	lengths  []int // of the prefixes, ascending
}

// NewRules builds rules. supers are principals; allowOrphans is Kafka's
// allow.everyone.if.no.acl.found.
func NewRules(acls []metadata.ACL, supers []string, allowOrphans bool) *Rules {
	r := &Rules{supers: map[string]bool{}, orphans: allowOrphans, all: acls, types: map[int8]*typeRules{}}
	for _, s := range supers {
		r.supers[s] = true
	}
	for _, a := range acls {
		t := r.types[a.ResourceType]
		if t == nil {
			t = &typeRules{literal: map[string][]metadata.ACL{}, prefixed: map[string][]metadata.ACL{}}
			r.types[a.ResourceType] = t
		}
		if kmsg.ACLResourcePatternType(a.PatternType) == kmsg.ACLResourcePatternTypePrefixed {
			if n := len(a.ResourceName); !slices.Contains(t.lengths, n) {
				t.lengths = append(t.lengths, n)
			}
			t.prefixed[a.ResourceName] = append(t.prefixed[a.ResourceName], a)
		} else {
			t.literal[a.ResourceName] = append(t.literal[a.ResourceName], a)
		}
	}
	for _, t := range r.types {
		slices.Sort(t.lengths)
	}
	return r
}

// Allows reports whether c may do op to a resource.
func (r *Rules) Allows(c Client, op kmsg.ACLOperation, typ kmsg.ACLResourceType, name string) bool {
	if r.supers[c.Principal] || c.Principal == Node {
		return true
	}
	t := r.types[int8(typ)]
	if t == nil {
		return r.orphans
	}
	named, allowed, denied := false, false, false
	for acls := range t.matching(name) {
		for _, a := range acls {
			named = true
			if !applies(a, c) {
				continue
			}
			switch kmsg.ACLPermissionType(a.Permission) {
			case kmsg.ACLPermissionTypeDeny:
				denied = denied || covers(kmsg.ACLOperation(a.Operation), op)
			case kmsg.ACLPermissionTypeAllow:
				allowed = allowed || implies(kmsg.ACLOperation(a.Operation), op)
			}
		}
	}
	if denied && !invariant.Off("acl-deny-first") {
		return false
	}
	return allowed || !named && r.orphans
}

// AllowsAny reports whether c may do op to any resource of a type at all: whether an ALLOW
// gives it something that no DENY takes away again.
func (r *Rules) AllowsAny(c Client, op kmsg.ACLOperation, typ kmsg.ACLResourceType) bool {
	if r.supers[c.Principal] || c.Principal == Node {
		return true
	}
	t := r.types[int8(typ)]
	if t == nil {
		return r.orphans
	}
	denied := func(acls []metadata.ACL) bool {
		return slices.ContainsFunc(acls, func(a metadata.ACL) bool {
			return kmsg.ACLPermissionType(a.Permission) == kmsg.ACLPermissionTypeDeny && applies(a, c) && covers(kmsg.ACLOperation(a.Operation), op)
		})
	}
	if denied(t.literal["*"]) {
		return false
	}
	taken := func(prefix string) bool { // a DENY takes all that begins so
		for _, n := range t.lengths {
			if n <= len(prefix) && denied(t.prefixed[prefix[:n]]) {
				return true
			}
		}
		return false
	}
	gives := func(acls []metadata.ACL) bool {
		return slices.ContainsFunc(acls, func(a metadata.ACL) bool {
			return kmsg.ACLPermissionType(a.Permission) == kmsg.ACLPermissionTypeAllow && applies(a, c) && implies(kmsg.ACLOperation(a.Operation), op)
		})
	}
	for name, acls := range t.literal {
		if gives(acls) && (name == "*" && !taken("") || name != "*" && !denied(acls) && !taken(name)) {
			return true
		}
	}
	for prefix, acls := range t.prefixed {
		if gives(acls) && !taken(prefix) {
			return true
		}
	}
	return r.orphans && len(t.literal["*"]) == 0
}

// matching yields the lists of ACLs that name a resource.
func (t *typeRules) matching(name string) func(func([]metadata.ACL) bool) {
	return func(yield func([]metadata.ACL) bool) {
		if !yield(t.literal[name]) {
			return
		}
		if name != "*" && !yield(t.literal["*"]) {
			return
		}
		for _, n := range t.lengths {
			if n > len(name) {
				return
			}
			if !yield(t.prefixed[name[:n]]) {
				return
			}
		}
	}
}

// applies reports whether an ACL is about a client.
func applies(a metadata.ACL, c Client) bool {
	return (a.Principal == c.Principal || a.Principal == anyone) && (a.Host == "*" || a.Host == c.Host)
}

// covers reports whether what is said about one operation holds for op.
func covers(said, op kmsg.ACLOperation) bool { return said == kmsg.ACLOperationAll || said == op }

// implies is covers for what is allowed: who may read, write, delete or alter something may
// describe it; who may alter its configuration may describe that.
func implies(allowed, op kmsg.ACLOperation) bool {
	if covers(allowed, op) {
		return true
	}
	switch op {
	case kmsg.ACLOperationDescribe:
		switch allowed {
		case kmsg.ACLOperationRead, kmsg.ACLOperationWrite, kmsg.ACLOperationDelete, kmsg.ACLOperationAlter:
			return true
		}
	case kmsg.ACLOperationDescribeConfigs:
		return allowed == kmsg.ACLOperationAlterConfigs
	}
	return false
}

// ACLs returns those that a filter matches, in the order of metadata.
func (r *Rules) ACLs(f Filter) []metadata.ACL {
	var out []metadata.ACL
	for _, a := range r.all {
		if f.matches(a) {
			out = append(out, a)
		}
	}
	return out
}

// A Filter selects ACLs (KIP-140, KIP-290). A nil text is any.
type Filter struct {
	ResourceType kmsg.ACLResourceType
	ResourceName *string
	PatternType  kmsg.ACLResourcePatternType
	Principal    *string
	Host         *string
	Operation    kmsg.ACLOperation
	Permission   kmsg.ACLPermissionType
}

func (f Filter) matches(a metadata.ACL) bool {
	own := a.ResourceType >= int8(ResourceSubject)
	switch {
	case int8(f.ResourceType) != a.ResourceType && (f.ResourceType != kmsg.ACLResourceTypeAny || own),
		f.Principal != nil && *f.Principal != a.Principal,
		f.Host != nil && *f.Host != a.Host,
		f.Operation != kmsg.ACLOperationAny && int8(f.Operation) != a.Operation,
		f.Permission != kmsg.ACLPermissionTypeAny && int8(f.Permission) != a.Permission:
		return false
	}
	switch f.PatternType {
	case kmsg.ACLResourcePatternTypeAny:
		return f.ResourceName == nil || *f.ResourceName == a.ResourceName
	case kmsg.ACLResourcePatternTypeMatch:
		if f.ResourceName == nil || *f.ResourceName == a.ResourceName {
			return true
		}
		if kmsg.ACLResourcePatternType(a.PatternType) == kmsg.ACLResourcePatternTypePrefixed {
			return strings.HasPrefix(*f.ResourceName, a.ResourceName)
		}
		return a.ResourceName == "*"
	}
	return int8(f.PatternType) == a.PatternType && (f.ResourceName == nil || *f.ResourceName == a.ResourceName)
}
