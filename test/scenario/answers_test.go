package scenario

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/decisionlog"
)

var firstTokens = flag.Int("first-tokens", 6, "streams of TestFirstTokens, whose first tokens are also timed by their client")

// TestFirstTokens sends streams with prompts of up to 20,000 tokens, and an answer that is no stream after each. The time of the first
// token that Envoy reports lies between the times of its headers and of its end, and below the client's own. The metrics have it for the
// streams alone, by model and worker.
func TestFirstTokens(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "decisions.jsonl")
	g := up(t, "--workers", "2", "--decision-log", file)
	rng := rand.New(rand.NewPCG(1, 2))
	timed := map[string]time.Duration{} // by decision
	for i := range *firstTokens {
		words := 20 + rng.IntN(5000) // of four tokens each
		id, took := g.firstToken(fmt.Sprint(i, strings.Repeat(" harbour", words)))
		timed[id] = took
		g.chat([]message{{"user", fmt.Sprint("Tell me about harbour number ", i)}}, 4)
	}
	n := float64(2 * *firstTokens)
	g.assertServed(int(n))

	ofModel := `model="sim"`
	if got := g.metric("stator_request_answers_total", ofModel, `code="2xx"`); got != n {
		t.Errorf("%g answers, want %g", got, n)
	}
	for name, want := range map[string]float64{"first_token": n / 2, "duration": n} {
		got := g.metric("stator_request_"+name+"_seconds_count", ofModel, `worker="sim-0"`) +
			g.metric("stator_request_"+name+"_seconds_count", ofModel, `worker="sim-1"`)
		if got != want {
			t.Errorf("%g observations of %s, want %g", got, name, want)
		}
	}
	for path, want := range map[string]string{
		"/metrics/engines": `worker="sim-0"`, "/metrics/envoy": "envoy_http_downstream_rq_total", "/sd": `"worker":"sim-1"`,
	} {
		if text, err := g.read(path); err != nil || !strings.Contains(text, want) {
			t.Errorf("%s has no %s: %v\n%.300s", path, want, err, text)
		}
	}
	for _, q := range []float64{0.5, 0.99} {
		low, high, at := g.quantile("stator_request_first_token_seconds", q)
		t.Logf("quantile %g of first tokens: Prometheus has %.3f s, in the bucket from %g to %g; the client %.3f s", q, at, low, high,
			clientQuantile(timed, q).Seconds())
	}
	g.up.stop()
	compareFirstTokens(t, file, timed)
}

// firstToken sends a stream and returns its decision, and the time until the first piece of the answer came.
func (g *gateway) firstToken(text string) (decision string, took time.Duration) {
	g.t.Helper()
	body := fmt.Sprintf(`{"model":"sim","stream":true,"max_tokens":20,"messages":[{"role":"user","content":%q}]}`, text)
	req, err := http.NewRequestWithContext(g.t.Context(), http.MethodPost, g.url+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		g.t.Fatal(err)
	}
	req.Header.Set("content-type", "application/json")
	began := time.Now()
	resp, err := g.do(req)
	if err != nil {
		g.t.Fatal(err)
	}
	defer resp.Body.Close()
	err = chunks(resp, func(string) bool {
		if took == 0 {
			took = time.Since(began)
		}
		return true
	})
	if err != nil || resp.StatusCode != http.StatusOK {
		g.t.Fatalf("status %d, %v", resp.StatusCode, err)
	}
	return resp.Header.Get("x-stator-decision"), took
}

// quantile returns the bucket of a histogram of all workers in which a quantile lies, and the quantile as Prometheus estimates it.
func (g *gateway) quantile(name string, q float64) (low, high, at float64) {
	g.t.Helper()
	text, err := g.read("/metrics")
	if err != nil {
		g.t.Fatal(err)
	}
	bounds, counts := []float64{}, map[float64]float64{}
	for line := range strings.Lines(text) {
		_, rest, found := strings.Cut(line, `le="`)
		if !found || !strings.HasPrefix(line, name+"_bucket{") {
			continue
		}
		text, value, _ := strings.Cut(rest, `"}`)
		bound, _ := strconv.ParseFloat(text, 64)
		n, _ := strconv.ParseFloat(strings.TrimSpace(value), 64)
		if counts[bound] == 0 && !slices.Contains(bounds, bound) {
			bounds = append(bounds, bound)
		}
		counts[bound] += n
	}
	slices.Sort(bounds)
	if len(bounds) == 0 {
		g.t.Fatalf("there is no histogram %s", name)
	}

	rank, below := q*counts[bounds[len(bounds)-1]], 0.0
	for _, bound := range bounds {
		if counts[bound] >= rank {
			return low, bound, low + (bound-low)*(rank-below)/max(1, counts[bound]-below)
		}
		low = bound
		below = counts[bound]
	}
	return low, low, low
}

// clientQuantile returns a quantile of the client's times.
func clientQuantile(timed map[string]time.Duration, q float64) time.Duration {
	list := slices.Sorted(maps.Values(timed))
	return list[min(len(list)-1, int(q*float64(len(list))))]
}

// compareFirstTokens compares the times in the decision log with the client's, by decision.
func compareFirstTokens(t *testing.T, file string, timed map[string]time.Duration) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var late []time.Duration // of the client's clock behind Envoy's
	for log := decisionlog.NewReader(bytes.NewReader(text)); ; {
		line, err := log.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		e := line.End
		if e == nil || timed[e.ID] == 0 {
			continue
		}
		client := timed[e.ID]
		reported := time.Duration(e.FirstToken * float64(time.Millisecond))
		if e.Status != http.StatusOK || e.FirstToken < e.FirstByte || e.FirstToken > e.LastByte || reported > client {
			t.Errorf("end %+v; the client had its first token after %v", e, client)
		}
		late = append(late, client-reported)
	}
	if len(late) != len(timed) {
		t.Fatalf("%d ends of %d streams", len(late), len(timed))
	}
	slices.Sort(late)
	t.Logf("first tokens of %d streams: the client's times are longer than Envoy's by %v in the median, and by at most %v",
		len(late), late[len(late)/2], late[len(late)-1])
}
