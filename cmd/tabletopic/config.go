package main

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/file"
	"github.com/knadh/koanf/v2"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tabletopic/tabletopic/node"
)

const envPrefix = "TABLETOPIC_"

// serviceLink matches what Kubernetes adds to the environment of every pod, after the
// prefix, for a service that is called tabletopic.
var serviceLink = regexp.MustCompile(`^(SERVICE_(HOST|PORT(_.*)?)|PORT(_[0-9]+_(TCP|UDP)(_(PROTO|PORT|ADDR))?)?)$`)

// nodeFlags adds a flag for each field of a node's configuration.
func nodeFlags(flags *pflag.FlagSet, cfg *node.Config) {
	for _, f := range cfg.Fields() {
		switch v := f.Value.(type) {
		case *string:
			flags.StringVar(v, f.Name, *v, f.Usage)
		case *int:
			flags.IntVar(v, f.Name, *v, f.Usage)
		case *int64:
			flags.Int64Var(v, f.Name, *v, f.Usage)
		case *bool:
			flags.BoolVar(v, f.Name, *v, f.Usage)
		case *time.Duration:
			flags.DurationVar(v, f.Name, *v, f.Usage)
		}
	}
}

// loadConfig completes the flags of cmd from the environment, then from the file that
// --config names. What was set first wins; a name that no flag has is an error.
func loadConfig(cmd *cobra.Command, path string) error {
	for _, kv := range os.Environ() {
		name, value, _ := strings.Cut(kv, "=")
		key, ours := strings.CutPrefix(name, envPrefix)
		if !ours || serviceLink.MatchString(key) {
			continue
		}
		if err := setFlag(cmd, strings.ReplaceAll(strings.ToLower(key), "_", "-"), value, "environment variable "+name); err != nil {
			return err
		}
	}
	if path == "" {
		return nil
	}
	k := koanf.New("/")
	if err := k.Load(file.Provider(path), yaml.Parser()); err != nil {
		return fmt.Errorf("configuration %s: %w", path, err)
	}
	for _, key := range k.Keys() {
		if k.Get(key) == nil {
			return usageError{fmt.Errorf("%s: key %s has no value: give one, or leave the line out", path, key)}
		}
		if err := setFlag(cmd, key, fmt.Sprint(k.Get(key)), path+": key "+key); err != nil {
			return err
		}
	}
	return nil
}

func setFlag(cmd *cobra.Command, name, value, where string) error {
	f := cmd.Flags().Lookup(name)
	if f == nil || name == "config" || name == "help" {
		return usageError{fmt.Errorf("%s is unknown%s", where, nearest(cmd, name))}
	}
	if f.Changed {
		return nil
	}
	if err := cmd.Flags().Set(name, value); err != nil {
		return usageError{fmt.Errorf("%s: %w", where, err)}
	}
	return nil
}

// nearest suggests the flag whose name looks most like name.
func nearest(cmd *cobra.Command, name string) string {
	type candidate struct {
		name   string
		shared int
	}
	var all []candidate
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		n := 0
		for n < len(name) && n < len(f.Name) && name[n] == f.Name[n] {
			n++
		}
		all = append(all, candidate{f.Name, n})
	})
	best := slices.MaxFunc(all, func(a, b candidate) int { return a.shared - b.shared })
	if best.shared < 3 {
		return fmt.Sprintf("; see '%s --help' for the names", cmd.CommandPath())
	}
	return fmt.Sprintf("; did you mean %s?", best.name)
}
