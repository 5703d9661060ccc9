package scenario

import (
	"encoding/json"
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
	"testing"
	"time"

	"github.com/stator-project/stator/test/process"
	"github.com/stator-project/stator/test/stats"
	"github.com/stator-project/stator/test/streams"
)

// shadowVariable is the variable that turns TestShadowFigures on.
const shadowVariable = "STATOR_BENCH_SHADOW"

// timedChat is a request of a trace, as its body.
type timedChat struct {
	at   time.Duration
	body []byte
}

// chatAt returns a request for an answer of 16 tokens.
func chatAt(at time.Duration, messages ...message) timedChat {
	body, err := json.Marshal(map[string]any{"model": "sim", "messages": messages, "max_tokens": 16, "stream": true,
		"stream_options": map[string]any{"include_usage": true}})
	if err != nil {
		panic(err) // strings alone
	}
	return timedChat{at, body}
}

// randomWords are n words of a small vocabulary.
func randomWords(rng *rand.Rand, n int) string {
	words := strings.Fields("the model reads a long text about rivers and towns near old mills while people walk over bridges to markets")
	var b strings.Builder
	for range n {
		b.WriteString(words[rng.IntN(len(words))] + " ")
	}
	return b.String()
}

// conversations are so many conversations of six turns each. The answers in the prompts are the trace's own, so that all plays send equal
// prompts.
func conversations(seed uint64, n int) (list []timedChat) {
	rng := rand.New(rand.NewPCG(seed, 1))
	for i := range n {
		messages := []message{{"user", randomWords(rng, 460)}}
		for turn := range 6 {
			at := time.Duration(i)*300*time.Millisecond + time.Duration(turn)*(1300+time.Duration(rng.IntN(500)))*time.Millisecond
			list = append(list, chatAt(at, messages...))
			messages = append(messages, message{"assistant", randomWords(rng, 100)}, message{"user", randomWords(rng, 60)})
		}
	}
	return list
}

// systemPrompts are so many requests with one of sixteen system prompts.
func systemPrompts(seed uint64, n int) (list []timedChat) {
	rng := rand.New(rand.NewPCG(seed, 2))
	var systems []string
	for range 16 {
		systems = append(systems, randomWords(rng, 900))
	}
	for i := range n {
		list = append(list, chatAt(time.Duration(i)*100*time.Millisecond, message{"system", systems[rng.IntN(len(systems))]},
			message{"user", randomWords(rng, 100)}))
	}
	return list
}

// play sends each request at its time, and returns their answers. All must be answered.
func (g *gateway) play(list []timedChat) []streams.Answer {
	g.t.Helper()
	answers := make([]streams.Answer, len(list))
	var all sync.WaitGroup
	began := time.Now()
	for i, c := range list {
		all.Go(func() {
			time.Sleep(time.Until(began.Add(c.at)))
			var err error
			answers[i], err = streams.Send(g.t.Context(), client, g.url+"/v1/chat/completions", c.body)
			if err != nil {
				g.t.Errorf("request %d: %v", i, err)
			}
		})
	}
	all.Wait()
	return answers
}

// tokensOf returns the tokens of all prompts, and the part that engines found in their caches.
func tokensOf(answers []streams.Answer) (prompt, cached int) {
	for i := range answers {
		prompt += answers[i].Prompt
		cached += answers[i].Cached
	}
	return prompt, cached
}

// shadowed are four engines behind an operator's Envoy, which sends requests to them in turn, and copies to a shadow.
type shadowed struct {
	*inMode
	engines []rank
	log     string
}

// startShadowed starts them, each with a cache of so many blocks.
func startShadowed(t *testing.T, blocks int) *shadowed {
	t.Helper()
	s := &shadowed{log: filepath.Join(t.TempDir(), "decisions.jsonl")}
	s.inMode = startStaticFleet(t, func(port, endpoints, routerAt string) string {
		text := fmt.Sprintf(envoyInMode, port, "STREAMED, response_body_mode: STREAMED", "SKIP", endpoints, endpoint(routerAt))
		const observes = "observability_mode: true\n              failure_mode_allow: true\n              response_attributes: [upstream.address]"
		return strings.Replace(text, "message_timeout: 10s", observes, 1)
	}, 4, "/health", []string{"--blocks", strconv.Itoa(blocks)}, "--shadow", "--decision-log", s.log)
	s.engines = s.fleet()
	return s
}

