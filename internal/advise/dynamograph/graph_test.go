package dynamograph

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/cockroachdb/datadriven"
)

// TestRead reads the objects of testdata/read.txt.
func TestRead(t *testing.T) {
	datadriven.RunTest(t, "testdata/read.txt", func(_ *testing.T, d *datadriven.TestData) string {
		g, err := Read([]byte(d.Input))
		if err != nil {
			return fmt.Sprintf("error: %v\n", err)
		}
		var b strings.Builder
		fmt.Fprintf(&b, "%s: %s, model %s, served as %q, blocks of %d, policy %q, TTFT %v, ITL %v\n", g.Name, g.Engine, g.Model, g.Served,
			g.BlockSize, g.Policy, g.TTFT, g.ITL)
		for _, p := range g.Pools {
			fmt.Fprintf(&b, "%s: %d %s, scaled %v, %s\n", p.Component, p.Replicas, p.Role, p.Scaled, p.Image)
			for _, key := range slices.Sorted(maps.Keys(p.Args)) {
				fmt.Fprintf(&b, "  %s: %v\n", key, p.Args[key])
			}
			for _, key := range slices.Sorted(maps.Keys(p.Env)) {
				fmt.Fprintf(&b, "  %s=%s\n", key, p.Env[key])
			}
		}
		for _, n := range g.Notes {
			fmt.Fprintln(&b, n)
		}
		return b.String()
	})
}

// TestBounds: files that are too large in any way are refused, and none makes the reader slow.
func TestBounds(t *testing.T) {
	const head = "kind: DynamoGraphDeployment\nspec: "
	var components strings.Builder
	for i := range maxComponents + 1 {
		fmt.Fprintf(&components, "{name: c%d, type: frontend},", i)
	}
	for name, data := range map[string]string{
		"bytes":      head + strings.Repeat(" ", MaxBytes),
		"documents":  strings.Repeat("a: 1\n---\n", maxDocuments+1),
		"components": head + "{components: [" + components.String() + "]}",
		"depth":      head + strings.Repeat("{a: ", 200) + strings.Repeat("}", 200),
		"two":        head + "{}\n---\n" + head + "{}",
	} {
		if _, err := Read([]byte(data)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// FuzzRead: no file makes the reader fail, and no message has a control character of the file.
func FuzzRead(f *testing.F) {
	f.Add("kind: DynamoGraphDeployment\nspec: {services: {a: {componentType: worker, args: [x]}}}")
	f.Add("kind: DynamoGraphDeployment\nspec: {components: [{name: a, type: decode, modelRef: {name: m}, podTemplate: " +
		"{spec: {containers: [{name: main, command: [sh, -c, 'python3 -m dynamo.vllm --a=b']}]}}}]}")
	f.Fuzz(func(t *testing.T, data string) {
		g, err := Read([]byte(data))
		var messages []string
		if g != nil {
			for _, n := range g.Notes {
				messages = append(messages, n.String())
			}
		} else if err != nil && !strings.HasPrefix(err.Error(), "parse YAML") {
			messages = append(messages, err.Error())
		}
		for _, m := range messages {
			if strings.ContainsFunc(m, unicode.IsControl) {
				t.Errorf("%q", m)
			}
		}
	})
}
