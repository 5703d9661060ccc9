package speculate

import (
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/prompt/openai"
)

// Memory is a budget in bytes. An *exchange.Budget is one.
type Memory interface {
	// Reserve adds n bytes. It returns false, and adds nothing, if there is no room.
	Reserve(n int) bool
	// Free takes n reserved bytes away.
	Free(n int)
}

// Request is a request whose next turn is wanted in a cache.
type Request struct {
	// Endpoint is its API, of which [prompt.Endpoint.IsChat] is true.
	Endpoint prompt.Endpoint
	// Model is the name that the router has for its model.
	Model string
	// Body is the body as the worker gets it.
	Body []byte
	// Session and Source are the request's, as its decision keeps them.
	Session, Source string
	// Authorization is the client's header; empty for none. Engines that are started with a key need it.
	Authorization string
}

// Turn is a request and its answer. It belongs to one goroutine until its End, and then to the Sender, which frees it.
type Turn struct {
	sender   *Sender
	request  Request
	answer   answer
	memory   Memory
	reserved int
	// dropped means that the session's next request has come. It is not the turn's alone: each decision may set it.
	dropped bool // guarded by Sender.mu
}

// reserveStep is how much memory a turn reserves at a time for its answer, in bytes. Most answers need one step, and a smaller one would
// take the budget's lock for every few events.
const reserveStep = 16 << 10

// Begin returns the turn of a request whose answer begins, which is a stream or one JSON text. It is nil if memory has no room.
func (s *Sender) Begin(r Request, stream bool, memory Memory) *Turn {
	size := len(r.Body) + reserveStep
	if !memory.Reserve(size) {
		s.count(r.Model, noRoom)
		return nil
	}
	return &Turn{sender: s, request: r, answer: newAnswer(r.Endpoint, stream), memory: memory, reserved: size}
}

// Write reads the next bytes of the answer, as the client gets them. A nil turn ignores them.
func (t *Turn) Write(piece []byte) {
	if t == nil {
		return
	}
	a := &t.answer
	for used := len(t.request.Body) + a.size + len(a.held) + len(piece); used > t.reserved && !a.large; t.reserved += reserveStep {
		a.large = !t.memory.Reserve(reserveStep)
		if a.large {
			return
		}
	}
	a.write(piece)
}

// End ends the answer, and has the next turn computed if the answer is whole. A nil turn has none. It is also called for an answer that
// broke off: its client asks again with the present conversation, which the worker has in its cache.
func (t *Turn) End() {
	if t == nil {
		return
	}
	whole := t.answer.end()
	t.answer.held = nil
	switch {
	case t.answer.large:
		t.sender.count(t.request.Model, noRoom)
	case whole && t.sender.enqueue(t):
		return
	}
	t.free()
}

// free gives the memory back.
func (t *Turn) free() {
	t.memory.Free(t.reserved)
	t.reserved = 0
	t.request.Body = nil
	t.answer = answer{}
}

// parse returns the content of the request's body.
func (t *Turn) parse() (*prompt.Request, error) {
	return openai.Parse(t.request.Endpoint, t.request.Body, openai.Limits{})
}
