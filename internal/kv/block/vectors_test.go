package block

import (
	"encoding/hex"
	"encoding/json"
	"flag"
	"os"
	"slices"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "rewrite testdata/keys.json instead of comparing with it")

// vector is a layout with its space, and a content hash with its key there. The Python package stator_connector reads the same file.
type vector struct {
	Layout  Layout `json:"layout"`
	Bytes   int    `json:"bytes"`
	Space   string `json:"space"`
	Content string `json:"content"`
	Key     string `json:"key"`
}

// TestVectors compares with the file, because other programs compute spaces and keys too.
func TestVectors(t *testing.T) {
	latent := Layout{Model: "DeepSeek-V3", Weights: "revision main", Layers: 61, PageTokens: 64, Outer: 1, Inner: 576, DType: "fp8", TPSize: 1}
	accented := Layout{Model: "modèle", Layers: 2, PageTokens: 32, Outer: 2, Inner: 64, DType: "float32", TPSize: 1, Hashing: "größe"}
	var got []vector
	for _, l := range []Layout{llama, latent, accented} {
		if err := l.Validate(); err != nil {
			t.Fatal(err)
		}
		for _, content := range []string{"", "content", "\x00\xff\x80 32 bytes of a digest ......"} {
			space := l.Space()
			got = append(got, vector{l, l.Bytes(), hex.EncodeToString(space[:]), hex.EncodeToString([]byte(content)),
				space.Key([]byte(content)).String()})
		}
	}

	const path = "testdata/keys.json"
	if *rewrite {
		data, err := json.MarshalIndent(got, "", "\t")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, append(data, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var want []vector
	if err := json.Unmarshal(data, &want); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, want) {
		t.Errorf("spaces or keys differ from %s: stored blocks could not be found any more. If that is wanted, run\n"+
			"  go test ./internal/kv/block -run TestVectors -args -rewrite", path)
	}
}
