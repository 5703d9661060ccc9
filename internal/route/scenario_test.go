package route_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/cost"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/queue"
	"github.com/stator-project/stator/internal/route/request"
	"github.com/stator-project/stator/internal/route/score"
	"github.com/stator-project/stator/internal/route/serving"
)

// line is the assumed speed of all workers: a token takes a millisecond.
var line = perfmodel.Line{Token: 1e6}

// TestScenarios runs testdata/*.txt. Prompts are texts, a token a byte, and blocks have four
// tokens. Verbs:
//
//	worker NAME [address=A] [state=S] [ranks=N] [blocks=N] [events=no] [taints=A+B] [adapters=A+B|none]
//	remove NAME
//	models NAME... [policy=P] [temperature=T] [limit=TOKENS] [busy=TOKENS] [kv=USAGE] [status=N] [cost=dynamo]
//	       [adapters=A+B] [found=A+B]      adapters of them, configured or found at engines
//	       [queue=REQUESTS] [maxwait=SECONDS]   text: a class per line: NAME [quantum=N] [order=wspt] [fair]
//	                                            replaces all models
//	holds NAME [tier=T] [rank=R]    text: the rank reports these blocks
//	outside cluster|n1|n2.c [tier=T] [away|back]   text: a cache outside engines has these blocks: of all ranks, of
//	                                            node n1, or of worker n2.c; away means that it is not connected
//	load NAME [requests=N] [prefill=TOKENS] [decode=BLOCKS]
//	report NAME kv=USAGE            the engine's report about itself
//	decide [id=ID] [model=M] [path=unknown] [endpoint=embeddings] [times=N] [session=S] [tenant=T] [wait]
//	                                text: prints the decision, or for several who got how many
//	explain ID | prefill ID | end ID
//	ended ID [by=NAME] [failed]     as Envoy reports it: the worker that served, if any
//	settle                          prints how many prefills the engines' events show to be done
//	wake | leave ID | giveup ID | queues
//	wait SECONDS
//
// Final decisions of requests that waited are printed in short when they are made.
//
//	loads | stats
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, file string) {
		w := &world{index: kvindex.New(kvindex.Config{}), now: start, tickets: map[string]request.Ticket{}}
		w.fleet = fleet.New(fleet.Hooks{RankGone: func(id fleet.RankID) { w.index.Drop(id); w.router.RankGone(id) }})
		w.startOutside()
		w.router = route.New(route.Config{Seed: 1, Outside: w.outside, Speeds: map[string]perfmodel.Speed{"sim": {Prefill: line, Decode: perfmodel.DefaultSpeed().Decode}}}, w.fleet, w.index)
		datadriven.RunTest(t, file, w.act)
	})
}

type world struct {
	index  *kvindex.Index
	fleet  *fleet.Fleet
	router *route.Router
	now    time.Time

	outside *score.Outside
	caches  *kvindex.Index // of outside, by the positions in outsideNames
	away    [3]bool

	tickets map[string]request.Ticket
	told    strings.Builder
}

// args are a command's words: the words without a value in order, the others by key.
type args struct {
	words []string
	value map[string]string
}

func read(d *datadriven.TestData) args {
	a := args{value: map[string]string{}}
	for _, c := range d.CmdArgs {
		if len(c.Vals) == 0 {
			a.words = append(a.words, c.Key)
		} else {
			a.value[c.Key] = c.Vals[0]
		}
	}
	return a
}

func (a args) number(key string, absent int) int {
	if n, err := strconv.Atoi(a.value[key]); err == nil {
		return n
	}
	return absent
}

func (w *world) act(t *testing.T, d *datadriven.TestData) string {
	w.told.Reset()
	text := w.do(t, d)
	return text + w.told.String()
}

