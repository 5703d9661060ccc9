package breaks

import (
	"bytes"
	"cmp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/prompt/openai"
)

const (
	shards    = 32
	perShard  = 64
	maxPlaces = 32
	// leastBroken is the least number of requests that make a place. Fewer may be chance.
	leastBroken = 3
	// forgetAfter is the time after which a place is dropped that has broken no prompt: its client was mended. A prompt that is older than
	// that may have left the caches, and none is compared with it.
	forgetAfter = time.Hour
)

// Request is a request whose prompt was read and looked up.
type Request struct {
	Model string
	// Seed is the seed of the prompt's block hashes: prompts with different seeds share no block.
	Seed uint64
	// Session is a hash of the client's session; 0 for none.
	Session  uint64
	Prompt   *prompt.Prompt
	Messages []openai.Message // empty for a completion
	// Cached is the greatest number of tokens from the prompt's beginning that a rank has in its cache.
	Cached int
	At     time.Time
}

// Place is a place in prompts that keeps caches from being hit.
type Place struct {
	Model string
	// Message is the number of the message, from 0 on, and Role its role. Role is "other" for an unusual one, "prompt" for a completion,
	// and "template" for a text that no message has: the chat template or a tool.
	Message int
	Role    string
	// Character is the number of characters before the place, in the message or the prompt, and Token the number of tokens of the prompt
	// before it, both of the first prompt that was found to differ there. Token is an estimate within its message.
	Character, Token int
	Kind             Kind
	// Broken counts the requests whose prompts differed from the one before at the place, and Tokens the tokens that were the same again
	// behind it and that no rank had in its cache.
	Broken, Tokens uint64
	// Share is Tokens as a share of the tokens of all prompts since the first of these requests.
	Share       float64
	First, Last time.Time
}

// TokensPerSecond returns the tokens that the place costs, from its first request until now.
func (p *Place) TokensPerSecond(now time.Time) float64 {
	seen := max(now.Sub(p.First), time.Minute)
	return float64(p.Tokens) / seen.Seconds()
}

// Watch compares prompts. Create it with [New].
type Watch struct {
	seed   uint64
	shards [shards]shard
	tokens atomic.Uint64 // of all prompts

	mu     sync.Mutex
	places []place // guarded by mu
}

// place is a Place with its identity: the line at which it is, and the tokens of all prompts at its first request.
type place struct {
	Place
	line   int
	before uint64
}

// shard has a part of the families.
type shard struct {
	mu       sync.Mutex
	families map[uint64]*family // guarded by mu
	turn     uint64             // guarded by mu
}

// family has the last prompt of a family.
type family struct {
	sketch sketch
	at     time.Time // of the prompt
	used   uint64    // the turn of its shard
}

// New returns a Watch. The seed starts its hashes, and should be random: a client that knew it could make lines with one hash.
func New(seed uint64) *Watch {
	w := &Watch{seed: seed}
	for i := range w.shards {
		w.shards[i].families = map[uint64]*family{}
	}
	return w
}

// Observe compares a prompt with the last ones of its families, and counts the place at which it differs.
func (w *Watch) Observe(r *Request) {
	w.tokens.Add(uint64(len(r.Prompt.Tokens)))
	if len(r.Prompt.Tokens) < leastTokens || len(r.Prompt.Text) == 0 {
		return
	}
	var c reading
	c.read(r.Prompt, w.seed)
	if c.anchor == 0 {
		return
	}

	key := c.anchor ^ r.Seed*0x9e3779b97f4a7c15
	counted := r.Session != 0 && w.compare(r, &c, key^r.Session*0xbf58476d1ce4e5b9, inSession)
	if counted {
		w.compare(r, &c, key, isCounted)
	} else {
		w.compare(r, &c, key, inFamily)
	}
}

// relation is the relation of a prompt to the one that it is compared with.
type relation uint8

const (
	inFamily  relation = iota
	inSession          // of one session
	isCounted          // any, but the prompt is counted already
)

