package main
import "github.com/spf13/cobra"
func newServe() *cobra.Command { return nil }
func newDemo() *cobra.Command { return nil }
func newTable() *cobra.Command { return nil }
func newDump() *cobra.Command { return nil }
