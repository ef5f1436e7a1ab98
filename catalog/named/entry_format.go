package named

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
)

// The settings of a catalog, version 1, as JSON in the column config of metadata's table
// catalog_entry:
//
//	{"v": 1, "settings": {key: value, …}, "key": "…", "secrets": "…"}
//
// settings are those that are no secret. secrets is base64 of a nonce of 12 bytes and the
// AES-256-GCM sealing of a JSON object of the others, with "tabletopic catalog", the kind and the
// name, each followed by a zero byte, as additional data: a row that is moved to another name
// does not open. key is the first 8 bytes of the SHA-256 of the key, in hexadecimal; both
// are missing if there are no secrets.
const entryVersion = 1

type entry struct {
	Version  int               `json:"v"`
	Settings map[string]string `json:"settings"`
	Key      string            `json:"key,omitempty"`
	Secrets  []byte            `json:"secrets,omitempty"`
}

// A Key seals secrets: AES-256.
type Key []byte

// ErrNoKey says that secrets are to be sealed or opened, and the server has no key.
var ErrNoKey = errors.New("the server has no key for secrets: give all servers one with --secrets-key-file (make it with: head -c 32 /dev/urandom | base64 > FILE), or in TABLETOPIC_SECRETS_KEY")

// ParseKey reads a key: base64 of 32 bytes, with white space around it. nil for "".
func ParseKey(text string) (Key, error) {
	if text = strings.TrimSpace(text); text == "" {
		return nil, nil
	}
	key, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(key) != 32 {
		return nil, errors.New("key for secrets: base64 of 32 bytes is wanted, as of: head -c 32 /dev/urandom | base64")
	}
	return key, nil
}

// ReadKey is ParseKey of a file.
func ReadKey(path string) (Key, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("key for secrets: %w", err)
	}
	key, err := ParseKey(string(text))
	if err == nil && key == nil {
		err = errors.New("key for secrets: the file is empty")
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return key, nil
}

func (k Key) id() string {
	sum := sha256.Sum256(k)
	return hex.EncodeToString(sum[:8])
}

func (k Key) aead() (cipher.AEAD, error) {
	block, err := aes.NewCipher(k)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

func additional(name, kind string) []byte {
	return []byte("tabletopic catalog\x00" + kind + "\x00" + name + "\x00")
}

// appendEntry writes the settings of a catalog.
func appendEntry(dst []byte, name string, k Kind, values map[string]string, key Key) ([]byte, error) {
	e := entry{Version: entryVersion, Settings: map[string]string{}}
	secrets := map[string]string{}
	for setting, value := range values {
		s, err := k.setting(setting)
		if err != nil {
			return dst, err
		}
		if s.Secret {
			secrets[setting] = value
		} else {
			e.Settings[setting] = value
		}
	}
	if len(secrets) > 0 {
		if key == nil {
			return dst, ErrNoKey
		}
		plain, err := json.Marshal(secrets)
		if err != nil {
			return dst, err
		}
		aead, err := key.aead()
		if err != nil {
			return dst, err
		}
		nonce := make([]byte, aead.NonceSize())
		_, _ = rand.Read(nonce) // it never fails
		e.Key, e.Secrets = key.id(), aead.Seal(nonce, nonce, plain, additional(name, k.Name))
	}
	out, err := json.Marshal(e)
	return append(dst, out...), err
}

// parseEntry reads the settings of a catalog. Without the key the secrets are missing, and
// sealed is true.
func parseEntry(src []byte, name, kind string, key Key) (values map[string]string, sealed bool, err error) {
	var e entry
	decoder := json.NewDecoder(bytes.NewReader(src))
	if err := decoder.Decode(&e); err != nil {
		return nil, false, fmt.Errorf("settings of catalog %s: %w", name, err)
	}
	if e.Version != entryVersion {
		return nil, false, fmt.Errorf("settings of catalog %s are of version %d: run a newer tabletopic", name, e.Version)
	}
	values = e.Settings
	if values == nil {
		values = map[string]string{}
	}
	if len(e.Secrets) == 0 {
		return values, false, nil
	}
	if key == nil {
		return values, true, nil
	}
	if e.Key != key.id() {
		return values, true, fmt.Errorf("secrets of catalog %s were sealed with key %s, and this server has %s: give it the other, or add the catalog again", name, e.Key, key.id())
	}
	aead, err := key.aead()
	if err != nil {
		return nil, false, err
	}
	if len(e.Secrets) < aead.NonceSize() {
		return nil, false, fmt.Errorf("secrets of catalog %s are cut off", name)
	}
	nonce, box := e.Secrets[:aead.NonceSize()], e.Secrets[aead.NonceSize():]
	plain, err := aead.Open(nil, nonce, box, additional(name, kind))
	if err != nil {
		return nil, false, fmt.Errorf("secrets of catalog %s do not open: they were changed, or moved from another catalog", name)
	}
	secrets := map[string]string{}
	if err := json.Unmarshal(plain, &secrets); err != nil {
		return nil, false, fmt.Errorf("secrets of catalog %s: %w", name, err)
	}
	for k, v := range secrets {
		values[k] = v
	}
	return values, false, nil
}
