package sim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// Source gives arrivals one after another, in order; false says that there are no more. An error
// names the line at fault.
type Source = func() (a Arrival, ok bool, err error)

// Format is how a trace is written.
type Format string

// The formats. Generated arrivals have no file.
const (
	FormatMooncake  Format = "mooncake"  // JSON lines of lengths and block ids
	FormatAzure     Format = "azure"     // CSV of lengths
	FormatAgent     Format = "agent"     // JSON lines of text, by session
	FormatDecisions Format = "decisions" // JSON lines of a router's decisions
	FormatGenerate  Format = "generate"
)

// ParseFormat is the format of that name.
func ParseFormat(name string) (Format, error) {
	switch f := Format(name); f {
	case FormatMooncake, FormatAzure, FormatAgent, FormatDecisions, FormatGenerate:
		return f, nil
	}
	return "", fmt.Errorf("trace format %q is unknown: use mooncake, azure, agent, decisions or generate", name)
}

// DetectFormat tells a trace's format by how it begins, a few hundred bytes of it.
func DetectFormat(head []byte) (Format, error) {
	head = bytes.TrimLeft(bytes.TrimPrefix(head, []byte("\xef\xbb\xbf")), " \t\r\n")
	if len(head) == 0 {
		return "", fmt.Errorf("detect trace format: it is empty")
	}
	if strings.HasPrefix(strings.ToLower(string(head[:min(len(head), 64)])), "timestamp,") {
		return FormatAzure, nil
	}
	d := json.NewDecoder(bytes.NewReader(head))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return "", fmt.Errorf("detect trace format: it begins neither with a JSON object nor with a header TIMESTAMP,ContextTokens,GeneratedTokens")
	}
	// A value may be longer than the head: the keys before it have been seen then.
	for depth := 0; depth >= 0; {
		t, err := d.Token()
		if err != nil {
			break
		}
		switch t {
		case json.Delim('{'), json.Delim('['):
			depth++
		case json.Delim('}'), json.Delim(']'):
			depth--
		case "input_length", "hash_ids":
			return FormatMooncake, nil
		case "decision", "end":
			return FormatDecisions, nil
		case "input":
			return FormatAgent, nil
		}
	}
	return "", fmt.Errorf("detect trace format: its first object has neither input_length and hash_ids, nor input, nor decision: name the format")
}

// maxTraceTime bounds how long a trace may last.
const maxTraceTime = 100 * 365 * 24 * time.Hour

// since is the time of a row, counted in units; it is refused where no trace lasts so long.
func since(count float64, unit time.Duration) (time.Duration, error) {
	if v := count * float64(unit); v >= 0 && v <= float64(maxTraceTime) {
		return time.Duration(v), nil
	}
	return 0, fmt.Errorf("timestamp %v: it must be from 0 to %.0f", count, float64(maxTraceTime)/float64(unit))
}

// Take is the first n arrivals of a source.
func Take(n int, next Source) Source {
	return func() (Arrival, bool, error) {
		if n--; n < 0 {
			return Arrival{}, false, nil
		}
		return next()
	}
}

// stretch is a run of tokens: so many of the sequence that id names, equal for equal ids whatever the length.
type stretch struct {
	id     uint64
	length int
}

// stretches is a prompt put together of stretches.
type stretches []stretch

// Append appends the tokens.
func (s stretches) Append(dst []uint32) []uint32 {
	for _, x := range s {
		for i := range x.length {
			dst = append(dst, token(x.id, i))
		}
	}
	return dst
}
