package trace

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/stator-project/stator/internal/decisionlog"
)

// Format is the format of a trace.
type Format string

// The formats. Generated arrivals have no file.
const (
	FormatMooncake  Format = "mooncake"  // JSON lines of lengths and block ids
	FormatAzure     Format = "azure"     // CSV of lengths
	FormatAgent     Format = "agent"     // JSON lines of text, by session
	FormatWeka      Format = "weka"      // programs of agents with block ids
	FormatDecisions Format = "decisions" // a decision log
	FormatGenerate  Format = "generate"
)

// Formats returns the names of all formats.
func Formats() []string {
	return []string{
		string(FormatMooncake), string(FormatAzure), string(FormatAgent), string(FormatWeka), string(FormatDecisions),
		string(FormatGenerate),
	}
}

// ParseFormat returns the format of that name.
func ParseFormat(name string) (Format, error) {
	for _, f := range Formats() {
		if f == name {
			return Format(f), nil
		}
	}
	return "", fmt.Errorf("trace format %q is unknown: use mooncake, azure, agent, weka, decisions or generate", name)
}

// byteOrderMark begins text files of some programs.
const byteOrderMark = "\xef\xbb\xbf"

// DetectFormat returns the format of a trace that begins with head, a few hundred bytes or more.
func DetectFormat(head []byte) (Format, error) {
	head = bytes.TrimLeft(bytes.TrimPrefix(head, []byte(byteOrderMark)), " \t\r\n")
	if len(head) == 0 {
		return "", errors.New("detect trace format: it is empty")
	}
	if isAzureHeader(string(head[:min(len(head), 64)])) {
		return FormatAzure, nil
	}

	d := json.NewDecoder(bytes.NewReader(head))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return "", errors.New("detect trace format: it begins neither with a JSON object nor with a header " +
			"TIMESTAMP,ContextTokens,GeneratedTokens")
	}

	// A value may be longer than head. Decoding ends there, after the keys before it.
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
		case "decision", "end", decisionlog.Format:
			return FormatDecisions, nil
		case "block_size":
			return FormatWeka, nil
		case "input":
			return FormatAgent, nil
		}
	}
	return "", errors.New("detect trace format: its first object has neither input_length and hash_ids, nor block_size, nor input, nor " +
		"decision: name the format")
}

func isAzureHeader(line string) bool {
	return strings.HasPrefix(strings.ToLower(strings.TrimPrefix(line, byteOrderMark)), "timestamp,")
}
