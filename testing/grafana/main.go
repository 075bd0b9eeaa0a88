// Reads a dashboard into the types that Grafana publishes of its own. No field may be unknown or of another type.
//
// A panel's "options" and "custom" stand in the types of its kind, which the registry of plugins knows.
package main

import (
	"fmt"
	"os"

	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

func main() {
	plugins.RegisterDefaultPlugins()
	text, err := os.ReadFile(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	var read dashboard.Dashboard
	// Without a fault it returns an empty list, which is not nil as an error.
	if err := read.UnmarshalJSONStrict(text); err != nil && err.Error() != "" {
		fmt.Fprintf(os.Stderr, "%s is no dashboard:\n%v\n", os.Args[1], err)
		os.Exit(1)
	}
	if err := read.Validate(); err != nil {
		fmt.Fprintf(os.Stderr, "%s breaks a rule:\n%v\n", os.Args[1], err)
		os.Exit(1)
	}
	fmt.Printf("ok: %s with %d panels\n", os.Args[1], len(read.Panels))
}
