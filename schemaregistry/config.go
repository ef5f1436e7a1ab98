package schemaregistry

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"

	"github.com/tabletopic/tabletopic/metadata"
)

// global is the subject whose settings hold for those that have none.
const global = ""

// A mode says what clients may do with a subject.
type mode string

const (
	modeReadWrite        mode = "READWRITE"
	modeReadOnly         mode = "READONLY"
	modeReadOnlyOverride mode = "READONLY_OVERRIDE" // for all subjects, whatever their own mode
	modeImport           mode = "IMPORT"            // schemas come with their ids, and nothing is compared
)

var modes = []mode{modeReadWrite, modeReadOnly, modeReadOnlyOverride, modeImport}

func (m mode) readOnly() bool { return m == modeReadOnly || m == modeReadOnlyOverride }

// A config is what is set for a subject; zero values are not set.
type config struct {
	level level
	mode  mode
	settings
}

// settings are what a subject may have besides level and mode, as they are stored and answered.
type settings struct {
	Alias     string `json:"alias,omitempty"` // the subject that is meant by this name
	Normalize *bool  `json:"normalize,omitempty"`
	Policy    string `json:"compatibilityPolicy,omitempty"` // STRICT or LENIENT
	Group     string `json:"compatibilityGroup,omitempty"`  // schemas are compared only within one value of this property
}

const (
	policyStrict  = "STRICT"
	policyLenient = "LENIENT"
)

func (c config) normalize() bool { return c.Normalize != nil && *c.Normalize }
func (c config) lenient() bool   { return c.Policy == policyLenient }

func decodeConfig(stored metadata.SubjectConfig) (config, error) {
	c := config{level: level(stored.Compatibility), mode: mode(stored.Mode)}
	if stored.Settings == "" {
		return c, nil
	}
	if err := json.Unmarshal([]byte(stored.Settings), &c.settings); err != nil {
		return c, fmt.Errorf("settings of a subject: %w", err)
	}
	return c, nil
}

// ownConfig returns what is set for a subject itself.
func (r *Registry) ownConfig(ctx context.Context, subject string) (config, error) {
	stored, err := r.store.SubjectConfig(ctx, subject)
	if err != nil {
		return config{}, err
	}
	return decodeConfig(stored)
}

// configOf returns what holds for a subject: its own settings, then the global ones, then the
// defaults. An alias is never inherited.
func (r *Registry) configOf(ctx context.Context, subject string) (config, error) {
	own, err := r.store.SubjectConfig(ctx, subject)
	if err != nil {
		return config{}, err
	}
	all := own
	if subject != global {
		if all, err = r.store.SubjectConfig(ctx, global); err != nil {
			return config{}, err
		}
	}
	return effective(own, all)
}

// effective fills what is set for a subject from what is set for all.
func effective(own, all metadata.SubjectConfig) (config, error) {
	c, err := decodeConfig(own)
	if err != nil {
		return c, err
	}
	g, err := decodeConfig(all)
	if err != nil {
		return c, err
	}
	c.level = cmp.Or(c.level, g.level, levelBackward)
	c.mode = cmp.Or(c.mode, g.mode, modeReadWrite)
	if g.mode == modeReadOnlyOverride {
		c.mode = modeReadOnlyOverride
	}
	if c.Normalize == nil {
		c.Normalize = g.Normalize
	}
	c.Policy = cmp.Or(c.Policy, g.Policy)
	c.Group = cmp.Or(c.Group, g.Group)
	return c, nil
}

// checkWritable refuses changes of a subject that is read only.
func (r *Registry) checkWritable(ctx context.Context, subject string) error {
	c, err := r.configOf(ctx, subject)
	if err != nil {
		return err
	}
	return c.checkWritable(subject)
}

func (c config) checkWritable(subject string) error {
	if c.mode.readOnly() {
		return notPermitted(fmt.Sprintf("Subject %s is in read-only mode: its mode is %s", subject, c.mode))
	}
	return nil
}
