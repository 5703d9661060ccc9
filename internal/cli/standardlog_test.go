package cli_test

import (
	"bytes"
	"io"
	"log"
	"os"
	"strings"
	"testing"

	"github.com/stator-project/stator/internal/cli"
)

// TestStandardLogger: lines that libraries write to the standard logger are lines of the program's log.
func TestStandardLogger(t *testing.T) {
	flags := cli.New(io.Discard, io.Discard, "test", "")
	options := cli.AddLogFlags(flags)
	if err := flags.Read([]string{"--log-level", "debug", "--log-format", "json"}); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if _, err := options.Logger(&out); err != nil {
		t.Fatal(err)
	}
	defer log.SetOutput(os.Stderr)
	log.Print("Unsolicited response")
	if text := out.String(); !strings.Contains(text, `"level":"DEBUG","msg":"Unsolicited response"`) {
		t.Errorf("%q", text)
	}
}
