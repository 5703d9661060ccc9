package enginesim_test

import "testing"

// TestSleep: a sleeping engine has an empty cache and computes nothing, and a request that came meanwhile is answered when it wakes.
func TestSleep(t *testing.T) {
	r := start(t, nil)
	r.ask("/v1/chat/completions", chat+"}")
	if r.CachedBlocks() == 0 {
		t.Fatal("nothing is cached")
	}
	call := func(path string, asleep string) {
		t.Helper()
		if status, body := r.post(path, ""); status != 200 {
			t.Errorf("%s: %d %s", path, status, body)
		}
		if _, body := r.get("/is_sleeping"); body != `{"is_sleeping":`+asleep+"}\n" {
			t.Errorf("after %s: %s", path, body)
		}
	}

	call("/sleep", "true")
	if n := r.CachedBlocks(); n != 0 {
		t.Errorf("%d blocks are cached", n)
	}
	answered := make(chan reply, 1)
	go func() { answered <- r.ask("/v1/chat/completions", chat+"}") }()
	r.until("the request waits", func() bool { return r.metric("vllm:num_requests_waiting") == "1" })
	select {
	case a := <-answered:
		t.Fatalf("a sleeping engine answers %+v", a)
	default:
	}
	if status, _ := r.post("/reset_prefix_cache", ""); status != 200 {
		t.Errorf("a reset while a request waits: %d", status)
	}

	call("/wake_up", "false")
	if a := <-answered; a.Usage.Details.Cached != 0 {
		t.Errorf("%d tokens are cached after sleep", a.Usage.Details.Cached)
	}
}
