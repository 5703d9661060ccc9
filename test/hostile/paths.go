package main

import (
	"fmt"
	"strings"
)

// engineControls are paths by which engines are changed, stopped or observed. No client may reach them.
var engineControls = []string{
	"/metrics", "/load", "/version", "/ping", "/server_info", "/get_server_info", "/get_model_info", "/reset_prefix_cache",
	"/reset_mm_cache",
	"/sleep", "/wake_up", "/is_sleeping", "/collective_rpc", "/scale_elastic_ep", "/v1/load_lora_adapter", "/v1/unload_lora_adapter",
	"/flush_cache", "/abort_request", "/update_weights_from_disk", "/update_weights_from_tensor", "/init_weights_update_group",
	"/release_memory_occupation", "/resume_memory_occupation", "/slow_down", "/start_profile", "/stop_profile", "/set_internal_state",
	"/slots", "/props", "/lora-adapters", "/apply-template", "/completion", "/infill", "/kv_cache_events", "/invocations", "/generate",
}

// pathCases: methods and paths. A path that is not listed is not found, in OpenAI's shape.
func pathCases() []testCase {
	var list []testCase
	request := func(name, method, path string, status int) testCase {
		c := testCase{name: name, method: method, path: path, want: []int{status}, param: "*"}
		if method == "POST" {
			c.body = func() []byte { return []byte(simple) }
		}
		return c
	}
	for _, path := range engineControls {
		list = append(list, request("POST "+path, "POST", path, 404))
	}
	for _, path := range engineControls[:20] {
		list = append(list, request("GET "+path, "GET", path, 404))
	}

	for _, method := range []string{"GET", "PUT", "DELETE", "PATCH", "HEAD", "TRACE", "PROPFIND"} {
		list = append(list, request(method+" a completion", method, completionsPath, 405))
	}
	for _, method := range []string{"POST", "PUT", "DELETE", "PATCH", "OPTIONS"} {
		list = append(list, request(method+" the models", method, "/v1/models", 405))
	}

	bent := []struct {
		path   string
		status []int
	}{
		{"/v1/completions/", []int{200, 307, 404}},
		{"/v1/completions?", []int{200}},
		{"/v1/completions?model=other", []int{200}},
		{"/v1//completions", []int{200, 404, 307}},
		{"//v1/completions", []int{200, 404, 307}},
		{"/v1/./completions", []int{200}},
		{"/v1/x/../completions", []int{200}},
		{"/v1/completions%2f", []int{404, 307, 400}},
		{"/v1%2fcompletions", []int{404, 307, 400}},
		{"/v1/%63ompletions", []int{200, 404}},
		{"/V1/completions", []int{404}},
		{"/v1/completions;a=b", []int{404}},
		{"/v1/completions%00", []int{400, 404}},
		{"/v1/audio/speech/../../../flush_cache", []int{404}},
		{"/v1/audio/%2e%2e/%2e%2e/flush_cache", []int{404}},
		{"/v1/audio/..%2f..%2fflush_cache", []int{404, 307, 400}},
		{"/v1/audio/..\\..\\flush_cache", []int{404, 307, 400}},
		{"/tokenize/../flush_cache", []int{404}},
		{"/v1/models/../../flush_cache", []int{404}},
		{"/%2e%2e/flush_cache", []int{404, 400}},
		{"/" + strings.Repeat("a", 8000), []int{404}},
		{"/v1/models/" + strings.Repeat("m", 8000), []int{404, 405}},
		{"/v1/models/%", []int{404, 405, 400}},
		{"/v1/completions#fragment", []int{200, 400, 404}},
		{"/", []int{404}},
		{"*", []int{400, 404, 405}},
	}
	for i, b := range bent {
		c := request(fmt.Sprintf("path %d, %.40q", i, b.path), "POST", b.path, 0)
		c.want = b.status
		list = append(list, c)
	}
	return list
}
