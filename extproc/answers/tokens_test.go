package answers

import (
	"strings"
	"testing"
	"unique"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/stator-project/stator/extproc/messages"
	"github.com/stator-project/stator/internal/route/pick"
)

// TestAnswerTokens: the usage in an answer counts, and streams without it are estimated from their bytes, by the streams of the same model.
// Nothing counts while Envoys do not read answers.
func TestAnswerTokens(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := New(reg)
	f := fleetOf(1, "a", "b")
	a, b := f.Workers[0], f.Workers[1]
	whole := bookingOn(a, "")
	whole.Caller = unique.Make(pick.Caller{})
	ended := func(want int64, of func() int64) {
		t.Helper()
		if got := of(); got != want {
			t.Errorf("%d tokens, want %d", got, want)
		}
	}

	count := How{Tokens: true}
	stream := messages.Entry{Served: a.Address, Status: 200, ResponseBytes: 500}
	ended(2, func() int64 { return m.Ended(bookingOn(a, "acme"), &stream, count, f) })
	long := messages.Entry{Served: b.Address, Status: 200, ResponseBytes: 1e8, Counted: true, AnswerTokens: 1e6}
	ended(1e6, func() int64 { return m.Ended(bookingOn(b, "acme"), &long, count, f) })
	ended(5, func() int64 { return m.Ended(bookingOn(a, "acme"), &stream, count, f) })
	failed := messages.Entry{Served: a.Address, Status: 500, ResponseBytes: 500, Counted: true, AnswerTokens: 7}
	ended(0, func() int64 { return m.Ended(bookingOn(a, "acme"), &failed, count, f) })
	ended(0, func() int64 { return m.Ended(whole, &stream, count, f) }) // an embedding, or a file
	ended(0, func() int64 { return m.Ended(bookingOn(a, ""), &long, How{}, f) })

	err := testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP stator_request_answer_tokens_total Tokens of answers, by source: usage is the engine's count, and estimate is from the bytes of streams without it. None without gateway.answerTokens.
# TYPE stator_request_answer_tokens_total counter
stator_request_answer_tokens_total{model="m",source="estimate",worker="a"} 7
stator_request_answer_tokens_total{model="m",source="estimate",worker="b"} 0
stator_request_answer_tokens_total{model="m",source="usage",worker="a"} 0
stator_request_answer_tokens_total{model="m",source="usage",worker="b"} 1e+06
# HELP stator_tenant_answer_tokens_total Tokens of the tenant's answers, as stator_request_answer_tokens_total has them.
# TYPE stator_tenant_answer_tokens_total counter
stator_tenant_answer_tokens_total{model="m",source="estimate",tenant="acme"} 7
stator_tenant_answer_tokens_total{model="m",source="usage",tenant="acme"} 1e+06
`), "stator_request_answer_tokens_total", "stator_tenant_answer_tokens_total")
	if err != nil {
		t.Error(err)
	}
}
