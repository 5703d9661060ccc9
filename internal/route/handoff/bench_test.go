package handoff

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stator-project/stator/internal/fleet"
)

// BenchmarkTransfer: what do both bodies of a request with two legs cost?
//
//	go test -run - -bench Transfer ./internal/route/handoff
func BenchmarkTransfer(b *testing.B) {
	for _, chars := range []int{1_000, 32_000} {
		var messages []string
		for range chars / 500 {
			messages = append(messages, `{"role":"user","content":"`+strings.Repeat(`some words\n`, 500/11)+`"}`)
		}
		body := []byte(`{"model":"m","messages":[` + strings.Join(messages, ",") + `],"max_tokens":8,"stream":true}`)
		ids := strings.TrimSuffix(strings.Repeat("17,", max(1, chars/64)), ",")
		answer := []byte(strings.Replace(answered, "[[1,2,3,4]]", "[["+ids+"]]", 1))

		b.Run(fmt.Sprintf("chars=%d", chars), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				t := Transfer{Kind: fleet.TransferNixl, Endpoint: Chat}
				if _, err := t.Prefill(nil, body); err != nil {
					b.Fatal(err)
				}
				if _, err := t.Decode(nil, body, answer); err != nil {
					b.Fatal(err)
				}
				CachedTokens(answer)
			}
		})
	}
}
