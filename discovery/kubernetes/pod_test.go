package kubernetes

import (
	"encoding/json"
	"testing"
)

// TestMaxRequests: the number of requests that run at once is read from the command line of the pod's containers.
func TestMaxRequests(t *testing.T) {
	for containers, want := range map[string]int{
		`[{"command": ["vllm", "serve"], "args": ["m", "--max-num-seqs", "8"]}]`:               8,
		`[{"args": ["--model=m", "--max-num-seqs=9"]}]`:                                        9,
		`[{"command": ["sh", "-c", "exec vllm serve m --max-num-seqs 10 \\\n  --port 8000"]}]`: 10,
		`[{"args": ["--level", "info"]}, {"args": ["--max-running-requests", "11"]}]`:          11,
		`[{"args": ["--max_batch_size", "12"]}]`:                                               12,
		`[{"args": ["--max-num-seqs"]}]`:                                                       0,
		`[{"args": ["--max-num-seqs", "-1", "--max-num-seqs", "$(SEQS)"]}]`:                    0,
		`[{"args": ["--max-num-seqs", "1048577"]}]`:                                            0,
		`[{"args": ["max-num-seqs", "8"]}]`:                                                    0,
		`[]`:                                                                                   0,
	} {
		var p pod
		if err := json.Unmarshal([]byte(`{"spec": {"containers": `+containers+`}}`), &p); err != nil {
			t.Fatal(err)
		}
		if got := p.maxRequests(); got != want {
			t.Errorf("%s: %d requests, want %d", containers, got, want)
		}
	}
}
