package admin

import (
	"encoding/json"
	"net/http"
	"strings"
)

// unauthorized is the answer to a request without the token.
const unauthorized = "this page needs the token of --admin-token-file: send it as `Authorization: Bearer TOKEN`, " +
	"or pass --admin-token-file to the stator command"

// Guard serves h to requests with the right token, and /healthz and /readyz to everyone. All others get 401. isToken
// reports whether a text is the token.
func Guard(h http.Handler, isToken func(text string) bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		scheme, text, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		isOpen := r.URL.Path == pathHealth || r.URL.Path == pathReady
		if isOpen || strings.EqualFold(scheme, "Bearer") && isToken(text) {
			h.ServeHTTP(w, r)
			return
		}

		w.Header().Set("WWW-Authenticate", "Bearer")
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusUnauthorized)
		_ = json.NewEncoder(w).Encode(map[string]string{"error": unauthorized}) // an error means that the client is gone
	})
}
