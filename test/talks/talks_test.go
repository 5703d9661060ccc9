package talks

import "testing"

// TestTexts reads an answer of each API, and events of its stream, without the thinking.
func TestTexts(t *testing.T) {
	for i, c := range []struct{ whole, text, thinking, other string }{
		{`{"choices":[{"message":{"content":"a","reasoning":"t"}}],"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":4}}}`,
			`{"choices":[{"delta":{"content":"a"}}]}`, `{"choices":[{"delta":{"reasoning":"t"}}]}`, "[DONE]"},
		{`{"content":[{"type":"thinking","thinking":"t"},{"type":"text","text":"a"}],"usage":{"input_tokens":5,"cache_read_input_tokens":4}}`,
			`{"type":"content_block_delta","delta":{"type":"text_delta","text":"a"}}`,
			`{"type":"content_block_delta","delta":{"type":"thinking_delta","thinking":"t"}}`, `{"type":"message_stop"}`},
		{`{"response":{"output":[{"type":"reasoning","content":[{"text":"t"}]},{"type":"message","content":[{"text":"a"}]}],` +
			`"usage":{"input_tokens":9,"input_tokens_details":{"cached_tokens":4}}}}`,
			`{"type":"response.output_text.delta","delta":"a"}`, `{"type":"response.reasoning_text.delta","delta":"t"}`,
			`{"type":"response.output_item.done","item":{}}`},
	} {
		api := All("x")[i]
		if text, u, err := api.Read([]byte(c.whole)); err != nil || text != "a" || u != (Usage{9, 4}) {
			t.Errorf("%s: %q, %+v, %v", api.Name, text, u, err)
		}
		if _, _, err := api.Read([]byte(c.text)); err == nil {
			t.Errorf("%s: an answer without usage is no error", api.Name)
		}
		for data, want := range map[string][2]string{c.text: {"a", ""}, c.thinking: {"", "t"}, c.other: {"", ""}} {
			if text, thinking := api.Delta([]byte(data)); text != want[0] || thinking != want[1] {
				t.Errorf("%s: %q and %q of %s", api.Name, text, thinking, data)
			}
		}
	}
}
