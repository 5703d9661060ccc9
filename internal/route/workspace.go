package route

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"time"

	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/route/eligible"
	"github.com/stator-project/stator/internal/route/request"
	"github.com/stator-project/stator/internal/route/score"
)

// workspace is the memory of one decision, which the next decision uses again.
//
// A decision hands on three values, in this order: the request as it was asked, the field of ranks that may take it, and the
// candidates as they were judged. Each is filled by one function and only read by later ones. They lie here, and not on the
// stack, because their slices grow.
//
// A workspace belongs to one goroutine between acquire and release.
type workspace struct {
	rng     *rand.Rand
	parsed  prompt.Request  // of a request that comes with its body alone
	prompt  prompt.Prompt   // buffers of Preparer.Prepare
	overlap kvindex.Overlap // of the prompt with every rank's cache
	coarse  kvindex.Overlap // of the prompt in larger blocks, before it is a part of overlap
	asked   request.Prepared
	field   eligible.Field
	judged  score.Judged
	legs    legsSpace
}

// legsSpace is the memory of chooseLegs.
type legsSpace struct {
	asked  request.Prepared
	field  eligible.Field // of prefill workers
	judged score.Judged
}

// maxKept is the number of bytes of a request's and a prompt's buffers that survive a decision. One giant prompt
// must not pin its memory forever.
const maxKept = 4 << 20

// idlePerCore is the number of idle workspaces that are kept for each of GOMAXPROCS.
const idlePerCore = 4

// workspaces are the workspaces that no decision uses.
type workspaces struct {
	most int // bound on idle
	seed uint64

	mu   sync.Mutex
	idle []*workspace // guarded by mu
	made uint64       // guarded by mu; how many were made
}

func (p *workspaces) init(seed uint64) {
	p.most, p.seed = idlePerCore*runtime.GOMAXPROCS(0), seed
}

// acquire returns a workspace for one decision. Idle ones form a stack, and not a sync.Pool: a single
// caller always gets the same workspace, so a simulation draws the same random numbers each time.
func (p *workspaces) acquire() *workspace {
	p.mu.Lock()
	defer p.mu.Unlock()

	if n := len(p.idle); n > 0 {
		w := p.idle[n-1]
		p.idle = p.idle[:n-1]
		return w
	}

	p.made++
	return &workspace{rng: rand.New(rand.NewPCG(p.seed, p.made))}
}

// release drops the references to the request and keeps the buffers for the next decision. At most so many workspaces are kept: as many
// requests may arrive at once as clients like, but only GOMAXPROCS run.
func (p *workspaces) release(w *workspace) {
	w.asked.Reset()
	w.legs.asked = request.Prepared{}
	w.parsed.Reset()
	w.prompt.Reset()
	w.prompt.Now, w.prompt.Done = time.Time{}, nil
	if w.size() > maxKept {
		w.parsed = prompt.Request{}
		w.prompt, w.asked = prompt.Prompt{}, request.Prepared{}
	}

	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.idle) < p.most {
		p.idle = append(p.idle, w)
	}
}

// size returns the number of bytes in the buffers of the request and of its prompt.
func (w *workspace) size() int {
	return w.parsed.Size() + w.prompt.Size() + w.asked.Size()
}

// mostCached returns the tokens of the prompt that the rank with the most of it has, in any tier.
func (w *workspace) mostCached(blockSize int) (tokens int) {
	for _, held := range w.overlap.Ranks() {
		blocks := 0
		for _, n := range held.Blocks {
			blocks += n
		}
		tokens = max(tokens, blocks*blockSize)
	}
	return tokens
}
