package scenario

import (
	"fmt"
	"net/http"
	"testing"
)

// unreadPath is a path whose bodies routers do not parse.
const unreadPath = "/v1/rerank"

// servedBy sends requests to the unread path, and returns the worker that got all of them; nil if several did.
func (e *edge) servedBy(workers []*backend, times int, body string, headers ...string) *backend {
	e.t.Helper()
	var first *backend
	same := true
	for range times {
		before := map[*backend]int{}
		for _, w := range workers {
			before[w] = len(w.got())
		}
		r, err := e.send(e.t.Context(), http.MethodPost, unreadPath, []byte(body), headers...)
		if err != nil || r.status != http.StatusOK {
			e.t.Fatalf("status %d, %v: %s %v", r.status, err, body, headers)
		}
		for _, w := range workers {
			if len(w.got()) == before[w] {
				continue
			}
			if first == nil {
				first = w
			}
			same = same && w == first
		}
	}
	if !same {
		return nil
	}
	return first
}

// TestSessionsStayUnread: requests whose prompts are not read stay on the worker of their session, wherever their client names it, with the
// policy kv. Idle workers take turns in the others. Engines get the session where vLLM reads it.
func TestSessionsStayUnread(t *testing.T) {
	t.Parallel()
	workers := []*backend{startBackend(t, nil), startBackend(t, nil)}
	e := startEdge(t, true, "", simModel("sim", workers...))
	if e.servedBy(workers, 8, `{"query":"x"}`) != nil {
		t.Error("idle workers do not take turns in requests without a session")
	}

	for _, c := range []struct {
		body, name, value string
		want              string // the engine's x-session-id
	}{
		{`{"q":1}`, "x-session-id", "s1", "s1"},
		{`{"q":1}`, "x-claude-code-session-id", "s2", "s2"},
		{`{"q":1}`, "session-id", "s3", "s3"},
		{`{"q":1}`, "session_id", "s4", "s4"},
		{`{"q":1}`, "x-session-affinity", "s5", "s5"},
		{`{"prompt_cache_key":"s6"}`, "x-none", "s", "s6"},
		{`{"metadata":{"user_id":"user_1_session_7"}}`, "x-none", "s", "user_1_session_7"},
		{`{"nvext":{"agent_context":{"session_id":"s8"}}}`, "x-none", "s", "s8"},
		{`{"session_id":"s9","safety_identifier":"u"}`, "x-none", "s", ""}, // vLLM reads it in the body
		{`{"prompt_cache_key":"k"}`, "session-id", "s10", "s10"},
		{`{"prompt_cache_key":"a\r\nx-evil: 1"}`, "x-none", "s", ""},
	} {
		worker := e.servedBy(workers, 5, c.body, c.name, c.value)
		if worker == nil {
			t.Errorf("%s, %s: %s: the session was on two workers", c.body, c.name, c.value)
			continue
		}
		list := worker.got()
		last := list[len(list)-1]
		if got := last.header.Get("x-session-id"); got != c.want || last.body != c.body || last.header.Get("x-evil") != "" {
			t.Errorf("%s, %s: %s: the engine got the session %q, want %q, and %s", c.body, c.name, c.value, got, c.want, last.body)
		}
	}

	used := map[*backend]bool{}
	for i := range 16 {
		used[e.servedBy(workers, 1, `{"q":1}`, "session-id", fmt.Sprint("many ", i))] = true
	}
	if len(used) != len(workers) {
		t.Error("16 sessions are on one worker")
	}
}

// TestSessionsWithoutARouter: while no router answers, Envoy keeps a session on one worker by any header of the list, the first one of a
// request.
func TestSessionsWithoutARouter(t *testing.T) {
	t.Parallel()
	workers := []*backend{startBackend(t, nil), startBackend(t, nil)}
	e := startEdge(t, false, `decisionTimeout: 500ms, sessions: ["header:x-mine", "body:prompt_cache_key", "header:session-id"]`,
		simModel("sim", workers...))
	used := map[*backend]bool{}
	for i := range 12 {
		session := fmt.Sprint("session ", i)
		mine := e.servedBy(workers, 2, `{"q":1}`, "x-mine", session, "session-id", "one")
		codex := e.servedBy(workers, 2, `{"q":1}`, "session-id", session)
		if mine == nil || mine != codex {
			t.Errorf("%s was on two workers: %v, %v", session, mine != nil, codex != nil)
		}
		used[mine] = true
	}
	if len(used) != len(workers) {
		t.Error("12 sessions are on one worker")
	}
}
