package node

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/schemaregistry"
	"github.com/tabletopic/tabletopic/security"
)

// A right is what a request needs. The zero value is needed by nothing: everybody who says who
// it is has it.
type right struct {
	op   kmsg.ACLOperation
	typ  kmsg.ACLResourceType
	name string
	any  bool // of that type, instead of name
}

func onCluster(op kmsg.ACLOperation) right {
	return right{op: op, typ: kmsg.ACLResourceTypeCluster, name: security.ClusterName}
}

type clientKey struct{}

// clientOf is who sent a request that guard let through.
func clientOf(r *http.Request) security.Client {
	c, _ := r.Context().Value(clientKey{}).(security.Client)
	return c
}

// guard lets a request through whose client says who it is, if it has to, and has the right
// that it needs. Health is everybody's to ask; so is a token, for which a password is given. The
// REST catalog has clients of its own besides users: their tokens are good for all of it.
func (n *Node) guard(required bool, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/healthz", "/readyz", "/iceberg/v1/oauth/tokens":
			next.ServeHTTP(w, r)
			return
		}
		if clients := n.restCatalog.Clients; clients != nil && strings.HasPrefix(r.URL.Path, "/iceberg/") && (!required || clients.Authenticated(r)) {
			next.ServeHTTP(w, r)
			return
		}
		c, err := n.whoAsks(r)
		refused := (*security.AuthenticationError)(nil)
		switch need := needOf(r); {
		case errors.As(err, &refused):
			n.unauthorized(w, refused.Reason)
		case err != nil:
			n.log.Error("authenticate a request", "err", err)
			refuseHTTP(w, r, http.StatusServiceUnavailable, "who asks cannot be checked now")
		case required && c.Principal == security.Anonymous && !invariant.Off("http-authenticate-first"):
			n.unauthorized(w, "say who you are: user and password, or a bearer token")
		case required && !n.has(c, need):
			refuseHTTP(w, r, http.StatusForbidden, c.Principal+" may not "+describe(need)+": an ACL would have to allow it")
		default:
			ctx := context.WithValue(r.Context(), clientKey{}, c)
			if need := needOf(r); required && need.typ == security.ResourceSubject {
				ctx = schemaregistry.WithRights(ctx, func(subject string) bool {
					return n.has(c, right{op: need.op, typ: need.typ, name: subject})
				})
			}
			next.ServeHTTP(w, r.WithContext(ctx))
		}
	})
}

func (n *Node) has(c security.Client, need right) bool {
	switch {
	case need == right{}:
		return true
	case need.any:
		return n.access.AuthorizeAny(c, need.op, need.typ)
	}
	return n.access.Authorize(c, need.op, need.typ, need.name)
}

func describe(need right) string {
	if need.any {
		return need.op.String() + " any " + security.TypeName(need.typ)
	}
	return need.op.String() + " " + security.TypeName(need.typ) + " " + need.name
}

// refuseHTTP writes an error for every kind of client on the port: error_code is the schema
// registry's, error the REST catalog's, message everybody's.
func refuseHTTP(w http.ResponseWriter, r *http.Request, code int, text string) {
	body := map[string]any{"error_code": code, "message": text}
	if r != nil && strings.HasPrefix(r.URL.Path, "/iceberg/") {
		body = map[string]any{"error": map[string]any{"code": code, "message": text, "type": "ForbiddenException"}}
	}
	answer(w, code, body)
}

func (n *Node) unauthorized(w http.ResponseWriter, text string) {
	w.Header().Add("WWW-Authenticate", `Basic realm="tabletopic", charset="UTF-8"`)
	answer(w, http.StatusUnauthorized, map[string]any{"error_code": http.StatusUnauthorized, "message": text,
		"error": map[string]any{"code": http.StatusUnauthorized, "message": text, "type": "NotAuthorizedException"}})
}

// users are those of the REST catalog that are no clients of its own.
type users struct{ access *security.Access }

func (u users) Token(ctx context.Context, user, password string) (string, time.Duration, bool, error) {
	token, err := u.access.IssueToken(ctx, user, password)
	if errors.As(err, new(*security.AuthenticationError)) {
		return "", 0, false, nil
	}
	return token, security.TokenLifetime, err == nil, err
}

func (u users) Renewed(token string) (string, time.Duration, bool) {
	renewed, err := u.access.Renew(token)
	return renewed, security.TokenLifetime, err == nil
}

// noToken is what PyIceberg has behind Bearer if it was given no token.
const noToken = "None"

// whoAsks names the client of a request: by its password, its token, or its certificate. What
// is given must be right, even where nothing is asked for.
func (n *Node) whoAsks(r *http.Request) (security.Client, error) {
	c := security.Client{Principal: security.Anonymous, Host: r.RemoteAddr}
	if host, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		c.Host = host
	}
	scheme, rest, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	switch user, password, basic := r.BasicAuth(); {
	case basic:
		principal, err := n.access.Password(r.Context(), user, password)
		if err != nil {
			if refused := (*security.AuthenticationError)(nil); errors.As(err, &refused) {
				n.access.Failed("PLAIN", c.Host, err)
			}
			return c, err
		}
		c.Principal = principal
	case strings.EqualFold(scheme, "Bearer") && rest != noToken:
		id, err := n.access.Bearer(r.Context(), strings.TrimSpace(rest))
		if err != nil {
			n.access.Failed("OAUTHBEARER", c.Host, err)
			return c, err
		}
		c.Principal = id.Principal
	case r.TLS != nil && len(r.TLS.PeerCertificates) > 0:
		principal, err := n.mapping.Principal(r.TLS.PeerCertificates[0])
		if err != nil {
			n.access.Failed("TLS", c.Host, err)
			return c, &security.AuthenticationError{Reason: err.Error()}
		}
		c.Principal = principal
	}
	return c, nil
}

