package kvevent_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/tinylib/msgp/msgp"

	"github.com/stator-project/stator/internal/kv/kvevent"
)

// TestDialects reads messages that stand in the scenario or in testdata/made:
//
//	decode dialect=D [as=msgpack] [only=WORKER[/RANK]] [block-size=N] [split=N]   the input is JSON, or becomes msgpack
//	file dialect=D name=F [only=WORKER[/RANK]] [split=N]                every message of a file
//
// One batch reads all messages of a scenario, as it does with those of a rank.
func TestDialects(t *testing.T) {
	datadriven.Walk(t, "testdata/dialects", func(t *testing.T, path string) {
		b := &kvevent.Batch{}
		datadriven.RunTest(t, path, func(t *testing.T, td *datadriven.TestData) string {
			var dialect, only, as, name string
			td.ScanArgs(t, "dialect", &dialect)
			td.MaybeScanArgs(t, "only", &only)
			b.BlockSize = 0
			td.MaybeScanArgs(t, "block-size", &b.BlockSize)
			b.Split = 0
			td.MaybeScanArgs(t, "split", &b.Split)
			b.Only = onlyOf(t, only)
			d := dialectNamed(t, dialect)
			messages := [][]byte{[]byte(td.Input)}
			switch td.Cmd {
			case "file":
				td.ScanArgs(t, "name", &name)
				messages = made(t, name)
			case "decode":
				td.MaybeScanArgs(t, "as", &as)
				if as == "msgpack" {
					messages[0] = packed(t, td.Input)
				}
			default:
				td.Fatalf(t, "unknown command %q", td.Cmd)
			}
			var out strings.Builder
			for i, m := range messages {
				err := d.Decode(m, kvevent.Limits{}, b)
				if len(messages) > 1 {
					fmt.Fprintf(&out, "message %d ", i)
				}
				out.WriteString(report(b, err))
			}
			return out.String()
		})
	})
}

func onlyOf(t testing.TB, s string) func(uint64, int) bool {
	if s == "" {
		return nil
	}
	w, r, ranked := strings.Cut(s, "/")
	worker, err := strconv.ParseUint(w, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	rank := 0
	if ranked {
		if rank, err = strconv.Atoi(r); err != nil {
			t.Fatal(err)
		}
	}
	return func(w uint64, r int) bool { return w == worker && (!ranked || r == rank) }
}

// report prints a batch: its head if that has fields, then one line for each event.
func report(b *kvevent.Batch, err error) string {
	if err != nil {
		return err.Error() + "\n"
	}
	head := fmt.Sprintf("rank %d", b.Rank)
	if b.Worker != 0 {
		head = fmt.Sprintf("worker %d ", b.Worker) + head
	}
	if b.Numbered {
		head += fmt.Sprintf(" numbers %d-%d", b.First, b.Last)
	}
	for _, c := range []struct {
		name string
		n    int
	}{{"unknown", b.Unknown}, {"skipped", b.Skipped}, {"others", b.Others}} {
		if c.n > 0 {
			head += fmt.Sprintf(" %s %d", c.name, c.n)
		}
	}
	out := head + "\n"
	for _, e := range b.Events {
		out += fmt.Sprintf("  %v %v %d", e.Kind, e.Tier, e.Hashes)
		if e.HasParent {
			out += fmt.Sprintf(" after %d", e.Parent)
		}
		if e.Window > 0 {
			out += fmt.Sprintf(" window %d of group %d", e.Window, e.Group)
		}
		if e.Kind == kvevent.Stored {
			out += fmt.Sprintf(" of %d blocks %x", e.BlockSize, e.Blocks)
		}
		out += "\n"
	}
	return out
}

// made returns the messages of a file in testdata/made.
func made(t testing.TB, name string) (messages [][]byte) {
	raw, err := os.ReadFile(filepath.Join("testdata", "made", name))
	if err != nil {
		t.Fatal(err)
	}
	if strings.HasSuffix(name, ".json") {
		return [][]byte{raw}
	}
	for line := range bytes.Lines(raw) {
		var m message
		if err := json.Unmarshal(line, &m); err != nil {
			t.Fatal(err)
		}
		messages = append(messages, m.Payload)
	}
	return messages
}

// packed turns JSON into msgpack. Numbers stay what they are.
func packed(t testing.TB, text string) []byte {
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		t.Fatal(err)
	}
	raw, err := msgp.AppendIntf(nil, plainNumbers(t, v))
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func plainNumbers(t testing.TB, v any) any {
	switch v := v.(type) {
	case json.Number:
		if i, err := strconv.ParseInt(string(v), 10, 64); err == nil {
			return i
		}
		u, err := strconv.ParseUint(string(v), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return u
	case []any:
		for i := range v {
			v[i] = plainNumbers(t, v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = plainNumbers(t, v[k])
		}
	}
	return v
}

// dialectNamed returns the dialect of that name.
func dialectNamed(t *testing.T, name string) kvevent.Dialect {
	t.Helper()
	for d := kvevent.VLLM; d <= kvevent.Outside; d++ {
		if d.String() == name {
			return d
		}
	}
	t.Fatalf("%q is not a dialect of cache events", name)
	return 0
}

// TestDialectNames: every dialect has its name, the zero value is vLLM, and a number that is no dialect has none.
func TestDialectNames(t *testing.T) {
	want := []string{"vllm", "sglang", "trtllm", "dynamo", "outside", "unknown"}
	for d, name := range want {
		if got := kvevent.Dialect(d).String(); got != name {
			t.Errorf("dialect %d: %s, want %s", d, got, name)
		}
	}
	if err := kvevent.Dialect(len(want)).Decode(nil, kvevent.Limits{}, &kvevent.Batch{}); err == nil {
		t.Error("a dialect that does not exist decodes")
	}
}

// Dynamo's events decode equally from JSON and from msgpack.
func TestDynamoSyntaxes(t *testing.T) {
	compared := 0
	for _, m := range append(made(t, "dynamo-frames.jsonl"), inputs(t, "dynamo")...) {
		for line := range bytes.Lines(m) {
			if !json.Valid(line) || line[0] != '{' {
				continue
			}
			var a, b kvevent.Batch
			errA, errB := kvevent.Dynamo.Decode(line, kvevent.Limits{}, &a), kvevent.Dynamo.Decode(packed(t, string(line)), kvevent.Limits{}, &b)
			if got, want := report(&b, errB), report(&a, errA); got != want {
				t.Errorf("%s\nin JSON    %s\nin msgpack %s", line, want, got)
			}
			compared++
		}
	}
	if compared < 6 {
		t.Errorf("%d compared", compared)
	}
}
