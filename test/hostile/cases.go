package main

import (
	"time"
)

// testCase is one hostile input with what must come of it.
type testCase struct {
	name string

	// A request to the gateway: method, path, headers in pairs, and the body.
	method, path string
	headers      []string
	body         func() []byte
	// send replaces the request: it returns the status and the body of the answer. A status of 0 stands for a
	// connection that the gateway closed.
	send func(gateway string) (status int, body []byte, err error)
	// call replaces the request by a call in this process. Its result is compared with accepted.
	call func() error

	// want are the statuses that are right; param is the member of the error, "*" for any.
	want  []int
	param string
	// accepted means that call must return nil; otherwise it must return an error.
	accepted bool
	// cpu and bytes bound the CPU time and memory of the router, or of this process, for the case.
	cpu   time.Duration
	bytes int64
}

// class is a group of cases.
type class struct {
	name  string
	cases []testCase
}

// The bounds of cases that set none: a part for each case, and a part for each MiB of its body. Work that the router
// does anyway, such as looking for changes of bookings, comes on top for each second that a case lasts.
const (
	cpuOfCase, cpuOfMiB     = 100 * time.Millisecond, 100 * time.Millisecond
	cpuOfSecond             = 50 * time.Millisecond
	bytesOfCase, bytesOfMiB = 8 << 20, 4 << 20
)

// bounded sets the bounds that a case leaves open. size is the length of its body.
func (c *testCase) bounded(size int) {
	mib := (size + 1<<20 - 1) >> 20
	if c.cpu == 0 {
		c.cpu = cpuOfCase + time.Duration(mib)*cpuOfMiB
	}
	if c.bytes == 0 {
		c.bytes = bytesOfCase + int64(mib)*bytesOfMiB
	}
}

func allClasses() []class {
	return []class{
		{"json", jsonCases()},
		{"chat", chatCases()},
		{"messages", messageCases()},
		{"values", valueCases()},
		{"prompts", promptCases()},
		{"hints", hintCases()},
		{"headers", headerCases()},
		{"paths", pathCases()},
		{"connections", connectionCases()},
		{"integers", integerCases()},
		{"configurations", configurationCases()},
		{"templates", templateCases()},
		{"vocabularies", vocabularyCases()},
		{"events", eventCases()},
	}
}

const (
	chatPath        = "/v1/chat/completions"
	completionsPath = "/v1/completions"
	embeddingsPath  = "/v1/embeddings"
)

// post is a case that posts a JSON text.
func post(name, path, body string, status int, param string) testCase {
	return testCase{name: name, method: "POST", path: path, body: func() []byte { return []byte(body) }, want: []int{status}, param: param}
}

// postLarge is post for a body that is made when it is sent, so that not all of them lie in memory.
func postLarge(name, path string, body func() []byte, status int, param string) testCase {
	c := post(name, path, "", status, param)
	c.body = body
	return c
}
