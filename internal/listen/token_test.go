package listen_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stator-project/stator/internal/listen"
	"github.com/stator-project/stator/test/testkit"
)

// TestTokenOfAFile: the token is the file without white space, and is read again when the file changes. A file that
// others can read gets a warning.
func TestTokenOfAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("0123456789abcdef\n")
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}

	var log testkit.Log
	token, err := listen.OpenToken(path, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil || !log.Contains("other users can read the token") {
		t.Fatalf("%v, log %q", err, log.String())
	}
	for text, want := range map[string]bool{"0123456789abcdef": true, "0123456789abcdef\n": false, "0123456789abcdeg": false, "": false} {
		if token.Is(text) != want {
			t.Errorf("%q: want %v", text, want)
		}
	}

	write("another token, with spaces")
	testkit.Eventually(t, "the bad token is logged", func() bool {
		return token.Is("0123456789abcdef") && log.Contains("it must be one word")
	})
	write("fedcba9876543210-and-more")
	testkit.Eventually(t, "the new token is in force", func() bool { return token.Is("fedcba9876543210-and-more") })
	if token.Is("0123456789abcdef") {
		t.Error("the old token is still accepted")
	}
}

// TestUnusableTokens refuses tokens that are missing, short, long, or cannot be in a header.
func TestUnusableTokens(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	for text, want := range map[string]string{
		"":                         "it needs 16 to 4096 characters",
		"short":                    "it needs 16 to 4096 characters",
		strings.Repeat("a", 4097):  "it needs 16 to 4096 characters",
		"0123456789abcdef\r\nX: y": "one word",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := listen.OpenToken(path, quiet); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.10q: %v, want %q", text, err, want)
		}
	}
	if _, err := listen.OpenToken(path+"-absent", quiet); err == nil {
		t.Error("a missing file is accepted")
	}
}
