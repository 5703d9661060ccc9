package sim_test

import (
	"fmt"
	"time"

	"github.com/stator-project/stator/internal/sim"
	"github.com/stator-project/stator/internal/trace"
)

// Two equal prompts arrive a second apart. The second one finds the blocks of the first in the cache of its
// engine, because the router sends it to the same one.
func ExampleRun() {
	prompt := trace.Blocks{IDs: []uint64{1, 2, 3, 4}, Size: 512, Length: 2048}
	arrivals := trace.List([]trace.Arrival{
		{At: 0, Prompt: prompt, Output: 10},
		{At: time.Second, Prompt: prompt, Output: 10},
	})

	result, err := sim.Run(sim.Config{Workers: 2}, arrivals)

	fmt.Println(result.Completed, "completed,", err)
	fmt.Printf("reuse %.2f, predicted %.2f\n", result.PrefixReuse, result.Predicted)
	// Output:
	// 2 completed, <nil>
	// reuse 0.50, predicted 0.50
}
