package scenario

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/test/testkit"
)

// engineName is the DNS name in the certificates of engines, the default of engineTLS.serverName.
const engineName = "stator-engine"

// engineCertificates are the files of engines, and of the clients of engines, in a test.
type engineCertificates struct {
	ca                               *testkit.Authority
	cert, key, clientCert, clientKey string
}

func newEngineCertificates(t *testing.T) *engineCertificates {
	c := &engineCertificates{ca: testkit.NewAuthority(t)}
	c.cert, c.key = c.ca.Issue(engineName)
	c.clientCert, c.clientKey = c.ca.Issue("client")
	return c
}

// block is the part of a configuration that has Stator reach engines by TLS, except for some addresses.
func (c *engineCertificates) block(except ...string) string {
	return fmt.Sprintf("engineTLS: {caFile: %q, certFile: %q, keyFile: %q, except: [%s]}\n", c.ca.CA(), c.clientCert, c.clientKey,
		strings.Join(except, ", "))
}

// args are the arguments with which an agent has an engine serve TLS, and ask for certificates.
func (c *engineCertificates) args() string {
	return fmt.Sprintf("tlsCert: %q, tlsKey: %q, tlsClientCA: %q", c.cert, c.key, c.ca.CA())
}

// flags are the same for an engine that is started by hand.
func (c *engineCertificates) flags(more ...string) []string {
	return append([]string{"sim", "--tls-cert", c.cert, "--tls-key", c.key, "--tls-client-ca", c.ca.CA()}, more...)
}

// shown connects to an engine with a client's certificate, and returns the signature of the engine's own.
func shown(address, cert, key string) (string, error) {
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return "", err
	}
	dialer := tls.Dialer{NetDialer: &net.Dialer{Timeout: patience}, Config: &tls.Config{
		Certificates: []tls.Certificate{pair}, InsecureSkipVerify: true, MinVersion: tls.VersionTLS12,
	}}
	conn, err := dialer.Dial("tcp", address)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(patience))
	// An engine refuses a certificate after the handshake of TLS 1.3.
	if _, err := fmt.Fprint(conn, "GET /health HTTP/1.1\r\nHost: engine\r\n\r\n"); err != nil {
		return "", err
	}
	if _, err := conn.Read(make([]byte, 1)); err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", conn.(*tls.Conn).ConnectionState().PeerCertificates[0].Signature), nil
}

// replaceBy moves a copy of a file to the place of another one.
func replaceBy(t *testing.T, path, by string) {
	t.Helper()
	text, err := os.ReadFile(by)
	if err != nil {
		t.Fatal(err)
	}
	rewrite(t, path, func(string) string { return string(text) })
}

