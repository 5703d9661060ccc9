package tokenizer

import (
	"slices"
	"strings"
	"testing"
)

// object is a part of a tokenizer.json.
type object = map[string]any

// template returns a post-processor that puts these pieces around a text: "$A" is the text, any other a
// special token.
func template(pieces ...string) object {
	var single []any
	for _, p := range pieces {
		if p == "$A" {
			single = append(single, object{"Sequence": object{"id": "A"}})
		} else {
			single = append(single, object{"SpecialToken": object{"id": p}})
		}
	}
	return object{"type": "TemplateProcessing", "single": single, "special_tokens": object{
		"<s>": object{"ids": []int{1}}, "</s>": object{"ids": []int{2, 3}},
	}}
}

// TestPostProcessors reads the special tokens before and after a text.
func TestPostProcessors(t *testing.T) {
	for name, c := range map[string]struct {
		processor     object
		before, after []uint32
	}{
		"none":     {nil, nil, nil},
		"bytes":    {object{"type": "ByteLevel"}, nil, nil},
		"around":   {template("<s>", "$A", "</s>"), []uint32{1}, []uint32{2, 3}},
		"sequence": {object{"type": "Sequence", "processors": []any{template("<s>", "$A"), template("$A", "</s>")}}, []uint32{1}, []uint32{2, 3}},
	} {
		loaded, err := Load(small(t, func(f map[string]any) { f["post_processor"] = c.processor }))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !slices.Equal(loaded.Before(), c.before) || !slices.Equal(loaded.After(), c.after) {
			t.Errorf("%s: %v before and %v after the text, want %v and %v", name, loaded.Before(), loaded.After(), c.before, c.after)
		}
	}
}

// TestPostProcessorErrors: a template that is not for one text, or names an unknown token, is refused.
func TestPostProcessorErrors(t *testing.T) {
	other := template("$A")
	other["single"] = []any{object{"Sequence": object{"id": "B"}}}

	for want, processor := range map[string]object{
		"post_processor template holds the text 0 times":                       template("<s>"),
		"post_processor template holds the text 2 times":                       template("$A", "$A"),
		`post_processor names "<x>", which is not among its special_tokens`:    template("<x>", "$A"),
		"post_processor template for one text holds something else":            other,
		`post_processor "Roberta" is not supported; ByteLevel and TemplatePro`: {"type": "Sequence", "processors": []any{object{"type": "Roberta"}}},
	} {
		_, err := Load(small(t, func(f map[string]any) { f["post_processor"] = processor }))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}
