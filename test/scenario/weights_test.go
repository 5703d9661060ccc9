package scenario

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestFilesComeFromOtherNodes: one node has the files of a model. The agents of two others fetch them before they start their engines, and
// all three engines serve.
func TestFilesComeFromOtherNodes(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	folder := func(node string) string { return filepath.Join(root, node, "model") }
	if err := os.CopyFS(folder("a"), os.DirFS("../../internal/models/sim")); err != nil {
		t.Fatal(err)
	}
	weights := make([]byte, 30<<20)
	_, _ = rand.NewChaCha8([32]byte{2}).Read(weights)
	if err := os.WriteFile(filepath.Join(folder("a"), "model.safetensors"), weights, 0o644); err != nil {
		t.Fatal(err)
	}

	at := map[string]string{"a": freeAddress(t), "b": freeAddress(t), "c": freeAddress(t)}
	flags := func(node string) []string {
		return []string{"--node", node, "--weights-listen-address", at[node], "--weights-peers", at["a"], "--weights-peers", at["b"],
			"--weights-peers", at["c"]}
	}
	p := startPartsFor(t, partsSettings{agent: flags("a"), models: fmt.Sprintf(
		`models: [{name: sim, path: %q, launch: [{engine: sim, node: a}, {engine: sim, node: b}, {engine: sim, node: c}]}]`, folder("a"))})
	text, err := os.ReadFile(p.file)
	if err != nil {
		t.Fatal(err)
	}
	for _, node := range []string{"b", "c"} {
		file := filepath.Join(root, node+".yaml")
		if err := os.WriteFile(file, []byte(strings.Replace(string(text), folder("a"), folder(node), 1)), 0o644); err != nil {
			t.Fatal(err)
		}
		start(t, append([]string{"agent", "--config", file, "--admin-address", "127.0.0.1:0"}, flags(node)...)...)
	}

	eventually(t, "all workers are ready", func() error {
		ready := 0
		for _, r := range p.fleet() {
			if r.State == "ready" {
				ready++
			}
		}
		if ready != 3 {
			return fmt.Errorf("%d are", ready)
		}
		return nil
	})
	for _, node := range []string{"b", "c"} {
		got, err := os.ReadFile(filepath.Join(folder(node), "model.safetensors"))
		if err != nil || !bytes.Equal(got, weights) {
			t.Errorf("node %s has %d bytes, %v", node, len(got), err)
		}
	}
}
