package node

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/tabletopic/tabletopic/broker"
	"github.com/tabletopic/tabletopic/security"
)

// Security protocols of Kafka listeners.
const (
	plaintext     = "PLAINTEXT"
	overTLS       = "SSL"
	saslPlaintext = "SASL_PLAINTEXT"
	saslTLS       = "SASL_SSL"
)

var protocols = []string{plaintext, overTLS, saslPlaintext, saslTLS}

// A listenerSpec is one Kafka listener as it is configured.
type listenerSpec struct {
	name, address, advertised, protocol string
}

func (l listenerSpec) tls() bool  { return l.protocol == overTLS || l.protocol == saslTLS }
func (l listenerSpec) sasl() bool { return l.protocol == saslPlaintext || l.protocol == saslTLS }

// listenerSpecs reads the settings of the Kafka listeners.
func (c *Config) listenerSpecs() ([]listenerSpec, error) {
	if c.Listeners == "" {
		return []listenerSpec{{c.KafkaProtocol, c.Kafka, c.KafkaAdvertised, c.KafkaProtocol}}, errors.Join(
			check(slices.Contains(protocols, c.KafkaProtocol), "kafka-protocol %q: want one of %s", c.KafkaProtocol, strings.Join(protocols, ", ")),
			check(c.ListenerProtocols+c.AdvertisedListeners+c.InterBrokerListener == "", "listener-protocols, advertised-listeners and inter-broker-listener go with listeners"))
	}
	if c.KafkaAdvertised != "" || c.KafkaProtocol != plaintext {
		return nil, errors.New("kafka-advertised and kafka-protocol are for the listener that --kafka names: with listeners use advertised-listeners and listener-protocols")
	}
	protocolOf, err := pairs("listener-protocols", c.ListenerProtocols, ":")
	if err != nil {
		return nil, err
	}
	advertised, err := pairs("advertised-listeners", c.AdvertisedListeners, "://")
	if err != nil {
		return nil, err
	}
	var out []listenerSpec
	for item := range strings.SplitSeq(c.Listeners, ",") {
		name, at, ok := strings.Cut(strings.TrimSpace(item), "://")
		l := listenerSpec{name, at, advertised[name], protocolOf[name]}
		if l.protocol == "" {
			l.protocol = name // as Kafka has it
		}
		switch {
		case !ok || address("", at) != nil || strings.ContainsAny(name, "=,"):
			return nil, fmt.Errorf("listeners %q: want NAME://HOST:PORT, separated by commas", item)
		case slices.ContainsFunc(out, func(o listenerSpec) bool { return o.name == name }):
			return nil, fmt.Errorf("listeners: %s is there twice", name)
		case !slices.Contains(protocols, l.protocol):
			return nil, fmt.Errorf("listener %s: want one of %s for it in listener-protocols, as %s:SASL_SSL", name, strings.Join(protocols, ", "), name)
		case l.advertised != "" && address("", l.advertised) != nil:
			return nil, fmt.Errorf("advertised-listeners: %s://%s: want NAME://HOST:PORT", name, l.advertised)
		}
		delete(advertised, name)
		delete(protocolOf, name)
		out = append(out, l)
	}
	for name := range advertised {
		return nil, fmt.Errorf("advertised-listeners: there is no listener %s", name)
	}
	for name := range protocolOf {
		return nil, fmt.Errorf("listener-protocols: there is no listener %s", name)
	}
	if c.InterBrokerListener == "" {
		return out, nil
	}
	i := slices.IndexFunc(out, func(l listenerSpec) bool { return l.name == c.InterBrokerListener })
	if i < 0 {
		return nil, fmt.Errorf("inter-broker-listener: there is no listener %s", c.InterBrokerListener)
	}
	out[0], out[i] = out[i], out[0] // the first is that of the nodes
	return out, nil
}

// pairs reads NAME and value, separated by commas.
func pairs(setting, text, separator string) (map[string]string, error) {
	out := map[string]string{}
	if text == "" {
		return out, nil
	}
	for item := range strings.SplitSeq(text, ",") {
		name, value, ok := strings.Cut(strings.TrimSpace(item), separator)
		if !ok || name == "" || value == "" || out[name] != "" {
			return nil, fmt.Errorf("%s %q: want NAME%sVALUE once for each, separated by commas", setting, item, separator)
		}
		out[name] = value
	}
	return out, nil
}

func list(text string) (out []string) {
	for item := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == ',' || r == ';' }) {
		out = append(out, strings.TrimSpace(item))
	}
	return out
}

// superUsers are separated by semicolons, since names in certificates have commas.
func (c *Config) superUsers() (out []string) {
	for item := range strings.SplitSeq(c.SuperUsers, ";") {
		if item = strings.TrimSpace(item); item != "" {
			out = append(out, item)
		}
	}
	return out
}

