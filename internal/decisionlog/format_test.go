package decisionlog

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/route/cost"
	"github.com/stator-project/stator/internal/route/decision"
)

// TestSample keeps every n-th hash of a prompt and the last one.
func TestSampleKeepsEveryNthHash(t *testing.T) {
	chain := []blockhash.Sequence{1, 2, 3, 4, 5}
	for n, want := range map[int][]Hash{0: {1, 2, 3, 4, 5}, 1: {1, 2, 3, 4, 5}, 2: {2, 4, 5}, 5: {5}, 9: {5}} {
		if got := sample(chain, n); !slices.Equal(got, want) {
			t.Errorf("every %d: %v, want %v", n, got, want)
		}
	}
	if got := sample(nil, 3); got != nil {
		t.Errorf("%v of no blocks", got)
	}
}

// TestHashText accepts 16 hexadecimal digits and nothing else.
func TestHashText(t *testing.T) {
	for _, h := range []Hash{0, 1, 0xa63f17518eae442b, 1<<64 - 1} {
		text, err := h.MarshalText()
		var again Hash
		if err != nil || again.UnmarshalText(text) != nil || again != h || len(text) != 16 {
			t.Errorf("%x becomes %q and %x", uint64(h), text, uint64(again))
		}
	}
	for _, bad := range []string{"", "1", "zzzzzzzzzzzzzzzz", "00000000000000011", "0x00000000000001", "-000000000000001", "+000000000000001", "000000 000000001"} {
		if new(Hash).UnmarshalText([]byte(bad)) == nil {
			t.Errorf("%q is accepted as a hash", bad)
		}
	}
}

// full is a decision with every field set.
func full() *decision.Decision {
	return &decision.Decision{
		ID: "x", At: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Outcome: decision.Refused, Reason: "busy", RetryAfter: 1500 * time.Millisecond,
		Err:   &prompt.Error{Status: 503, Message: "busy", Type: "overloaded_error", Param: "p", Code: "c"},
		Wait:  &decision.Wait{Since: time.Date(2026, 1, 2, 3, 4, 4, 0, time.UTC), Took: time.Second, Class: "k", Tenant: "t", Ahead: 2, Busy: 3},
		Model: "m", Policy: "kv", Cost: "delay",
		Placement: decision.Placement{Worker: "w", Rank: 1, Ranks: 2, Address: "10.0.0.1:1", Others: []string{"10.0.0.2:1"}},
		PromptUse: decision.PromptUse{PromptTokens: 40, Blocks: 2, Overlap: 1, Cached: 16, BlockSize: 16, First: 10, Last: 11},
		Client:    decision.Client{Stream: true, IncludeUsage: true, MaxTokens: 9, Session: "s", Source: "e", Account: "acme"}, Considered: 4,
		Candidates: []decision.Candidate{{
			Worker: "w", Rank: 1, Address: "10.0.0.1:1", Picked: true, Overlap: [fleet.Tiers]int{1, 2, 3, 4},
			Load: fleet.Amount{Requests: 5, PrefillTokens: 6, DecodeBlocks: 7}, Score: cost.Score{Total: 1.5, Uncached: 24},
		}},
	}
}

// TestKeys shows the keys that programs may rely on.
func TestKeys(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for want, line := range map[string]Line{
		`{"version":1,"format":"stator-decisions"}`: Header(),
		`{"end":{"id":"x","at":"2026-01-02T03:04:05Z","outcome":"retried","first_byte_ms":1.5,"last_byte_ms":9,"response_bytes":7}}`: {
			End: &End{ID: "x", At: at, Outcome: "retried", FirstByte: 1.5, LastByte: 9, ResponseBytes: 7},
		},
		`{"decision":{"id":"x","at":"2026-01-02T03:04:05Z","outcome":"refused","reason":"busy",` +
			`"error":{"status":503,"message":"busy","type":"overloaded_error","param":"p","code":"c"},"retry_after_seconds":1.5,` +
			`"queue":{"since":"2026-01-02T03:04:04Z","waited_seconds":1,"class":"k","tenant":"t","ahead":2,"busy_ranks":3,"free_ranks":false},` +
			`"model":"m","policy":"kv","cost":"delay","worker":"w","rank":1,"ranks":2,"address":"10.0.0.1:1","others":["10.0.0.2:1"],` +
			`"prompt_tokens":40,"blocks":2,"overlap_blocks":1,"cached_tokens":16,"block_size":16,` +
			`"first_hash":"000000000000000a","last_hash":"000000000000000b","stream":true,"include_usage":true,"max_tokens":9,` +
			`"session":"s","account":"acme","source":"e","candidates":[{"worker":"w","rank":1,"address":"10.0.0.1:1","picked":true,` +
			`"overlap_blocks":{"device":1,"host":2,"disk":3,"external":4},"booked_requests":5,"booked_prefill_tokens":6,"booked_decode_blocks":7,` +
			`"untracked_requests":0,"score":{"total":1.5,"wait":0,"prefill":0,"decode":0,"requests":0,"own":0,"credit":0,"ahead":0,` +
			`"uncached_tokens":24}}],"considered":4},"hash_every":2,"hashes":["0000000000000005"]}`: Of(full(), []blockhash.Sequence{4, 5}, 2),
	} {
		if got, err := line.Append(nil); err != nil || string(got) != want+"\n" {
			t.Errorf("%s, %v; want %s", got, err, want)
		}
	}
}