// TestEnginesByTLS: engines that ask for certificates are reached by Envoy, probes and readers of metrics, and so is one without TLS that is
// an exception. The authority and all certificates are replaced under load, and no request fails.
func TestEnginesByTLS(t *testing.T) {
	t.Parallel()
	c := newEngineCertificates(t)
	listed := freeAddress(t)
	start(t, c.flags("--listen-address", listed, "--kv-events", "tcp://"+freeAddress(t), "--kv-replay", "tcp://"+freeAddress(t))...)
	plain := freeAddress(t)
	start(t, "sim", "--listen-address", plain, "--kv-events", "tcp://"+freeAddress(t), "--kv-replay", "tcp://"+freeAddress(t))
	g := up(t, "--config", configFile(t, c.block(strconv.Quote(plain))+fmt.Sprintf(`
models:
- name: sim
  path: "builtin:sim"
  launch: [{engine: sim, count: 2, args: {%s}}]
  workers:
  - {name: listed, address: %q, engine: sim, kvEvents: auto}
  - {name: plain, address: %q, engine: sim, kvEvents: auto}
`, c.args(), listed, plain)))
	if _, err := get("http://" + listed + "/health"); err == nil {
		t.Fatal("an engine answers without TLS")
	}

	l := g.load(4)
	l.more(t, 50)
	eventually(t, "metrics and events of engines are read", func() error {
		page, err := g.read("/metrics/engines")
		targets, errTargets := g.read("/sd")
		switch {
		case err != nil || errTargets != nil:
			return errors.Join(err, errTargets)
		case sample(page, "vllm:request_success_total", `worker="sim-0"`) == 0 || !strings.Contains(targets, `"__scheme__":"https"`):
			return fmt.Errorf("%s\n%s", page, targets)
		case strings.Count(targets, `"__scheme__":"https"`) != 3:
			return fmt.Errorf("the targets of Prometheus are %s", targets)
		case strings.Count(g.up.out.String(), "event socket found") != 2:
			return errors.New("the listed engines were not asked for their event sockets")
		case g.metric("stator_request_answers_total", `worker="plain"`, `code="2xx"`) == 0:
			return errors.New("the engine without TLS has answered no request")
		}
		return nil
	})

	// First everyone accepts both authorities.
	next := newEngineCertificates(t)
	updates := g.certificateUpdates(t)
	text, err := os.ReadFile(next.ca.CA())
	if err != nil {
		t.Fatal(err)
	}
	rewrite(t, c.ca.CA(), func(first string) string { return first + string(text) })
	var engines []string
	for _, r := range g.fleet() {
		if r.Address != plain {
			engines = append(engines, r.Address)
		}
	}
	eventually(t, "engines and Envoy know the next authority", func() error {
		for _, address := range engines {
			if _, err := shown(address, next.clientCert, next.clientKey); err != nil {
				return err
			}
		}
		if g.certificateUpdates(t) == updates {
			return errNotYet
		}
		return nil
	})
	l.more(t, 50)

	// Then they get certificates of the next one.
	before, err := shown(listed, c.clientCert, c.clientKey)
	if err != nil {
		t.Fatal(err)
	}
	updates = g.certificateUpdates(t)
	for path, by := range map[string]string{c.cert: next.cert, c.key: next.key, c.clientCert: next.clientCert, c.clientKey: next.clientKey} {
		replaceBy(t, path, by)
	}
	eventually(t, "engines show the next certificate, and Envoy has its own", func() error {
		for _, address := range engines {
			now, err := shown(address, next.clientCert, next.clientKey)
			if err != nil || now == before {
				return fmt.Errorf("%s: %w", now, orNotYet(err))
			}
		}
		if g.certificateUpdates(t) == updates {
			return errNotYet
		}
		return nil
	})
	l.more(t, 50)

	// At last the first authority goes. Idle connections of Envoy end after four seconds, so later requests make new ones.
	updates = g.certificateUpdates(t)
	replaceBy(t, c.ca.CA(), next.ca.CA())
	eventually(t, "Envoy has forgotten the first authority", func() error {
		if g.certificateUpdates(t) == updates {
			return errNotYet
		}
		return nil
	})
	l.more(t, 50)
	l.stop()
	eventually(t, "Envoy has no connection to engines", func() error {
		page, err := g.read("/metrics/envoy")
		if n := sample(page, "envoy_cluster_upstream_cx_active", `envoy_cluster_name="pool/sim"`); err != nil || n != 0 {
			return fmt.Errorf("%g connections, %w", n, orNotYet(err))
		}
		return nil
	})
	l = g.load(4)
	l.more(t, 50)
	l.stop()
	if n := l.failed.Load(); n != 0 {
		t.Errorf("%d requests failed: %v", n, l.lastError.Load())
	}
	g.await()
	// A connection that begins between the moves of a certificate and of its key is refused, and its request goes to another engine.
	if g.served("misdirected")+g.served("unserved") != 0 {
		t.Errorf("%d requests were misdirected, %d unserved", g.served("misdirected"), g.served("unserved"))
	}
}

// orNotYet returns an error, or errNotYet without one.
func orNotYet(err error) error {
	if err == nil {
		return errNotYet
	}
	return err
}

// certificateUpdates returns how often Envoy has made the certificates of connections to engines anew.
func (g *gateway) certificateUpdates(t *testing.T) float64 {
	t.Helper()
	page, err := g.read("/metrics/envoy")
	if err != nil {
		t.Fatal(err)
	}
	return sample(page, "envoy_cluster_client_ssl_socket_factory_ssl_context_update_by_sds", `envoy_cluster_name="pool/sim"`)
}

// TestForeignEngines: an engine with a certificate of another authority, and one without TLS, get no requests. The log has the reason, the
// doctor finds it, and a worker whose authority is added becomes ready.
func TestForeignEngines(t *testing.T) {
	t.Parallel()
	c := newEngineCertificates(t)
	good, foreign, plain := freeAddress(t), freeAddress(t), freeAddress(t)
	start(t, c.flags("--listen-address", good)...)
	other := newEngineCertificates(t)
	start(t, "sim", "--listen-address", foreign, "--tls-cert", other.cert, "--tls-key", other.key, "--tls-client-ca", c.ca.CA())
	start(t, "sim", "--listen-address", plain)
	eventually(t, "the engine without TLS is ready", func() error { _, err := get("http://" + plain + "/health"); return err })

	models := func(names ...string) string {
		workers := map[string]string{"good": good, "foreign": foreign, "plain": plain}
		text := "models:\n- name: sim\n  path: \"builtin:sim\"\n  workers:\n"
		for _, name := range names {
			text += fmt.Sprintf("  - {name: %s, address: %q, engine: sim}\n", name, workers[name])
		}
		return text
	}
	file := configFile(t, c.block()+models("good"))
	g := up(t, "--config", file)
	rewrite(t, file, func(text string) string {
		head, _, _ := strings.Cut(text, "models:")
		return head + models("good", "foreign", "plain")
	})
	states := func() (out []string) {
		for _, r := range g.fleet() {
			out = append(out, r.Worker+" "+r.State)
		}
		slices.Sort(out)
		return out
	}
	eventually(t, "the log has both reasons", func() error {
		for _, reason := range []string{
			"no authority in engineTLS.caFile has signed the engine's certificate: add its authority to the file",
			"the engine speaks no TLS: start it with a certificate, or list its address in engineTLS.except",
		} {
			if !strings.Contains(g.up.out.String(), reason) {
				return fmt.Errorf("the log lacks %q; states %v", reason, states())
			}
		}
		return nil
	})
	for i := range 20 {
		r := g.chat([]message{{"user", fmt.Sprintf("question %d", i)}}, 1)
		if d := g.decision(r.decision); d.Worker != "good" {
			t.Errorf("%s was picked", d.Worker)
		}
	}
	if got := states(); slices.Contains(got, "foreign ready") || slices.Contains(got, "plain ready") {
		t.Errorf("states %v", got)
	}

	_, found := doctor(t, "--config", file, "--admin-address", g.admin, "--wait", "1s", "--json")
	for _, want := range []string{"engine worker foreign", "engine worker plain"} {
		if !slices.Contains(found, want) {
			t.Errorf("the doctor found %q, want %q", found, want)
		}
	}
	if slices.Contains(found, "engine worker good") {
		t.Errorf("the doctor found %q", found)
	}
	_, found = doctor(t, "--config", configFile(t, models("good", "plain")), "--admin-address", g.admin, "--wait", "1s", "--json")
	if !slices.Contains(found, "engine worker good") || slices.Contains(found, "engine worker plain") {
		t.Errorf("without engineTLS the doctor found %q", found)
	}

	text, err := os.ReadFile(other.ca.CA())
	if err != nil {
		t.Fatal(err)
	}
	rewrite(t, c.ca.CA(), func(first string) string { return first + string(text) })
	eventually(t, "the foreign engine is ready", func() error {
		if got := states(); !slices.Contains(got, "foreign ready") {
			return fmt.Errorf("%v", got)
		}
		return nil
	})
}