// authorizes reports whether ACLs are asked.
func (c *Config) authorizes(specs []listenerSpec) bool {
	if c.Authorization != "" {
		return c.Authorization == "acl"
	}
	return c.authenticates(specs)
}

// authenticates reports whether anybody has to say who it is.
func (c *Config) authenticates(specs []listenerSpec) bool {
	return c.clientCertificates() || slices.ContainsFunc(specs, listenerSpec.sasl)
}

func (c *Config) clientCertificates() bool {
	return c.TLSClientAuth == "requested" || c.TLSClientAuth == "required"
}

// checkSecurity refuses settings of security that cannot work, and those that would let
// everybody in without saying so.
func (c *Config) checkSecurity() error {
	specs, err := c.listenerSpecs()
	if err != nil {
		return err
	}
	usesTLS := c.HTTPTLS || slices.ContainsFunc(specs, listenerSpec.tls)
	errs := []error{
		check(c.Authorization == "" || c.Authorization == "none" || c.Authorization == "acl", "authorization %q: want none or acl", c.Authorization),
		check(!c.authorizes(specs) || len(c.superUsers()) > 0, "super-users: nobody could make the first ACL: name a principal, as User:admin, or set authorization none"),
		check(!usesTLS || c.TLSCert != "" && c.TLSKey != "", "tls-cert and tls-key: a listener uses TLS, and needs both"),
		check(usesTLS || c.TLSCert+c.TLSKey+c.TLSClientCA+c.TLSClientAuth == "", "tls-cert, tls-key, tls-client-ca and tls-client-auth: no listener uses TLS: set kafka-protocol, listener-protocols or http-tls"),
		check(c.OAuthJWKS != "" || c.OAuthIssuer+c.OAuthAudience == "", "oauth-issuer and oauth-audience go with oauth-jwks"),
		check(c.HTTPAuthentication == "" || c.HTTPAuthentication == "none" || c.HTTPAuthentication == "required", "http-authentication %q: want none or required", c.HTTPAuthentication),
		within("max-connections-per-address", c.MaxConnectionsPerAddress, 0, 1_000_000),
	}
	for _, p := range c.superUsers() {
		errs = append(errs, check(strings.HasPrefix(p, "User:") && p != "User:" && !strings.Contains(p, ",User:"), "super-users: %q: want User:NAME, separated by semicolons", p))
	}
	inter := specs[0]
	if strings.HasPrefix(c.Metadata, "postgres") && c.authorizes(specs) {
		errs = append(errs, check(inter.sasl(), "listener %s: nodes of a cluster prove to each other who they are by SASL: let the inter-broker-listener be %s or %s", inter.name, saslTLS, saslPlaintext))
	}
	for _, l := range specs {
		errs = append(errs, c.checkExposed(l.name, l.address, l.sasl() || l.protocol == overTLS && c.TLSClientAuth == "required", l.tls() || !slices.Contains(list(c.SASLMechanisms), security.Plain)))
	}
	return errors.Join(append(errs, c.checkExposed("http", c.HTTP, c.httpAuthenticates(specs), c.HTTPTLS))...)
}

// checkExposed refuses a listener that others than this machine reach, and that asks nobody who
// it is, or lets passwords be read on the way.
func (c *Config) checkExposed(name, at string, asks, hidden bool) error {
	if c.AllowInsecure || security.Loopback(at) {
		return nil
	}
	if !asks {
		return fmt.Errorf("listener %s on %s: everybody who reaches it could do everything: let it authenticate its clients (see docs/security.md), listen on 127.0.0.1, or set allow-insecure", name, at)
	}
	return check(hidden, "listener %s on %s: passwords would go over the network readable: use TLS, or set allow-insecure if something before it does", name, at)
}

func (c *Config) httpAuthenticates(specs []listenerSpec) bool {
	if c.HTTPAuthentication != "" {
		return c.HTTPAuthentication == "required"
	}
	return c.authenticates(specs)
}

// openAccess reads who may do what, and makes the users that are configured.
func (n *Node) openAccess(ctx context.Context) error {
	specs, err := n.cfg.listenerSpecs()
	if err != nil {
		return err
	}
	cfg := security.Config{Authorize: n.cfg.authorizes(specs), SuperUsers: n.cfg.superUsers(), AllowOrphans: n.cfg.AllowWithoutACL,
		Mechanisms: list(n.cfg.SASLMechanisms), SessionLifetime: n.cfg.ReauthInterval}
	if n.cfg.OAuthJWKS != "" {
		cfg.OAuth, err = security.NewOAuth(security.OAuthConfig{JWKS: n.cfg.OAuthJWKS, Issuer: n.cfg.OAuthIssuer, Audience: n.cfg.OAuthAudience,
			Principal: n.cfg.OAuthPrincipal, Skew: n.cfg.OAuthSkew})
		if err != nil {
			return fmt.Errorf("oauth: %w", err)
		}
	}
	n.access, err = security.Open(ctx, cfg, n.meta, n.log, n.metrics)
	if err != nil {
		return err
	}
	n.onClose("users and ACLs", func(context.Context) error { n.access.Close(); return nil })
	trust, err := n.toPeers()
	if err != nil {
		return err
	}
	password := ""
	if n.cfg.httpAuthenticates(specs) {
		password = n.access.NodePassword()
	}
	n.peers = newPeers(trust, n.access.NodeUser(), password)
	return n.makeUsers(ctx)
}