// compare compares a prompt with the last one of a family and takes its place. It reports whether a difference was counted.
func (w *Watch) compare(r *Request, c *reading, key uint64, how relation) bool {
	s := &w.shards[key%shards]
	s.mu.Lock()
	defer s.mu.Unlock()
	f, known := s.family(key)
	old := f.at
	defer func() { f.sketch, f.at = c.sketch, r.At }()
	c.at = -1
	if !known || r.At.Sub(old) > forgetAfter {
		return false
	}
	d, found := c.compare(&f.sketch)
	if !found {
		c.keepWords(&f.sketch)
		return false
	}
	c.readWords(d.line, w.seed)
	if int(f.sketch.at) != d.line {
		return false // the words of the older prompt are not known
	}
	differs, found := c.differing(d.line, &f.sketch)
	if !found || how == isCounted {
		return false
	}

	kind := kindOf(differs.text, c.line(d.line))
	lost := d.end - max(c.inTokens(differs.at), r.Cached)
	if lost < leastTokens || kind == Other && how != inSession {
		return false
	}
	w.count(r, c, d, differs, kind, lost)
	return true
}

// family returns a family, and whether it was known. In a full shard a new one takes the memory of the family that was not used for
// longest. The shard must be locked.
func (s *shard) family(key uint64) (f *family, known bool) {
	s.turn++
	f, known = s.families[key]
	switch {
	case known:
	case len(s.families) < perShard:
		f = new(family)
		s.families[key] = f
	default:
		oldest := key
		for k, other := range s.families {
			if f == nil || other.used < f.used {
				oldest, f = k, other
			}
		}
		delete(s.families, oldest)
		s.families[key] = f
	}
	f.used = s.turn
	return f, known
}

// count counts a request that is broken at a place.
func (w *Watch) count(r *Request, c *reading, d difference, differs word, kind Kind, lost int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.forget(r.At)
	i := slices.IndexFunc(w.places, func(p place) bool { return p.line == d.line && p.Kind.isLike(kind) && p.Model == r.Model })
	if i < 0 {
		if len(w.places) == maxPlaces {
			return
		}
		i = len(w.places)
		p := place{line: d.line, before: w.tokens.Load() - uint64(len(r.Prompt.Tokens))}
		p.Place = Place{Model: r.Model, Kind: kind, First: r.At, Token: c.inTokens(differs.at)}
		p.Message, p.Role, p.Character = locate(r.Messages, c.text, differs.at)
		w.places = append(w.places, p)
	}
	p := &w.places[i]
	if kind == Hash {
		p.Kind = Hash
	}
	p.Broken++
	p.Tokens += uint64(lost)
	p.Last = r.At
}

// forget drops the places that have broken no prompt for a time. The lock must be held.
func (w *Watch) forget(now time.Time) {
	w.places = slices.DeleteFunc(w.places, func(p place) bool { return now.Sub(p.Last) > forgetAfter })
}

// Found returns the places now, the most expensive first.
func (w *Watch) Found(now time.Time) []Place {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.forget(now)
	all := w.tokens.Load()
	var list []Place
	for i := range w.places {
		p := w.places[i].Place
		if p.Broken >= leastBroken {
			p.Share = float64(p.Tokens) / float64(max(1, all-w.places[i].before))
			list = append(list, p)
		}
	}
	slices.SortFunc(list, func(a, b Place) int { return cmp.Compare(b.Tokens, a.Tokens) })
	return list
}

// locateBytes is the most text by which a message is searched.
const locateBytes = 64

// locate finds the message that has the text from a byte on, and the characters before it.
func locate(messages []openai.Message, text []byte, at int) (message int, role string, character int) {
	if len(messages) == 0 {
		return 0, "prompt", utf8.RuneCount(text[:at])
	}
	part, _, _ := bytes.Cut(text[at:min(len(text), at+locateBytes)], []byte("\n"))
	part, _, _ = bytes.Cut(part, []byte("<|")) // a special token of most templates
	for i := range messages {
		m := &messages[i]
		if before, found := charactersBefore(m.Content, part); found {
			return i, roleOf(m), before
		}
		earlier := 0
		for j := range m.Parts {
			if before, found := charactersBefore(m.Parts[j].Text, part); found {
				return i, roleOf(m), earlier + before
			}
			earlier += utf8.RuneCountInString(m.Parts[j].Text)
		}
	}
	return 0, "template", utf8.RuneCount(text[:at])
}

// roleOf returns the role of a message, without its memory: that is the body of the request, which is used again. A client may choose any
// role, so one that is not usual is "other".
func roleOf(m *openai.Message) string {
	for _, role := range []string{"system", "developer", "user", "assistant", "tool", "function"} {
		if m.Role == role {
			return role
		}
	}
	return "other"
}

// charactersBefore returns the number of characters of text before a part of it.
func charactersBefore(text string, part []byte) (int, bool) {
	at := strings.Index(text, string(part))
	if at < 0 {
		return 0, false
	}
	return utf8.RuneCountInString(text[:at]), true
}
