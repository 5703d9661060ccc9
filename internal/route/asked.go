package route

import (
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/prompt/openai"
	"github.com/stator-project/stator/internal/route/cost"
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

// anyModel serves requests that name no model on a path that is not parsed.
var anyModel = &model{
	ModelConfig: ModelConfig{BlockSize: DefaultBlockSize},
	all:         choice{Choice{Policy: pick.LeastLoaded, Cost: cost.Default()}, must(pick.New(pick.LeastLoaded, 0))},
}

func must(p pick.Policy, err error) pick.Policy {
	if err != nil {
		panic(err) // pick.LeastLoaded exists, so this cannot happen
	}
	return p
}

// read parses the request, finds its model and policy, and renders and tokenizes its prompt. It writes its findings into d,
// even if it refuses the request.
func (r *Router) read(w *workspace, q *asked, req *Request, d *Decision) *refusal {
	q.reset()
	d.Model = req.Model
	if req.SaltKey != nil && !req.Known {
		d.CacheSalt = tenantSalt(req.SaltKey, req.Tenant, "")
	}
	if req.Known {
		parsed, err := req.parse(&w.parsed)
		if err != nil {
			d.Model = clip(d.Model)
			return refuseError(err)
		}
		if req.SaltKey != nil {
			parsed.CacheSalt = tenantSalt(req.SaltKey, req.Tenant, parsed.CacheSalt)
			d.CacheSalt = parsed.CacheSalt
		}
		q.parsed = parsed
		d.Model, d.MaxTokens = parsed.Model, parsed.MaxTokens
		d.Stream, d.IncludeUsage = parsed.Stream, parsed.IncludeUsage
	}

	q.model = r.model(d.Model, req.Known)
	if q.model == nil {
		d.Model = clip(d.Model)
		return refuse(ReasonModelNotFound, nil, 0, d.Model, "")
	}
	if q.model != anyModel {
		d.Pool = q.model.Pool
		d.Model = q.model.name // not the request's string, which may pin its body
	}

	q.hints = readHints(req, q.parsed)
	q.batch = batchOf(q.parsed)
	if q.role == fleet.Aggregated && len(r.fleet.Snapshot().Pool(q.model.Pool, fleet.Decode)) > 0 {
		q.role = fleet.Decode
	}
	d.Role = q.role
	c := q.model.choice(q.role)
	q.policyName, q.policy = c.Policy, c.policy
	q.policyInput = q.hints.policyInput(d.Session)
	q.session = sessionHash(d.Session)
	if q.model.Prompt == nil || !req.Known || req.Endpoint == prompt.Embeddings {
		q.routeByLoad() // embeddings leave nothing in a cache that a later request could use
	}
	q.mayWait = q.model.Queue != nil && req.Ready != nil

	w.prompt.Done = req.Done
	if err := q.prepare(&w.prompt, d); err != nil {
		d.Policy = q.policyName
		return refuseError(err)
	}
	if w.prompt.Unread {
		r.counts.unread.Add(1)
		q.routeByLoad()
	}
	d.BlockSize, d.Policy = q.model.BlockSize, q.policyName
	q.outputTokens = q.boundOutput(q.outputTokens, d.MaxTokens)
	q.choosesLegs = req.Role == fleet.Aggregated && q.role == fleet.Decode
	q.splits = q.choosesLegs && (q.isSplittable() || req.Splits && !req.Known)
	q.remote = q.splits || req.Role == fleet.Decode
	d.Split = q.splits
	return q.refusalOf(req)
}

// refusalOf refuses a request, after it was read, if its client has left or a required hint is missing.
func (q *asked) refusalOf(req *Request) *refusal {
	if req.isDone() {
		return refuse(ReasonCancelled, nil, 0)
	}
	if q.policyName == pick.Direct && q.worker == "" {
		return refuse(ReasonWorkerRequired, nil, 0)
	}
	return nil
}

// routeByLoad leaves the prompt out of the decision.
func (q *asked) routeByLoad() {
	q.policyName, q.policy = pick.LeastLoaded, anyModel.all.policy
	q.parsed = nil
}

// model returns the model of that name, or nil. A request that names none on a path that is not parsed
// may go to any worker.
func (r *Router) model(name string, known bool) *model {
	m := (*r.models.Load())[name]
	if m == nil && name == "" && !known {
		return anyModel
	}
	return m
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

// maxOutput bounds the expected length of an answer, in tokens, even if the model's context length is not known.
const maxOutput = 131_072

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

// costFunction is the model's cost function with the weights that the request overrides. The changed
// copy lies in j.
func (q *asked) costFunction(j *judged) cost.Function {
	function := q.model.choice(q.role).Cost
	if !q.overlapWeight.Set && !q.prefillLoadScale.Set {
		return function
	}

	switch f := function.(type) {
	case *cost.Weights:
		j.weights = *f
		overrideIf(&j.weights.Overlap, q.overlapWeight.Value, q.overlapWeight.Set)
		overrideIf(&j.weights.PrefillLoadScale, q.prefillLoadScale.Value, q.prefillLoadScale.Set)
		return &j.weights
	case *cost.Delay: // it learns how much prefill weighs, so only the worth of cached tokens changes
		j.delay = *f
		if q.overlapWeight.Set {
			for t := range j.delay.Tier {
				j.delay.Tier[t] *= q.overlapWeight.Value
			}
		}
		return &j.delay
	}
	return function
}

// isSplittable reports whether a prefill worker can compute the prompt. Engines transfer one prompt, for one answer. Answers with
// the prompt, or with its probabilities, need the worker that has computed it.
func (q *asked) isSplittable() bool {
	return q.parsed != nil && q.batch.sequences == 1 && !q.parsed.PromptLogprobs && q.parsed.Facts&openai.Echo == 0
}
