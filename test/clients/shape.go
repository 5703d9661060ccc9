package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// record writes samples of bodies, a file for each.
func record(folder, name string, list []*exchange) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	for i, e := range list {
		var body any
		if err := json.Unmarshal(e.body, &body); err != nil {
			return fmt.Errorf("%s: %w", e.path, err)
		}
		sample, err := json.MarshalIndent(map[string]any{"path": e.path, "body": shape(body)}, "", " ")
		if err != nil {
			return err
		}
		file := fmt.Sprintf("%s-%02d.json", strings.ReplaceAll(strings.ToLower(name), " ", "-"), i)
		if err := os.WriteFile(filepath.Join(folder, file), append(sample, '\n'), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// shape returns a body whose texts have other words of the same number. Names, ids, types and schemas stay, and so does the line that
// Claude Code puts before its system prompt, because engines remove it.
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
		if len(words) < 4 || strings.HasPrefix(v, "x-anthropic-") {
			return v
		}
		var inner any
		if strings.HasPrefix(v, "{") && json.Unmarshal([]byte(v), &inner) == nil {
			text, _ := json.Marshal(shape(inner)) // it was JSON
			return string(text)
		}
		return strings.TrimSpace(strings.Repeat("word ", min(len(words), 60)))
	}
	return v
}
