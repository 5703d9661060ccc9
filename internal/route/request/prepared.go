package request

import (
	"strings"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/prompt/openai"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/learned"
	"github.com/stator-project/stator/internal/route/pick"
	"github.com/stator-project/stator/internal/route/serving"
)

// Prepared is a request after it was read: its model, its hints and its prompt. The router fills it from a [Request], or from what its
// queue has kept of one. The steps after that only read it.
type Prepared struct {
	Asked
	Model *serving.Model
	// Parsed is nil for a request that is routed by load alone. Its strings alias the body, or memory that the next
	// request uses again.
	Parsed *prompt.Request

	PolicyInput pick.Request

	// Dry is Request.Dry.
	Dry bool
	// Remote means that a prefill worker should compute the prompt, or has done so.
	Remote bool

	// Prefills has the least cost of a prefill worker for each site of free ones; empty if sites do not matter, or the prompt does not come
	// computed. Onward is the transfer that follows the work of a prefill worker; its zero value is none that depends on the worker.
	Prefills []PrefillSite
	Onward   Onward

	Tokens   int                  // of all prompts of the request
	Steps    *Steps               // of the request; nil for none, and for a request that is in the queue already
	prepared *prompt.Prompt       // the text that cut divides into blocks; nil if blocks are there already
	Blocks   []blockhash.Block    // the complete blocks of the first prompt
	Chain    []blockhash.Sequence // the sequence hashes of blocks
	Coarse   []Cut                // the same prompt in the larger blocks of some engines: one for each of the model's CoarseSizes

	// MayWait is true for a new request if its model has a queue and its caller can wait. It is false for a request
	// that is in the queue already.
	MayWait bool
}

// Asked is the part of a prepared request that its queue keeps until its turn comes, beside the blocks of its prompt.
type Asked struct {
	Hints
	Batch      Batch
	PolicyName string
	Policy     pick.Policy
	Session    uint64 // see learned.SessionHash
	// Endpoint is the API of the request; [prompt.Chat] for a path that is not read.
	Endpoint prompt.Endpoint
	// Stored means that the engine may store the answer for later requests of the session.
	Stored bool
	// ChoosesLegs means that the decision includes the choice of the worker that computes the prompt, and Splits that a prefill worker can
	// compute it.
	ChoosesLegs, Splits bool
}

// Reset forgets the request and keeps the buffers.
func (q *Prepared) Reset() {
	*q = Prepared{Blocks: q.Blocks[:0], Chain: q.Chain[:0], Coarse: q.Coarse[:0], Prefills: q.Prefills[:0]}
}

// PrefillSite is a site with prefill workers, and the cost by which the cheapest of them exceeds the cheapest one of all sites.
type PrefillSite struct {
	fleet.Site
	More float64
}

// Onward is the transfer of a prompt from a prefill worker to the decode worker: its name and place, and the tokens that it does not hold.
type Onward struct {
	Worker string
	Place  fleet.Place
	Tokens int
}

// RefusalOf refuses a request, after it was read, if its client has left or a required hint is missing.
func (q *Prepared) RefusalOf(req *Request) *decision.Refusal {
	if req.isDone() {
		return decision.Refuse(decision.ReasonCancelled, 0, 0)
	}
	if q.PolicyName == pick.Direct && q.Worker == "" {
		return decision.Refuse(decision.ReasonWorkerRequired, 0, 0)
	}
	if queue := q.Model.Queue; queue != nil && len(queue.Classes) > 0 && q.Class != "" && !queue.Has(q.Class) {
		return decision.RefuseError(openai.Invalid("nvext.router.class", "unknown_class",
			"The queue of the model `%s` has no class `%s`. Leave it out, or name one of: %s.", q.Model.Name, decision.Clip(q.Class),
			strings.Join(queue.Names(), ", ")))
	}
	return nil
}

