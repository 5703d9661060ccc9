package modelfile

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/stator-project/stator/internal/hub"
)

// Found is the result of Find.
type Found struct {
	// Path is the path of a model's files, as Load takes it; empty if they were not found.
	Path string
	// Why is where they are, or why they were not found, as the end of a sentence about them.
	Why string
}

// Find looks for the files of a model that an engine has loaded from root, which may be a path on another machine: in the folder or the
// .gguf file of that name on this machine, and then in the cache of the hub. It reads them, so a path that it returns can be loaded. A
// repository that the cache does not have is a path on the hub, unless the environment forbids to ask the hub.
func Find(ctx context.Context, root string) Found {
	ref, isRef := hub.RefOf(root)
	cfg := hub.FromEnvironment(slog.Default())
	cached := ""
	if isRef {
		cached = hub.New(cfg).Cached(ref)
	}

	switch {
	case root == "":
		return Found{Why: "the engine does not report where it has loaded them from"}
	case root == builtin+"sim":
		return Found{Path: root, Why: "are part of this program"}
	case filepath.IsAbs(root) && exists(root):
		return readable(ctx, root, "are on this machine")
	case cached != "":
		return readable(ctx, ref.String(), "are in the cache "+cfg.Cache)
	case isRef && cfg.Offline:
		return Found{Why: fmt.Sprintf("the cache %s does not have %s, and the environment forbids to ask the hub", cfg.Cache, ref)}
	case isRef:
		return Found{Path: ref.String(), Why: "are downloaded from " + cfg.Endpoint + "; its requests go by load until then"}
	}
	return Found{Why: fmt.Sprintf("the engine has loaded them from %q, which is not on this machine", root)}
}

// exists reports whether a path is a folder with a tokenizer, or a .gguf file.
func exists(path string) bool {
	if !strings.HasSuffix(path, ".gguf") {
		path = filepath.Join(path, hub.Files[0])
	}
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// readable returns a path if its files can be read. Those on a hub are in the cache, and are read from there.
func readable(ctx context.Context, path, where string) Found {
	folder := path
	if ref, err := hub.ParseRef(path); err == nil {
		folder = hub.New(hub.FromEnvironment(slog.Default())).Cached(ref)
	}
	if _, err := Load(ctx, folder); err != nil {
		return Found{Why: err.Error()}
	}
	return Found{Path: path, Why: where}
}
