package main

import (
	"fmt"
	"strings"

	"github.com/stator-project/stator/internal/config"
)

// goodConfig is a configuration that is right. Cases change one line of it.
const goodConfig = `apiVersion: stator.dev/v1alpha1
kind: Stator
gateway: {}
models:
- name: m
  path: "builtin:sim"
  workers:
  - {name: w, address: "127.0.0.1:8000"}
`

// configurationCases: files of an operator who has made a mistake. What `stator validate` accepts must work.
func configurationCases() []testCase {
	var list []testCase
	file := func(name, text string, accepted bool) {
		list = append(list, testCase{name: name, accepted: accepted, call: func() error {
			_, err := config.Parse([]byte(text))
			return err
		}})
	}
	gateway := func(value string) string {
		return strings.Replace(goodConfig, "gateway: {}", "gateway: {"+value+"}", 1)
	}
	model := func(value string) string {
		return strings.Replace(goodConfig, "  workers:", "  "+value+"\n  workers:", 1)
	}
	worker := func(value string) string {
		return strings.Replace(goodConfig, `address: "127.0.0.1:8000"`, value, 1)
	}

	file("a right one", goodConfig, true)
	for _, text := range []string{"", "[]", "1", "null", "{", "\t", "a: b: c", "\x00", "\xff", "&a [*a]", "<<: {}", "? {}", "!!binary x",
		"apiVersion: stator.dev/v1alpha1", goodConfig + "---\n" + goodConfig, goodConfig + "other: 1\n", strings.Repeat("[", 100_000),
		strings.Repeat("a: ", 10_000), "x: &x [" + strings.Repeat("1,", 1000) + "]\ny: [" + strings.Repeat("*x,", 1000) + "]"} {
		file(fmt.Sprintf("%.30q", text), text, false)
	}

	for _, v := range []string{"listen: 8080", "listen: localhost:1", "listen: [a]", "maxBodyBytes: 0", "maxBodyBytes: -1",
		"maxBodyBytes: many",
		"maxBodyBytes: 1e9999", "maxBodyBytes: 16.5", "maxBodiesBytes: 1", "decisionTimeout: 5", "decisionTimeout: -1s",
		"decisionTimeout: 0s",
		"decisionTimeout: forever", "idleTimeout: 1ns", `sessions: ["header:Bad Header"]`, `sessions: ["header::path"]`,
		`sessions: ["header:authorization"]`, `sessions: [x-session-id]`, `sessions: ["body:"]`,
		"hints: everything", "hintsFrom: anyone", "roleHeader: cookie",
		"roleHeader: x-role", "trustedRoles: [a]", "tenantHeader: Authorization", "passPaths: metrics", `passPaths: ["a"]`,
		`passPaths: ["/a*b"]`, "tls: {certFile: a}", "tls: {keyFile: a}",
		"tls: {clientCAFile: a}", "auth: {jwt: [{issuer: a}]}", "auth: {keysFile: [a]}",
		"limits: {requestsPerMinute: 1}", "tenantHeader: x-t, limits: {requestsPerMinute: -1}",
		"tenantHeader: x-t, limits: {tokensPerDay: 1}", "tenantHeader: x-t, answerTokens: true, limits: {tokensPerMonth: 1000000000000001}",
		"corsOrigins: [a]", "accessLog: a",
		"unknownKey: 1", "Listen: x", "listen: x, listen: y"} {
		file("gateway: "+v, gateway(v), false)
	}
	for v, accepted := range map[string]bool{
		`{except: [":8000"]}`: false, `{caFile: a, except: [":0"]}`: false, `{caFile: a, except: [":8000"]}`: true,
	} {
		file("engineTLS: "+v, goodConfig+"engineTLS: "+v+"\n", accepted)
	}
	for _, v := range []string{"blockSize: 0", "blockSize: 16.5", "blockSize: -1", "blockSize: 100000", "aliases: [m]", "aliases: [a, a]",
		`aliases: [""]`, "contextLength: -1", "router: {policy: best}", "router: {temperature: -1}", "router: {temperature: .nan}",
		"router: {cost: free}", "router: {weights: {unknown: 1}}", "router: {weights: {decode: .inf}}", "router: {busy: {kvUsage: 2}}",
		"router: {busy: {status: 200}}", "router: {queue: {maxWait: 1h}}", "router: {queue: {requests: 0}}", "launch: [{engine: car}]",
		"launch: [{engine: sim, count: 0}]", "launch: [{engine: sim, count: 100000}]", "launch: [{engine: exec}]",
		"launch: [{engine: sim, role: cook}]", `launch: [{engine: sim, taints: [""]}]`} {
		file("model: "+v, model(v), false)
	}
	for _, v := range []string{`address: ""`, `address: "here"`, `address: "host:port"`, `address: "1.2.3.4"`, `address: "1.2.3.4:99999"`,
		`address: "1.2.3.4:1", ranks: 0`, `address: "1.2.3.4:1", ranks: 5000`, `address: "1.2.3.4:1", weight: 0`,
		`address: "1.2.3.4:1", blocks: -5`, `address: "1.2.3.4:1", engine: car`, `address: "1.2.3.4:1", role: cook`,
		`address: "1.2.3.4:1", kvEvents: "10.0.0.1:5557"`, `address: "1.2.3.4:1", kvEvents: "ftp://x"`,
		`address: "1.2.3.4:1", kvReplay: "10.0.0.1:5557"`, `address: "1.2.3.4:1"}, {name: w, address: "1.2.3.4:2"`,
		`address: "1.2.3.4:1"}, {name: x, address: "1.2.3.4:1"`} {
		text := worker(v)
		if strings.Contains(v, "}, {") {
			both := "  - {name: w, " + strings.Replace(v, "}, {", "}\n  - {", 1) + "}"
			text = strings.Replace(goodConfig, `  - {name: w, address: "127.0.0.1:8000"}`, both, 1)
		}
		file("worker: "+v, text, false)
	}
	for _, v := range []string{"bus: {url: nope}", `bus: {url: "http://x"}`, "bus: {cluster: A B}", "bus: {leaseTTL: 0s}",
		"index: {maxBytes: 1}",
		"prompts: {memoryBytes: 1}", "decisions: {hashEvery: 0}", "decisions: {logBytes: 1}", "index: {driftTokens: 5}"} {
		file(v, goodConfig+v+"\n", false)
	}
	return list
}
