package chattemplate

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestFromPythonJSONReadsWhatPythonWrites reads NaN and Infinity, which json.dumps writes although JSON lacks them.
func TestFromPythonJSONReadsWhatPythonWrites(t *testing.T) {
	v, err := FromPythonJSON([]byte(`{"a": NaN, "b": [Infinity, -Infinity], "c": "text", "d": null}`), nil)
	if err != nil {
		t.Fatal(err)
	}

	keys := []string{}
	v.Dict().Each(func(key string, member Value) {
		keys = append(keys, key)
		switch key {
		case "a":
			if !math.IsNaN(member.float()) {
				t.Errorf("a is %v", member.float())
			}
		case "b":
			if member.Kind() != ListKind || member.Len() != 2 || !math.IsInf(member.Items()[1].float(), -1) {
				t.Errorf("b has %d elements", member.Len())
			}
		case "c":
			if member.Text() != "text" || member.Items() != nil {
				t.Errorf("c is %q", member.Text())
			}
		case "d":
			if member.Kind() != NoneValue().Kind() || member.Text() != "" {
				t.Errorf("d is of kind %d", member.Kind())
			}
		}
	})
	if want := []string{"a", "b", "c", "d"}; !slices.Equal(keys, want) {
		t.Errorf("keys %v, want %v", keys, want)
	}

	v.Dict().Reset()
	if v.Dict().Len() != 0 {
		t.Errorf("%d members after Reset", v.Dict().Len())
	}
}

// TestJSONErrors checks that invalid texts, values nested too deeply and, outside Python's dialect, NaN are refused.
func TestJSONErrors(t *testing.T) {
	deep := make([]byte, 2000)
	for i := range deep {
		deep[i] = '['
	}
	for _, src := range []string{`NaN`, `[Infinity]`, `{"a": -Infinity}`, string(deep), "\"\x01\"", `"\ud8`, `[1,`, `{"a"}`, `tru`} {
		if _, err := FromJSON([]byte(src)); err == nil {
			t.Errorf("FromJSON accepted %.40q", src)
		}
	}
	for _, src := range []string{`Nope`, `Inf`, `-I`, string(deep)} {
		if _, err := FromPythonJSON([]byte(src), nil); err == nil {
			t.Errorf("FromPythonJSON accepted %.40q", src)
		}
	}
}

// TestTemplateTraits checks what Parse derives from the words in a template's source.
func TestTemplateTraits(t *testing.T) {
	for src, want := range map[string][2]bool{
		`{{ messages[0].content }}{% if role == "developer" %}{% endif %}`: {true, true},
		`{{ messages[0].content }}`:                                        {false, true},
		`fixed`:                                                            {false, false},
	} {
		tmpl, err := Parse(src)
		if err != nil {
			t.Fatal(err)
		}
		if got := [2]bool{tmpl.KnowsDeveloper(), tmpl.ReadsContent()}; got != want {
			t.Errorf("%s: developer and content are %v, want %v", src, got, want)
		}
	}
}

// TestStrftimeDirectives compares with Python's strftime for Wednesday, 4 March 2026, 05:06:07.
func TestStrftimeDirectives(t *testing.T) {
	tmpl, err := Parse(`{{ strftime_now("%Y-%m-%d %H:%M:%S %y %B %b %A %a %j %p %I %U %W %V %G %u %w %C %f %e %k %l %n%t%% %D %F %T %R %s %z%Z %-d %-H %q") }}`)
	if err != nil {
		t.Fatal(err)
	}

	out, err := tmpl.Render(nil, Context{Vars: NewDict(0), Now: time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)}, Limits{})

	want := "2026-03-04 05:06:07 26 March Mar Wednesday Wed 063 AM 05 09 09 10 2026 3 3 20 000000  4  5  5 \n\t% 03/04/26 2026-03-04 05:06:07 05:06 1772600767  4 5 %q"
	if err != nil || string(out) != want {
		t.Errorf("got\n%q, %v\nwant\n%q", out, err, want)
	}
}

// TestLongestInteger: Python converts 4,300 digits to an integer, and refuses one more.
func TestLongestInteger(t *testing.T) {
	longest := strings.Repeat("7", maxDigits)
	for text, want := range map[string]bool{longest: true, longest + "7": false, "-" + longest: true} {
		if _, ok := parseInt(text, 10); ok != want {
			t.Errorf("%d characters: converted %v, want %v", len(text), ok, want)
		}
		if _, err := FromJSON([]byte(text)); (err == nil) != want {
			t.Errorf("%d characters of JSON: %v, want %v", len(text), err, want)
		}
	}
}
