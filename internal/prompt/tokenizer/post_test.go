package tokenizer

import (
	"slices"
	"strings"
	"testing"
)

// object is a part of a tokenizer.json.
type object = map[string]any

// templateProcessing returns a TemplateProcessing with the given pieces: "$A" is the text, and any other piece
// is a special token.
func templateProcessing(pieces ...string) object {
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

// TestPostProcessors checks the special tokens before and after a text for each kind of post-processor.
func TestPostProcessors(t *testing.T) {
	for name, c := range map[string]struct {
		processor     object
		before, after []uint32
	}{
		"none":     {nil, nil, nil},
		"bytes":    {object{"type": "ByteLevel"}, nil, nil},
		"around":   {templateProcessing("<s>", "$A", "</s>"), []uint32{1}, []uint32{2, 3}},
		"sequence": {object{"type": "Sequence", "processors": []any{templateProcessing("<s>", "$A"), templateProcessing("$A", "</s>")}}, []uint32{1}, []uint32{2, 3}},
	} {
		loaded, err := Load(smallFile(t, func(f map[string]any) { f["post_processor"] = c.processor }))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !slices.Equal(loaded.Before(), c.before) || !slices.Equal(loaded.After(), c.after) {
			t.Errorf("%s: %v before and %v after the text, want %v and %v", name, loaded.Before(), loaded.After(), c.before, c.after)
		}
	}
}

// TestPostProcessorErrors checks that templates without exactly one text or with an unknown token are refused.
func TestPostProcessorErrors(t *testing.T) {
	other := templateProcessing("$A")
	other["single"] = []any{object{"Sequence": object{"id": "B"}}}

	for want, processor := range map[string]object{
		"post_processor template contains the text 0 times":                    templateProcessing("<s>"),
		"post_processor template contains the text 2 times":                    templateProcessing("$A", "$A"),
		`post_processor names "<x>", which is not among its special_tokens`:    templateProcessing("<x>", "$A"),
		"post_processor template has a piece that is neither the text":         other,
		`post_processor "Roberta" is not supported; ByteLevel and TemplatePro`: {"type": "Sequence", "processors": []any{object{"type": "Roberta"}}},
	} {
		_, err := Load(smallFile(t, func(f map[string]any) { f["post_processor"] = processor }))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}
