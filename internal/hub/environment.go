package hub

import (
	"cmp"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Config is read by New and not changed later.
type Config struct {
	// Endpoint is the URL of the hub, with http or https; a path in it is kept.
	Endpoint string
	// Token authorizes requests to the endpoint, and to no other host. Empty means the token in TokenFile, if the file exists; it is
	// read again for each download.
	Token, TokenFile string
	// Cache is the folder of the cache. It is made when it is needed. Empty is an error of every download.
	Cache string
	// Offline uses the cache alone.
	Offline bool
	Log     *slog.Logger
}

// The variables of huggingface_hub, with its meaning.
const (
	envEndpoint  = "HF_ENDPOINT"
	envHome      = "HF_HOME"
	envCache     = "HF_HUB_CACHE"
	envToken     = "HF_TOKEN"
	envTokenPath = "HF_TOKEN_PATH"
	envOffline   = "HF_HUB_OFFLINE"
)

// FromEnvironment returns the configuration that huggingface_hub would have in this process.
func FromEnvironment(log *slog.Logger) Config {
	var cache, tokenFile string
	if home := homeFolder(); home != "" {
		cache, tokenFile = filepath.Join(home, "hub"), filepath.Join(home, "token")
	}

	return Config{
		Endpoint:  strings.TrimRight(cmp.Or(os.Getenv(envEndpoint), "https://huggingface.co"), "/"),
		Token:     strings.TrimSpace(os.Getenv(envToken)),
		TokenFile: cmp.Or(expand(os.Getenv(envTokenPath)), tokenFile),
		Cache:     cmp.Or(expand(os.Getenv(envCache)), cache),
		Offline:   slices.Contains([]string{"1", "ON", "YES", "TRUE"}, strings.ToUpper(os.Getenv(envOffline))),
		Log:       log,
	}
}

// homeFolder returns the folder of the cache and the token; empty if the user has no home folder and no variable names one.
func homeFolder() string {
	if home := os.Getenv(envHome); home != "" {
		return expand(home)
	}
	if caches := os.Getenv("XDG_CACHE_HOME"); caches != "" {
		return filepath.Join(caches, "huggingface")
	}
	home, err := os.UserHomeDir()
	if err != nil || home == "" {
		return ""
	}
	return filepath.Join(home, ".cache", "huggingface")
}

// expand replaces variables, and a ~ at the beginning, as huggingface_hub does.
func expand(path string) string {
	path = os.ExpandEnv(path)
	if rest, ok := strings.CutPrefix(path, "~/"); ok {
		if home, err := os.UserHomeDir(); err == nil {
			return filepath.Join(home, rest)
		}
	}
	return path
}

// maxToken bounds a token in bytes.
const maxToken = 4096

// token returns the token for the endpoint; empty if there is none.
func (c *Config) token() (string, error) {
	if c.Token != "" || c.TokenFile == "" {
		return c.Token, nil
	}

	f, err := os.Open(c.TokenFile)
	if os.IsNotExist(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read the token of the hub: %w", err)
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, maxToken))
	if err != nil {
		return "", fmt.Errorf("read the token of the hub: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}
