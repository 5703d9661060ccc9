package hub_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stator-project/stator/internal/hub"
)

// TestParseRef parses well-formed references, and refuses those that could leave a folder or change a URL.
func TestParseRef(t *testing.T) {
	for path, want := range map[string]hub.Ref{
		"hf:Qwen/Qwen3-0.6B":            {Org: "Qwen", Model: "Qwen3-0.6B", Revision: "main"},
		"hf:a/b@v1.0":                   {Org: "a", Model: "b", Revision: "v1.0"},
		"hf:meta-llama/L_3.1@refs/pr/7": {Org: "meta-llama", Model: "L_3.1", Revision: "refs/pr/7"},
	} {
		got, err := hub.ParseRef(path)
		if err != nil || got != want || got.String() != path {
			t.Errorf("%s: %+v (%s), %v", path, got, got, err)
		}
	}

	long := strings.Repeat("a", 97)
	for _, path := range []string{
		"Qwen/Qwen3", "hf:", "hf:gpt2", "hf:a/", "hf:/b", "hf:a/b/c", "hf:../b", "hf:a/..", "hf:a/.b", "hf:-a/b", "hf:a--b/c", "hf:a/b..c",
		"hf:a/b@", "hf:a/b@../../x", "hf:a/b@/x", "hf:a/b@x/", "hf:a/b@x//y", "hf:a/b@a..b", "hf:a/b@.x", "hf:a/b@x?y", "hf:a/b@x y", "hf:a/b@x@y",
		"hf:a/b?x", "hf:a/b#x", "hf:a%2f/b", "hf:" + long + "/b", "hf:a/" + long, "hf:a/b@" + strings.Repeat("x", 201), "hf:a/b\n", "hf:a/b@x\n",
	} {
		if ref, err := hub.ParseRef(path); err == nil {
			t.Errorf("%q is accepted: %+v", path, ref)
		}
	}
}

// FuzzParseRef looks for references whose files would lie outside of their folder, or that are printed in another way.
func FuzzParseRef(f *testing.F) {
	for _, path := range []string{"hf:Qwen/Qwen3-0.6B", "hf:a/b@refs/pr/1", "hf:a/b@../c", "hf:a/../b"} {
		f.Add(path)
	}
	f.Fuzz(func(t *testing.T, path string) {
		ref, err := hub.ParseRef(path)
		if err != nil {
			return
		}
		again, err := hub.ParseRef(ref.String())
		if err != nil || again != ref {
			t.Errorf("%q is %+v, which is printed as %s", path, ref, ref)
		}
		for _, part := range []string{ref.Org, ref.Model, ref.Revision} {
			if !filepath.IsLocal(part) || filepath.Clean(part) != part {
				t.Errorf("%q has the part %q", path, part)
			}
		}
	})
}

// FuzzParseListing looks for answers of a hub whose commit could not be a folder's name.
func FuzzParseListing(f *testing.F) {
	f.Add([]byte(`{"sha":"` + strings.Repeat("a", 40) + `","siblings":[{"rfilename":"../x"}]}`))
	f.Add([]byte(`{"sha":"../x"}`))
	f.Add([]byte(`[`))
	f.Fuzz(func(t *testing.T, data []byte) {
		commit, err := hub.ParseListing(data)
		if err == nil && (len(commit) != 40 || strings.Trim(commit, "0123456789abcdef") != "") {
			t.Errorf("the commit is %q", commit)
		}
	})
}
