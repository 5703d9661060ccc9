package child

import (
	"slices"
	"strings"
	"sync"
	"testing"
)

// TestEnvironment: programs get the variables of this process that they need and no credentials, and all that the configuration
// names.
func TestEnvironment(t *testing.T) {
	own := []string{
		"PATH=/bin", "HOME=/root", "LC_ALL=C", "CUDA_VISIBLE_DEVICES=1", "HF_TOKEN=a", "VLLM_USE_V1=1", "https_proxy=b",
		"AWS_SECRET_ACCESS_KEY=secret", "AWS_SESSION_TOKEN=secret", "PASSWORD=secret", "GITHUB_TOKEN=secret", "PATHS=1", "HOME", "=x",
	}
	want := []string{
		"PATH=/bin", "HOME=/root", "LC_ALL=C", "CUDA_VISIBLE_DEVICES=1", "HF_TOKEN=a", "VLLM_USE_V1=1", "https_proxy=b", "HOME",
		"PATH=/opt", "AWS_REGION=eu",
	}
	if got := Environment(own, []string{"PATH=/opt", "AWS_REGION=eu"}); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

// TestChildrenHaveNoCredentials: a running program does not find a variable of this process that it needs not have.
func TestChildrenHaveNoCredentials(t *testing.T) {
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	t.Setenv("VLLM_TEST", "engine")
	var mu sync.Mutex
	var lines []string
	p, err := Start(Config{Path: "/usr/bin/env", Env: []string{"GIVEN=1"}, Line: func(line string) {
		mu.Lock()
		defer mu.Unlock()
		lines = append(lines, line)
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(); err != nil {
		t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	text := strings.Join(lines, "\n")
	if strings.Contains(text, "AWS_") || !strings.Contains(text, "VLLM_TEST=engine") || !strings.Contains(text, "GIVEN=1") {
		t.Errorf("%s", text)
	}
}
