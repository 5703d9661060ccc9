package decisionlog_test

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/stator-project/stator/internal/decisionlog"
)

// A log begins with its version. Each decision is followed, sooner or later, by the end of its request.
func ExampleReader() {
	log := `{"version":1,"format":"stator-decisions"}
{"decision":{"id":"x1","worker":"w0","prompt_tokens":40,"blocks":2,"block_size":16},"hash_every":32,"hashes":["a63f17518eae442b"]}
{"end":{"id":"x1","at":"2026-01-02T03:04:05Z","outcome":"as_picked","response_bytes":5120}}
`
	reader := decisionlog.NewReader(strings.NewReader(log))
	for {
		line, err := reader.Next()
		switch {
		case errors.Is(err, io.EOF):
			return
		case err != nil:
			fmt.Println(err)
			return
		case line.Decision != nil:
			fmt.Println("decision", line.Decision.ID, "for worker", line.Decision.Worker)
		case line.End != nil:
			fmt.Println("end", line.End.ID, line.End.Outcome)
		}
	}
	// Output:
	// decision x1 for worker w0
	// end x1 as_picked
}