// needOf is what a request on the HTTP port needs. Names in paths are escaped, and may have
// slashes.
func needOf(r *http.Request) right {
	part := strings.Split(strings.Trim(r.URL.EscapedPath(), "/"), "/")
	for i, p := range part {
		if plain, err := url.PathUnescape(p); err == nil {
			part[i] = plain
		}
	}
	reads := r.Method == http.MethodGet || r.Method == http.MethodHead
	switch part[0] {
	case "api", "metrics":
		return apiRight(part, r.Method, reads)
	case "iceberg":
		return tableRight(part[min(2, len(part)):], r.Method, reads)
	}
	return registryRight(part, r.Method, reads)
}

// apiRight is for the administration API, metrics, and what nodes ask each other.
func apiRight(part []string, method string, reads bool) right {
	part = append(part, "", "", "")
	switch table := part[1] == "tables" && part[2] != ""; {
	case part[1] == "peer":
		return onCluster(kmsg.ACLOperationClusterAction)
	case part[1] == "node": // who lives at this address; nodes ask it before they know more
		return right{}
	case table && reads:
		return right{op: kmsg.ACLOperationDescribe, typ: kmsg.ACLResourceTypeTopic, name: part[2]}
	case table && part[3] == "verify":
		return right{op: kmsg.ACLOperationRead, typ: kmsg.ACLResourceTypeTopic, name: part[2]}
	case table && (part[3] == "migrate-mapping" || part[3] == "compact"): // to the settings of the topic
		return right{op: kmsg.ACLOperationAlterConfigs, typ: kmsg.ACLResourceTypeTopic, name: part[2]}
	case reads && part[1] != "schemas", part[1] == "objects": // schemas are all that the registry keeps, of all subjects
		return onCluster(kmsg.ACLOperationDescribe)
	}
	return onCluster(kmsg.ACLOperationAlter)
}

// tableRight is for the REST catalog, of the path behind /v1/. The resource of a namespace has
// its name, that of a table namespace.table, so that an ACL with a prefix is for both. What is
// about several tables, named in the body, needs the right to all.
func tableRight(part []string, method string, reads bool) right {
	on := func(op kmsg.ACLOperation, name ...string) right {
		return right{op: op, typ: security.ResourceTable, name: strings.ReplaceAll(strings.Join(name, "."), "\x1f", ".")}
	}
	switch {
	case len(part) > 0 && part[0] == "config":
		return right{}
	case len(part) == 1 && part[0] == "namespaces" && reads:
		return right{op: kmsg.ACLOperationDescribe, typ: security.ResourceTable, any: true}
	case len(part) < 2 || part[0] != "namespaces":
		return on(kmsg.ACLOperationWrite, "*")
	}
	switch name := part[1]; {
	case len(part) <= 3 && reads:
		return on(kmsg.ACLOperationDescribe, name)
	case len(part) == 2:
		return on(kmsg.ACLOperationDelete, name)
	case len(part) == 3 && part[2] == "properties":
		return on(kmsg.ACLOperationWrite, name)
	case len(part) == 3: // tables, views, register
		return on(kmsg.ACLOperationCreate, name)
	case reads, len(part) > 4 && part[4] == "metrics":
		return on(kmsg.ACLOperationRead, name, part[3])
	case method == http.MethodDelete, len(part) > 4 && part[4] == "unregister":
		return on(kmsg.ACLOperationDelete, name, part[3])
	}
	return on(kmsg.ACLOperationWrite, part[1], part[3])
}

// registryRight is for the schema registry, with the operations of Confluent's: reading and
// changing settings are DescribeConfigs and AlterConfigs, those of all subjects on the cluster.
func registryRight(part []string, method string, reads bool) right {
	subject := func(op kmsg.ACLOperation, i int) right {
		return right{op: op, typ: security.ResourceSubject, name: part[i]}
	}
	settings := kmsg.ACLOperationAlterConfigs
	if reads {
		settings = kmsg.ACLOperationDescribeConfigs
	}
	switch part[0] {
	case "", "v1", "contexts":
		return right{}
	case "apis": // of Apicurio: /apis/registry/v2/groups/default/artifacts/SUBJECT, …/ids/globalIds/ID
		switch {
		case len(part) == 6 && method == http.MethodPost: // the registry asks for the one that a header names
			return right{op: kmsg.ACLOperationWrite, typ: security.ResourceSubject, any: true}
		case len(part) > 6:
			return subject(kmsg.ACLOperationRead, 6)
		}
		return right{op: kmsg.ACLOperationRead, typ: security.ResourceSubject, any: true}
	case "schemas": // by id: whoever may read a subject; ids are no secret, and in every record
		if len(part) == 2 && part[1] == "types" {
			return right{}
		}
		return right{op: kmsg.ACLOperationRead, typ: security.ResourceSubject, any: true}
	case "subjects":
		switch {
		case len(part) == 1:
			return right{op: kmsg.ACLOperationDescribe, typ: security.ResourceSubject, any: true}
		case method == http.MethodDelete:
			return subject(kmsg.ACLOperationDelete, 1)
		case method == http.MethodPost && len(part) == 3:
			return subject(kmsg.ACLOperationWrite, 1)
		}
		return subject(kmsg.ACLOperationRead, 1)
	case "compatibility":
		if len(part) >= 3 {
			return subject(kmsg.ACLOperationRead, 2)
		}
	case "config", "mode":
		if len(part) == 1 {
			return onCluster(settings)
		}
		return subject(settings, 1)
	}
	return onCluster(kmsg.ACLOperationAlter) // there is no such call
}
