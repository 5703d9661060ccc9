package scenario

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// conversation has three conversations of four turns. Where prompts are read, later turns find their cache.
func (c *cell) conversation() int {
	c.useFleet("", "a", "b")
	const talks, turns = 3, 4
	for i := range talks {
		list := []message{{"user", strings.Repeat(fmt.Sprintf("Everything about topic %d, please. ", i), 20)}}
		for turn := range turns {
			r := c.chat(list, 8)
			if c.byCache() && turn > 0 && r.usage.Details.CachedTokens == 0 {
				c.t.Errorf("turn %d of talk %d found no cache", turn, i)
			}
			if d := c.decision(r.decision); (d.PromptTokens > 0) != c.byCache() {
				c.t.Errorf("turn %d of talk %d: the router counted %d tokens of the prompt", turn, i, d.PromptTokens)
			}
			list = append(list, message{"assistant", r.text}, message{"user", "And what else is there?"})
			c.awaitIdle() // otherwise load would count, too
		}
	}
	return talks * turns
}

// refusals sends requests that are certainly wrong. All cells give the same answers, byte for byte, apart from errors in bodies
// that the router does not read: engines answer those.
func (c *cell) refusals() (toEngines int) {
	c.useFleet("", "a", "b")
	for _, bad := range []struct {
		name, method, path, body string
		encoding                 string
		status                   int
		byHeaders                bool // the router refuses it by its headers
		broken                   bool // it is no whole JSON object, which looks like a cut body where trailers follow
	}{
		{"an unknown model", "POST", chatPath, `{"model":"none","messages":[{"role":"user","content":"hi"}]}`, "", 404, false, false},
		{"malformed JSON", "POST", chatPath, `{"model":"sim","messages":[`, "", 400, false, true},
		{"not an object", "POST", chatPath, `[1,2]`, "", 400, false, true},
		{"an empty body", "POST", chatPath, ``, "", 400, true, false},
		{"a wrong type", "POST", chatPath, `{"model":"sim","messages":[{"role":"user","content":7}]}`, "", 400, false, false},
		{"invalid UTF-8", "POST", "/v1/completions", "{\"model\":\"sim\",\"prompt\":\"\xff\"}", "", 400, false, false},
		{"a long prompt", "POST", "/v1/completions", `{"model":"sim","prompt":[` + strings.Repeat("1,", 131_100) + `1]}`, "", 400, false, false},
		{"a compressed body", "POST", chatPath, `{"model":"sim"}`, "gzip", 415, true, false},
		{"a wrong method", "GET", chatPath, ``, "", 405, true, false},
		{"an unknown path", "POST", "/v1/reset", `{}`, "", 404, true, false},
		{"a model that is not there", "GET", "/v1/models/none", ``, "", 404, true, false},
	} {
		headers := []string{}
		if bad.encoding != "" {
			headers = append(headers, "content-encoding", bad.encoding)
		}
		r, err := c.send(c.t.Context(), bad.method, bad.path, []byte(bad.body), headers...)
		if err != nil {
			c.t.Errorf("%s: %v", bad.name, err)
			continue
		}
		unread := !c.byCache() || bad.broken && c.looksCut()
		if unread && !bad.byHeaders {
			toEngines++
			if r.decision == "" || r.status < 400 || r.status > 499 {
				c.t.Errorf("%s: an engine should have refused it: status %d: %.300s", bad.name, r.status, r.body)
			}
			continue
		}

		answer := fmt.Sprintf("%d, %s, %s", r.status, r.header.Get("content-type"), r.body)
		if r.status != bad.status || r.error.Type == "" || r.decision != "" {
			c.t.Errorf("%s: want status %d and OpenAI's format: %s", bad.name, bad.status, answer)
		}
		if first := c.answers.first(bad.name, answer); first != answer {
			c.t.Errorf("%s: %s\nanother cell: %s", bad.name, answer, first)
		}
	}
	return toEngines
}

// cancellation has 200 clients leave early: before the decision, before the first token, or within the answer.
func (c *cell) cancellation() int {
	c.useFleet("", "a", "b")
	const clients = 200
	c.untilPicked(clients/10, 80*time.Millisecond, func(longest time.Duration) { c.leaveEarly(clients, longest) })
	c.assertNothingBooked()
	return -1
}

