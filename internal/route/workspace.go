package route

import (
	"math/rand/v2"

	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/internal/prompt"
)

// workspace is the memory of one decision, which the next decision uses again.
//
// A decision hands on three values, in this order: the request as it was asked, the field of ranks
// that may take it, and the candidates as they were judged. Each is filled by one function and only
// read by those after it. They lie here, and not on the stack, because their slices grow.
//
// A workspace belongs to one goroutine between acquire and release.
type workspace struct {
	rng     *rand.Rand
	prompt  prompt.Prompt   // buffers of Preparer.Prepare
	overlap kvindex.Overlap // of the prompt with every rank's cache
	asked   asked
	field   field
	judged  judged
}

// maxKept is how many bytes of a prompt's buffers survive a decision. One giant prompt must not pin
// its memory forever.
const maxKept = 4 << 20

// acquire returns a workspace for one decision. Idle ones form a stack, and not a sync.Pool: a single
// caller always gets the same workspace, so a simulation draws the same random numbers each time.
func (r *Router) acquire() *workspace {
	r.mu.Lock()
	defer r.mu.Unlock()

	if n := len(r.idle); n > 0 {
		w := r.idle[n-1]
		r.idle = r.idle[:n-1]
		return w
	}

	r.made++
	return &workspace{rng: rand.New(rand.NewPCG(r.cfg.Seed, r.made))}
}

// release drops what refers to the request and keeps the buffers for the next decision.
func (r *Router) release(w *workspace) {
	w.asked.reset()
	if cap(w.prompt.Text)+4*cap(w.prompt.Tokens)+8*cap(w.asked.blocks) > maxKept {
		w.prompt, w.asked = prompt.Prompt{}, asked{}
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	r.idle = append(r.idle, w)
}
