package trace_test

import (
	"fmt"
	"strings"

	"github.com/stator-project/stator/internal/trace"
)

// Two requests of a Mooncake trace share their first block of 512 tokens.
func ExampleMooncake() {
	rows := `{"timestamp": 0, "input_length": 1024, "output_length": 10, "hash_ids": [1, 2]}
{"timestamp": 250, "input_length": 700, "output_length": 20, "hash_ids": [1, 3]}
`
	next := trace.Mooncake(strings.NewReader(rows), trace.MooncakeBlock)
	for {
		a, ok, err := next()
		if err != nil || !ok {
			fmt.Println("end:", err)
			return
		}
		tokens := a.Prompt.Append(nil)
		fmt.Println(a.At, "tokens:", len(tokens), "answer:", a.Output, "first token:", tokens[0])
	}
	// Output:
	// 0s tokens: 1024 answer: 10 first token: 2066725970
	// 250ms tokens: 700 answer: 20 first token: 2066725970
	// end: <nil>
}
