package console

import (
	"io/fs"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
)

// TestFiles serves each file of the page with a policy that lets it load its own files alone.
func TestFiles(t *testing.T) {
	kinds := map[string]string{
		"": "text/html; charset=utf-8", "console.js": "text/javascript; charset=utf-8", "console.css": "text/css; charset=utf-8",
		"icon.svg": "image/svg+xml",
	}
	for name, kind := range kinds {
		rec := httptest.NewRecorder()
		Handler().ServeHTTP(rec, httptest.NewRequest("GET", Path+name, nil))
		header := rec.Header()
		if rec.Code != 200 || header.Get("Content-Type") != kind {
			t.Errorf("%q: %d %s", name, rec.Code, header.Get("Content-Type"))
		}
		policy := header.Get("Content-Security-Policy")
		if !strings.HasPrefix(policy, "default-src 'none'") || strings.Contains(policy, "unsafe") || header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%q: the headers are %v", name, header)
		}
	}
	for _, path := range []string{"console.go", "../admin.go", "absent"} {
		rec := httptest.NewRecorder()
		Handler().ServeHTTP(rec, httptest.NewRequest("GET", Path+path, nil))
		if rec.Code == 200 {
			t.Errorf("%s is served", path)
		}
	}
}

// TestNoMarkupFromTexts looks for ways to make elements, code or requests to other places of a text.
func TestNoMarkupFromTexts(t *testing.T) {
	forbidden := regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|javascript:|https?://[^w]`)
	inline := regexp.MustCompile(`(?i)\son[a-z]+=|<script>|\sstyle=|<style`)
	names, err := fs.Glob(files, "*")
	if err != nil || len(names) < 4 {
		t.Fatalf("files %q, %v", names, err)
	}
	for _, name := range names {
		text, err := fs.ReadFile(files, name)
		if err != nil {
			t.Fatal(err)
		}
		if found := forbidden.Find(text); found != nil {
			t.Errorf("%s has %q", name, found)
		}
		if found := inline.Find(text); strings.HasSuffix(name, ".html") && found != nil {
			t.Errorf("%s has %q, which the policy blocks", name, found)
		}
	}
}

// TestSourcesOfSections: each section of the page has a list of the pages that it is made of, by which it is hidden, and a link.
func TestSourcesOfSections(t *testing.T) {
	page, err := fs.ReadFile(files, "index.html")
	if err != nil {
		t.Fatal(err)
	}
	script, err := fs.ReadFile(files, "console.js")
	if err != nil {
		t.Fatal(err)
	}
	_, sources, _ := strings.Cut(string(script), "const sources = {")
	sources, _, _ = strings.Cut(sources, "};")
	sections := regexp.MustCompile(`<section id="([a-z]+)"`).FindAllStringSubmatch(string(page), -1)
	if len(sections) < 9 || len(sections) != strings.Count(sources, ": [") {
		t.Errorf("%d sections, and sources %s", len(sections), sources)
	}
	for _, s := range sections {
		if !strings.Contains(sources, " "+s[1]+": [") || !strings.Contains(string(page), `<a href="#`+s[1]+`">`) {
			t.Errorf("the section %s has no sources or no link", s[1])
		}
	}
}
