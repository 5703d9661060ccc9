package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
)

// exchange is a request of a client with the result of its answer.
type exchange struct {
	path, decision string
	header         http.Header
	body           []byte
	status         int
	usage          *usage // nil if the answer has none
}

// usage is that of an answer.
type usage struct{ prompt, cached int }

// recorder is a proxy before a gateway that keeps the requests of clients and their answers. Create it with startRecorder.
type recorder struct {
	url  string
	stop func()

	flight    sync.WaitGroup // requests
	mu        sync.Mutex
	exchanges []*exchange // guarded by mu; requests with a body, by the ends of their answers
}

func startRecorder(gateway string) (*recorder, error) {
	to, err := url.Parse(gateway)
	if err != nil {
		return nil, err
	}
	r := &recorder{}
	proxy := &httputil.ReverseProxy{
		FlushInterval: -1,
		Rewrite:       func(p *httputil.ProxyRequest) { p.SetURL(to) },
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.flight.Add(1)
		defer r.flight.Done()
		body, err := io.ReadAll(req.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		req.Body = io.NopCloser(bytes.NewReader(body))
		if len(body) == 0 {
			proxy.ServeHTTP(w, req)
			return
		}

		e := &exchange{path: req.URL.RequestURI(), header: req.Header.Clone(), body: body}
		kept := &keeper{ResponseWriter: w}
		// Codex leaves at the last event, and the proxy then panics to abort the connection.
		defer func() {
			e.status = kept.status
			e.decision = w.Header().Get("X-Stator-Decision")
			e.usage = usageOf(kept.body.Bytes())
			r.mu.Lock()
			defer r.mu.Unlock()
			r.exchanges = append(r.exchanges, e)
		}()
		proxy.ServeHTTP(kept, req)
	}))
	r.url, r.stop = server.URL, server.Close
	return r, nil
}

// take returns the exchanges since the last call. A client may have ended before the answer to it was read to its end here.
func (r *recorder) take() []*exchange {
	r.flight.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	list := r.exchanges
	r.exchanges = nil
	return list
}

// keeper keeps a copy of an answer.
type keeper struct {
	http.ResponseWriter
	status int
	body   bytes.Buffer
}

func (k *keeper) WriteHeader(status int) {
	k.status = status
	k.ResponseWriter.WriteHeader(status)
}

func (k *keeper) Write(piece []byte) (int, error) {
	k.body.Write(piece)
	return k.ResponseWriter.Write(piece)
}

// Unwrap is for http.ResponseController, which flushes.
func (k *keeper) Unwrap() http.ResponseWriter { return k.ResponseWriter }

// usageOf returns the last usage in an answer or the events of a stream, with the names of OpenAI's and Anthropic's APIs; nil without one.
func usageOf(answer []byte) *usage {
	var last *usage
	pieces := bytes.Split(answer, []byte("\n"))
	for _, piece := range append(pieces, answer) {
		var event struct {
			Usage    *usageJSON
			Response struct{ Usage *usageJSON }
			Message  struct{ Usage *usageJSON }
		}
		if json.Unmarshal(bytes.TrimPrefix(bytes.TrimSpace(piece), []byte("data: ")), &event) != nil {
			continue
		}
		for _, u := range []*usageJSON{event.Usage, event.Response.Usage, event.Message.Usage} {
			if u != nil && u.Prompt+u.Input > 0 {
				last = u.usage()
			}
		}
	}
	return last
}

// usageJSON has the members of chats and completions, of responses, and of messages.
type usageJSON struct {
	Prompt  int `json:"prompt_tokens"`
	Details struct {
		Cached int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`

	Input        int `json:"input_tokens"`
	InputDetails struct {
		Cached int `json:"cached_tokens"`
	} `json:"input_tokens_details"`

	CacheRead int `json:"cache_read_input_tokens"`
}

// usage adds what only one of the APIs has. The input tokens of messages are those beyond the cached ones.
func (u *usageJSON) usage() *usage {
	return &usage{prompt: u.Prompt + u.Input + u.CacheRead, cached: u.Details.Cached + u.InputDetails.Cached + u.CacheRead}
}

// session returns the client's header of a session, for the table.
func (e *exchange) session() string {
	for _, name := range []string{"X-Claude-Code-Session-Id", "Session-Id", "X-Session-Affinity"} {
		if e.header.Get(name) != "" {
			return strings.ToLower(name)
		}
	}
	return ""
}