// report awaits so many ends in the log that name the worker that served, and returns the report in one line.
func (s *shadowed) report(ends int, flags ...string) string {
	s.t.Helper()
	eventually(s.t, "the log has all ends", func() error {
		text, err := os.ReadFile(s.log)
		if n := strings.Count(string(text), `"served":"127.0.0.1:`); err == nil && n < ends {
			err = fmt.Errorf("%d of %d requests have one", n, ends)
		}
		return err
	})
	out, err := exec.Command(binary, append([]string{"shadow", "report", "--decision-log", s.log}, flags...)...).CombinedOutput()
	if err != nil {
		s.t.Fatalf("%v: %s", err, out)
	}
	return strings.Join(strings.Fields(string(out)), " ")
}

// served returns the number of requests that the engines have answered.
func (s *shadowed) served() (sum float64) {
	s.t.Helper()
	for _, e := range s.engines {
		text, err := get("http://" + e.Address + "/metrics")
		if err != nil {
			s.t.Fatal(err)
		}
		sum += sample(text, "vllm:request_success_total")
	}
	return sum
}

// awaitServed waits until the engines have answered so many requests. Their metrics may follow the answers.
func (s *shadowed) awaitServed(n int) {
	s.t.Helper()
	eventually(s.t, "each request is answered once", func() error {
		if got := s.served(); got != float64(n) {
			return fmt.Errorf("the engines have answered %g of %d", got, n)
		}
		return nil
	})
}

// TestShadow: an operator's own Envoy sends copies of its requests to a shadow. No copy reaches an engine, and nothing is booked. The
// report counts all requests, and its replay of what happened finds the tokens that the engines found. Requests go on when the shadow is
// killed.
func TestShadow(t *testing.T) {
	t.Parallel()
	s := startShadowed(t, 2000)
	list := systemPrompts(1, 24)
	answers := s.play(list)
	prompt, cached := tokensOf(answers)
	s.awaitServed(len(list))
	s.assertNothingBooked()

	page := filepath.Join(t.TempDir(), "page.html")
	report := s.report(len(list), "--html", page)
	for _, want := range []string{
		fmt.Sprintf(`Model "sim": %d requests with %d tokens in their prompts, on 4 workers with caches of 2000 blocks.`, len(list), prompt),
		fmt.Sprintf("The log shows the workers of %d requests, with %d tokens.", len(list), prompt),
		fmt.Sprintf("Tokens found in caches: %d as it was,", cached),
	} {
		if !strings.Contains(report, want) {
			t.Errorf("the report lacks %q:\n%s", want, report)
		}
	}
	if _, err := os.Stat(page); err != nil {
		t.Error(err)
	}

	time.AfterFunc(list[len(list)/2].at, s.router.kill)
	s.play(list) // the shadow alone is killed
	s.awaitServed(2 * len(list))
}

// shadowCell is a trace on engines with caches of one size.
type shadowCell struct {
	name   string
	blocks int
	trace  func(seed uint64) []timedChat
}

var shadowCells = []shadowCell{
	{"conversations", 3000, func(seed uint64) []timedChat { return conversations(seed, 100) }},
	{"conversations", 700, func(seed uint64) []timedChat { return conversations(seed, 100) }},
	{"system prompts", 2000, func(seed uint64) []timedChat { return systemPrompts(seed, 350) }},
	{"system prompts", 400, func(seed uint64) []timedChat { return systemPrompts(seed, 350) }},
}

// shadowFigures are the figures of one trace with one seed: tokens found in caches, and milliseconds to the first token.
type shadowFigures struct {
	was, replayed          float64 // tokens found before the switch, and by its replay
	predicted, least, most float64 // tokens
	found                  []float64
	ttft, p99              float64 // predicted
	ttfts, p99s            []float64
}

// off returns by how much the prediction exceeds the mean of the rounds, in percent.
func (f *shadowFigures) off() float64 { return 100 * (f.predicted/stats.Mean(f.found) - 1) }

const (
	shadowSeeds  = 3
	shadowRounds = 3
	// shadowBar is the largest error of predicted tokens, in percent of the mean of all seeds and rounds.
	shadowBar = 2
)

