package main

import (
	"encoding/json"
	"fmt"
	"strings"
)

// sample returns a request as a line of JSON: its path, the headers that name a session, and the shape of its body.
func sample(e *exchange) ([]byte, error) {
	var body any
	if err := json.Unmarshal(e.body, &body); err != nil {
		return nil, fmt.Errorf("%s: %w", e.path, err)
	}
	line, err := json.Marshal(object{"path": e.path, "session": e.session(), "body": shape(body)})
	return append(line, '\n'), err
}

// longest bounds the words of a text in a shape.
const longest = 12

// shape returns a body whose texts have other words. Names, ids, types and schemas stay, and so does the line that Claude Code puts before
// its system prompt, because engines remove it.
func shape(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key, member := range v {
			v[key] = shape(member)
		}
	case []any:
		for i := range v {
			v[i] = shape(v[i])
		}
	case string:
		words := strings.Fields(v)
		var inner any
		if strings.HasPrefix(v, "{") && json.Unmarshal([]byte(v), &inner) == nil {
			text, _ := json.Marshal(shape(inner)) // it was JSON
			return string(text)
		}
		if len(words) < 4 || strings.HasPrefix(v, "x-anthropic-") {
			return v
		}
		return strings.TrimSpace(strings.Repeat("word ", min(len(words), longest)))
	}
	return v
}
