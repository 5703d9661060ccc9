package bus_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/test/testkit"
)

// natsServer runs a NATS server that is not Stator's, with one user.
func natsServer(t *testing.T, port int, password string) (stop func()) {
	t.Helper()
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: port, Username: "u", Password: password, JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	if !s.ReadyForConnections(5 * time.Second) {
		t.Fatal("the server does not start")
	}
	return func() { s.Shutdown(); s.WaitForShutdown() }
}

// passwordFile returns a file with a password.
func passwordFile(t *testing.T, password string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(path, []byte(password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestRefusedLoginIsTriedForEver: a server refuses the password for a while, as during a change of passwords. The bus logs
// why it is away, and is back once the password is right. The new password is read from the file.
func TestRefusedLoginIsTriedForEver(t *testing.T) {
	port := testkit.Port(t)
	stop := natsServer(t, port, "first")
	var log testkit.Log
	metrics := prometheus.NewRegistry()
	password := passwordFile(t, "first")
	b := testkit.JoinBus(t, bus.Config{
		URL: fmt.Sprintf("nats://127.0.0.1:%d", port), Login: bus.Login{User: "u", PasswordFile: password}, Log: log.Logger(), Metrics: metrics,
	})
	if err := b.Err(); err != nil {
		t.Error(err)
	}

	stop()
	stop = natsServer(t, port, "second")
	testkit.Eventually(t, "the refusal is reported", func() bool {
		err := b.Err()
		return err != nil && strings.Contains(err.Error(), "Authorization Violation: check bus.user and bus.passwordFile")
	})
	testkit.Eventually(t, "the refusal is logged", func() bool { return log.Contains("waiting for the bus") })
	time.Sleep(time.Second) // the client has been refused twice
	stop()
	defer natsServer(t, port, "second")()
	if err := os.WriteFile(password, []byte("second"), 0o600); err != nil {
		t.Fatal(err)
	}

	testkit.Eventually(t, "the bus is back", b.Connected)
	if n := log.Count("level=WARN"); n != 1 {
		t.Errorf("%d warnings:\n%s", n, &log)
	}
	if strings.Contains(log.String(), "first") || strings.Contains(log.String(), "second") {
		t.Error("a password is in the log")
	}
}

// TestLoginMistakes: mistakes in the configuration are errors at once, and name no secret.
func TestLoginMistakes(t *testing.T) {
	empty := passwordFile(t, "")
	for _, c := range []struct {
		url   string
		login bus.Login
		want  string
	}{
		{"nats://u:secret@h:4222", bus.Login{User: "u", PasswordFile: "x"}, "named twice"},
		{"nats://h:4222", bus.Login{User: "u"}, "bus.user and bus.passwordFile need each other"},
		{"nats://h:4222", bus.Login{User: "u", PasswordFile: "/absent"}, "bus.passwordFile: open /absent"},
		{"nats://h:4222", bus.Login{User: "u", PasswordFile: empty}, "must contain a password of 1 to"},
		{"nats://h:4222", bus.Login{CredentialsFile: "/absent"}, "bus.credentialsFile: open /absent"},
		{"tls://h:4222", bus.Login{CAFile: "/absent"}, "/absent"},
		{"tls://h:4222", bus.Login{CertFile: "/absent"}, "bus.certFile and bus.keyFile need each other"},
		{"tls://h:4222", bus.Login{CertFile: "/absent", KeyFile: "/absent"}, "/absent"},
		{"nats://u:secret%@h:4222", bus.Login{}, "an address that cannot be read"},
	} {
		_, err := bus.Connect(t.Context(), bus.Config{URL: c.url, Login: c.login, Cluster: "test", LeaseTTL: testkit.LeaseTTL})
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s %+v: %v, want %q", c.url, c.login, err, c.want)
		}
	}
}

// TestSlowSubscriberIsCounted: a callback that blocks makes NATS drop messages. The drops of a subscription are counted
// while it is open and after it has ended, and logged once.
func TestSlowSubscriberIsCounted(t *testing.T) {
	var log testkit.Log
	metrics := prometheus.NewRegistry()
	b := testkit.JoinBus(t, bus.Config{Embedded: testkit.Server(t), Log: log.Logger(), Metrics: metrics})
	blocked, entered := make(chan struct{}), make(chan struct{}, 1<<18)
	release := sync.OnceFunc(func() { close(blocked) })
	stop := running(t, func(ctx context.Context) error {
		return b.SubscribeLoad(ctx, func(bus.Load) { entered <- struct{}{}; <-blocked })
	})
	t.Cleanup(release) // before the subscription is awaited
	testkit.Eventually(t, "the subscription is there", func() bool {
		_ = b.PublishLoad(bus.Load{Worker: "w"})
		return len(entered) > 0
	})

	for range 1 << 17 {
		if err := b.PublishLoad(bus.Load{Worker: "w"}); err != nil {
			t.Fatal(err)
		}
	}
	testkit.Eventually(t, "drops are counted", func() bool {
		return sample(t, metrics, "stator_bus_dropped_messages_total", "control") > 8000
	})
	if n := sample(t, metrics, "stator_bus_pending_messages", "control"); n == 0 {
		t.Error("no message waits")
	}
	testkit.Eventually(t, "drops are logged", func() bool { return log.Contains("bus messages dropped") })

	release()
	stop()
	if n := sample(t, metrics, "stator_bus_dropped_messages_total", "control"); n < 8000 {
		t.Errorf("%g drops after the end of the subscription", n)
	}
	if n := sample(t, metrics, "stator_bus_connected", "data"); n != 1 {
		t.Errorf("connected is %g", n)
	}
}

// sample returns the value of a metric of one connection.
func sample(t *testing.T, metrics *prometheus.Registry, name, connection string) float64 {
	t.Helper()
	families, err := metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && m.GetLabel()[0].GetValue() == connection {
				return m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}
