package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/sr"

	"github.com/tabletopic/tabletopic/schemaregistry"
)

func newSchema() *cobra.Command {
	cmd := parent("schema", "Register, list, show, check, delete, export and import schemas")
	s := serverFlags(cmd)
	cmd.AddCommand(newSchemaRegister(s), newSchemaList(s), newSchemaGet(s), newSchemaCheck(s), newSchemaDelete(s), newSchemaCompatibility(s), newSchemaExport(s), newSchemaImport(s))
	return cmd
}

func newSchemaRegister(s *server) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "register SUBJECT FILE",
		Short:   "Register a schema as the next version of a subject",
		Example: "  tabletopic schema register clicks-value clicks.avsc\n  tabletopic schema register orders-value order.proto --reference common.proto=common:1",
		Args:    usage(cobra.ExactArgs(2)),
	}
	out := outputFlag(cmd)
	read := schemaFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		schema, err := read(args[1])
		if err != nil {
			return err
		}
		reg, err := s.registry()
		if err != nil {
			return err
		}
		ss, err := reg.CreateSchema(cmd.Context(), args[0], schema)
		if err != nil {
			return fmt.Errorf("register %s: %w", args[0], err)
		}
		return printSchemas(cmd, out, []sr.SubjectSchema{ss})
	}
	return cmd
}

// schemaFlags adds the flags that say what a file is, and returns how to read it.
func schemaFlags(cmd *cobra.Command) func(file string) (sr.Schema, error) {
	var schemaType string
	var references []string
	cmd.Flags().StringVar(&schemaType, "type", "", "AVRO, PROTOBUF or JSON; by default PROTOBUF for a file that ends in .proto, else AVRO")
	cmd.Flags().StringArrayVar(&references, "reference", nil, "NAME=SUBJECT:VERSION: what the schema calls NAME; may be repeated")
	return func(file string) (sr.Schema, error) {
		var schema sr.Schema
		if schemaType == "" && strings.HasSuffix(file, ".proto") {
			schema.Type = sr.TypeProtobuf
		} else if schemaType != "" {
			if err := schema.Type.UnmarshalText([]byte(schemaType)); err != nil {
				return schema, usageError{fmt.Errorf("--type %q is not AVRO, PROTOBUF or JSON", schemaType)}
			}
		}
		for _, r := range references {
			// Subjects may hold colons, and names, which are URIs, equals signs.
			i, j := strings.LastIndexByte(r, '='), strings.LastIndexByte(r, ':')
			if i < 1 || j < i+2 {
				return schema, usageError{fmt.Errorf("--reference %q is not NAME=SUBJECT:VERSION", r)}
			}
			version, err := strconv.Atoi(r[j+1:])
			if err != nil {
				return schema, usageError{fmt.Errorf("--reference %q: the version is no number", r)}
			}
			schema.References = append(schema.References, sr.SchemaReference{Name: r[:i], Subject: r[i+1 : j], Version: version})
		}
		var text []byte
		var err error
		if file == "-" {
			text, err = io.ReadAll(os.Stdin)
		} else {
			text, err = os.ReadFile(file)
		}
		schema.Schema = string(text)
		return schema, err
	}
}

func printSchemas(cmd *cobra.Command, out *output, list []sr.SubjectSchema) error {
	rows := [][]string{}
	for _, ss := range list {
		rows = append(rows, []string{ss.Subject, strconv.Itoa(ss.Version), strconv.Itoa(ss.ID), ss.Type.String()})
	}
	return out.print(cmd.OutOrStdout(), list, []string{"SUBJECT", "VERSION", "ID", "TYPE"}, rows)
}

func newSchemaList(s *server) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list [SUBJECT]",
		Short: "List the latest schema of every subject, or all versions of one",
		Args:  usage(cobra.MaximumNArgs(1)),
	}
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		reg, err := s.registry()
		if err != nil {
			return err
		}
		ctx := cmd.Context()
		list := []sr.SubjectSchema{}
		if len(args) == 1 {
			if list, err = reg.Schemas(ctx, args[0]); err != nil {
				return fmt.Errorf("list %s: %w", args[0], err)
			}
			return printSchemas(cmd, out, list)
		}
		subjects, err := reg.Subjects(ctx)
		if err != nil {
			return fmt.Errorf("list subjects: %w", err)
		}
		for _, subject := range subjects {
			ss, err := reg.SchemaByVersion(ctx, subject, -1)
			if err != nil {
				return fmt.Errorf("latest of %s: %w", subject, err)
			}
			list = append(list, ss)
		}
		return printSchemas(cmd, out, list)
	}
	return cmd
}