// leaveEarly sends requests whose clients leave, the last ones after the longest time.
func (c *cell) leaveEarly(clients int, longest time.Duration) {
	const atOnce = 16
	var all sync.WaitGroup
	turns := make(chan struct{}, atOnce)
	for i := range clients {
		turns <- struct{}{}
		all.Go(func() {
			defer func() { <-turns }()
			ctx, cancel := context.WithTimeout(c.t.Context(), time.Duration(i%40)*longest/40)
			defer cancel()
			body := fmt.Sprintf(`{"model":"sim","stream":%v,"max_tokens":20000,"prompt":"Leave me, number %d."}`, i%2 == 0, i)
			if r, err := c.send(ctx, http.MethodPost, "/v1/completions", []byte(body)); err == nil {
				c.t.Errorf("request %d was answered: status %d: %.300s", i, r.status, r.body)
			}
		})
	}
	all.Wait()
}

// queue has a request wait for its engine for longer than Envoy waits for a decision (message_timeout, 5 s in all files), beside
// clients that leave the queue.
func (c *cell) queue() int {
	c.useFleet(`router: {busy: {kvUsage: 0.002}, queue: {maxWait: 30s}}`, "a")
	release := c.hold()
	defer release()

	began, first := time.Now(), make(chan reply, 1)
	go func() {
		r, err := c.tryChat(c.t.Context(), []message{{"user", "patience is rewarded"}}, 1)
		if err != nil {
			c.t.Error(err)
		}
		first <- r
	}()
	c.waiting(1)
	const leavers = 10
	gone := c.metric("stator_route_queue_cancelled_total")
	ctx, leave := context.WithCancel(c.t.Context())
	defer leave()
	var all sync.WaitGroup
	for i := range leavers {
		all.Go(func() { _, _ = c.tryChat(ctx, []message{{"user", fmt.Sprintf("client %d leaves", i)}}, 1) })
	}
	c.waiting(1 + leavers)
	leave()
	all.Wait()
	c.waiting(1)

	time.Sleep(time.Until(began.Add(5500 * time.Millisecond))) // it is time that is under test
	release()
	r := <-first
	text, err := get("http://" + c.admin + "/debug/decisions/" + r.decision)
	if err != nil || !strings.Contains(text, "waited ") {
		c.t.Errorf("%v: %s", err, text)
	}
	if n := c.metric("stator_route_queue_cancelled_total") - gone; n != leavers {
		c.t.Errorf("%g have left, want %d", n, leavers)
	}
	return 2 // the one that held the worker, and the one that waited
}

// large sends a body of 16 MiB, which reaches the worker as it was, and one above the router's bound.
func (c *cell) large() (answered int) {
	c.useFleet("", "records")
	for i, want := range largeAnswers[c.config.name+"/"+c.mode.name] {
		body := largeBody(1000+i, 16<<20+i*(3<<19))
		r := c.complete(body)
		if r.status != want {
			c.t.Errorf("%d bytes: status %d, want %d: %.300s", len(body), r.status, want, r.body)
		} else if r.status == http.StatusOK {
			answered++
		}
	}
	return answered
}

// largeBody is a request with its own prompt, and with a field of so many bytes, which engines ignore.
func largeBody(prompt, bytesOfField int) []byte {
	return fmt.Appendf(nil, `{"model":"sim","max_tokens":1,"prompt":"number %d","x_filler":"%s"}`,
		prompt, bytes.Repeat([]byte("0123456789abcdef"), bytesOfField/16))
}

// complete sends a request and returns its answer. A body that a worker has answered must have arrived as it was,
// with its trailer, at one worker alone, and any other at none.
func (c *cell) complete(body []byte) reply {
	c.t.Helper()
	r, err := c.send(c.t.Context(), http.MethodPost, "/v1/completions", body)
	if err != nil {
		c.t.Errorf("%d bytes: %v", len(body), err)
		return r
	}
	plain, trailed := c.records.count(body)
	more, moreTrailed := c.resets.count(body)
	answered := plain + trailed + more + moreTrailed
	if served := r.status == http.StatusOK; served != (answered == 1) || answered > 1 {
		c.t.Errorf("status %d, and the body of %d bytes arrived %d times: %.300s", r.status, len(body), answered, r.body)
	}
	if hasTrailer := trailed+moreTrailed > 0; answered > 0 && hasTrailer != c.config.trailers {
		c.t.Errorf("the trailer of a request arrived: %v", hasTrailer)
	}
	return r
}

