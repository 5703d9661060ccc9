// Package console is a page for browsers on the admin port: the fleet and its caches, live decisions, the queue, the plan, tiers of KV
// blocks, Envoys, and the last hour.
//
// The page is three files in the program. Its script reads the JSON of the admin pages with GET while it is open and visible, so a closed
// page costs nothing. It shows every text as text, and the policy of its response lets it load and run nothing else.
package console

import (
	"embed"
	"net/http"
)

// Path is the folder of the page on the admin port. Its files hold no data of the process, so they need no token.
const Path = "/console/"

// policy lets the page use its own files and the pages of its port, and nothing else.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

//go:embed index.html console.css console.js icon.svg
var files embed.FS

// Handler serves the files of the page below [Path].
func Handler() http.Handler {
	serve := http.StripPrefix(Path, http.FileServerFS(files))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Content-Security-Policy", policy)
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Referrer-Policy", "no-referrer")
		header.Set("Cache-Control", "no-cache")
		serve.ServeHTTP(w, r)
	})
}
