package openai_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/stator-project/stator/internal/prompt/openai"
)

// bodies are requests of all kinds, good and bad.
var bodies = []struct {
	ep   openai.Endpoint
	body string
}{
	{openai.Chat, `{"model":"a","messages":[{"role":"user","content":"x\ny"},{"role":"tool","tool_call_id":"1","content":"z"}],"n":3,"stream":true}`},
	{openai.Chat, `{"model":"b","messages":[{"role":"user","content":[{"type":"text","text":"p\tq"},{"type":"image_url","image_url":{"url":"x"}}]},
		{"role":"user","content":[]}],"nvext":{"router":{"worker":"w"}}}`},
	{openai.Completions, `{"model":"c","prompt":["x\n","y"],"max_tokens":0,"echo":true}`},
	{openai.Completions, `{"model":"d","prompt":[1,2,3]}`},
	{openai.Embeddings, `{"model":"e","input":"x\u00e9"}`},
	{openai.Chat, `{"model":"f","messages":[{"role":"user","content":"` + strings.Repeat(`\n`, 100_000) + `"}]}`},
	{openai.Chat, `{"model":"g","messages":[{"role":"user","content":"x"},{"role":7}]}`},
	{openai.Chat, `{"model":"h","messages":[{"role":"user"}`},
	{openai.Embeddings, `{"model":"i","messages":[{"role":"user","content":"x"}]}`},
}

// TestParseIntoEqualsParse parses each body after each other one into the same request.
func TestParseIntoEqualsParse(t *testing.T) {
	var req openai.Request
	for i, before := range bodies {
		for k, c := range bodies {
			_ = openai.ParseInto(&req, before.ep, []byte(before.body), openai.Limits{})
			err := openai.ParseInto(&req, c.ep, []byte(c.body), openai.Limits{})
			want, wantErr := openai.Parse(c.ep, []byte(c.body), openai.Limits{})
			if fmt.Sprint(err) != fmt.Sprint(wantErr) {
				t.Fatalf("%d after %d: error %v, want %v", k, i, err, wantErr)
			}
			if err == nil && !equalRequests(&req, want) {
				t.Fatalf("%d after %d:\n%+v, want\n%+v", k, i, req, want)
			}
		}
	}
}

// equalRequests compares the exported fields of two requests.
func equalRequests(a, b *openai.Request) bool {
	x, y := reflect.ValueOf(*a), reflect.ValueOf(*b)
	for i := range x.NumField() {
		if !x.Type().Field(i).IsExported() {
			continue
		}
		one, other := x.Field(i).Interface(), y.Field(i).Interface()
		if !reflect.DeepEqual(one, other) && fmt.Sprintf("%+v", one) != fmt.Sprintf("%+v", other) {
			return false
		}
	}
	return true
}

// TestParseIntoKeepsItsMemory counts what a request costs that is parsed into the memory of the one before.
func TestParseIntoKeepsItsMemory(t *testing.T) {
	var req openai.Request
	body := []byte(`{"model":"a","messages":[` + strings.Repeat(`{"role":"user","content":"x\ny"},`, 100) +
		`{"role":"user","content":[{"type":"text","text":"x"},{"type":"text","text":"y\n"}]}]}`)
	n := testing.AllocsPerRun(100, func() {
		if err := openai.ParseInto(&req, openai.Chat, body, openai.Limits{}); err != nil {
			t.Fatal(err)
		}
	})
	if n > 2 {
		t.Errorf("%v allocations, want at most 2", n)
	}
	if size := req.Size(); size < 100*100 || size > 200_000 {
		t.Errorf("the memory has %d bytes", size)
	}

	req.Reset()
	if req.Model != "" || len(req.Messages) > 0 || req.Size() == 0 {
		t.Errorf("%+v after a reset", req)
	}
	if n := new(openai.Request).Size(); n != 0 {
		t.Errorf("a new request has %d bytes", n)
	}
}