// TestReaderReadsWhatIsWritten writes lines and reads the same lines, without the version lines.
func TestReaderReadsWhatIsWritten(t *testing.T) {
	want := []Line{Of(full(), []blockhash.Sequence{4, 5}, 2), {End: &End{ID: "x", Outcome: "as_picked"}}}
	var log []byte
	for _, l := range []Line{Header(), want[0], Header(), want[1]} {
		log, _ = l.Append(log)
	}

	r := NewReader(bytes.NewReader(log))
	for i := range want {
		if got, err := r.Next(); err != nil || !reflect.DeepEqual(got, want[i]) {
			t.Errorf("line %d: %+v, %v; want %+v", r.Line(), got, err, want[i])
		}
	}
	if _, err := r.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
}

// TestReaderSkipsCutLines reads a log with a line that was cut, as a full disk leaves it, and one that
// is still being written.
func TestReaderSkipsCutLines(t *testing.T) {
	const log = `{"version":1,"format":"stator-decisions"}
{"end":{"id":"a"}}
{"end":{"id":"b","outc
{"end":{"id":"c"}}
{"end":{"id":"d","outc{"end":{"id":"e"}}
nonsense
{"end":{"id":"f"}}
{"decision":{"id":"torn`

	r := NewReader(strings.NewReader(log))
	var ids []string
	for {
		l, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, l.End.ID)
	}
	if !slices.Equal(ids, []string{"a", "c", "f"}) || r.Skipped() != 4 {
		t.Errorf("ends %v, %d lines skipped", ids, r.Skipped())
	}
}

// TestReaderErrors checks that lines of other versions, and lines that are no log, are refused with
// their number.
func TestReaderErrors(t *testing.T) {
	const version = `{"version":1,"format":"stator-decisions"}` + "\n"
	for log, want := range map[string]string{
		`{"version":2}`:                          "line 1: the log has version 2 of the format, and this program reads version 1",
		version + `{"version":7}`:                "line 2: the log has version 7",
		`{"end":{"id":"x"}}`:                     `line 1: the log has no version: its first line must be {"version":1,"format":"stator-decisions"}`,
		version + "{}":                           "line 2: it has neither a decision nor an end",
		"nonsense\nand more":                     "line 2: the log has no version",
		version + strings.Repeat(" ", maxLine+1): "line 2: it is too large: a line may have 16 MB",
	} {
		if _, err := NewReader(strings.NewReader(log)).Next(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: %v, want %q", log, err, want)
		}
	}
}

// TestViewIsComplete fails when a Decision gets a field that the view may lack.
func TestViewIsComplete(t *testing.T) {
	const known = 46 // fields of Decision; Pool, Alias, Engine, Revision, Transfer, TransferAt, PullShared, Onward, CacheSalt and Speculates are not written
	n := 0
	for _, f := range reflect.VisibleFields(reflect.TypeFor[decision.Decision]()) {
		if !f.Anonymous {
			n++
		}
	}
	if n != known {
		t.Errorf("a Decision has %d fields, and View was written for %d", n, known)
	}
	data, err := json.Marshal(View(&decision.Decision{Client: decision.Client{CacheSalt: "of a tenant"}}))
	if err != nil || !strings.Contains(string(data), `"candidates":[]`) {
		t.Errorf("%s, %v", data, err)
	}
	if strings.Contains(string(data), "of a tenant") {
		t.Errorf("the salt of a tenant is written: %s", data)
	}
}
