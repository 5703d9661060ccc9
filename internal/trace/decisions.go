package trace

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/stator-project/stator/internal/decisionlog"
)

// Logged is a request of a decision log.
type Logged struct {
	ID, Model string
	Arrival
}

// decided is a request of a decision log that is being read.
type decided struct {
	id        string
	time      time.Time // of its arrival
	prompt    Segments
	session   string
	model     string
	stream    bool
	maxTokens int // 0 if the client set no bound
	output    int // tokens of the answer; 0 if its end is not in the log
}

// maxDecisions bounds a log. All of it is held in memory, because the end of a request is some lines
// below its decision.
const maxDecisions = 1 << 20

// Decisions reads a decision log as a trace of the requests that were made. Prompts that were equal up to
// one of the logged hashes are equal up to there. It returns the number of arrivals, too. Requests whose
// prompt was not read, and requests that no fleet could serve, are left out.
//
// Only the log of a shadow has the number of tokens of an answer. Else it is estimated from the bytes of the answer and
// the bytes of a token in vLLM's answers, and is at most the client's bound. If the end of a request is
// missing, or has no bytes because a shadow has not seen them, it is the client's bound, or 200.
//
// The fleet is the one that the decisions show.
func Decisions(r io.Reader) (next Source, n int, f Fleet, err error) {
	seen := fleetSeen{ranks: map[seenRank]bool{}}
	list, err := ReadDecisions(r, func(l *decisionlog.Line) error {
		seen.add(l.Decision)
		return nil
	})
	if err != nil {
		return nil, 0, Fleet{}, err
	}
	arrivals := make([]Arrival, len(list))
	for i := range list {
		arrivals[i] = list[i].Arrival
	}
	return List(arrivals), len(arrivals), seen.fleet, nil
}

// ReadDecisions is Decisions with the ids and the models of the requests, in order of their arrivals. Each receives every decision and
// every end of the log, and must not keep the line. Its errors end the reading.
func ReadDecisions(r io.Reader, each func(*decisionlog.Line) error) ([]Logged, error) {
	list, err := readDecisions(r, each)
	if err != nil {
		return nil, err
	}
	if len(list) == 0 {
		return nil, errors.New("read decision log: it has no decision whose prompt was read")
	}

	slices.SortStableFunc(list, func(a, b *decided) int { return a.time.Compare(b.time) })
	first, last := list[0].time, list[len(list)-1].time
	if last.Sub(first) > maxTraceTime {
		return nil, fmt.Errorf("read decision log: it spans %s to %s, more than 100 years", first.Format(time.DateOnly),
			last.Format(time.DateOnly))
	}

	out := make([]Logged, len(list))
	for i, d := range list {
		out[i] = Logged{d.id, d.model, Arrival{At: d.time.Sub(first), Prompt: d.prompt, Session: d.session, Output: d.answerTokens()}}
	}
	return out, nil
}

func readDecisions(r io.Reader, each func(*decisionlog.Line) error) ([]*decided, error) {
	log := decisionlog.NewReader(r)
	var list []*decided
	byID := map[string]*decided{}
	for {
		line, err := log.Next()
		if errors.Is(err, io.EOF) && len(list) == 0 && log.Skipped() > 0 {
			return nil, log.Errorf("it has no decision, and %d lines that are not JSON", log.Skipped())
		}
		if errors.Is(err, io.EOF) {
			return list, nil
		}
		if err != nil {
			return nil, err
		}

		if err := each(&line); err != nil {
			return nil, log.Errorf("%w", err)
		}
		if line.End != nil {
			d := byID[line.End.ID]
			if d != nil && (line.End.ResponseBytes > 0 || line.End.OutputTokens > 0 || line.End.Outcome != unconfirmed) {
				d.output = cmp.Or(max(0, line.End.OutputTokens), d.estimateTokens(line.End.ResponseBytes))
			}
			delete(byID, line.End.ID)
			continue
		}
		d, err := requestOf(&line, uint64(log.Line()))
		if err != nil {
			return nil, log.Errorf("%w", err)
		}
		if d == nil {
			continue
		}
		if len(list) == maxDecisions {
			return nil, log.Errorf("%w: a log may have %d decisions", errTooLarge, maxDecisions)
		}
		list = append(list, d)
		byID[line.Decision.ID] = d
	}
}

// unconfirmed is the outcome of requests whose end was not seen as a whole.
const unconfirmed = "unconfirmed"

// firstRetryable is the lowest HTTP status of refusals that another fleet might not have made.
const firstRetryable = 429

// requestOf returns the request of a decision, or nil for one that is left out. number is the line's, and
// makes the tokens that are in no block unique.
func requestOf(line *decisionlog.Line, number uint64) (*decided, error) {
	d := line.Decision
	if d.PromptTokens == 0 || d.OfPrefill() || d.Error != nil && d.Error.Status < firstRetryable {
		return nil, nil
	}
	if d.PromptTokens < 0 || d.PromptTokens > maxRowTokens || d.Blocks < 0 || d.BlockSize < 1 || d.Blocks > d.PromptTokens/d.BlockSize ||
		d.MaxTokens < 0 {
		return nil, fmt.Errorf("%d prompt tokens in %d blocks of %d: they do not agree", d.PromptTokens, d.Blocks, d.BlockSize)
	}
	if line.HashEvery < 1 || len(line.Hashes) != (d.Blocks+line.HashEvery-1)/line.HashEvery {
		return nil, fmt.Errorf("%d hashes, one for %d blocks, do not name %d blocks", len(line.Hashes), line.HashEvery, d.Blocks)
	}

	request := &decided{id: d.ID, time: d.At, session: d.Session, model: d.Model, stream: d.Stream, maxTokens: d.MaxTokens}
	if d.Queue != nil && !d.Queue.Since.IsZero() {
		request.time = d.Queue.Since
	}

	left := d.Blocks
	for _, h := range line.Hashes {
		n := min(line.HashEvery, left)
		request.prompt = append(request.prompt, Segment{uint64(h), n * d.BlockSize})
		left -= n
	}
	if rest := d.PromptTokens - d.Blocks*d.BlockSize; rest > 0 {
		request.prompt = append(request.prompt, Segment{number<<tagBits | tagDecision, rest})
	}
	return request, nil
}

// The bytes of vLLM's answers.
const (
	bytesPerEvent  = 230.0 // of an event with one token, besides the model's name
	bytesPerToken  = 4.5   // of text, if the answer is not streamed
	bytesPerAnswer = 500.0 // around the text, if the answer is not streamed

	// defaultAnswer is the length of an answer without an end and without a bound.
	defaultAnswer = 200
)

// estimateTokens returns the number of tokens of an answer of so many bytes, at least 1.
func (d *decided) estimateTokens(bytes uint64) int {
	tokens := float64(bytes) / (bytesPerEvent + float64(len(d.model)))
	if !d.stream {
		tokens = (float64(bytes) - bytesPerAnswer) / bytesPerToken
	}

	n := int(min(max(tokens, 1), maxRowTokens))
	if d.maxTokens > 0 {
		n = min(n, d.maxTokens)
	}
	return n
}

func (d *decided) answerTokens() int {
	return min(cmp.Or(d.output, d.maxTokens, defaultAnswer), maxRowTokens)
}
