package nextturns

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/test/streams"
	"github.com/stator-project/stator/test/talks"
)

// TestComparison pairs later turns one by one, and the other clients by the means of their rounds.
func TestComparison(t *testing.T) {
	answers := func(ms ...int) (list []streams.Answer) {
		for _, n := range ms {
			list = append(list, streams.Answer{
				First: time.Duration(n) * time.Millisecond, Whole: 10 * time.Duration(n) * time.Millisecond, Prompt: 100, Cached: n,
			})
		}
		return list
	}
	var c Comparison
	c.Add(false, Result{Later: answers(40, 80), Others: answers(10)})
	c.Add(true, Result{Later: answers(20, 40), Others: answers(10, 12, 14), Prefills: map[string]float64{"done": 3}, Tokens: 40})
	c.Add(true, Result{Later: answers(20, 40), Others: answers(12), Prefills: map[string]float64{"done": 2, "busy": 1}, Tokens: 30})
	c.Add(false, Result{Later: answers(40, 80), Others: answers(9, 11)})

	later, others := c.Later(), c.Others()
	if d := later[0].Difference; d.Mean != -0.5 || d.High >= 0 || len(later[0].With) != 4 {
		t.Errorf("first tokens of later turns: %v", later[0])
	}
	if d := later[1].Difference; d.Mean != -0.5 || later[1].Without[1] != 0.8 {
		t.Errorf("their cached shares: %v", later[1])
	}
	for _, f := range others {
		if fmt.Sprintf("%.3f", f.Difference.Mean) != "0.200" || len(f.Without) != 3 || len(f.With) != 4 {
			t.Errorf("%s: %v", f.Name, f)
		}
	}
	if cells := fmt.Sprint(others[1].Cells()...); !strings.Contains(cells, "100.0, 100.0, 110.0") || !strings.Contains(cells, "3, 4") {
		t.Error(cells)
	}
	if counts, list, tokens := c.Prefills(); counts["done"] != 5 || list != "busy 1, done 5" || tokens != 70 {
		t.Errorf("%v, %s, %g tokens", counts, list, tokens)
	}
	alone := Comparison{Without: []Result{{}}, With: []Result{{}}}
	if f := alone.Others(); f != nil {
		t.Errorf("figures of no other clients: %v", f)
	}
}

// TestReadStream has the times of the first text or thinking and of the end, the usage, and the text without the thinking.
func TestReadStream(t *testing.T) {
	api := talks.Chat("")
	const whole = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n" +
		"data: {\"choices\":[{\"delta\":{\"reasoning\":\"t\"}}]}\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n" +
		"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\n"
	a, text, err := readStream(strings.NewReader(whole+"data: [DONE]\n\n"), &api, time.Now().Add(-time.Second))
	if err != nil || text != "a" || a.Prompt != 9 || a.Cached != 4 || a.First < time.Second || a.Whole < a.First {
		t.Errorf("%+v, %q, %v", a, text, err)
	}
	if _, _, err := readStream(strings.NewReader(whole), &api, time.Now()); err == nil {
		t.Error("a stream without an end is no error")
	}
}