// TestPrefillAndDecodeByTLS: legs to prefill workers, and the relay's requests to decode workers, are encrypted. Envoy reaches the relay, which
// is in the pool of the engines, without TLS.
func TestPrefillAndDecodeByTLS(t *testing.T) {
	t.Parallel()
	for _, transfer := range []string{"nixl", "bootstrap"} {
		t.Run(transfer, func(t *testing.T) {
			c := newEngineCertificates(t)
			g := up(t, "--config", configFile(t, c.block()+fmt.Sprintf(`
models:
- name: sim
  path: "builtin:sim"
  router: {prefill: remote}
  launch:
  - {engine: sim, role: prefill, args: {transfer: %[1]s, %[2]s}}
  - {engine: sim, role: decode, args: {transfer: %[1]s, %[2]s}}
`, transfer, c.args())))
			chats := handshakeChats()
			for _, chat := range chats {
				g.chat(chat, 8)
			}
			g.assertServed(len(chats))
			// Both legs may end after the client has its answer.
			eventually(t, "all prompts are transferred, by the relay where both legs begin at once", func() error {
				transferred, relayed := g.prefills("transferred"), g.metric("stator_relay_attempts_total", `outcome="answered"`)
				if transferred != float64(len(chats)) || (transfer == "bootstrap") != (relayed > 0) {
					return fmt.Errorf("%g of %d prompts were transferred, and the relay has answered %g requests", transferred, len(chats), relayed)
				}
				return nil
			})
		})
	}
}

// TestEnvoyVerifiesEngines: Envoy itself refuses engines with a certificate of another authority, or for another name. Nothing asks these
// engines for their health, so routers pick them.
func TestEnvoyVerifiesEngines(t *testing.T) {
	t.Parallel()
	c, other := newEngineCertificates(t), newEngineCertificates(t)
	foreign, misnamed := freeAddress(t), freeAddress(t)
	start(t, "sim", "--listen-address", foreign, "--tls-cert", other.cert, "--tls-key", other.key)
	start(t, "sim", "--listen-address", misnamed, "--tls-cert", c.clientCert, "--tls-key", c.clientKey)
	g := up(t, "--config", configFile(t, c.block()+fmt.Sprintf(`
models:
- {name: foreign, path: "builtin:sim", workers: [{name: a, address: %q, engine: sim, healthPath: none}]}
- {name: misnamed, path: "builtin:sim", workers: [{name: b, address: %q, engine: sim, healthPath: none}]}
`, foreign, misnamed)))
	for model, stat := range map[string]string{"foreign": "ssl_fail_verify_error", "misnamed": "ssl_fail_verify_san"} {
		eventually(t, "Envoy has the engine, and counts the refusal", func() error {
			r, err := g.send(t.Context(), http.MethodPost, "/v1/completions", fmt.Appendf(nil, `{"model": %q, "prompt": "hello"}`, model))
			if err != nil || r.status != http.StatusServiceUnavailable {
				t.Fatalf("%s: status %d: %s, %v", model, r.status, r.body, err)
			}
			page, err := g.read("/metrics/envoy")
			if err != nil || sample(page, "envoy_cluster_"+stat, `envoy_cluster_name="pool/`+model+`"`) == 0 {
				return fmt.Errorf("%s: %w", model, orNotYet(err))
			}
			return nil
		})
	}
}
