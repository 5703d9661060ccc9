package cli

import (
	"bytes"
	"strings"
	"testing"
)

// TestLogFlagsMakeTheLogger writes with the level and the format of the flags, and refuses other values.
func TestLogFlagsMakeTheLogger(t *testing.T) {
	for args, want := range map[string]string{
		"":                                    "level=INFO msg=shown\n",
		"--log-level debug --log-format json": `"level":"DEBUG","msg":"hidden"}`,
		"--log-level loud":                    `--log-level is "loud": use debug, info, warn or error`,
		"--log-format xml":                    `--log-format is "xml": use text or json`,
	} {
		f := New(&bytes.Buffer{}, &bytes.Buffer{}, "play", "")
		flags := AddLogFlags(f)
		if err := f.Read(strings.Fields(args)); err != nil {
			t.Fatal(err)
		}

		var w bytes.Buffer
		log, err := flags.Logger(&w)
		if err != nil {
			w.WriteString(err.Error())
		} else {
			log.Debug("hidden")
			log.Info("shown")
		}
		if !strings.Contains(w.String(), want) || args == "" && strings.Contains(w.String(), "hidden") {
			t.Errorf("%q: %s", args, &w)
		}
	}
}
