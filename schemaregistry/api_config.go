package schemaregistry

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/tabletopic/tabletopic/metadata"
)

// configAnswer is what is set, as it is read.
type configAnswer struct {
	Level level `json:"compatibilityLevel,omitempty"`
	settings
}

func (r *Registry) getGlobalConfig(req *http.Request) (any, error) {
	c, err := r.configOf(req.Context(), global)
	return configAnswer{c.level, c.settings}, err
}

func (r *Registry) getConfig(req *http.Request) (any, error) {
	name := req.PathValue("subject")
	read := r.ownConfig
	if query(req, "defaultToGlobal") {
		read = r.configOf
	}
	c, err := read(req.Context(), name)
	if err != nil {
		return nil, err
	}
	if c.level == "" && c.settings == (settings{}) {
		return nil, compatibilityNotConfigured(name)
	}
	return configAnswer{c.level, c.settings}, nil
}

func (r *Registry) putGlobalConfig(req *http.Request) (any, error) {
	return r.changeConfig(req, global)
}

func (r *Registry) putConfig(req *http.Request) (any, error) {
	name := req.PathValue("subject")
	if err := checkSubject(name); err != nil {
		return nil, err
	}
	return r.changeConfig(req, name)
}

// changeConfig sets what the body names, and unsets what it has as null.
func (r *Registry) changeConfig(req *http.Request, subject string) (any, error) {
	var changes map[string]json.RawMessage
	if err := readBody(req, &changes); err != nil {
		return nil, err
	}
	if err := applyConfig(&config{}, changes); err != nil {
		return nil, err
	}
	if err := r.checkWritable(req.Context(), subject); err != nil {
		return nil, err
	}
	var now config
	err := r.changeOwnConfig(req.Context(), subject, func(c *config) {
		applyConfig(c, changes) // which is known to work
		now = *c
	})
	return struct {
		Compatibility level `json:"compatibility,omitempty"`
		settings
	}{now.level, now.settings}, err
}

// changeOwnConfig changes what is set for a subject.
func (r *Registry) changeOwnConfig(ctx context.Context, subject string, change func(*config)) error {
	var failed error
	err := r.store.ChangeSubjectConfig(ctx, subject, func(stored *metadata.SubjectConfig) {
		var c config
		if c, failed = decodeConfig(*stored); failed != nil {
			return
		}
		change(&c)
		stored.Compatibility, stored.Mode, stored.Settings = string(c.level), string(c.mode), ""
		if c.settings != (settings{}) {
			var b []byte
			b, failed = json.Marshal(c.settings)
			stored.Settings = string(b)
		}
	})
	if err == nil {
		err = failed
	}
	return err
}

// applyConfig reads a body into c. What this registry does not do is refused, not ignored.
func applyConfig(c *config, changes map[string]json.RawMessage) error {
	if len(changes) == 0 {
		return invalidLevel("")
	}
	for _, key := range slices.Sorted(maps.Keys(changes)) {
		if !slices.Contains(configKeys, key) {
			return badRequest(http.StatusUnprocessableEntity, "This registry has no setting %q, it has %v", key, configKeys)
		}
		var text *string
		var flag *bool
		var err error
		if key == "normalize" {
			err = json.Unmarshal(changes[key], &flag)
		} else {
			err = json.Unmarshal(changes[key], &text)
		}
		if err != nil {
			return badRequest(http.StatusUnprocessableEntity, "The setting %q cannot be %.50s", key, changes[key])
		}
		word := ""
		if text != nil {
			word = *text
		}
		switch upper := strings.ToUpper(word); key {
		case "alias":
			c.Alias = word
		case "compatibility":
			if text != nil && !slices.Contains(levels, level(upper)) {
				return invalidLevel(word)
			}
			c.level = level(upper)
		case "compatibilityGroup":
			c.Group = word
		case "compatibilityPolicy":
			if text != nil && upper != policyStrict && upper != policyLenient {
				return badRequest(http.StatusUnprocessableEntity, "Invalid compatibility policy '%s': it is %s or %s", word, policyStrict, policyLenient)
			}
			c.Policy = upper
		case "normalize":
			c.Normalize = flag
		}
	}
	return nil
}

var configKeys = []string{"alias", "compatibility", "compatibilityGroup", "compatibilityPolicy", "normalize"}