// failures sends requests whose first worker refuses connections, or resets them before or after it has read the body. Another
// worker answers, and gets the body as it was, once. In the cells without a retry policy such a request fails.
func (c *cell) failures() int {
	c.mayFail = true
	c.useFleet("", "refuses", "records")
	answered := c.sendAll("requests to the worker that refuses them", 0, 8, 1)
	c.useFleet("", "resets", "records")
	const atOnce = 3 // by default Envoy retries no more at the same time (max_retries)
	return answered + c.sendAll("requests to the worker that resets them", 100, 40, atOnce)
}

// sendAll sends requests with bodies of 1 KiB to 512 KiB, and returns how many were answered. Some must meet a worker that fails.
func (c *cell) sendAll(what string, from, n, atOnce int) int {
	c.t.Helper()
	failing := "failed"
	if c.retries() {
		failing = "retried"
	}
	before := c.served(failing)
	var answered atomic.Int64
	send := func(i int) {
		switch r := c.complete(largeBody(from+i, 1<<(10+i%10))); {
		case r.status == http.StatusOK:
			answered.Add(1)
		case c.retries() || r.status != http.StatusServiceUnavailable:
			c.t.Errorf("request %d: status %d, decision %q: %.300s", from+i, r.status, r.decision, r.body)
		}
	}

	var all sync.WaitGroup
	turns := make(chan struct{}, atOnce)
	for i := range n {
		turns <- struct{}{}
		all.Go(func() {
			defer func() { <-turns }()
			send(i)
		})
	}
	all.Wait()

	// Two idle workers take requests by chance: once in 256 runs the first eight all go to the one that serves.
	further := 1000
	eventually(c.t, what+" are "+failing, func() error {
		if c.served(failing) > before {
			return nil
		}
		further++
		send(further)
		return errNotYet
	})
	return int(answered.Load())
}

// memory sends six bodies of 64 MiB at once to a router that may hold 128 MiB. In this mode Envoy bounds nothing. Bodies
// beyond the bound are answered with 503 while they arrive, and nothing of them is kept afterwards.
func (c *cell) memory() {
	const waves, clients, size, first = 2, 6, 64 << 20, 40 << 20
	const room = 32 << 20 // for pools of buffers: half of a body
	c.useFleet("", "records")
	c.replaceInFile("maxBodyBytes: 17825792", "maxBodyBytes: 67109888, maxBodiesBytes: 134217728")
	eventually(c.t, "the router takes bodies of 64 MiB", func() error { return c.sendLetters(size, 0, nil) })

	began := c.heap()
	for wave := range waves {
		release, answers := make(chan struct{}), make(chan error, clients)
		for range clients {
			go func() { answers <- c.sendLetters(size, first, release) }()
		}
		const fit = 3 // times the first 40 MiB
		for range clients - fit {
			if err := <-answers; err == nil || !strings.HasPrefix(err.Error(), "status 503: ") {
				c.t.Errorf("a body beyond the bound: %v", err)
			}
		}
		close(release)
		for range fit {
			if err := <-answers; err != nil && !strings.HasPrefix(err.Error(), "status 503: ") {
				c.t.Error(err)
			}
		}

		eventually(c.t, fmt.Sprintf("after wave %d the router has freed the bodies", wave), func() error {
			if now := c.heap(); now > began+room {
				return fmt.Errorf("it has %.0f bytes on its heap, and had %.0f after a single body", now, began)
			}
			return nil
		})
	}
	if err := c.sendLetters(size, 0, nil); err != nil {
		c.t.Errorf("a single body afterwards: %v", err)
	}
	c.assertNothingBooked()
}

