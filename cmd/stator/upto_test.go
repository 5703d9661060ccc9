package main

import (
	"strings"
	"testing"
)

// TestReadTo: addresses are those of engines or of OPENAI_BASE_URL, and a mistake is named with its remedy.
func TestReadTo(t *testing.T) {
	for text, want := range map[string]string{
		"http://127.0.0.1:8000":               "127.0.0.1:8000",
		"10.0.0.1:8000,http://gpu-1:8000/v1/": "10.0.0.1:8000 gpu-1:8000",
		"http://[fd00::1]:8000/v1":            "[fd00::1]:8000",
		"http://engine":                       "engine:80",
		"":                                    `--to names "": write http://HOST:PORT`,
		"http://a:1,":                         `--to names "": write http://HOST:PORT`,
		"http://a:1/v2":                       `--to names "http://a:1/v2": write`,
		"http://key@a:1":                      `--to names "http://key@a:1": write`,
		"https://api.example":                 "for TLS write a file with engineTLS",
		"http://a:1,a:1":                      "--to names a:1 twice",
		strings.Repeat("http://a:1,", 64) + "http://": "--to names a:1 twice",
	} {
		got, err := readTo(text)
		if err == nil && strings.Join(got, " ") != want || err != nil && !strings.HasPrefix(err.Error()+" ", want) && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %q, %v; want %s", text, got, err, want)
		}
	}
}
