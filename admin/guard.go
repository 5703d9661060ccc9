package admin

import (
	"encoding/json"
	"net/http"
	"strings"
)

// unauthorized is the answer to a request without the token.
const unauthorized = "this page needs the token of --admin-token-file: send it as `Authorization: Bearer TOKEN`, " +
	"or pass --admin-token-file to the stator command"

// isOpen reports whether a request is for something without data of the process: the health, or a file of the console.
func isOpen(r *http.Request) bool {
	path := r.URL.Path
	return path == pathHealth || path == pathReady || strings.HasPrefix(path, pathConsole) && !strings.Contains(path, "..") ||
		path == "/" && wantsPage(r)
}

// Guard serves h to requests with the right token. /healthz, /readyz and the files of the console are for everyone. All others get 401.
// isToken reports whether a text is the token.
func Guard(h http.Handler, isToken func(text string) bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		scheme, text, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		if isOpen(r) || strings.EqualFold(scheme, "Bearer") && isToken(text) {
			h.ServeHTTP(w, r)
			return
		}

		w.Header().Set("WWW-Authenticate", "Bearer")
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusUnauthorized)
		_ = json.NewEncoder(w).Encode(map[string]string{"error": unauthorized}) // an error means that the client is gone
	})
}
