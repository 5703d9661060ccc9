package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/stator-project/stator/internal/backoff"
	"github.com/stator-project/stator/internal/enginetls"
	"github.com/stator-project/stator/internal/metric"
)

// maxAnswer bounds how many bytes of any answer are read.
const maxAnswer = 16 << 20

// maxAsked bounds how many workers are asked at the same time.
const maxAsked = 32

// Timeout bounds a request.
const Timeout = 5 * time.Second

// dialTimeout bounds connecting to the bus.
const dialTimeout = 3 * time.Second

// engineAt is the HTTP server of an engine, and a client for it.
type engineAt struct {
	client  *http.Client
	engines *enginetls.Client // of the client's connections
	base    string            // of the server's URLs
}

// newEngineAt returns a client that asks engines. It uses no proxy, as routers use none.
func newEngineAt(engines *enginetls.Client) engineAt {
	client := &http.Client{Timeout: Timeout, Transport: &http.Transport{DialContext: engines.Dial(Timeout)}}
	return engineAt{client: client, engines: engines}
}

// observe asks the router, the bus and all workers. Workers are asked at the same time.
func observe(ctx context.Context, cfg Config) *observation {
	o := &observation{busURL: cfg.Fleet.Bus.URL, gateway: cfg.Fleet.Gateway}
	o.router.address, o.router.admin = cfg.AdminAddress, cfg.Admin
	o.router.askFirst(ctx)
	for i := range cfg.Fleet.Models {
		o.models = append(o.models, loadModel(ctx, &cfg.Fleet.Models[i]))
	}
	o.workers = workersOf(cfg.Fleet, o.router.fleet.Ranks)

	began := time.Now()
	o.askWorkers(ctx, newEngineAt(cfg.Engines), cfg.Wait)
	if o.busURL != "" {
		o.busErr = dial(ctx, o.busURL)
	}

	if rest := cfg.Wait - time.Since(began); rest > 0 && o.router.err == nil {
		_ = backoff.Sleep(ctx, rest) // the second look at the router reports the end of ctx
	}
	o.router.askAgain(ctx)
	o.askAgents(ctx, cfg.Agents)
	o.router.watched = time.Since(began)
	return o
}

func (o *observation) askWorkers(ctx context.Context, at engineAt, wait time.Duration) {
	AskEach(len(o.workers), maxAsked, func(i int) {
		w := &o.workers[i]
		w.askEngine(ctx, at, o.model(w.model), wait)
	})
}

// AskEach calls ask for 0 to n-1, at most so many at the same time. It returns when all calls have returned.
func AskEach(n, most int, ask func(i int)) {
	var running sync.WaitGroup
	defer running.Wait()

	slots := make(chan struct{}, most)
	for i := range n {
		running.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			ask(i)
		})
	}
}

// dial opens a connection to the first server of a bus URL, and closes it.
func dial(ctx context.Context, rawURL string) error {
	first, _, _ := strings.Cut(rawURL, ",")
	at, err := url.Parse(first)
	if err != nil {
		return errors.New("the address cannot be read") // err quotes it, with the password
	}
	host := at.Host
	if at.Port() == "" {
		host = net.JoinHostPort(at.Hostname(), "4222")
	}

	d := net.Dialer{Timeout: dialTimeout}
	conn, err := d.DialContext(ctx, "tcp", host)
	if err != nil {
		return err
	}
	return conn.Close()
}

// askFirst reads everything that the admin port shows.
func (r *routerSeen) askFirst(ctx context.Context) {
	client, page := r.admin.HTTP(), r.admin.URL
	_, r.clockAhead, r.ready = request(ctx, client, http.MethodGet, page("/readyz"), nil)
	if status := (statusError{}); r.ready != nil && !errors.As(r.ready, &status) {
		r.err, r.ready = r.ready, nil
		return
	}
	if _, err := getJSON(ctx, client, page("/debug/fleet?format=json"), &r.fleet); err != nil {
		r.err = err
		return
	}

	r.config = askConfig(ctx, client, page)
	_, err := getJSON(ctx, client, page("/debug/feed?format=json"), &r.before)
	r.noCacheList = err != nil
	r.metricsThen, _ = readMetrics(ctx, client, page("/metrics"))
}

// askConfig reads the state of a part's configuration file; nil if it has none.
func askConfig(ctx context.Context, client *http.Client, page func(string) string) *configSeen {
	var c configSeen
	if _, err := getJSON(ctx, client, page("/debug/config?format=json"), &c); err != nil {
		return nil
	}
	return &c
}

// askAgain reads the pages that may have changed since askFirst.
func (r *routerSeen) askAgain(ctx context.Context) {
	if r.err != nil || r.noCacheList {
		return
	}

	client, page := r.admin.HTTP(), r.admin.URL
	_, err := getJSON(ctx, client, page("/debug/feed?format=json"), &r.after)
	r.noCacheList = err != nil
	r.metricsNow, _ = readMetrics(ctx, client, page("/metrics"))
}

// request sends one HTTP request, whose answer has maxAnswer bytes at most. ahead is the time by which the server's clock is ahead of
// ours, to the second that the Date header has.
func request(ctx context.Context, client *http.Client, method, url string, body []byte) (answer []byte, ahead time.Duration, err error) {
	return requestWithin(ctx, client, method, url, body, maxAnswer)
}

// requestWithin is request with another bound. An answer beyond the bound is an error, because the wanted part may be in the rest.
func requestWithin(ctx context.Context, client *http.Client, method, url string, body []byte, most int) (
	answer []byte, ahead time.Duration, err error,
) {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, 0, err
	}
	req.Header.Set("content-type", "application/json")

	before := time.Now()
	resp, err := client.Do(req)
	if err != nil {
		return nil, 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	ahead = clockAhead(resp.Header.Get("date"), before, time.Now())

	answer, err = io.ReadAll(io.LimitReader(resp.Body, int64(most)+1))
	switch {
	case err != nil:
	case resp.StatusCode != http.StatusOK:
		err = statusError{resp.StatusCode, strings.TrimSpace(string(answer[:min(len(answer), 300)]))}
	case len(answer) > most:
		err = fmt.Errorf("its answer has more than %d MiB", most>>20)
	}
	return answer, ahead, err
}

// statusError is an answer with another status than 200.
type statusError struct {
	status int
	body   string
}

func (e statusError) Error() string { return fmt.Sprintf("status %d: %s", e.status, e.body) }

// clockAhead returns how far the clock of an answer is ahead of ours, negative for a clock behind. It is
// 0 if the answer's second overlaps the time between before and after.
func clockAhead(date string, before, after time.Time) time.Duration {
	at, err := http.ParseTime(date)
	switch {
	case err != nil:
		return 0
	case at.After(after):
		return at.Sub(after)
	case at.Add(time.Second).Before(before):
		return at.Add(time.Second).Sub(before)
	}
	return 0
}

// getJSON reads a page of JSON into v.
func getJSON(ctx context.Context, client *http.Client, url string, v any) (ahead time.Duration, err error) {
	body, ahead, err := request(ctx, client, http.MethodGet, url, nil)
	if err != nil {
		return ahead, err
	}
	return ahead, json.Unmarshal(body, v)
}

// readMetrics reads a metrics page.
func readMetrics(ctx context.Context, client *http.Client, url string) (metric.Samples, error) {
	body, _, err := request(ctx, client, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	return metric.Read(bytes.NewReader(body))
}
