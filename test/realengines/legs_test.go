package main

import (
	"slices"
	"testing"
)

// TestReadCompletion reads the tokens or the text of answers of all endpoints, unary ones and streams.
func TestReadCompletion(t *testing.T) {
	for _, c := range []struct {
		name, body string
		want       completion
	}{
		{
			"completion", `{"id":"cmpl-r","choices":[{"text":"ab","token_ids":[5,6]}],"usage":{"prompt_tokens_details":{"cached_tokens":32}}}`,
			completion{id: "r", ids: []uint32{5, 6}, text: "ab", usage: 32},
		},
		{
			"completion, streamed", "data: {\"id\":\"cmpl-r\",\"choices\":[{\"text\":\"a\",\"token_ids\":[5]}]}\n\n" +
				"data: {\"id\":\"cmpl-r\",\"choices\":[{\"text\":\"b\",\"token_ids\":[6]}]}\n\ndata: [DONE]\n\n",
			completion{id: "r", ids: []uint32{5, 6}, text: "ab"},
		},
		{"chat", `{"id":"chatcmpl-r","choices":[{"message":{"content":"ab"}}]}`, completion{id: "r", text: "ab"}},
		{
			"chat, streamed", "data: {\"id\":\"chatcmpl-r\",\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n" +
				"data: {\"choices\":[{\"delta\":{}}]}\n\n",
			completion{id: "r", text: "a"},
		},
		{"response", `{"id":"resp_1","output":[{"content":[{"text":"ab"}]}]}`, completion{text: "ab"}},
		{
			"response, streamed", "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"a\"}\n\n" +
				"event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"output\":[{\"content\":[{\"text\":\"a\"}]}]}}\n\n",
			completion{text: "a"},
		},
		{"message", `{"id":"chatcmpl-r","content":[{"type":"text","text":"ab"}]}`, completion{id: "r", text: "ab"}},
		{
			"message, streamed", "event: content_block_delta\n" +
				"data: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"a\"}}\n\n",
			completion{text: "a"},
		},
	} {
		got := completion{body: c.body}
		if err := got.readBody(); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if got.id != c.want.id || !slices.Equal(got.ids, c.want.ids) || got.text != c.want.text || got.usage != c.want.usage {
			t.Errorf("%s: %+v", c.name, got)
		}
		if !got.equal(&c.want) || got.equal(&completion{text: "other", ids: []uint32{1}}) || got.equal(&completion{}) {
			t.Errorf("%s is equal to another answer, or not to itself", c.name)
		}
	}
}

// TestSample sums the samples of one name and label.
func TestSample(t *testing.T) {
	const page = "# HELP tokens_total a{source=\"p2p\"}\ntokens_total{engine=\"0\",source=\"p2p\"} 3.0\n" +
		"tokens_total{engine=\"1\",source=\"p2p\"} 4.0\ntokens_total{engine=\"0\",source=\"host\"} 8.0\ntokens_total_more{source=\"p2p\"} 16.0\n"
	if n, err := sample(page, "tokens_total", `source="p2p"`); n != 7 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
}
