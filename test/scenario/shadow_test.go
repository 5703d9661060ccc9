package scenario

import (
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var compareShadow = flag.Bool("shadow.compare", false, "play whole traces, and compare a shadow's predictions with a router in charge")

// timedChat is a request of a trace.
type timedChat struct {
	at       time.Duration
	messages []message
}

// randomWords are n words of a small vocabulary.
func randomWords(rng *rand.Rand, n int) string {
	words := strings.Fields("the model reads a long text about rivers and towns near old mills while people walk over stone bridges to markets")
	var b strings.Builder
	for range n {
		b.WriteString(words[rng.IntN(len(words))] + " ")
	}
	return b.String()
}

// shadowTraces are conversations of several turns, and single requests with one of eight system prompts. The answers in the prompts are
// the trace's own, so that both plays send equal prompts.
func shadowTraces() map[string][]timedChat {
	rng := rand.New(rand.NewPCG(1, 2))
	traces := map[string][]timedChat{}
	for talk := range 24 {
		var list []message
		for turn := range 6 {
			if turn > 0 {
				list = append(list, message{"assistant", randomWords(rng, 100)})
			}
			list = append(list, message{"user", randomWords(rng, 60+400*(1-min(turn, 1)))})
			at := time.Duration(talk)*180*time.Millisecond + time.Duration(turn)*(1300+time.Duration(rng.IntN(500)))*time.Millisecond
			traces["conversations"] = append(traces["conversations"], timedChat{at, append([]message(nil), list...)})
		}
	}
	var systems []string
	for range 8 {
		systems = append(systems, randomWords(rng, 900))
	}
	for i := range 160 {
		traces["system prompts"] = append(traces["system prompts"], timedChat{time.Duration(i) * 70 * time.Millisecond,
			[]message{{"system", systems[rng.IntN(len(systems))]}, {"user", randomWords(rng, 100)}}})
	}
	return traces
}

// play sends each request at its time, and returns the tokens of all prompts and the part that engines found in their caches.
func (g *gateway) play(list []timedChat) (prompt, cached int) {
	g.t.Helper()
	var tokens, found atomic.Int64
	var all sync.WaitGroup
	began := time.Now()
	for _, c := range list {
		all.Go(func() {
			time.Sleep(time.Until(began.Add(c.at)))
			r, err := g.tryChat(g.t.Context(), c.messages, 16)
			if err != nil {
				g.t.Error(err)
			}
			tokens.Add(int64(r.usage.PromptTokens))
			found.Add(int64(r.usage.Details.CachedTokens))
		})
	}
	all.Wait()
	return int(tokens.Load()), int(found.Load())
}

// TestShadow plays traces through an operator's own Envoy, which sends requests to four engines in turn and copies to a shadow. The
// shadow's log has all requests, with the workers that served them, and its report predicts the tokens that a router in charge would
// find. With -shadow.compare the trace is played again with a router in charge, which must find as many, within 2 %.
func TestShadow(t *testing.T) {
	for name, list := range shadowTraces() {
		if !*compareShadow {
			list = list[:24]
		}
		t.Run(name, func(t *testing.T) {
			log := filepath.Join(t.TempDir(), "decisions.jsonl")
			fleet := []string{"--blocks", "2000"}
			shadow := startStaticFleet(t, func(port, endpoints, routerAt string) string {
				text := fmt.Sprintf(envoyInMode, port, "STREAMED, response_body_mode: STREAMED", "SKIP", endpoints, endpoint(routerAt))
				return strings.Replace(text, "message_timeout: 10s", "observability_mode: true\n              response_attributes: [upstream.address]", 1)
			}, 4, "/health", fleet, "--shadow", "--decision-log", log)
			prompt, was := shadow.play(list)
			eventually(t, "the log has all ends", func() error {
				text, err := os.ReadFile(log)
				if n := strings.Count(string(text), `"served":"127.0.0.1:`); err == nil && n < len(list) {
					err = fmt.Errorf("%d of %d requests have one", n, len(list))
				}
				return err
			})
			shadow.assertNothingBooked()
			shadow.router.stop()

			page := filepath.Join(t.TempDir(), "page.html")
			out, err := exec.Command(binary, "shadow", "report", "--decision-log", log, "--html", page).CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			t.Logf("%s", out)
			if _, err := os.Stat(page); err != nil {
				t.Error(err)
			}
			wants := fmt.Sprintf("sim: %d requests with %d tokens in their prompts, on 4 workers", len(list), prompt)
			m := regexp.MustCompile(`caches: (\d+) with the router, (\d+) as it was`).FindStringSubmatch(string(out))
			if m == nil || !strings.Contains(strings.Join(strings.Fields(string(out)), " "), wants) {
				t.Fatalf("the report lacks %q or its prediction:\n%s", wants, out)
			}
			if !*compareShadow {
				return
			}

			charge := startStaticFleet(t, func(port, endpoints, routerAt string) string {
				return fmt.Sprintf(envoyInMode, port, "BUFFERED", "SKIP", endpoints, endpoint(routerAt))
			}, 4, "/live", fleet)
			_, found := charge.play(list)
			predicted, _ := strconv.Atoi(m[1])
			asItWas, _ := strconv.Atoi(m[2])
			off := float64(predicted-found) / float64(found)
			t.Logf("%s: %d prompt tokens; found with round-robin %d, replayed %d (%+.2f %%); found with the router %d, predicted %d (%+.2f %%)",
				name, prompt, was, asItWas, 100*float64(asItWas-was)/float64(was), found, predicted, 100*off)
			if math.Abs(off) > 0.02 {
				t.Errorf("the prediction is off by %.2f %%", 100*off)
			}
		})
	}
}
