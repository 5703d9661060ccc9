package bus_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/test/testkit"
)

// passwords has the password of each user in usersFile.
var passwords = map[string]string{
	"agent-a": "password-of-a", "router": "password-of-r", "control": "password-of-c", "planner": "password-of-p",
	"scaler": "password-of-s", "observer": "password-of-o",
}

// TestNoRoleWritesByReplies: each role sends to every subject that it may publish, with every foreign subject as the one for replies,
// while it receives all that it may. It can write to none of them afterwards, and none gets bytes that it has chosen.
func TestNoRoleWritesByReplies(t *testing.T) {
	l := newLockedBus(t)
	tryReplies(t, func(user string) *attacker { return l.attack(user, passwords[user]) }, l.attack("admin", "password-of-admin"))
}

// TestPrintedPermissions: the same at a nats-server with the configuration that stator bus --print-permissions prints.
func TestPrintedPermissions(t *testing.T) {
	users, err := bus.ParseUsers([]byte(usersFile))
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if err := bus.WritePermissions(&text, users, "test"); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(text.String(), "allow_responses") {
		t.Error("a role may answer whatever it receives")
	}
	file := filepath.Join(t.TempDir(), "nats.conf")
	if err := os.WriteFile(file, text.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}

	opts, err := server.ProcessConfigFile(file)
	if err != nil {
		t.Fatal(err)
	}
	opts.Host, opts.Port, opts.NoSigs, opts.NoLog = "127.0.0.1", -1, true, true
	opts.JetStream, opts.StoreDir = true, t.TempDir()
	s, err := server.NewServer(opts)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	defer func() {
		s.Shutdown()
		s.WaitForShutdown()
	}()

	const placeholder = "(a hash of bcrypt)"
	admin := bus.Login{User: "admin", PasswordFile: passwordFile(t, placeholder)}
	testkit.Eventually(t, "the server serves", func() bool { return s.ReadyForConnections(testkit.LeaseTTL) })
	if err := testkit.JoinBus(t, bus.Config{URL: s.ClientURL(), Login: admin}).CreateBuckets(t.Context()); err != nil {
		t.Fatal(err)
	}
	connect := func(user string) *attacker { return attackAt(t, s.ClientURL(), user, placeholder) }
	tryReplies(t, connect, connect("admin"))
}

// tryReplies plays what TestNoRoleWritesByReplies describes.
func tryReplies(t *testing.T, connect func(user string) *attacker, admin *attacker) {
	t.Helper()
	users, err := bus.ParseUsers([]byte(usersFile))
	if err != nil {
		t.Fatal(err)
	}
	const cable = "stator.v1.test."
	targets := []string{
		"$KV.stator-test-workers.b.w", "$KV.stator-test-plan.current", "$KV.stator-test-leader.planner", "$KV.stator-test-assign.b",
		"$KV.stator-test-slots.b", "$KV.stator-test-scale.wanted", "$KV.stator-test-scale.done", "$KV.stator-test-budgets.spent", cable + "kv.b", cable + "load.b.w",
		cable + "kvstore.b", cable + "answer.b.x", cable + "rpc.b.w.7.replay", cable + "book.x", cable + "ends.x", cable + "gone",
		cable + "demand.x", "_INBOX.agent-b.x", "_INBOX.other.x", "$JS.API.STREAM.DELETE.KV_stator-test-workers",
	}
	chosen := []byte("bytes that the attacker has chosen")
	var mu sync.Mutex
	var arrived []string
	for _, target := range targets {
		if _, err := admin.Subscribe(target, func(m *nats.Msg) {
			if bytes.Contains(m.Data, chosen) {
				mu.Lock()
				arrived = append(arrived, m.Subject)
				mu.Unlock()
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err := admin.Flush(); err != nil {
		t.Fatal(err)
	}

	for i := range users {
		u := &users[i]
		if passwords[u.Name] == "" {
			continue
		}
		may := u.Permissions("test")
		foreign := slices.DeleteFunc(slices.Clone(targets), func(target string) bool { return isAllowed(may.Publish, target) })
		a := connect(u.Name)
		for _, subject := range may.Subscribe {
			if _, err := a.Subscribe(subject, func(*nats.Msg) {}); err != nil {
				t.Fatal(err)
			}
		}
		for _, subject := range may.Publish {
			for _, reply := range foreign {
				if err := a.PublishRequest(concrete(subject), reply, chosen); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := a.Flush(); err != nil {
			t.Fatal(err)
		}

		for _, target := range foreign {
			if !a.isRefused(t, func() error { return a.Publish(target, chosen) }) {
				t.Errorf("%s may write to %s", u.Name, target)
			}
		}
		mu.Lock()
		if len(foreign) < 5 || len(slices.DeleteFunc(arrived, func(s string) bool { return isAllowed(may.Publish, s) })) > 0 {
			t.Errorf("%s: of %d foreign subjects, these got its bytes: %v", u.Name, len(foreign), arrived)
		}
		arrived = nil
		mu.Unlock()
		a.Close()
	}
}

// concrete returns a subject that a pattern matches.
func concrete(pattern string) string { return strings.NewReplacer("*", "x", ">", "x").Replace(pattern) }

// isAllowed reports whether patterns match a subject.
func isAllowed(patterns []string, subject string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		p, s := strings.Split(pattern, "."), strings.Split(subject, ".")
		for i, part := range p {
			switch {
			case part == ">":
				return len(s) > i
			case i >= len(s) || part != "*" && part != s[i]:
				return false
			}
		}
		return len(p) == len(s)
	})
}
