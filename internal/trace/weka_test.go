package trace

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// TestWekaSteps checks what each request of a program with two sub-agents waits for, by both conventions of times. The second sub-agent
// begins while the first one runs, and ends after the main agent's next request. The request at 18.5 s began before the one at 18 s had
// its answer, so that it waits for the same as that one.
func TestWekaSteps(t *testing.T) {
	next, n, err := WekaFolder(os.DirFS("testdata/weka"))
	bySession := map[string][]Arrival{}
	for _, a := range all(t, next, err) {
		bySession[a.Session] = append(bySession[a.Session], a)
	}
	if n != 16 || len(bySession) != 2 {
		t.Fatalf("%d arrivals of %d programs", n, len(bySession))
	}

	want := "0@0s after [] +0s\n1@4s after [0] +2s\n" +
		"2@8s after [1] +0s\n4@8.5s after [1] +0s\n3@10s after [2] +1s\n" +
		"5@18s after [3 1] +1s\n6@18.5s after [1] +11.5s\n7@30s after [4 5] +11s\n"
	for session, list := range bySession {
		var got strings.Builder
		for _, a := range list {
			fmt.Fprintf(&got, "%d@%v after %v +%v\n", a.Step, a.At, a.After, a.Pause)
		}
		if got.String() != want {
			t.Errorf("%s:\n%swant\n%s", session, &got, want)
		}
		if list[7].Output != 1 || len(list[0].Prompt.Append(nil)) != 640 {
			t.Errorf("%s: %d of output, %d tokens", session, list[7].Output, len(list[0].Prompt.Append(nil)))
		}
		if n := shared(list[0], list[1]); n != 640 {
			t.Errorf("%s: steps share %d tokens", session, n)
		}
		if n := shared(list[0], list[2]); n != 512 {
			t.Errorf("%s: a sub-agent shares %d tokens, want the tools and the system prompt", session, n)
		}
	}
	if n := shared(bySession["1 absolute"][0], bySession["2 relative"][0]); n != 0 {
		t.Errorf("programs share %d tokens, although their ids are local", n)
	}
}

// TestWekaScopes: ids of the scope "global" are equal blocks in all programs of a file.
func TestWekaScopes(t *testing.T) {
	row := `{"id":"a","block_size":64,"hash_id_scope":"global","requests":[{"t":0,"type":"n","in":100,"out":1,"hash_ids":[7,8]}]}` + "\n"
	next, _, err := Weka(strings.NewReader(row + row))
	list := all(t, next, err)
	if len(list) != 2 || list[0].Session == list[1].Session || shared(list[0], list[1]) != 100 {
		t.Errorf("%+v", list)
	}
}

// TestWekaErrors checks that an error names the program and what is wrong.
func TestWekaErrors(t *testing.T) {
	of := func(requests string) string { return `{"id":"p","block_size":64,"requests":[` + requests + `]}` }
	for text, want := range map[string]string{
		`{"id":"p","requests":[{"t":0,"in":1}]}`: `program 1, "p": block_size 0`,
		of(``):                                   "there are no requests",
		of(`{"t":0,"type":"n","in":0}`):          "in 0 and out 0",
		of(`{"t":-1,"type":"n","in":1}`):         "timestamp -1",
		of(`{"t":1e300,"type":"n","in":1}`):      "timestamp 1e+300",
		of(`{"t":0,"in":1,"think_time":1e300},{"t":1,"in":1,"think_time":1e300}`): "timestamp 1e+300",
		of(`{"t":0,"type":"n","in":1,"hash_ids":[1099511627776]}`):                "hash id 1099511627776",
		of(`{"t":0,"type":"n","in":1,"hash_ids":[-1]}`):                           "cannot unmarshal",
		of(`{"t":0,"type":"subagent","requests":[{"t":0,"in":99999999}]}`):        "in 99999999",
		`{"id":"p"`: "unexpected EOF",
	} {
		if _, _, err := Weka(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// FuzzWeka: a program is refused, or each of its requests waits for earlier steps only, and no time is negative.
func FuzzWeka(f *testing.F) {
	for _, name := range []string{"absolute", "relative"} {
		text, err := os.ReadFile("testdata/weka/" + name + ".json")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text))
	}
	f.Fuzz(func(t *testing.T, text string) {
		next, n, err := Weka(strings.NewReader(text))
		if err != nil {
			return
		}
		list := all(t, next, nil)
		if len(list) != n {
			t.Errorf("%d arrivals, want %d", len(list), n)
		}
		var last time.Duration
		for _, a := range list {
			for _, step := range a.After {
				if step < 0 || step >= a.Step {
					t.Errorf("step %d waits for %d", a.Step, step)
				}
			}
			if a.At < last || a.Pause < 0 || a.Output < 1 {
				t.Errorf("%+v after %v", a, last)
			}
			last = a.At
		}
	})
}
