package queue_test

import (
	"fmt"
	"time"

	"github.com/stator-project/stator/internal/route/queue"
)

// A class with weighted shortest processing time serves the short prompt first, although it came later.
func ExampleQueue() {
	q := queue.New(queue.Config{Classes: []queue.Class{{Order: queue.WSPT}}})
	now := time.Unix(1_000, 0)
	_, _ = q.Push(queue.Request{Tokens: 8_000, At: now, Until: now.Add(time.Minute), Value: "long"})
	_, _ = q.Push(queue.Request{Tokens: 100, At: now.Add(time.Second), Until: now.Add(time.Minute), Value: "short"})

	for range 2 {
		item := q.Next(func(*queue.Item) bool { return true })
		fmt.Println(item.Value)
		q.Take(item)
	}
	// Output:
	// short
	// long
}
