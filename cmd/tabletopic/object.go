package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tabletopic/tabletopic/node"
)

func newObject() *cobra.Command {
	cmd := parent("object", "List and check the objects that hold the log in the object store")
	s := serverFlags(cmd)
	cmd.AddCommand(newObjectList(s), newObjectCheck(s))
	return cmd
}

func newObjectList(s *server) *cobra.Command {
	var state, kind, stream, nodeID string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the objects of the log, and what is in them",
		Long: `List shows every data object that the metadata or the object store knows. STATE is

  referenced  streams, or composite objects, hold data in it
  prepared    a server is about to write it
  destroyed   nothing names it any more: it is deleted after a grace (--delete-grace)
  orphaned    the metadata does not know it: the daily sweep deletes it once it is older
              than its grace (--orphan-sweep-grace)

KIND is stream-set (of many streams), stream (of one) or composite (a common index of stream
objects, its PARTS). HOLDS names partitions, or the streams of others, with their offsets;
/meta is the stream beside the records of a partition. Objects come as they are found, however
many there are; --output json prints one a line.`,
		Example: `  tabletopic object list --state orphaned
  tabletopic object list --kind composite --output json`,
		Args: usage(cobra.NoArgs),
	}
	cmd.Flags().StringVar(&state, "state", "", "only objects in this `STATE`")
	cmd.Flags().StringVar(&kind, "kind", "", "only objects of this `KIND`")
	cmd.Flags().StringVar(&stream, "stream", "", "only objects with data of the stream with this `ID`")
	cmd.Flags().StringVar(&nodeID, "node", "", "only objects of the node with this `ID`")
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		query := url.Values{}
		for name, v := range map[string]string{"state": state, "kind": kind, "stream": stream, "node": nodeID} {
			if v != "" {
				query.Set(name, v)
			}
		}
		lines, err := s.open(cmd.Context(), http.MethodGet, "/api/objects?"+query.Encode(), nil)
		if err != nil {
			return err
		}
		defer lines.Close()
		return printObjects(cmd.OutOrStdout(), lines, out.format == "json")
	}
	return cmd
}

// printObjects prints objects as they come: one JSON object a line, or a table whose columns
// have fixed widths.
func printObjects(w io.Writer, lines io.Reader, asJSON bool) error {
	const row = "%-16s  %-10s  %-10s  %12s  %8s  %4s  %s\n"
	if !asJSON {
		if _, err := fmt.Fprintf(w, row, "ID", "KIND", "STATE", "BYTES", "AGE", "NODE", "HOLDS"); err != nil {
			return err
		}
	}
	encode := json.NewEncoder(w)
	for d := json.NewDecoder(lines); ; {
		var line struct {
			node.ObjectStatus
			Message string `json:"message"`
		}
		err := d.Decode(&line)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("the server went away in the middle of the list: %w", err)
		case line.Message != "":
			return errors.New(line.Message)
		case asJSON:
			err = encode.Encode(line.ObjectStatus)
		default:
			_, err = fmt.Fprintf(w, row, fmt.Sprintf("%016x", line.ID), orDash(line.Kind), line.State, number(line.Bytes), age(line.Modified), nodeName(line.Node), holds(line.ObjectStatus))
		}
		if err != nil {
			return err
		}
	}
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func age(modified *time.Time) string {
	if modified == nil {
		return "-"
	}
	return time.Since(*modified).Round(time.Second).String()
}

func nodeName(id *int32) string {
	if id == nil {
		return "-"
	}
	return number(int64(*id))
}

// shownRanges is how many ranges a line of the table names.
const shownRanges = 4

func holds(o node.ObjectStatus) string {
	var text []string
	if o.Missing {
		text = append(text, "MISSING:")
	}
	if len(o.Ranges) > 0 {
		text = append(text, rangeNames(o.Ranges, shownRanges))
	}
	if len(o.Parts) > 0 {
		text = append(text, fmt.Sprintf("in %d parts", len(o.Parts)))
	}
	return strings.Join(text, " ")
}

// rangeNames names up to limit ranges.
func rangeNames(ranges []node.RangeStatus, limit int) string {
	var names []string
	for i, r := range ranges {
		if i == limit {
			names = append(names, fmt.Sprintf("and %d more", len(ranges)-limit))
			break
		}
		of := r.Of
		if of == "" {
			of = fmt.Sprintf("stream %d", r.Stream)
		}
		names = append(names, fmt.Sprintf("%s [%d, %d)", of, r.Start, r.End))
	}
	return strings.Join(names, ", ")
}

// checked is the answer of `object check`.
type checked struct {
	node.CheckStatus
	Found []node.ProblemStatus `json:"found"`
}

func newObjectCheck(s *server) *cobra.Command {
	var deep bool
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check that the objects that hold the log are there, and what they should be",
		Long: `Check compares the metadata with the object store: every object that holds data must be there
with its size, and composite objects must link what the metadata says. With --deep everything is
read: indexes, blocks and their checksums, and whether they hold what the metadata says; that
costs as many bytes of reads as the log has.

Exit code 1 if something is wrong; each problem is named with the offsets that cannot be read.
Orphaned objects are no error: the daily sweep deletes them.`,
		Example: `  tabletopic object check
  tabletopic object check --deep --output json`,
		Args: usage(cobra.NoArgs),
	}
	cmd.Flags().BoolVar(&deep, "deep", false, "read everything and verify checksums")
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		lines, err := s.open(cmd.Context(), http.MethodPost, fmt.Sprintf("/api/objects/check?deep=%t", deep), nil)
		if err != nil {
			return err
		}
		defer lines.Close()
		result, err := followCheck(lines)
		if err != nil {
			return err
		}
		if out.format == "table" {
			for _, p := range result.Found {
				fmt.Fprintf(cmd.OutOrStdout(), "object %016x (%s): %s\n", p.ID, p.Kind, p.Problem)
				if len(p.Lost) > 0 {
					fmt.Fprintf(cmd.OutOrStdout(), "  lost: %s\n", rangeNames(p.Lost, len(p.Lost)))
				}
			}
		}
		if err := out.say(cmd.OutOrStdout(), result, "%d objects checked, %d bytes read, %d problems; %d prepared, %d destroyed, %d orphaned",
			result.Objects, result.Bytes, result.Problems, result.Prepared, result.Destroyed, result.Orphaned); err != nil {
			return err
		}
		if result.Problems > 0 {
			return fmt.Errorf("%d objects are missing or damaged", result.Problems)
		}
		return nil
	}
	return cmd
}

// followCheck shows how far a check is until it ends, and returns what it found.
func followCheck(lines io.Reader) (result checked, err error) {
	var bar *progress // once the total is known
	result.Found = []node.ProblemStatus{}
	for d := json.NewDecoder(lines); ; {
		var line node.CheckStatus
		err := d.Decode(&line)
		if bar != nil && (err != nil || line.Done || line.Error != "") {
			bar.done()
		}
		switch {
		case err != nil:
			return result, fmt.Errorf("the server went away in the middle of the check: %w", err)
		case line.Problem != nil:
			result.Found = append(result.Found, *line.Problem)
			continue
		case line.Error != "":
			return result, errors.New(line.Error)
		case line.Done:
			result.CheckStatus = line
			return result, nil
		}
		if bar == nil {
			bar = newProgress(max(line.Total, 1), "checking")
		}
		bar.set(line.Objects)
	}
}
