package main

import "testing"

// TestSameAnswer: answers differ by their vectors, and not by their id and time.
func TestSameAnswer(t *testing.T) {
	const answer = `{"id":"a","created":1,"data":[{"embedding":[0.25,-1]}]}`
	for other, want := range map[string]bool{
		`{"created":2,"id":"b","data":[{"embedding":[0.25,-1]}]}`:         true,
		`{"id":"a","created":1,"data":[{"embedding":[0.25,-1.0000001]}]}`: false,
		`{"id":"a","created":1}`: false,
		`{"id":"a"`:              false,
	} {
		if got := sameAnswer(answer, other); got != want {
			t.Errorf("%s: %v", other, got)
		}
	}
	if sameAnswer(`{"id":"a"}`, `{"id":"a"}`) {
		t.Error("answers without content are compared as equal")
	}
}

// TestModelRequests: each kind of request comes once in each round.
func TestModelRequests(t *testing.T) {
	list, cases := modelRequests(1)
	if len(list) != modelRounds*(len(generated)+len(pooled)) || len(cases) != 10 {
		t.Errorf("%d requests of %d cases", len(list), len(cases))
	}
	c := modelCase{model: modelName, requests: 3, picks: map[string]int{"a": 2, poolingName: 1}}
	if c.right() != 2 {
		t.Errorf("%d of 3 requests for the chat model are right, want 2", c.right())
	}
}
