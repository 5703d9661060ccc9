package admin

import (
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/stator-project/stator/admin/console"
)

// otherSite is the answer to a request that a page of another site may have made.
const otherSite = "this port answers browsers at localhost and at IP addresses only, and no pages of other sites: " +
	"set --admin-token-file to use other names"

// OwnPages serves h to requests that no page of another site has made, and /healthz and /readyz to all. It is for ports without a
// token: a page whose name resolves to this machine could read them in a browser (DNS rebinding), and any page could begin a profile.
// Others get 403. Browsers do not reach Unix sockets, so these serve all.
func OwnPages(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		at, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
		isSocket := at != nil && at.Network() == "unix"
		isOpen := isSocket || r.URL.Path == pathHealth || r.URL.Path == pathReady
		if !isOpen && (!isLocal(r.Host) || isOtherSite(r)) {
			http.Error(w, otherSite, http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// WithConsole serves pages that were saved earlier, with the console in front of them, as [OwnPages] does.
func WithConsole(pages http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", pages)
	mux.Handle("GET "+pathConsole, console.Handler())
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, pathConsole, http.StatusFound) })
	return OwnPages(mux)
}

// isLocal reports whether a host, with or without a port, is an address or a name that no DNS server resolves.
func isLocal(host string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = host
	}
	name = strings.Trim(name, "[]")
	return name == "" || strings.EqualFold(name, "localhost") || net.ParseIP(name) != nil
}

// isOtherSite reports whether a browser has sent a request for a page of another origin. A link to a page is none.
func isOtherSite(r *http.Request) bool {
	if origin := r.Header.Get("Origin"); origin != "" {
		from, err := url.Parse(origin)
		return err != nil || from.Host != r.Host
	}
	site := r.Header.Get("Sec-Fetch-Site")
	return site != "" && site != "none" && site != "same-origin" && r.Header.Get("Sec-Fetch-Mode") != "navigate"
}
