package sessionid

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/stator-project/stator/internal/envoynames"
	"github.com/stator-project/stator/internal/prompt/openai"
)

// Source is a place in which requests may name their session: a header, or a member of the body.
type Source struct {
	// Header is the name of a header in lower case; empty for a member.
	Header string
	// Member is the path of a member whose value is a string: its name, after the names of the objects around it.
	Member []string
}

// engineMember is the member in which vLLM reads a session, beside envoynames.HeaderSession.
const engineMember = "session_id"

// Defaults returns the default list, in the form that [Parse] reads. The headers come first, because Envoy reads them without a router.
//
// "user" is not among them. Many programs send one constant for all their users, and the requests of one session go to one worker.
func Defaults() []string {
	return []string{
		"header:" + envoynames.HeaderSession,                                           // OpenCode, vLLM
		"header:x-dynamo-session-id",                                                   // clients of Dynamo
		"header:x-claude-code-session-id",                                              // Claude Code
		"header:session-id",                                                            // Codex
		"header:session_id",                                                            // Codex, until 2025
		"header:x-session-affinity",                                                    // OpenCode
		"body:" + engineMember,                                                         // vLLM
		"body:nvext.agent_context.session_id", "body:nvext.session_control.session_id", // clients of Dynamo
		"body:prompt_cache_key",  // OpenAI, Codex
		"body:metadata.user_id",  // Anthropic: Claude Code has its session in it
		"body:safety_identifier", // OpenAI: a user
	}
}

// The bounds of a list and of its paths.
const (
	MaxSources = 32
	maxDepth   = 4
)

// Parse reads "header:NAME" or "body:MEMBER", where a dot leads into a member that is an object. It does not check the name of a header.
func Parse(text string) (Source, error) {
	kind, name, _ := strings.Cut(text, ":")
	path := strings.Split(name, ".")
	switch {
	case kind == "header" && name != "":
		return Source{Header: strings.ToLower(name)}, nil
	case kind == "body" && len(path) <= maxDepth && !slices.Contains(path, ""):
		return Source{Member: path}, nil
	}
	return Source{}, fmt.Errorf("is %q: write header:NAME or body:MEMBER, such as header:x-session-id or body:metadata.user_id", text)
}

// ParseAll reads a list whose texts [Parse] accepts.
func ParseAll(texts []string) []Source {
	list := make([]Source, 0, len(texts))
	for _, text := range texts {
		if s, err := Parse(text); err == nil {
			list = append(list, s)
		}
	}
	return list
}

// Headers returns the header of each source of a list; empty for a member.
func Headers(list []Source) []string {
	names := make([]string, len(list))
	for i := range list {
		names[i] = list[i].Header
	}
	return names
}

// Name is the name of a request's session, as far as the request was read. The zero value is the name of no session.
type Name struct {
	Text string // empty for none
	At   int    // the index of its source in the list
}

// Read takes the name from a member at the top level of the body, unless an earlier source has one. value is the text of the member's
// value. Of a repeated member the last name counts. The name does not alias the value.
func (n *Name) Read(list []Source, member string, value []byte) {
	for i := 0; i < len(list) && (n.Text == "" || i <= n.At); i++ {
		path := list[i].Member
		if len(path) == 0 || path[0] != member {
			continue
		}
		if text := textAt(value, path[1:]); text != "" {
			n.Text, n.At = text, i
			return
		}
	}
}

// IsKnownToEngine reports whether an engine finds the name in the request by itself. The list is the one by which the name was read.
func (n *Name) IsKnownToEngine(list []Source) bool {
	if n.Text == "" || n.At >= len(list) {
		return true
	}
	s := &list[n.At]
	return s.Header == envoynames.HeaderSession || len(s.Member) == 1 && s.Member[0] == engineMember
}

// textAt returns the string at a path inside a value; empty for none.
func textAt(value []byte, path []string) (text string) {
	if len(path) == 0 {
		return textOf(value)
	}
	_ = openai.EachMember(value, func(name string, from, to int) {
		if name == path[0] {
			text = textAt(openai.MemberValue(value[from:to]), path[1:])
		}
	})
	return text
}

// maxLong bounds a name, in bytes of JSON.
const maxLong = 4096

// textOf returns a copy of a string's text. Of one that is too long to be kept it returns a hash: "h:" and 16 hex digits.
func textOf(value []byte) string {
	if text := openai.ShortString(value); text != "" {
		return strings.Clone(text)
	}
	if len(value) <= maxShort || len(value) > maxLong || value[0] != '"' {
		return ""
	}
	sum := sha256.Sum256(value)
	return "h:" + hex.EncodeToString(sum[:8])
}

// maxShort is the length from which [openai.ShortString] returns no text, with the quotes.
const maxShort = 258

// HeaderValue returns the name as a header's value; empty for a name that no header can carry.
func HeaderValue(name string) string {
	for _, c := range []byte(name) {
		if c < ' ' || c > '~' {
			return ""
		}
	}
	return strings.TrimSpace(name)
}
