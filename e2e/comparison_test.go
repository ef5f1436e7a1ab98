package e2e

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/tabletopic/tabletopic/internal/lab"
)

// A comparison is what two sides did in turns, in one run on one machine.
type comparison struct {
	sides    [2]string                // theirs and ours
	measures []string                 // in the order of the table
	results  map[string]*[2][]float64 // of theirs and ours, by round; either may have none
	wanted   map[string]string        // of measures
}

const (
	theirs = iota
	ours
)

func newComparison(them, us string) *comparison {
	return &comparison{sides: [2]string{them, us}, results: map[string]*[2][]float64{}, wanted: map[string]string{}}
}

// add keeps one result, and says it to those who wait.
func (c *comparison) add(side int, measure string, value float64) {
	fmt.Fprintf(os.Stderr, "%s  %s  %s: %s\n", time.Now().Format(time.TimeOnly), c.sides[side], measure, readable(value))
	if c.results[measure] == nil {
		c.measures = append(c.measures, measure)
		c.results[measure] = &[2][]float64{}
	}
	c.results[measure][side] = append(c.results[measure][side], value)
}

// want notes what is wanted of a measure: of the ratio, if both sides have it.
func (c *comparison) want(measure, wanted string) { c.wanted[measure] = wanted }

// print writes medians, and the median of the ratios of turns that followed each other.
func (c *comparison) print(w io.Writer) {
	head := []string{"what", c.sides[theirs], c.sides[ours], "ours / theirs"}
	if len(c.wanted) > 0 {
		head = append(head, "wanted")
	}
	fmt.Fprintf(w, "| %s |\n|%s\n", strings.Join(head, " | "), strings.Repeat("---|", len(head)))
	for _, measure := range c.measures {
		r := c.results[measure]
		ratio := ""
		if n := min(len(r[theirs]), len(r[ours])); n > 0 {
			ratios := make([]float64, n)
			for i := range ratios {
				ratios[i] = r[ours][i] / r[theirs][i]
			}
			ratio = fmt.Sprintf("%.2g", lab.Median(ratios))
		}
		row := []string{measure, cell(r[theirs]), cell(r[ours]), ratio}
		if len(c.wanted) > 0 {
			row = append(row, c.wanted[measure])
		}
		fmt.Fprintf(w, "| %s |\n", strings.Join(row, " | "))
	}
}

func cell(v []float64) string {
	if len(v) == 0 {
		return ""
	}
	return readable(lab.Median(v))
}

func readable(v float64) string {
	if v >= 1000 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.3g", v)
}
