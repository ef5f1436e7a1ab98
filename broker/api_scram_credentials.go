package broker

import (
	"context"
	"errors"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/security"
)

// handleDescribeUserSCRAMCredentials lists users and their mechanisms (KIP-554).
func handleDescribeUserSCRAMCredentials(_ context.Context, b *Broker, r *request, req *kmsg.DescribeUserSCRAMCredentialsRequest) kmsg.Response {
	resp := kmsg.NewPtrDescribeUserSCRAMCredentialsResponse()
	if !r.may(opDescribe, onCluster, cluster) {
		resp.ErrorCode, resp.ErrorMessage = codeAndText(kerr.ClusterAuthorizationFailed)
		return resp
	}
	var names []string
	times := map[string]int{}
	for _, u := range req.Users {
		if times[u.Name]++; times[u.Name] == 1 {
			names = append(names, u.Name)
		}
	}
	infos := map[string][]kmsg.DescribeUserSCRAMCredentialsResponseResultCredentialInfo{}
	for _, c := range b.access.Users() {
		if len(req.Users) == 0 && infos[c.User] == nil {
			names = append(names, c.User)
		}
		info := kmsg.NewDescribeUserSCRAMCredentialsResponseResultCredentialInfo()
		info.Mechanism, info.Iterations = c.Mechanism, int32(c.Iterations)
		infos[c.User] = append(infos[c.User], info)
	}
	for _, name := range names {
		result := kmsg.NewDescribeUserSCRAMCredentialsResponseResult()
		result.User, result.CredentialInfos = name, infos[name]
		switch {
		case times[name] > 1:
			result.CredentialInfos = nil
			result.ErrorCode, result.ErrorMessage = codeAndText(refuse(kerr.DuplicateResource, "user %q is in the request twice", name))
		case len(result.CredentialInfos) == 0:
			result.ErrorCode, result.ErrorMessage = codeAndText(refuse(kerr.ResourceNotFound, "user %q has no password", name))
		}
		resp.Results = append(resp.Results, result)
	}
	return resp
}

// handleAlterUserSCRAMCredentials sets passwords, which the client has salted, and removes
// them. A user of whom anything is wrong is left as it was, the others are changed.
func handleAlterUserSCRAMCredentials(ctx context.Context, b *Broker, r *request, req *kmsg.AlterUserSCRAMCredentialsRequest) kmsg.Response {
	resp := kmsg.NewPtrAlterUserSCRAMCredentialsResponse()
	changes, names := map[string]*credentialChange{}, []string{}
	of := func(name string) *credentialChange {
		if changes[name] == nil {
			changes[name], names = &credentialChange{}, append(names, name)
		}
		return changes[name]
	}
	for _, d := range req.Deletions {
		of(d.Name).add(metadata.ScramCredential{User: d.Name, Mechanism: d.Mechanism}, true, nil)
	}
	for _, u := range req.Upsertions {
		c, err := saltedCredential(u)
		of(u.Name).add(c, false, err)
	}
	allowed := r.may(opAlter, onCluster, cluster)
	for _, name := range names {
		c := changes[name]
		err := c.err
		switch {
		case !allowed:
			err = kerr.ClusterAuthorizationFailed
		case err == nil:
			err = b.access.AlterCredentials(ctx, c.set, c.remove)
			if errors.Is(err, metadata.ErrCredentialNotExist) {
				err = refuse(kerr.ResourceNotFound, "user %q has no password of that mechanism", name)
			} else if err != nil {
				b.log.Error("alter credentials", "user", name, "err", err)
			} else {
				b.log.Info("password changed", "user", name, "principal", r.conn.session.client.Principal, "set", len(c.set), "removed", len(c.remove))
			}
		}
		result := kmsg.NewAlterUserSCRAMCredentialsResponseResult()
		result.User = name
		result.ErrorCode, result.ErrorMessage = codeAndText(err)
		resp.Results = append(resp.Results, result)
	}
	return resp
}

type credentialChange struct {
	set, remove []metadata.ScramCredential
	err         error
}

func (c *credentialChange) add(one metadata.ScramCredential, remove bool, err error) {
	same := func(o metadata.ScramCredential) bool { return o.Mechanism == one.Mechanism }
	switch {
	case c.err != nil:
	case err != nil:
		c.err = err
	case one.Mechanism != security.ScramSHA256 && one.Mechanism != security.ScramSHA512:
		c.err = refuse(kerr.UnsupportedSaslMechanism, "SCRAM mechanism %d is not known", one.Mechanism)
	case slices.ContainsFunc(c.set, same) || slices.ContainsFunc(c.remove, same):
		c.err = refuse(kerr.DuplicateResource, "one mechanism of user %q is in the request twice", one.User)
	case remove:
		c.remove = append(c.remove, one)
	default:
		c.set = append(c.set, one)
	}
}

func saltedCredential(u kmsg.AlterUserSCRAMCredentialsRequestUpsertion) (metadata.ScramCredential, error) {
	if err := security.CheckUserName(u.Name); err != nil {
		return metadata.ScramCredential{}, refuse(kerr.UnacceptableCredential, "%v", err)
	}
	if u.Iterations < security.MinIterations || u.Iterations > security.MaxIterations {
		return metadata.ScramCredential{}, refuse(kerr.UnacceptableCredential, "%d iterations: want %d to %d", u.Iterations, security.MinIterations, security.MaxIterations)
	}
	if size := map[int8]int{security.ScramSHA256: 32, security.ScramSHA512: 64}[u.Mechanism]; size != 0 && len(u.SaltedPassword) != size || len(u.Salt) == 0 || len(u.Salt) > 256 {
		return metadata.ScramCredential{}, refuse(kerr.UnacceptableCredential, "the salt has %d bytes and the salted password %d: want 1 to 256, and as many as the hash has", len(u.Salt), len(u.SaltedPassword))
	}
	return security.SaltedCredential(u.Name, u.Mechanism, int(u.Iterations), u.Salt, u.SaltedPassword), nil
}
