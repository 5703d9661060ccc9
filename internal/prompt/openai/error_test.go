package openai_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stator-project/stator/internal/prompt/openai"
)

// TestErrorsAreShort parses bodies whose long strings get into errors. No error is longer than about a KiB.
func TestErrorsAreShort(t *testing.T) {
	for _, long := range []string{strings.Repeat("x", 1<<20), strings.Repeat("é", 1<<20), strings.Repeat(`\u0001`, 1<<18), strings.Repeat(`\"`, 1<<18)} {
		chat := `{"model":"m","messages":[{"role":"` + long + `","content":[`
		for _, body := range []string{
			`{"model":"m","nvext":{"routing_constraints":{"preferred_taints":{"` + long + `":"no"}}}}`,
			`{"model":"m","nvext":{"routing_constraints":{"preferred_taints":{"` + long + `":1}}}}`,
			`{"model":"m","nvext":{"router":{"worker":"` + long + `"}}}`,
			`{"model":"m","reasoning_effort":"` + long + `"}`,
			chat + `{"type":"text"}]}]}`, chat + `{"type":"` + long + `"},7]}]}`,
		} {
			_, err := openai.Parse(openai.Chat, []byte(body), openai.Limits{})
			checkShort(t, err)
		}
		var h openai.Hints
		checkShort(t, h.SetHeader("x-stator-priority", long))
		checkShort(t, openai.Invalid(long, long, "%s %q %v %d", long, long, errors.New(long), 7))
		checkShort(t, &openai.Error{Status: 404, Type: long, Param: long, Code: long, Message: long})
	}
}

// checkShort checks the length and the form of an error.
func checkShort(t *testing.T, err error) {
	t.Helper()
	var e *openai.Error
	if !errors.As(err, &e) {
		t.Errorf("%T is not refused", err)
		return
	}
	for _, body := range [][]byte{e.JSON(), e.AnthropicJSON()} {
		if len(body) > 1300 || !json.Valid(body) || !utf8.Valid(body) {
			t.Errorf("%d bytes: %.200s", len(body), body)
		}
	}
	body := e.JSON()
	var back struct{ Error map[string]any }
	if err := json.Unmarshal(body, &back); err != nil {
		t.Error(err)
	}
	for _, key := range []string{"param", "code"} {
		if _, isString := back.Error[key].(string); !isString && back.Error[key] != nil {
			t.Errorf("%s is %v, want a string or null", key, back.Error[key])
		}
	}
}

// TestInvalidClipsItsArguments checks that the end of a message survives a long argument.
func TestInvalidClipsItsArguments(t *testing.T) {
	e := openai.Invalid("p", "c", "The name %q is unknown: %v. Use %d.", strings.Repeat("é", 100), errors.New("short"), 5)
	if want := `The name "` + strings.Repeat("é", 64) + `…" is unknown: short. Use 5.`; e.Message != want {
		t.Errorf("%s\nwant\n%s", e.Message, want)
	}
}
