package main

import (
	"fmt"
	"strings"
)

// simple is a completion that is served.
const simple = `{"model":"sim","max_tokens":1,"prompt":"hi"}`

// headerCases: headers of clients, among them those that only the gateway may set.
func headerCases() []testCase {
	with := func(name string, status int, param string, pairs ...string) testCase {
		c := post(name, completionsPath, simple, status, param)
		c.headers = pairs
		return c
	}

	var list []testCase
	forged := []string{
		"x-gateway-destination-endpoint", "x-gateway-destination-endpoint-served", "x-gateway-destination-endpoint-subset",
		"x-stator-model", "x-stator-decision", "x-stator-trusted", "x-stator-envoy", "x-data-parallel-rank",
		"x-envoy-original-dst-host", "x-envoy-upstream-alt-stat-name", "x-envoy-retry-on", "x-envoy-max-retries",
		"x-envoy-upstream-rq-timeout-ms", "x-envoy-upstream-rq-per-try-timeout-ms", "x-envoy-hedge-on-per-try-timeout",
		"x-envoy-decorator-operation", "x-envoy-force-trace", "x-envoy-internal", "x-envoy-external-address",
		"x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "x-forwarded-client-cert", "x-real-ip", "forwarded", "via",
	}
	values := []string{"127.0.0.1:1", "true", "other", strings.Repeat("9", 2000)}
	for i, key := range forged {
		for j := range 2 {
			value := values[(i+j)%len(values)]
			list = append(list, with(fmt.Sprintf("%s is %.20s", key, value), 200, "*", key, value))
		}
	}

	list = append(list,
		with("a long session", 200, "", "x-session-id", strings.Repeat("s", 50_000)),
		with("a session of high bytes", 200, "", "x-session-id", "\xff\xfe\x80"),
		with("200 sessions", 200, "", repeatedPairs("x-session-id", "s", 50)...),
		with("a long cookie", 200, "", "cookie", strings.Repeat("c", 50_000)),
		with("headers above 60 KB", 431, "*", "x-long", strings.Repeat("h", 70_000)),
		with("150 headers", 431, "*", manyPairs(150)...),
		with("80 headers", 200, "", manyPairs(80)...),
		with("an encoding that is unknown", 415, "", "content-encoding", "snappy"),
		with("a long encoding", 415, "", "content-encoding", strings.Repeat("z", 5000)),
		with("deflate", 415, "", "content-encoding", "deflate"),
		with("brotli", 415, "", "content-encoding", "br"),
		with("the identity", 200, "", "content-encoding", "identity"),
		with("no media type", 200, "", "content-type", ""),
		with("a form", 200, "", "content-type", "multipart/form-data; boundary=x"),
		with("a date of long ago", 200, "", "if-modified-since", "Thu, 01 Jan 1970 00:00:00 GMT"),
		with("a range", 200, "", "range", "bytes=0-1"),
		with("an expectation", 200, "", "expect", "100-continue"),
		with("an unknown expectation", 417, "*", "expect", "wonders"),
		with("accepts nothing", 200, "", "accept", "image/png"),
		with("a request id", 200, "", "x-request-id", strings.Repeat("r", 5000)),
		with("a trace", 200, "", "traceparent", "00-"+strings.Repeat("0", 32)+"-"+strings.Repeat("0", 16)+"-00"),
		with("an upgrade", 403, "*", "connection", "upgrade", "upgrade", "websocket"),
	)
	// Go's client answers an unknown expectation like any other; Envoy decides.
	for i := range list {
		if list[i].name == "an unknown expectation" {
			list[i].want = []int{200, 417}
		}
		if list[i].name == "150 headers" {
			list[i].want = []int{200, 431}
		}
	}
	return list
}

func repeatedPairs(key, value string, n int) []string {
	var pairs []string
	for range n {
		pairs = append(pairs, key, value)
	}
	return pairs
}

func manyPairs(n int) []string {
	var pairs []string
	for i := range n {
		pairs = append(pairs, fmt.Sprintf("x-h%d", i), "v")
	}
	return pairs
}