func (r *Registry) deleteGlobalConfig(req *http.Request) (any, error) {
	return r.removeConfig(req, global)
}

func (r *Registry) deleteConfig(req *http.Request) (any, error) {
	return r.removeConfig(req, req.PathValue("subject"))
}

// removeConfig unsets everything but the mode, and returns what was set.
func (r *Registry) removeConfig(req *http.Request, subject string) (any, error) {
	c, err := r.ownConfig(req.Context(), subject)
	if err != nil {
		return nil, err
	}
	if subject != global && c.level == "" && c.settings == (settings{}) {
		return nil, subjectNotFound(subject)
	}
	if subject == global && c.level == "" {
		c.level = levelBackward
	}
	if err := r.checkWritable(req.Context(), subject); err != nil {
		return nil, err
	}
	return configAnswer{c.level, c.settings}, r.changeOwnConfig(req.Context(), subject, func(c *config) { *c = config{mode: c.mode} })
}

type modeAnswer struct {
	Mode mode `json:"mode"`
}

func (r *Registry) getGlobalMode(req *http.Request) (any, error) {
	c, err := r.configOf(req.Context(), global)
	return modeAnswer{c.mode}, err
}

func (r *Registry) getMode(req *http.Request) (any, error) {
	name := req.PathValue("subject")
	read := r.ownConfig
	if query(req, "defaultToGlobal") {
		read = r.configOf
	}
	c, err := read(req.Context(), name)
	if err != nil {
		return nil, err
	}
	if c.mode == "" {
		return nil, modeNotConfigured(name)
	}
	return modeAnswer{c.mode}, nil
}

func (r *Registry) putGlobalMode(req *http.Request) (any, error) { return r.changeMode(req, global) }

func (r *Registry) putMode(req *http.Request) (any, error) {
	name := req.PathValue("subject")
	if err := checkSubject(name); err != nil {
		return nil, err
	}
	return r.changeMode(req, name)
}

func (r *Registry) changeMode(req *http.Request, subject string) (any, error) {
	var q modeAnswer
	if err := readBody(req, &q); err != nil {
		return nil, err
	}
	if q.Mode == "" {
		return nil, badRequest(http.StatusUnprocessableEntity, "The body needs a field \"mode\"")
	}
	m := mode(strings.ToUpper(string(q.Mode)))
	if !slices.Contains(modes, m) {
		return nil, invalidMode(string(q.Mode))
	}
	c, err := r.configOf(req.Context(), subject)
	if err != nil {
		return nil, err
	}
	if m == modeImport && c.mode != modeImport && !query(req, "force") {
		if err := r.clearForImport(req, subject); err != nil {
			return nil, err
		}
	}
	return modeAnswer{m}, r.changeOwnConfig(req.Context(), subject, func(c *config) { c.mode = m })
}

// clearForImport makes room for versions that come with their numbers and ids: there may be
// none, and what was soft deleted goes for good.
func (r *Registry) clearForImport(req *http.Request, subject string) error {
	all, err := r.store.Subjects(req.Context())
	if err != nil {
		return err
	}
	for _, s := range all {
		if subject == global || s.Name == subject {
			if !s.Deleted {
				return notPermitted(fmt.Sprintf("Cannot import since subject %s exists: force=true imports beside it", s.Name))
			}
		}
	}
	for _, s := range all {
		if subject != global && s.Name != subject {
			continue
		}
		if _, err := r.deleteVersions(req.Context(), s.Name, true, func(s metadata.Subject) ([]int, error) { return numbersOf(s.Versions), nil }); err != nil {
			return err
		}
	}
	return nil
}

func (r *Registry) deleteGlobalMode(req *http.Request) (any, error) {
	return r.removeMode(req, global)
}

func (r *Registry) deleteMode(req *http.Request) (any, error) {
	return r.removeMode(req, req.PathValue("subject"))
}

// removeMode unsets a mode, and returns what it was.
func (r *Registry) removeMode(req *http.Request, subject string) (any, error) {
	c, err := r.ownConfig(req.Context(), subject)
	if err != nil {
		return nil, err
	}
	if c.mode == "" && subject != global {
		return nil, subjectNotFound(subject)
	}
	if c.mode == "" {
		c.mode = modeReadWrite
	}
	return modeAnswer{c.mode}, r.changeOwnConfig(req.Context(), subject, func(c *config) { c.mode = "" })
}
