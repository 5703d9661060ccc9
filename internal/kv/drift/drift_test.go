package drift_test

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/stator-project/stator/internal/kv/drift"
)

// TestScenarios runs testdata/*.txt with windows of 10,000 tokens, a bound of a quarter and a rest of
// one minute. Verbs:
//
//	counted NAME queries=N hits=N [epoch=E] [held]
//	                   a report of the engine's counters, a second after the one before, or at once after it if it was held up on its
//	                   way; prints "rebuild" if Counted returns true
//	decided            stores the time for requests that end later
//	served NAME prompt=N cached=N [certain=N] [n=TIMES] [epoch=E] [before]
//	                   requests that have ended, decided now or at the stored time
//	wait SECONDS | keep NAME | stats
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, file string) {
		detector := drift.New(drift.Config{Tokens: 10_000, Rest: time.Minute})
		now, decided := time.Unix(1000, 0), time.Time{}
		datadriven.RunTest(t, file, func(t *testing.T, td *datadriven.TestData) string {
			name, args := "", map[string]int{"n": 1}
			for i, a := range td.CmdArgs {
				if i == 0 {
					name = a.Key
				}
				if len(a.Vals) > 0 {
					args[a.Key], _ = strconv.Atoi(a.Vals[0])
				}
			}
			switch td.Cmd {
			case "counted":
				if !td.HasArg("held") {
					now = now.Add(time.Second)
				}
				counters := drift.Counters{
					Worker: name, Epoch: uint64(args["epoch"]), Queries: uint64(args["queries"]), Hits: uint64(args["hits"]),
				}
				v := detector.Counted(counters, now)
				if !v.Missed.IsZero() {
					return fmt.Sprintf("missed since %d\n", v.Missed.Unix())
				}
				if v.Rebuild {
					return "rebuild\n"
				}
			case "decided":
				decided = now
			case "served":
				at := now
				if td.HasArg("before") {
					at = decided
				}
				if !td.HasArg("certain") {
					args["certain"] = args["cached"]
				}
				for range args["n"] {
					detector.Served(drift.Request{
						Worker: name, Epoch: uint64(args["epoch"]), Decided: at,
						PromptTokens: args["prompt"], CachedTokens: args["cached"], CertainTokens: args["certain"], BlockSize: 16,
					})
				}
			case "wait":
				n, _ := strconv.Atoi(name)
				now = now.Add(time.Duration(n) * time.Second)
			case "keep":
				detector.Keep(func(w string) bool { return w == name })
			case "stats":
				text := ""
				for _, w := range detector.Stats() {
					text += fmt.Sprintf("%s promised %d, found %d, ratio %+.2f, %d windows, %d rebuilds\n", w.Worker, w.Promised, w.Found, w.Ratio, w.Windows, w.Resyncs)
				}
				return text
			default:
				td.Fatalf(t, "unknown verb %s", td.Cmd)
			}
			return ""
		})
	})
}
