package route

import (
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/prompt/openai"
	"github.com/stator-project/stator/internal/route/pick"
)

// asked is a request as it was asked: its model, its hints and its prompt. [Router.read] fills it from
// a Request, and [Router.resume] from a Ticket. The steps after them only read it.
type asked struct {
	hints
	model *model
	// parsed is nil for a request that is routed by load alone. Its strings alias the body, or memory that the next
	// request uses again.
	parsed *prompt.Request

	policyName  string
	policy      pick.Policy
	policyInput pick.Request
	session     uint64 // see sessionHash

	// choosesLegs means that the decision includes the choice of the worker that computes the prompt, splits that a prefill worker can
	// compute it, and remote that a prefill worker should compute it, or has done so.
	choosesLegs, splits, remote bool

	batch    batch
	tokens   int                  // of all prompts of the request
	prepared *prompt.Prompt       // the text that cut divides into blocks; nil if blocks are there already
	blocks   []blockhash.Block    // the complete blocks of the first prompt
	chain    []blockhash.Sequence // the sequence hashes of blocks

	// mayWait is true for a new request if its model has a queue and its caller can wait. It is false for a request
	// that is in the queue already.
	mayWait bool
}

// reset forgets the request and keeps the buffers.
func (q *asked) reset() { *q = asked{blocks: q.blocks[:0], chain: q.chain[:0]} }

// refusalOf refuses a request, after it was read, if its client has left or a required hint is missing.
func (q *asked) refusalOf(req *Request) *refusal {
	if req.isDone() {
		return refuse(ReasonCancelled, 0, 0)
	}
	if q.policyName == pick.Direct && q.worker == "" {
		return refuse(ReasonWorkerRequired, 0, 0)
	}
	return nil
}

// routeByLoad leaves the prompt out of the decision.
func (q *asked) routeByLoad() {
	q.policyName, q.policy = pick.LeastLoaded, anyModel.choice(fleet.Aggregated).picker
	q.parsed = nil
}

// parse returns the content of the body, which the caller may have parsed already. Else it is parsed into the
// memory of into: nothing may keep its strings without a copy.
func (req *Request) parse(into *prompt.Request) (*prompt.Request, error) {
	if req.Parsed != nil {
		return req.Parsed, nil
	}
	return into, openai.ParseInto(into, req.Endpoint, req.Body, openai.Limits{})
}

// prepare renders and tokenizes the prompt into buf. Without a parsed request the prompt is empty.
func (q *asked) prepare(buf *prompt.Prompt, d *Decision) error {
	buf.Reset()
	q.prepared = buf
	if q.parsed == nil {
		return nil
	}

	buf.Now = d.At // some templates print the date
	if err := q.model.Prompt.Prepare(q.parsed, buf); err != nil {
		return err
	}
	q.tokens = max(buf.Total, len(buf.Tokens))
	d.PromptTokens = q.tokens
	return nil
}

// cut divides the prepared prompt into blocks and names them. It is a step apart from read because a
// request that is refused for want of ranks needs no blocks.
func (q *asked) cut() {
	if q.prepared != nil {
		salt := ""
		if q.parsed != nil {
			salt = q.parsed.CacheSalt
		}
		q.blocks = q.prepared.AppendBlocks(q.blocks[:0], q.model.BlockSize, q.model.seed(salt, q.prepared.Media))
	}
	q.chain = blockhash.Chain(q.chain[:0], q.blocks)
}

// batch has the number of prompts of a request, and the number of sequences that an engine makes of them: n for each prompt.
type batch struct{ prompts, sequences int }

// maxSequences bounds the sequences of one request. No engine runs more at a time.
const maxSequences = 4096

// batchOf returns the batch of a parsed request. A request that is not parsed counts as one sequence.
func batchOf(parsed *prompt.Request) batch {
	if parsed == nil {
		return batch{1, 1}
	}
	prompts := min(max(1, len(parsed.Prompts)), maxSequences)
	answers := min(max(1, parsed.N), maxSequences)
	return batch{prompts, min(prompts*answers, maxSequences)}
}

// boundOutput bounds the length of the answer that a request claims to expect: by max_tokens, and by the rest of the context after the
// prompt. A client could otherwise fill every cache with blocks that it never uses.
func (q *asked) boundOutput(claimed, maxTokens int) int {
	if q.model.ContextLength > 0 {
		claimed = min(claimed, max(0, q.model.ContextLength-q.tokens/q.batch.prompts))
	}
	if maxTokens > 0 {
		claimed = min(claimed, maxTokens)
	}
	return min(claimed, maxOutput)
}

// answerBlocks returns the number of blocks that answers of known length occupy: half of their blocks, which is the mean over the time in
// which they grow. Answers of unknown length add nothing.
func (q *asked) answerBlocks() int {
	return q.outputTokens / (2 * q.model.BlockSize) * q.batch.sequences
}

// isSplittable reports whether a prefill worker can compute the prompt. Engines transfer one prompt, for one answer. Answers with
// the prompt, or with its probabilities, need the worker that has computed it.
func (q *asked) isSplittable() bool {
	return q.parsed != nil && q.batch.sequences == 1 && !q.parsed.PromptLogprobs && q.parsed.Facts&openai.Echo == 0
}

// refuseLate refuses a request whose first token is expected after its deadline.
func refuseLate(q *asked, expected time.Duration) *refusal {
	return refuse(ReasonDeadline, q.model.Busy.status(), wholeSeconds(expected-q.deadline), expected.Milliseconds(), q.deadline.Milliseconds())
}