// makeUsers makes the users of --users that do not exist. The password of one that exists is
// left as it is: somebody may have changed it.
func (n *Node) makeUsers(ctx context.Context) error {
	users, err := pairs("users", n.cfg.Users, ":")
	if err != nil {
		return err
	}
	for name, path := range users {
		password, err := ReadPassword(path)
		if err != nil {
			return fmt.Errorf("users: %s: %w", name, err)
		}
		if n.access.HasUser(name) {
			if _, err := n.access.Password(ctx, name, password); err != nil {
				n.log.Warn("a user has another password than its file: the file is only for the first start", "user", name, "file", path)
			}
			continue
		}
		if err := n.access.SetPassword(ctx, name, password); err != nil {
			return fmt.Errorf("users: %w", err)
		}
		n.log.Info("user made", "user", name)
	}
	return nil
}

// ReadPassword reads a file that holds a password and nothing else, and that others on this
// machine cannot read.
func ReadPassword(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return "", fmt.Errorf("%s can be read by others on this machine: chmod 600 it", path)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	password := strings.TrimRight(string(text), "\r\n")
	if password == "" || strings.ContainsAny(password, "\r\n") {
		return "", fmt.Errorf("%s: want one line, the password", path)
	}
	return password, nil
}

// openTLS reads the certificates, if anything uses them.
func (n *Node) openTLS() (err error) {
	if n.cfg.TLSCert == "" {
		return nil
	}
	if n.mapping, err = security.ParseMapping(n.cfg.TLSPrincipals); err != nil {
		return fmt.Errorf("tls-principal-mapping: %w", err)
	}
	n.tls, err = security.OpenTLS(security.TLSConfig{Cert: n.cfg.TLSCert, Key: n.cfg.TLSKey, ClientCA: n.cfg.TLSClientCA, ClientAuth: n.cfg.TLSClientAuth}, n.log)
	return err
}

// listenKafka takes the addresses of the Kafka listeners, that of the other nodes first.
func (n *Node) listenKafka() error {
	specs, err := n.cfg.listenerSpecs()
	if err != nil {
		return err
	}
	for _, s := range specs {
		flag := "listeners"
		if n.cfg.Listeners == "" {
			flag = "kafka"
		}
		l, err := n.listen(flag, s.address)
		if err != nil {
			return err
		}
		out := broker.Listener{Listener: l, Name: s.name, Advertised: s.advertised, SASL: s.sasl()}
		if s.tls() {
			out.TLS, out.Mapping = n.tls.Config(), n.mapping
		}
		n.listeners = append(n.listeners, out)
	}
	return nil
}

// toPeers is how this node trusts the certificates of others.
func (n *Node) toPeers() (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if n.cfg.TLSCA != "" {
		pool, err := security.CertPool(n.cfg.TLSCA)
		if err != nil {
			return nil, fmt.Errorf("tls-ca: %w", err)
		}
		cfg.RootCAs = pool
	}
	if n.tls != nil {
		cfg.GetClientCertificate = n.tls.ClientCertificate
	}
	return cfg, nil
}

// kafkaToPeers is how this node reaches the Kafka listeners of others.
func (n *Node) kafkaToPeers() ([]kgo.Opt, error) {
	inter := n.listeners[0]
	var opts []kgo.Opt
	if inter.TLS != nil {
		cfg, err := n.toPeers()
		if err != nil {
			return nil, err
		}
		opts = append(opts, kgo.DialTLSConfig(cfg))
	}
	if inter.SASL {
		opts = append(opts, kgo.SASL(scram.Auth{User: n.access.NodeUser(), Pass: n.access.NodePassword()}.AsSha256Mechanism()))
	}
	return opts, nil
}

// advertised is where clients reach each listener, as metadata keeps it.
func (n *Node) advertised() (kafka, all string) {
	var out []string
	for _, l := range n.listeners {
		at := l.Advertised
		if at == "" {
			at = l.Addr().String()
		}
		out = append(out, l.Name+"="+at)
	}
	_, kafka, _ = strings.Cut(out[0], "=")
	return kafka, strings.Join(out, ",")
}

// kafkaHost is the host of the advertised address, for what is reached on the same machine.
func (n *Node) kafkaHost() (string, error) {
	host, _, err := net.SplitHostPort(n.listeners[0].Advertised)
	return host, err
}