// RouteUnread leaves the prompt, which cannot be read, out of the decision. A session stays on its worker, which may have the prompt in its
// cache, if the model's policy is for caches or sessions. Other requests go by load.
func (q *Prepared) RouteUnread() {
	switch {
	case q.PolicyInput.Session == "" || q.PolicyName != pick.KV && q.PolicyName != pick.Session:
		q.RouteByLoad()
	case q.PolicyName == pick.KV:
		q.PolicyName, q.Policy = pick.Session, pick.Sticky
	}
	q.Parsed = nil
}

// RouteByLoad leaves the prompt out of the decision.
func (q *Prepared) RouteByLoad() {
	q.PolicyName, q.Policy = pick.LeastLoaded, serving.Any.Choice(fleet.Aggregated).Picker
	q.Parsed = nil
}

// Parse returns the content of the body, which the caller may have parsed already. Else it is parsed into the
// memory of into: nothing may keep its strings without a copy.
func (req *Request) Parse(into *prompt.Request) (*prompt.Request, error) {
	if req.Parsed != nil {
		return req.Parsed, nil
	}
	return into, openai.ParseInto(into, req.Endpoint, req.Body, openai.Limits{})
}

// Prepare renders and tokenizes the prompt into buf. Without a parsed request the prompt is empty.
func (q *Prepared) Prepare(buf *prompt.Prompt, d *decision.Decision) error {
	buf.Reset()
	q.prepared = buf
	if q.Parsed == nil {
		return nil
	}

	buf.Now = d.At // some templates print the date
	if err := q.Model.Prompt.Prepare(q.Parsed, buf); err != nil {
		return err
	}
	q.Tokens = max(buf.Total, len(buf.Tokens))
	d.PromptTokens = q.Tokens
	return nil
}

// Batch has the number of prompts of a request, and the number of sequences that an engine makes of them: n for each prompt.
type Batch struct{ Prompts, Sequences int }

// maxSequences bounds the sequences of one request. No engine runs more at a time.
const maxSequences = 4096

// BatchOf returns the batch of a parsed request. A request that is not parsed counts as one sequence.
func BatchOf(parsed *prompt.Request) Batch {
	if parsed == nil {
		return Batch{1, 1}
	}
	prompts := min(max(1, len(parsed.Prompts)), maxSequences)
	answers := min(max(1, parsed.N), maxSequences)
	return Batch{prompts, min(prompts*answers, maxSequences)}
}

// BoundOutput bounds the length of the answer that a request claims to expect: by max_tokens, and by the rest of the context after the
// prompt. A client could otherwise fill every cache with blocks that it never uses.
func (q *Prepared) BoundOutput(claimed, maxTokens int) int {
	if q.Model.ContextLength > 0 {
		claimed = min(claimed, max(0, q.Model.ContextLength-q.Tokens/q.Batch.Prompts))
	}
	if maxTokens > 0 {
		claimed = min(claimed, maxTokens)
	}
	return min(claimed, learned.MaxAnswer)
}

// AnswerBlocks returns the number of blocks that answers of known length occupy: half of their blocks, which is the mean over the time in
// which they grow. Answers of unknown length add nothing.
func (q *Prepared) AnswerBlocks() int {
	return q.OutputTokens / (2 * q.Model.BlockSize) * q.Batch.Sequences
}

// IsSplittable reports whether a prefill worker can compute the prompt. Engines transfer one prompt, for one answer. Answers with
// the prompt, or with its probabilities, need the worker that has computed it.
func (q *Prepared) IsSplittable() bool {
	return q.Parsed != nil && q.Batch.Sequences == 1 && !q.Parsed.PromptLogprobs && q.Parsed.Facts&openai.Echo == 0
}

// RefuseLate refuses a request whose first token is expected after its deadline.
func RefuseLate(q *Prepared, expected time.Duration) *decision.Refusal {
	return decision.Refuse(decision.ReasonDeadline, q.Model.Busy.RefusalStatus(), decision.WholeSeconds(expected-q.Deadline),
		expected.Milliseconds(), q.Deadline.Milliseconds())
}
