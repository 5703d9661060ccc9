// Command engine is the engine of the conformance suite's pods. It answers like the suite's own server: each answer repeats what has
// arrived. It also lists a model, because a router of Stator sends no requests to a server that lists none.
//
// It listens on HTTP_PORT (3000) with HTTP/1.1, and on H2C_PORT (3001) with HTTP/2 without TLS, each on all addresses. Without
// POD_NAME it only waits until it is stopped: so it is the program of a pod's sandbox, too.
package main

import (
	"cmp"
	"encoding/json"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	if os.Getenv("POD_NAME") == "" {
		stop := make(chan os.Signal, 1)
		signal.Notify(stop, syscall.SIGTERM)
		<-stop
		return
	}
	go serve(cmp.Or(os.Getenv("H2C_PORT"), "3001"), 2)
	serve(cmp.Or(os.Getenv("HTTP_PORT"), "3000"), 1)
}

// serve answers requests of a version of HTTP. Lists of models are served in each version, because the router asks for them with HTTP/1.1.
func serve(port string, version int) {
	server := http.Server{Addr: ":" + port, Protocols: new(http.Protocols)}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(version == 2)
	server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/v1/models":
			_, _ = w.Write([]byte(`{"data": [{"id": "conformance-fake-model"}]}`))
		case r.ProtoMajor != version && r.Method == http.MethodPost:
			http.Error(w, "this port is for another version of HTTP than "+r.Proto, http.StatusHTTPVersionNotSupported)
		default:
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(map[string]any{
				"path": r.RequestURI, "host": r.Host, "method": r.Method, "proto": r.Proto, "headers": r.Header, "httpPort": port,
				"namespace": os.Getenv("NAMESPACE"), "pod": os.Getenv("POD_NAME"),
			})
		}
	})
	log.Fatal(server.ListenAndServe())
}