// TestShadowFigures plays each trace with a shadow, and then several times with the router in charge, with fresh engines. It prints the
// predictions beside what was found. It takes a quarter of an hour, so it runs only by `make bench-shadow`.
func TestShadowFigures(t *testing.T) {
	if os.Getenv(shadowVariable) == "" {
		t.Skip("it takes a quarter of an hour: run `make bench-shadow`")
	}
	figures := make([][shadowSeeds]shadowFigures, len(shadowCells))
	began := process.LoadAverage()
	t.Run("plays", func(t *testing.T) {
		for seed := range shadowSeeds {
			t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
				t.Parallel()
				for i, c := range shadowCells {
					t.Run(fmt.Sprintf("%s-%d", c.name, c.blocks), func(t *testing.T) { figures[i][seed] = c.measure(t, uint64(seed)) })
				}
			})
		}
	})

	fmt.Printf("%-15s %6s %4s %17s %27s %34s %7s %15s %15s\n", "trace", "blocks", "seed", "as it was, replay", "predicted (least to most)",
		"found with the router (rounds)", "off", "mean TTFT ms", "p99 TTFT ms")
	for i, c := range shadowCells {
		sum := shadowFigures{}
		for seed := range shadowSeeds {
			f := &figures[i][seed]
			sum.predicted += f.predicted / shadowSeeds
			sum.found = append(sum.found, f.found...)
			fmt.Printf("%-15s %6d %4d %8.0f %8.0f %9.0f (%.0f to %.0f) %7.0f %v %+6.2f %% %6.1f, %6.1f %6.1f, %6.1f\n", c.name, c.blocks, seed,
				f.was, f.replayed, f.predicted, f.least, f.most, stats.Mean(f.found), f.found, f.off(), f.ttft, stats.Mean(f.ttfts), f.p99,
				stats.Mean(f.p99s))
		}
		fmt.Printf("%-15s %6d  all: predicted %.0f, found %.0f ± %.0f, off %+.2f %%\n", c.name, c.blocks, sum.predicted,
			stats.Mean(sum.found), stats.Deviation(sum.found), sum.off())
		if math.Abs(sum.off()) > shadowBar {
			t.Errorf("%s with %d blocks: the prediction is off by %+.2f %%", c.name, c.blocks, sum.off())
		}
	}
	fmt.Printf("Load average at the beginning: %s, at the end: %s\n", began, process.LoadAverage())
}

var predictedLine = regexp.MustCompile(`Tokens found in caches: (\d+) as it was, (\d+) with the router \((\d+) to (\d+)\)\. ` +
	`Mean time to first token: [\d.]+ ms as it was, ([\d.]+) ms .* p99 of the time to first token: [\d.]+ ms as it was, ([\d.]+) ms`)

// measure plays the trace with a seed.
func (c *shadowCell) measure(t *testing.T, seed uint64) (f shadowFigures) {
	list := c.trace(seed)
	s := startShadowed(t, c.blocks)
	_, was := tokensOf(s.play(list))
	report := s.report(len(list))
	m := predictedLine.FindStringSubmatch(report)
	if m == nil {
		t.Fatalf("the report lacks its prediction:\n%s", report)
	}
	f.was = float64(was)
	for i, figure := range []*float64{&f.replayed, &f.predicted, &f.least, &f.most, &f.ttft, &f.p99} {
		*figure, _ = strconv.ParseFloat(m[i+1], 64)
	}

	for round := range shadowRounds {
		t.Run(fmt.Sprintf("round=%d", round), func(t *testing.T) {
			charge := startStaticFleet(t, func(port, endpoints, routerAt string) string {
				return fmt.Sprintf(envoyInMode, port, "BUFFERED", "SKIP", endpoints, endpoint(routerAt))
			}, 4, "/live", []string{"--blocks", strconv.Itoa(c.blocks)})
			answers := charge.play(list)
			_, found := tokensOf(answers)
			var times []float64
			for i := range answers {
				times = append(times, answers[i].First.Seconds()*1000)
			}
			f.found = append(f.found, float64(found))
			f.ttfts = append(f.ttfts, stats.Mean(times))
			f.p99s = append(f.p99s, stats.Percentile(times, 0.99))
		})
	}
	return f
}
