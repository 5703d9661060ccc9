package kvevent_test

import (
	"fmt"
	"testing"

	"github.com/stator-project/stator/internal/kv/kvevent"
)

// BenchmarkDecodeDialect: what does a block cost in each dialect, from bytes to content hash?
// One event of 64 blocks of 16 tokens, except TensorRT-LLM's JSON, which spends 70 bytes on a
// token, and Dynamo, whose events have no tokens.
//
//	go test -run - -bench DecodeDialect ./internal/kv/kvevent
func BenchmarkDecodeDialect(b *testing.B) {
	raw := sample(64)
	vllm := kvevent.AppendVLLM(nil, 1.5, 0, []kvevent.Raw{raw})
	var trt, dynamo []byte
	trt = append(trt, `[{"event_id":1,"data":{"type":"stored","parent_hash":42,"blocks":[`...)
	dynamo = append(dynamo, `{"worker_id":1,"storage_tier":"device","event":{"event_id":1,"data":{"stored":{"parent_hash":42,"blocks":[`...)
	for i, h := range raw.Hashes {
		if i > 0 {
			trt, dynamo = append(trt, ','), append(dynamo, ',')
		}
		trt = fmt.Appendf(trt, `{"type":"stored_block","block_hash":%d,"cache_level":0,"priority":35,"tokens":[`, h)
		for j, id := range raw.Tokens[16*i : 16*(i+1)] {
			if j > 0 {
				trt = append(trt, ',')
			}
			trt = fmt.Appendf(trt, `{"type":"unique_token","token_id":%d,"token_extra_id":0}`, id)
		}
		trt = append(trt, "]}"...)
		dynamo = fmt.Appendf(dynamo, `{"block_hash":%d,"tokens_hash":%d,"mm_extra_info":null}`, h, h+1)
	}
	trt = append(trt, `]},"window_size":4096}]`...)
	dynamo = append(dynamo, `]}},"dp_rank":0}}`...)
	for _, c := range []struct {
		name    string
		dialect kvevent.Dialect
		payload []byte
	}{
		{"vllm", kvevent.VLLM, vllm}, {"sglang", kvevent.SGLang, vllm}, {"trtllm", kvevent.TRTLLM, trt},
		{"dynamo-json", kvevent.Dynamo, dynamo}, {"dynamo-msgpack", kvevent.Dynamo, packed(b, string(dynamo))},
	} {
		b.Run("dialect="+c.name, func(b *testing.B) {
			var batch kvevent.Batch
			b.ReportAllocs()
			b.SetBytes(int64(len(c.payload)))
			for b.Loop() {
				if err := c.dialect.Decode(c.payload, kvevent.Limits{}, &batch); err != nil || len(batch.Events[0].Hashes) != 64 {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N*64)/b.Elapsed().Seconds(), "blocks/s")
		})
	}
}