func (w *world) do(t *testing.T, d *datadriven.TestData) string {
	a := read(d)
	switch d.Cmd {
	case "worker":
		return w.worker(a)
	case "models":
		return w.models(a, d.Input)
	case "remove":
		w.fleet.Remove(a.words[0])
		return ""
	case "report":
		m, _ := w.fleet.Snapshot().Rank(a.words[0], 0)
		m.Load.SetReport(fleet.Report{At: w.now, KVUsage: a.float("kv"), Store: a.store()}, m.Worker)
		return ""
	case "wake":
		w.router.Wake(w.now)
		return ""
	case "leave":
		return fmt.Sprintln(w.router.Cancel(w.tickets[a.words[0]]))
	case "giveup":
		if got := w.router.Expire(w.tickets[a.words[0]], w.now); got != nil {
			return got.String() + fmt.Sprintf("retry after %v\n", got.RetryAfter)
		}
		return "was told already\n"
	case "queues":
		text := ""
		for _, q := range w.router.Queues() {
			text += fmt.Sprintf("%s %s: %d requests, %d tokens, %d cached\n", q.Pool, q.Class, q.Requests, q.Tokens, q.CachedTokens)
		}
		return text
	case "outside":
		w.change(a, d.Input)
		return ""
	case "holds":
		m, _ := w.fleet.Snapshot().Rank(a.words[0], a.number("rank", 0))
		tier := fleet.Device
		for tier.String() != a.value["tier"] && a.value["tier"] != "" {
			tier++
		}
		store(w.index, m.ID, tier, d.Input)
		return ""
	case "load":
		m, _ := w.fleet.Snapshot().Rank(a.words[0], a.number("rank", 0))
		amount := fleet.Amount{Requests: int64(a.number("requests", 0)), PrefillTokens: int64(a.number("prefill", 0)), DecodeBlocks: int64(a.number("decode", 0))}
		amount.PrefillTime = line.Prefill(int(amount.PrefillTokens))
		m.Load.PrefillBegins(false, w.now)
		m.Load.Add(amount, w.now)
		return ""
	case "decide":
		return w.decide(a, d.Input)
	case "explain":
		if got, ok := w.router.Explain(a.words[0]); ok {
			return got.String()
		}
		return "not known\n"
	case "prefill":
		return fmt.Sprintln(w.router.PrefillDone(a.words[0], w.now))
	case "settle":
		return fmt.Sprintf("%d settled\n", w.router.SettlePrefills(w.now))
	case "end":
		return fmt.Sprintln(w.router.End(a.words[0], w.now))
	case "ended":
		ending := route.Ending{ID: a.words[0], Failed: slices.Contains(a.words, "failed"), Refused: slices.Contains(a.words, "refused")}
		if by := w.fleet.Snapshot().Worker(a.value["by"]); by != nil {
			ending.Served = by.Address
		}
		_, ended := w.router.Ended(ending, w.now)
		return fmt.Sprintln(ended)
	case "wait":
		n, _ := strconv.Atoi(a.words[0])
		w.now = w.now.Add(time.Duration(n) * time.Second)
		return ""
	case "loads":
		text := ""
		for _, m := range w.fleet.Snapshot().Ranks {
			b := m.Load.Booked()
			text += fmt.Sprintf("%s/%d: %d requests, %d prefill tokens, %d decode blocks\n", m.Worker.Name, m.Number, b.Requests, b.PrefillTokens, b.DecodeBlocks)
		}
		return text
	case "stats":
		s := w.router.Stats()
		return fmt.Sprintf("picked %d, refused %d (model %d, worker %d, request %d), %d of %d blocks, %d booked\n",
			s.Picked, s.Refused, s.ModelNotFound, s.NoReadyWorker, s.BadRequest, s.OverlapBlocks, s.Blocks, w.router.Bookings())
	}
	d.Fatalf(t, "unknown verb %s", d.Cmd)
	return ""
}

// list returns the parts of a value with + between them.
func (a args) list(key string) []string {
	return strings.FieldsFunc(a.value[key], func(r rune) bool { return r == '+' })
}

// store is the store of KV blocks in a report, with the times of a token.
func (a args) store() (s fleet.Store) {
	s.Used, s.Served = slices.Contains(a.words, "store"), slices.Contains(a.words, "served")
	s.Tiers[fleet.Host].Token, _ = time.ParseDuration(a.value["host"])
	s.Peers.Token, _ = time.ParseDuration(a.value["peers"])
	return s
}

func (a args) float(key string) float64 {
	v, _ := strconv.ParseFloat(a.value[key], 64)
	return v
}

func (w *world) models(a args, input string) string {
	models := map[string]*serving.Config{}
	for _, name := range slices.Concat(a.words, a.list("adapters"), a.list("found")) {
		m := &serving.Config{
			Prompt: runes{a.number("limit", 0)}, Pool: "sim", BlockSize: 4, Policy: a.value["policy"], Temperature: a.float("temperature"),
			Busy:    serving.Busy{PrefillTokens: int64(a.number("busy", 0)), KVUsage: a.float("kv"), Status: a.number("status", 0)},
			MaxWait: time.Duration(a.number("maxwait", 30)) * time.Second,
		}
		if !slices.Contains(a.words, name) {
			m.Adapter, m.Found = name, slices.Contains(a.list("found"), name)
		}
		if a.value["cost"] == cost.NameDynamo {
			m.Cost = cost.Dynamo()
		}
		if n := a.number("queue", 0); n > 0 {
			m.Queue = &queue.Config{Limit: queue.Limit{Requests: n}, Classes: classes(input)}
		}
		models[name] = m
	}
	if err := w.router.SetModels(models); err != nil {
		return err.Error() + "\n"
	}
	return ""
}