func newSchemaGet(s *server) *cobra.Command {
	out := newOutput()
	cmd := &cobra.Command{
		Use:     "get ID | SUBJECT [VERSION]",
		Short:   "Print the text of a schema",
		Example: "  tabletopic schema get 1\n  tabletopic schema get clicks-value 2",
		Args:    usage(cobra.RangeArgs(1, 2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			reg, err := s.registry()
			if err != nil {
				return err
			}
			var schema sr.Schema
			if id, aerr := strconv.Atoi(args[0]); aerr == nil && len(args) == 1 {
				schema, err = reg.SchemaByID(cmd.Context(), id)
			} else {
				version := -1
				if len(args) == 2 {
					if version, aerr = strconv.Atoi(args[1]); aerr != nil {
						return usageError{fmt.Errorf("VERSION %q is no number", args[1])}
					}
				}
				var ss sr.SubjectSchema
				ss, err = reg.SchemaByVersion(cmd.Context(), args[0], version)
				schema = ss.Schema
			}
			if err != nil {
				return fmt.Errorf("schema %s: %w", strings.Join(args, " "), err)
			}
			return out.say(cmd.OutOrStdout(), schema, "%s", schema.Schema)
		},
	}
	out.flag(cmd)
	return cmd
}

func newSchemaCheck(s *server) *cobra.Command {
	out := newOutput()
	cmd := &cobra.Command{
		Use:   "check SUBJECT FILE",
		Short: "Tell whether a schema could be registered as the next version of a subject, and what tables become",
		Long: `Registers nothing. Prints what the schema, of a FILE or of standard input for -, does to the table of each topic that
uses the subject when the first record comes that is written with it. Ends with 1 if the schema is not compatible, if a
table cannot hold it, or if that is not known now.`,
		Example: "  tabletopic schema check clicks-value clicks.avsc",
		Args:    usage(cobra.ExactArgs(2)),
	}
	read := schemaFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		schema, err := read(args[1])
		if err != nil {
			return err
		}
		var verdict struct {
			Compatible bool                         `json:"is_compatible"`
			Messages   []string                     `json:"messages,omitempty"`
			Tables     []schemaregistry.TableChange `json:"tables"`
		}
		path := "/subjects/" + url.PathEscape(args[0]) + "/versions?dryRun=table"
		if err := s.api(cmd.Context(), http.MethodPost, path, schema, &verdict); err != nil {
			return fmt.Errorf("check %s: %w", args[0], err)
		}
		text, refused := "compatible with the latest version", !verdict.Compatible
		if refused {
			text = "not compatible with the latest version:\n  " + strings.Join(verdict.Messages, "\n  ")
		}
		for _, t := range verdict.Tables {
			text += "\n" + t.String()
			refused = refused || t.Outcome == schemaregistry.TableRefuses || t.Outcome == schemaregistry.TableUnknown
		}
		if len(verdict.Tables) == 0 {
			text += "\nno topic with a table uses the subject"
		}
		if err := out.say(cmd.OutOrStdout(), verdict, "%s", text); err != nil || !refused {
			return err
		}
		return fmt.Errorf("%s is refused as the next version of %s", args[1], args[0])
	}
	out.flag(cmd)
	return cmd
}

func newSchemaDelete(s *server) *cobra.Command {
	var permanent bool
	out := newOutput()
	cmd := &cobra.Command{
		Use:   "delete SUBJECT",
		Short: "Delete a subject; with --permanent after a first delete also its versions",
		Args:  usage(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			reg, err := s.registry()
			if err != nil {
				return err
			}
			how := sr.SoftDelete
			if permanent {
				how = sr.HardDelete
			}
			versions, err := reg.DeleteSubject(cmd.Context(), args[0], how)
			if err != nil {
				return fmt.Errorf("delete %s: %w", args[0], err)
			}
			return out.say(cmd.OutOrStdout(), map[string]any{"subject": args[0], "versions": versions}, "deleted %d versions of %s", len(versions), args[0])
		},
	}
	cmd.Flags().BoolVar(&permanent, "permanent", false, "remove for good what was deleted before")
	out.flag(cmd)
	return cmd
}

func newSchemaCompatibility(s *server) *cobra.Command {
	out := newOutput()
	cmd := &cobra.Command{
		Use:   "compatibility [SUBJECT [LEVEL]]",
		Short: "Show or set the compatibility level of a subject, or show the global one",
		Long: `Levels: NONE, BACKWARD, BACKWARD_TRANSITIVE, FORWARD, FORWARD_TRANSITIVE, FULL, FULL_TRANSITIVE.
The global level applies where a subject has none of its own.`,
		Args: usage(cobra.MaximumNArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			reg, err := s.registry()
			if err != nil {
				return err
			}
			ctx := sr.WithParams(cmd.Context(), sr.DefaultToGlobal)
			var results []sr.CompatibilityResult
			switch len(args) {
			case 0:
				results = reg.Compatibility(cmd.Context())
			case 1:
				results = reg.Compatibility(ctx, args[0])
			default:
				var level sr.CompatibilityLevel
				if err := level.UnmarshalText([]byte(strings.ToUpper(args[1]))); err != nil {
					return usageError{fmt.Errorf("LEVEL %q is unknown", args[1])}
				}
				results = reg.SetCompatibility(cmd.Context(), sr.SetCompatibility{Level: level}, args[0])
			}
			if len(results) != 1 {
				return errors.New("the registry gave no answer")
			}
			if results[0].Err != nil {
				return results[0].Err
			}
			return out.say(cmd.OutOrStdout(), map[string]any{"level": results[0].Level}, "%s", results[0].Level)
		},
	}
	out.flag(cmd)
	return cmd
}