// heap returns the bytes on the router's heap after a garbage collection. The memory of the process says less: it depends on when
// collections ran, and on the race detector.
func (c *cell) heap() float64 {
	c.t.Helper()
	const collections = 2 // pools keep their buffers during the first
	for range collections {
		if _, err := get("http://" + c.admin + "/debug/pprof/heap?gc=1"); err != nil {
			c.t.Fatal(err)
		}
	}
	return c.metric("go_memstats_heap_alloc_bytes")
}

// replaceInFile changes a text of the file.
func (c *cell) replaceInFile(before, after string) {
	c.t.Helper()
	text, err := os.ReadFile(c.file)
	if err != nil {
		c.t.Fatal(err)
	}
	c.listed = "another one"
	if err := os.WriteFile(c.file, bytes.Replace(text, []byte(before), []byte(after), 1), 0o600); err != nil {
		c.t.Fatal(err)
	}
}

// sendLetters sends a body of so many bytes. After the first ones it waits for the release. An answer other than 200 is an
// error.
func (c *cell) sendLetters(size, first int, release chan struct{}) error {
	head, tail := `{"model":"sim","max_tokens":1,"prompt":"hello","x_filler":"`, `"}`
	letter := func(n int) io.Reader { return io.LimitReader(blocks{}, int64(n)) }
	rest := io.MultiReader(letter(size-first-len(head)-len(tail)), strings.NewReader(tail))
	if release != nil {
		rest = &heldBack{rest, release}
	}
	body := io.MultiReader(strings.NewReader(head), letter(first), rest)
	req, err := http.NewRequestWithContext(c.t.Context(), http.MethodPost, c.url+"/v1/completions", body)
	if err != nil {
		return err
	}
	req.ContentLength = int64(size)
	req.Header.Set("content-type", "application/json")
	resp, err := c.do(req)
	if err != nil {
		return err
	}

	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d: %s", resp.StatusCode, text)
	}
	return err
}

// blocks is an endless text, made faster than letters.
type blocks struct{}

var block = bytes.Repeat([]byte("0123456789abcdef"), 4<<10)

func (blocks) Read(p []byte) (int, error) { return copy(p, block), nil }

// heldBack is the rest of a body, which is not sent before its release.
type heldBack struct {
	io.Reader
	release chan struct{}
}

func (h *heldBack) Read(p []byte) (int, error) {
	<-h.release
	return h.Reader.Read(p)
}

// recorder is a worker that counts the bodies that it has answered. One that resets does so with every second connection's
// request, in turns before and after it has read the body.
type recorder struct {
	address string
	resets  bool

	mu       sync.Mutex
	requests int                       // guarded by mu
	plain    map[[sha256.Size]byte]int // guarded by mu; bodies without a trailer
	trailed  map[[sha256.Size]byte]int // guarded by mu; bodies with the trailer
}

func startRecorder(t *testing.T, resets bool) *recorder {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &recorder{address: ln.Addr().String(), resets: resets, plain: map[[sha256.Size]byte]int{}, trailed: map[[sha256.Size]byte]int{}}
	server := &http.Server{Handler: w}
	go func() { _ = server.Serve(ln) }()
	t.Cleanup(func() { _ = server.Close() })
	return w
}

func (w *recorder) ServeHTTP(out http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		http.NotFound(out, r)
		return
	}
	w.mu.Lock()
	n := w.requests
	w.requests++
	w.mu.Unlock()

	if w.resets && n%4 == 0 {
		_, _ = io.CopyN(io.Discard, r.Body, 512)
		reset(out)
		return
	}
	hash := sha256.New()
	if _, err := io.Copy(hash, r.Body); err != nil {
		panic(http.ErrAbortHandler) // the request was ended early
	}
	if w.resets && n%4 == 2 {
		reset(out)
		return
	}

	w.mu.Lock()
	defer w.mu.Unlock()
	into := w.plain
	if r.Trailer.Get(trailer) != "" {
		into = w.trailed
	}
	into[[sha256.Size]byte(hash.Sum(nil))]++
	_, _ = io.WriteString(out, `{"choices":[]}`)
}

// count returns how often a body was answered, without and with its trailer.
func (w *recorder) count(body []byte) (plain, trailed int) {
	sum := sha256.Sum256(body)
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.plain[sum], w.trailed[sum]
}

// reset ends a connection as a process that dies does.
func reset(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}
