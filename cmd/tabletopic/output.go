package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// outputFlag adds --output to cmd and returns where its value will be.
func outputFlag(cmd *cobra.Command) *output {
	o := newOutput()
	o.flag(cmd)
	return o
}

func newOutput() *output { return &output{format: "table"} }

func (o *output) flag(cmd *cobra.Command) {
	cmd.Flags().VarP(o, "output", "o", "table or json")
}

// output is the value of --output.
type output struct{ format string }

func (o *output) String() string { return o.format }
func (o *output) Type() string   { return "format" }

func (o *output) Set(s string) error {
	if s != "table" && s != "json" {
		return fmt.Errorf("want table or json")
	}
	o.format = s
	return nil
}

// print writes value as JSON, or header and rows as an aligned table.
func (o *output) print(w io.Writer, value any, header []string, rows [][]string) error {
	if o.format == "json" {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		e.SetEscapeHTML(false)
		return e.Encode(value)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, strings.Join(header, "\t"))
	for _, r := range rows {
		fmt.Fprintln(t, strings.Join(r, "\t"))
	}
	return t.Flush()
}

// say writes value as JSON, or the line that says the same.
func (o *output) say(w io.Writer, value any, format string, args ...any) error {
	if o.format == "json" {
		return o.print(w, value, nil, nil)
	}
	_, err := fmt.Fprintf(w, format+"\n", args...)
	return err
}

// progress shows a bar on stderr if that is a terminal, else nothing. total < 0 means unknown.
type progress struct{ bar *progressbar.ProgressBar }

func newProgress(total int64, what string) *progress { return newProgressOf(total, what, "records") }

// newProgressOf counts units.
func newProgressOf(total int64, what, units string) *progress {
	if !term.IsTerminal(int(os.Stderr.Fd())) {
		return &progress{}
	}
	return &progress{progressbar.NewOptions64(total,
		progressbar.OptionSetWriter(os.Stderr),
		progressbar.OptionSetDescription(what),
		progressbar.OptionShowCount(),
		progressbar.OptionShowIts(),
		progressbar.OptionSetItsString(units),
		progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionSetPredictTime(total > 0),
		progressbar.OptionClearOnFinish())}
}

func (p *progress) set(n int64) {
	if p.bar != nil {
		_ = p.bar.Set64(n) // a bar that cannot be drawn is no reason to stop
	}
}

func (p *progress) done() {
	if p.bar != nil {
		_ = p.bar.Finish()
	}
}
