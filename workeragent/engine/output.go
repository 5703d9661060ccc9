package engine

import (
	"regexp"
	"strings"
	"sync"
)

// Bounds of the kept output of an engine: lines, and bytes of a line.
const (
	keptLines   = 20
	maxKeptLine = 500
)

// Output keeps the end of an engine's output, how far it has loaded, and what its errors mean. All methods are safe for
// concurrent use.
type Output struct {
	mu   sync.Mutex
	tail OutputTail // guarded by mu
}

// OutputTail is the part of an engine's output that Output keeps. Its texts are from outside, apart from the remedy.
type OutputTail struct {
	// Lines are the newest lines, the newest one last.
	Lines []string
	// Phase is the engine's progress in loading; empty while that is not known.
	Phase string
	// Remedy is advice on what to change, from the first line that shows a common mistake; empty if there was none. The
	// cause comes first: after it engines print the errors of all processes that waited for the one that failed.
	Remedy string
}

// Begin forgets the output of an earlier process.
func (o *Output) Begin() {
	o.mu.Lock()
	defer o.mu.Unlock()

	o.tail = OutputTail{}
}

// Add adds a line.
func (o *Output) Add(line string) {
	o.mu.Lock()
	defer o.mu.Unlock()

	o.tail.addLine(line)
}

// Set replaces all lines by the lines of a file.
func (o *Output) Set(lines []string) {
	var tail OutputTail
	for _, line := range lines {
		tail.addLine(line)
	}

	o.mu.Lock()
	defer o.mu.Unlock()
	o.tail = tail
}

// Tail returns a copy of the kept output.
func (o *Output) Tail() OutputTail {
	o.mu.Lock()
	defer o.mu.Unlock()

	tail := o.tail
	tail.Lines = append([]string(nil), tail.Lines...)
	return tail
}

// Last returns the newest line; empty before the first.
func (t *OutputTail) Last() string {
	if len(t.Lines) == 0 {
		return ""
	}
	return t.Lines[len(t.Lines)-1]
}

func (t *OutputTail) addLine(line string) {
	if strings.TrimSpace(line) == "" {
		return
	}
	if phase, ok := phaseOf(line); ok {
		t.Phase = phase
	}
	if t.Remedy == "" {
		t.Remedy = RemedyFor(line)
	}

	if len(line) > maxKeptLine {
		line = line[:maxKeptLine] + "…"
	}
	if len(t.Lines) == keptLines {
		t.Lines = append(t.Lines[:0], t.Lines[1:]...)
	}
	t.Lines = append(t.Lines, line)
}

// phase is a stage of loading that an engine prints.
type phase struct {
	line *regexp.Regexp
	// text describes the stage. The first group of the expression, a percentage, is put after it.
	text string
}

// phases are vLLM's phases of loading, in the order in which they are printed.
var phases = []phase{
	{regexp.MustCompile(`non-default args:`), "reading the model's configuration"},
	{regexp.MustCompile(`Initializing a V1 LLM engine`), "starting its processes"},
	{regexp.MustCompile(`Starting to load model`), "loading the model"},
	{regexp.MustCompile(`Loading .*checkpoint shards: +(\d+)%`), "loading weights"},
	{regexp.MustCompile(`Loading weights took`), "weights loaded"},
	{regexp.MustCompile(`Dynamo bytecode transform time|Compiling a graph|torch\.compile takes`), "compiling"},
	{regexp.MustCompile(`KV cache size: [0-9,]+ tokens`), "KV cache allocated"},
	{regexp.MustCompile(`Capturing CUDA graphs.*?: +(\d+)%`), "capturing CUDA graphs"},
	{regexp.MustCompile(`Graph capturing finished`), "CUDA graphs captured"},
	{regexp.MustCompile(`Started server process|Waiting for application startup`), "starting its HTTP server"},
	{regexp.MustCompile(`Application startup complete`), "started"},
}

// phaseOf returns the stage that a line shows.
func phaseOf(line string) (text string, ok bool) {
	for _, p := range phases {
		found := p.line.FindStringSubmatch(line)
		switch {
		case found == nil:
		case len(found) > 1:
			return p.text + ", " + found[1] + " %", true
		default:
			return p.text, true
		}
	}
	return "", false
}