func classes(input string) (list []queue.Class) {
	for line := range strings.Lines(input) {
		name, words, _ := datadriven.ParseLine(strings.TrimSpace(line))
		a := read(&datadriven.TestData{CmdArgs: words})
		order, _ := queue.ParseOrder(a.value["order"])
		list = append(list, queue.Class{Name: name, Quantum: a.number("quantum", 0), Order: order, Fair: slices.Contains(a.words, "fair")})
	}
	return list
}

func (w *world) worker(a args) string {
	worker := fleet.Worker{Name: a.words[0], Model: "sim", Address: fmt.Sprintf("10.0.0.%d:8000", a.words[0][0]-'a'+1),
		Ranks: a.number("ranks", 1), State: fleet.Ready, KVEvents: "tcp://10.0.0.1:5557", Blocks: a.number("blocks", 0)}
	if a.value["events"] == "no" {
		worker.KVEvents = ""
	}
	worker.Name = fleet.WorkerName(a.value["node"], worker.Name)
	worker.Taints, _ = fleet.NewTaints(a.list("taints"))
	if adapters, known := a.value["adapters"]; known {
		worker.Adapters, _ = fleet.NewAdapters(slices.DeleteFunc(strings.Split(adapters, "+"), func(s string) bool { return s == "none" }))
	}
	for s := fleet.Starting; s <= fleet.Down; s++ {
		if s.String() == a.value["state"] {
			worker.State = s
		}
	}
	if _, err := w.fleet.Put(worker); err != nil {
		return err.Error() + "\n"
	}
	return ""
}

func tokens(text string) (ids []uint32) {
	for _, c := range []byte(strings.TrimSpace(text)) {
		ids = append(ids, uint32(c))
	}
	return ids
}

var outsideNames = []string{"cluster", "n1", "n2.c"}

// startOutside makes the caches outside engines.
func (w *world) startOutside() {
	var places []score.Place
	for i := range outsideNames {
		places = append(places, score.Place{Rank: fleet.RankID(i), Model: "sim", Usable: func() bool { return !w.away[i] }})
	}
	places[1].Node, places[2].Workers = outsideNames[1], outsideNames[2:]
	w.caches = kvindex.New(kvindex.Config{})
	w.outside = score.NewOutside(w.caches, places)
}

// change changes a cache outside engines.
func (w *world) change(a args, text string) {
	i := slices.Index(outsideNames, a.words[0])
	if len(a.words) > 1 {
		w.away[i] = a.words[1] == "away"
		return
	}
	tier := fleet.Host
	for tier.String() != a.value["tier"] {
		tier++
	}
	store(w.caches, fleet.RankID(i), tier, text)
}

func store(x *kvindex.Index, rank fleet.RankID, tier fleet.Tier, text string) {
	blocks := blockhash.Append(nil, tokens(text), 4, blockhash.Seed("", ""))
	hashes := make([]uint64, len(blocks))
	for i, s := range blockhash.Chain(nil, blocks) {
		hashes[i] = uint64(s)
	}
	x.Store(rank, tier, kvindex.Chain{Hashes: hashes, Blocks: blocks})
}

func (w *world) decide(a args, input string) string {
	model := "sim"
	if m, ok := a.value["model"]; ok {
		model = m
	}
	req := &request.Request{ID: a.value["id"], Endpoint: prompt.Completions, Known: a.value["path"] != "unknown", Source: "envoy-a",
		Session: a.value["session"], Tenant: a.value["tenant"]}
	if slices.Contains(a.words, "wait") {
		req.Ready = func(d *decision.Decision) {
			fmt.Fprintf(&w.told, "told: %s %s %s%s after %v\n", d.ID, d.Outcome, d.Worker, d.Reason, d.Wait.Took)
		}
	}
	key := "prompt"
	if a.value["endpoint"] == "embeddings" {
		req.Endpoint, key = prompt.Embeddings, "input"
	}
	if req.Known {
		req.Body = fmt.Appendf(nil, `{"model": %q, %q: %q}`, model, key, strings.TrimSpace(input))
		if strings.HasPrefix(input, "{") {
			req.Body = []byte(input)
		}
	} else {
		req.Model = a.value["model"]
	}
	if n := a.number("times", 1); n > 1 {
		return w.many(req, n)
	}
	d := w.router.Decide(req, w.now)
	text := d.String()
	if d.Outcome == decision.Queued {
		w.tickets[d.ID] = req.Ticket
		return text
	}
	if d.Outcome == decision.Picked {
		text += fmt.Sprintf("send to %s rank %d of %d, else to %s\n", d.Address, d.Rank, d.Ranks, strings.Join(d.Others, ", "))
	} else if d.RetryAfter > 0 {
		text += fmt.Sprintf("retry after %v\n", d.RetryAfter)
	}
	return text
}

func (w *world) many(req *request.Request, n int) string {
	got := map[string]int{}
	for range n {
		got[w.router.Decide(req, w.now).Worker]++
	}
	return fmt.Sprintln(got)
}
