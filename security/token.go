package security

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"strings"
	"time"
)

// TokenLifetime is how long a token of IssueToken is good for.
const TokenLifetime = time.Hour

// ownToken begins the tokens of IssueToken; the tokens of others are JWTs, which begin otherwise.
const ownToken = "tt1."

// A userToken is what such a token says: tt1.base64url(JSON).base64url(HMAC-SHA256), under the
// secret of the cluster and the keys of the user, so that it ends with the user's password. To
// clients it is opaque.
type userToken struct {
	User    string `json:"u"`
	Expires int64  `json:"e"` // seconds since 1970
}

// IssueToken gives a user a token for its password, for clients of OAuth2.
func (a *Access) IssueToken(ctx context.Context, user, password string) (string, error) {
	if _, err := a.Password(ctx, user, password); err != nil {
		return "", err
	}
	return a.sign(userToken{user, time.Now().Add(TokenLifetime).Unix()})
}

// Renew gives a token for one that is still good.
func (a *Access) Renew(token string) (string, error) {
	id, err := a.userOf(token)
	if err != nil {
		return "", err
	}
	return a.sign(userToken{strings.TrimPrefix(id.Principal, "User:"), time.Now().Add(TokenLifetime).Unix()})
}

func (a *Access) sign(t userToken) (string, error) {
	c, ok := a.credential(t.User)
	if !ok {
		return "", errCredentials
	}
	payload, err := json.Marshal(t)
	if err != nil {
		return "", err
	}
	text := ownToken + base64.RawURLEncoding.EncodeToString(payload)
	key := mac(sha256.New, a.secret, "tokens of "+string(c.StoredKey))
	return text + "." + base64.RawURLEncoding.EncodeToString(mac(sha256.New, key, text)), nil
}

func (a *Access) userOf(token string) (*Identity, error) {
	text, ours := strings.CutPrefix(token, ownToken)
	text, _, _ = strings.Cut(text, ".")
	payload, err := base64.RawURLEncoding.DecodeString(text)
	var t userToken
	if !ours || err != nil || json.Unmarshal(payload, &t) != nil {
		return nil, refuse("the token is none of this server's")
	}
	want, err := a.sign(t)
	if err != nil || !hmac.Equal([]byte(want), []byte(token)) || time.Now().Unix() >= t.Expires {
		return nil, refuse("the token has expired, or is none of this server's")
	}
	return &Identity{Principal: "User:" + t.User, Expires: time.Unix(t.Expires, 0)}, nil
}
