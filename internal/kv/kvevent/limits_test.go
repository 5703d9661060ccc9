package kvevent_test

import (
	"strings"
	"testing"

	"github.com/stator-project/stator/internal/kv/kvevent"
)

// TestEveryLimitIsEnforced decodes real messages of every dialect with each limit set to 1 in turn. A
// message beyond the limit is refused as a whole, with an error that names the limit.
func TestEveryLimitIsEnforced(t *testing.T) {
	limits := map[string]kvevent.Limits{
		"bytes":  {Bytes: 1, Events: 1 << 10, Blocks: 1 << 10, Tokens: 1 << 16},
		"events": {Bytes: 1 << 20, Events: 1, Blocks: 1 << 10, Tokens: 1 << 16},
		"blocks": {Bytes: 1 << 20, Events: 1 << 10, Blocks: 1, Tokens: 1 << 16},
		"tokens": {Bytes: 1 << 20, Events: 1 << 10, Blocks: 1 << 10, Tokens: 1},
	}

	for dialect, file := range map[string]string{"sglang": "sglang-maps.jsonl", "trtllm": "trtllm.json", "dynamo": "dynamo-frames.jsonl"} {
		d := dialectNamed(t, dialect)
		refused := map[string]int{}
		for _, message := range made(t, file) {
			for name, limit := range limits {
				b := &kvevent.Batch{Only: func(worker uint64, rank int) bool {
					return worker == 1 && rank == 0 || worker == 7 || dialect != "dynamo"
				}}
				err := d.Decode(message, limit, b)
				if err == nil {
					continue
				}
				if !strings.Contains(err.Error(), name) && name != "bytes" {
					t.Errorf("%s: the limit of %s is refused with %q", dialect, name, err)
				}
				if len(b.Events) != 0 {
					t.Errorf("%s: %d events of a refused message are left", dialect, len(b.Events))
				}
				refused[name]++
			}
		}
		if refused["bytes"] == 0 || refused["blocks"] == 0 && refused["tokens"] == 0 {
			t.Errorf("%s: refused messages by limit: %v", dialect, refused)
		}
	}
}
