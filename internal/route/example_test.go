package route_test

import (
	"fmt"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/internal/models"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/pick"
	"github.com/stator-project/stator/internal/route/request"
	"github.com/stator-project/stator/internal/route/serving"
)

// A request goes to the worker whose cache holds the beginning of its prompt.
func ExampleRouter_Decide() {
	workers := fleet.New(fleet.Hooks{})
	for i, name := range []string{"a", "b"} {
		_, _ = workers.Put(fleet.Worker{
			Name: name, Model: "sim", Address: fmt.Sprintf("10.0.0.%d:8000", i+1), Ranks: 1, State: fleet.Ready, BlockSize: 16,
		})
	}
	index := kvindex.New(kvindex.Config{})
	router := route.New(route.Config{Seed: 1}, workers, index)
	model, err := prompt.Load(models.Sim())
	if err != nil {
		fmt.Println(err)
		return
	}
	err = router.SetModels(map[string]*serving.Config{"sim": {Prompt: model, BlockSize: 16, Policy: pick.KV}})
	if err != nil {
		fmt.Println(err)
		return
	}

	body := []byte(`{"model": "sim", "prompt": "` + text(40) + `"}`)
	now := time.Unix(1_000, 0)
	first := router.Decide(&request.Request{Endpoint: prompt.Completions, Known: true, Body: body}, now)
	fmt.Printf("%s: %d of %d blocks cached\n", first.Worker, first.Overlap, first.Blocks)
	router.End(first.ID, now)

	// The router predicts that the first worker holds the prompt now.
	second := router.Decide(&request.Request{Endpoint: prompt.Completions, Known: true, Body: body}, now.Add(time.Second))
	fmt.Printf("the same worker: %v, %d of %d blocks cached\n", second.Worker == first.Worker, second.Overlap, second.Blocks)

	// Output:
	// b: 0 of 5 blocks cached
	// the same worker: true, 5 of 5 blocks cached
}

// text returns a text with the given number of words.
func text(words int) string {
	out := ""
	for i := range words {
		out += fmt.Sprint("word", i, " ")
	}
	return out
}
