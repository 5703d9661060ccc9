package tracefile

import (
	"flag"
	"strings"
	"testing"
)

// TestFlagsNameATrace checks that the flags alone, with their defaults, open generated arrivals, and that
// numbers with which no trace can be read are refused by the name of their flag.
func TestFlagsNameATrace(t *testing.T) {
	for line, want := range map[string]string{
		"--format generate --requests 1":                      "",
		"--format generate --requests 1 --trace-block-size 0": "--trace-block-size is 0: it must be from 1 to 1048576",
		"--format generate --requests 1 --agent-sessions -1":  "--agent-sessions is -1: it must be at least 0",
	} {
		f := flag.NewFlagSet("replay", flag.ContinueOnError)
		var o Options
		o.AddFlags(f)
		o.AddGenerateFlags(f)
		if err := f.Parse(strings.Fields(line)); err != nil {
			t.Fatal(err)
		}

		err := o.Validate()
		if want != "" {
			if err == nil || err.Error() != want {
				t.Errorf("%s: %v, want %q", line, err, want)
			}
			continue
		}
		opened, err2 := Open(t.Context(), o)
		if err != nil || err2 != nil || opened.Total != 1 {
			t.Errorf("%s: %v, %v", line, err, err2)
		}
	}
}
