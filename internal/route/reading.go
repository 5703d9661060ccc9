package route

import (
	"slices"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
)

// Reading is the content of a prompt as it was read for the decision about its decode worker. The decision about its prefill worker uses
// it, so that the prompt is parsed, rendered and tokenized once. The zero value is empty. It refers to nothing of the request's body.
type Reading struct {
	model  *model // a reload of the configuration makes others
	tokens int
	batch  batch
	blocks []blockhash.Block

	stream, includeUsage bool
	maxTokens            int
}

// keep fills the reading of a request whose decision is split. A prompt without a complete block is not kept: reading it again
// takes less time.
func (req *Request) keep(q *asked, d *Decision) {
	if req.Reading == nil || req.Role != fleet.Aggregated {
		return
	}
	*req.Reading = Reading{}
	if !d.Split || len(q.blocks) == 0 {
		return
	}
	*req.Reading = Reading{
		model: q.model, tokens: q.tokens, batch: q.batch, blocks: slices.Clone(q.blocks),
		stream: d.Stream, includeUsage: d.IncludeUsage, maxTokens: d.MaxTokens,
	}
}

// reuse fills q and d as [Router.read] does, from a reading.
func (q *asked) reuse(req *Request, k *Reading, d *Decision) *refusal {
	q.reset()
	q.model = k.model
	q.batch = k.batch
	q.tokens = k.tokens
	q.blocks = append(q.blocks, k.blocks...)
	q.hints = readHints(req, nil)
	c := q.model.choice(q.role)
	q.policyName, q.policy = c.Policy, c.picker
	q.policyInput = q.hints.policyInput(d.Session)
	q.session = sessionHash(d.Session)
	q.mayWait = q.model.Queue != nil && req.Ready != nil

	d.Model, d.Pool = k.model.name, k.model.Pool
	d.Role, d.Policy = q.role, q.policyName
	d.PromptTokens, d.BlockSize = k.tokens, k.model.BlockSize
	d.Stream, d.IncludeUsage = k.stream, k.includeUsage
	d.MaxTokens = k.maxTokens
	q.outputTokens = q.boundOutput(q.outputTokens, d.MaxTokens)
	return q.refusalOf(req)
}
