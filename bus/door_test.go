package bus_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/bus/busv1"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/kv/kvevent"
	"github.com/stator-project/stator/internal/plan"
	"github.com/stator-project/stator/internal/route/peers"
	"github.com/stator-project/stator/test/testkit"
)

const usersFile = `
- {user: agent-a, password: password-of-a, role: agent, node: a}
- {user: agent-b, password: password-of-b, role: agent, node: b}
- {user: router, passwordHash: $2a$04$H7UONrh4mEVIoIDoYpH00epIrTIhneKtlYH.GhDn57PDpYIsLHAra, role: router}
- {user: control, password: password-of-c, role: control}
- {user: planner, password: password-of-p, role: planner}
- {user: scaler, password: password-of-s, role: scaler}
- {user: observer, password: password-of-o, role: observer}
- {user: admin, password: password-of-admin, role: admin}
`

// lockedBus is a server with users and TLS.
type lockedBus struct {
	log    *testkit.Log
	t      *testing.T
	ca     *testkit.Authority
	server *bus.Embedded
}

func newLockedBus(t *testing.T) *lockedBus {
	users, err := bus.ParseUsers([]byte(usersFile))
	if err != nil {
		t.Fatal(err)
	}
	l := &lockedBus{t: t, ca: testkit.NewAuthority(t), log: &testkit.Log{}}
	cert, key := l.ca.Issue("server", "127.0.0.1")
	l.server, err = bus.Embed(bus.EmbedConfig{
		Host: "127.0.0.1", Port: -1, Dir: t.TempDir(), Users: users, Cluster: "test", TLSCert: cert, TLSKey: key, Log: l.log.Logger(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.server.Close)
	if err := testkit.JoinBus(t, bus.Config{Embedded: l.server}).CreateBuckets(t.Context()); err != nil {
		t.Fatal(err)
	}
	return l
}

// join connects a user as the processes of Stator do. Its log is printed if the test fails.
func (l *lockedBus) join(user, password string) *bus.Bus {
	return l.joinCounted(user, password, nil)
}

func (l *lockedBus) joinCounted(user, password string, metrics prometheus.Registerer) *bus.Bus {
	log := &testkit.Log{}
	log.PrintOnFailure(l.t)
	return testkit.JoinBus(l.t, bus.Config{
		URL: l.server.URL(), Log: log.Logger(), Metrics: metrics,
		Login: bus.Login{User: user, PasswordFile: passwordFile(l.t, password), CAFile: l.ca.CA()},
	})
}

// attacker is a user with a client of its own. Violations are counted.
type attacker struct {
	*nats.Conn
	mu         sync.Mutex
	violations []string
}

func (l *lockedBus) attack(user, password string) *attacker {
	return attackAt(l.t, l.server.URL(), user, password, nats.RootCAs(l.ca.CA()))
}

func attackAt(t *testing.T, url, user, password string, more ...nats.Option) *attacker {
	a := &attacker{}
	var err error
	a.Conn, err = nats.Connect(url, append(more, nats.UserInfo(user, password), nats.CustomInboxPrefix("_INBOX."+user),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.violations = append(a.violations, err.Error())
		}))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	return a
}

// isRefused reports whether the server refuses the use of a subject that f tries.
func (a *attacker) isRefused(t *testing.T, f func() error) bool {
	t.Helper()
	a.mu.Lock()
	a.violations = nil
	a.mu.Unlock()
	if err := f(); err != nil {
		t.Fatal(err)
	}
	if err := a.Flush(); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(20 * time.Second) // the report comes from another goroutine, which a busy machine delays
	for time.Now().Before(deadline) {
		a.mu.Lock()
		n := len(a.violations)
		a.mu.Unlock()
		if n > 0 {
			return true
		}
		time.Sleep(time.Millisecond)
	}
	return false
}

// lease returns the bytes of a lease.
func lease(t *testing.T, name, address string) []byte {
	t.Helper()
	data, err := proto.Marshal(&busv1.Worker{Name: name, Model: "m", Address: address, Engine: "vllm", Epoch: 9, Ranks: 1, Weight: 1, State: uint32(fleet.Ready)})
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// holdAs holds the lease of a worker until the test ends.
func holdAs(t *testing.T, b *bus.Bus, name string) {
	t.Helper()
	claimed := make(chan struct{})
	running(t, func(ctx context.Context) error {
		return b.HoldWorker(ctx, bus.Claim{Name: name, Claimed: func() { close(claimed) }, Current: func() fleet.Worker { return worker(name, fleet.Ready) }})
	})
	select {
	case <-claimed:
	case <-time.After(time.Minute):
		t.Fatalf("%s cannot hold its lease", name)
	}
}

// TestStrangerCannotConnect: a server with users and TLS refuses clients without a login, with a wrong one, and without the
// server's CA.
func TestStrangerCannotConnect(t *testing.T) {
	l := newLockedBus(t)
	for name, opts := range map[string][]nats.Option{
		"no login":       {nats.RootCAs(l.ca.CA())},
		"wrong password": {nats.RootCAs(l.ca.CA()), nats.UserInfo("admin", "password-of-x")},
		"the owner":      {nats.RootCAs(l.ca.CA()), nats.UserInfo("owner", "")},
		"no CA":          {nats.UserInfo("admin", "password-of-admin")},
	} {
		if nc, err := nats.Connect(l.server.URL(), opts...); err == nil {
			nc.Close()
			t.Errorf("%s: connected", name)
		}
	}
	testkit.Eventually(t, "the log names the user of a refused login", func() bool { return l.log.Contains(`authentication error - User \"admin\"`) })
	if l.log.Contains("password-of-x") {
		t.Error("the log has a password")
	}
}

// TestAgentIsConfinedToItsNode: the agent of node b tries to register, steal, delete and forge for node a, with a client of
// its own. The server refuses, and routers keep what node a's agent has published.
func TestAgentIsConfinedToItsNode(t *testing.T) {
	l := newLockedBus(t)
	router := l.join("router", "password-of-r")
	seen := &members{m: map[string]fleet.Worker{}}
	running(t, func(ctx context.Context) error {
		return router.WatchWorkers(ctx, func(l bus.Lease) {
			if t.Context().Err() == nil && (l.Worker == nil || l.Worker.Address != "10.0.0.1:80") {
				t.Errorf("the router was sent %+v", l)
			}
			seen.apply(l)
		}, nil)
	})
	metrics := prometheus.NewRegistry()
	a, b := l.joinCounted("agent-a", "password-of-a", metrics), l.join("agent-b", "password-of-b")
	holdAs(t, a, "a.w")
	holdAs(t, b, "b.w")
	testkit.Eventually(t, "the router has both workers", func() bool { return seen.String() == "[a.w=ready b.w=ready]" })

	evil := l.attack("agent-b", "password-of-b")
	const (
		keys   = "$KV.stator-test-workers."
		stream = "KV_stator-test-workers"
		cable  = "stator.v1.test."
	)
	forged := lease(t, "a.w", "6.6.6.6:80")
	send := func(subject string, data []byte) func() error {
		return func() error { return evil.Publish(subject, data) }
	}
	for what, try := range map[string]func() error{
		"steal a lease":           send(keys+"a.w", forged),
		"register for a":          send(keys+"a.new", forged),
		"register without a node": send(keys+"new", forged),
		"forge events":            send(cable+"kv.a", []byte("x")),
		"forge events of a rank":  send(cable+"kv.a.w.0", []byte("x")),
		"forge load":              send(cable+"load.a.w", []byte("x")),
		"forge bookings":          send(cable+"book.r", []byte("x")),
		"end requests":            send(cable+"ends.r", []byte("x")),
		"end an Envoy's requests": send(cable+"gone", []byte("x")),
		"request a replay":        send(cable+"rpc.a.w.7.replay", []byte("x")),
		"publish slots of a":      send("$KV.stator-test-slots.a", []byte("x")),
		"publish stores of a":     send(cable+"kvstore.a", []byte("x")),
		"publish stores of none":  send(cable+"kvstore._", []byte("x")),
		"assign engines":          send("$KV.stator-test-assign.b", []byte("x")),
		"watch a's assignment":    send("$JS.API.CONSUMER.CREATE.KV_stator-test-assign.c.$KV.stator-test-assign.a", []byte("{}")),
		"watch all assignments":   send("$JS.API.CONSUMER.CREATE.KV_stator-test-assign.c", []byte("{}")),
		"watch slots":             send("$JS.API.CONSUMER.CREATE.KV_stator-test-slots.c.$KV.stator-test-slots.b", []byte("{}")),
		"write used tokens":       send("$KV.stator-test-budgets.spent", []byte("x")),
		"read used tokens":        send("$JS.API.STREAM.MSG.GET.KV_stator-test-budgets", []byte(`{"last_by_subj":"$KV.stator-test-budgets.spent"}`)),
		"publish a plan":          send("$KV.stator-test-plan.current", []byte("x")),
		"delete a bucket":         send("$JS.API.STREAM.DELETE."+stream, nil),
		"empty a bucket":          send("$JS.API.STREAM.PURGE."+stream, nil),
		"change a bucket":         send("$JS.API.STREAM.UPDATE."+stream, []byte("{}")),
		"create a stream":         send("$JS.API.STREAM.CREATE.x", []byte("{}")),
		"delete an entry":         send("$JS.API.STREAM.MSG.DELETE."+stream, []byte("{}")),
		"read directly":           send("$JS.API.DIRECT.GET."+stream, []byte("{}")),
		"create a consumer":       send("$JS.API.CONSUMER.CREATE."+stream+".c", []byte("{}")),
		"answer a router":         send("_INBOX.router.x", []byte("x")),
		"delete a lease": func() error {
			return evil.PublishMsg(&nats.Msg{Subject: keys + "a.w", Header: nats.Header{"KV-Operation": {"DEL"}}})
		},
		"read requests to a":        func() error { _, err := evil.SubscribeSync(cable + "rpc.a.>"); return err },
		"read the router's replies": func() error { _, err := evil.SubscribeSync("_INBOX.router.>"); return err },
		"read all replies":          func() error { _, err := evil.SubscribeSync("_INBOX.>"); return err },
		"read events":               func() error { _, err := evil.SubscribeSync(cable + "kv.>"); return err },
		"read everything":           func() error { _, err := evil.SubscribeSync(">"); return err },
	} {
		if !evil.isRefused(t, try) {
			t.Errorf("%s: not refused", what)
		}
	}

	// A roll-up would delete the leases of all nodes.
	publish := func(m *nats.Msg) {
		if err := evil.PublishMsg(m); err != nil {
			t.Fatal(err)
		}
	}
	publish(&nats.Msg{Subject: keys + "b.x", Header: nats.Header{"Nats-Rollup": {"all"}}, Data: forged})
	time.Sleep(testkit.LeaseTTL) // the lease of a was renewed
	if n := (&agent{metrics: metrics}).counter(t, "stator_bus_leases_lost_total"); n != 0 {
		t.Errorf("agent a lost %g leases", n)
	}

	// Answers of the server to node b go to the subject that node b names. They must not be taken for a lease of node a.
	publish(&nats.Msg{Subject: keys + "b.x", Reply: keys + "a.w", Data: forged})
	publish(&nats.Msg{Subject: "$JS.API.STREAM.MSG.GET." + stream, Reply: keys + "a.w", Data: []byte(`{"last_by_subj":"` + keys + `b.x"}`)})
	publish(&nats.Msg{Subject: "$JS.API.STREAM.INFO." + stream, Reply: keys + "a.w"})
	stores := watchStores(t, a)
	testkit.Eventually(t, "answers to the subject of a's stores are refused", func() bool {
		publish(&nats.Msg{Subject: keys + "b.x", Reply: cable + "kvstore.a", Data: forged})
		return countOf(t, metrics, "stator_bus_unreadable_messages_total", "kv_stores") > 0
	})
	if got := stores.String(); got != "map[]" {
		t.Errorf("node b has published %s", got)
	}
	time.Sleep(2 * testkit.LeaseTTL) // the lease of a was renewed, and the router has checked it

	// Messages on the subjects of node b must not be taken for messages of node a.
	running(t, func(ctx context.Context) error {
		return router.SubscribeLoad(ctx, func(l bus.Load) { t.Errorf("the router takes load of %s", l.Worker) })
	})
	events := make(chan string, 99)
	running(t, func(ctx context.Context) error {
		return router.SubscribeEvents(ctx, func(e *feed.Message) { events <- e.Worker })
	})
	forgedLoad, err := (&busv1.Load{Worker: "a.w"}).MarshalVT()
	if err != nil {
		t.Fatal(err)
	}
	forgedMark, err := (&busv1.Events{Batches: []*busv1.Batch{{Worker: "a.w", Mark: true, Seq: 5}}}).MarshalVT()
	if err != nil {
		t.Fatal(err)
	}
	writer := writing(t, b, "b")
	testkit.Eventually(t, "the router receives what node b publishes", func() bool {
		publish(&nats.Msg{Subject: cable + "load.b.w", Data: forgedLoad})
		publish(&nats.Msg{Subject: cable + "kv.b", Data: forgedMark})
		add(t, writer, &feed.Message{Worker: "b.w", Batch: batch()})
		return len(events) > 3
	})
	for len(events) > 0 {
		if got := <-events; got != "b.w" {
			t.Errorf("the router takes events of %s", got)
		}
	}

	seen.mu.Lock()
	defer seen.mu.Unlock()
	if got := seen.m["a.w"]; got.Address != "10.0.0.1:80" || len(seen.m) != 2 {
		t.Errorf("the router has %+v", seen.m)
	}
}

// TestRolesCanDoTheirWork: each role does over a locked bus what its process does.
func TestRolesCanDoTheirWork(t *testing.T) {
	l := newLockedBus(t)
	agent, router := l.join("agent-a", "password-of-a"), l.join("router", "password-of-r")
	control, planner, observer := l.join("control", "password-of-c"), l.join("planner", "password-of-p"), l.join("observer", "password-of-o")

	for _, b := range []*bus.Bus{router, control, planner, observer} {
		seen := &members{m: map[string]fleet.Worker{}}
		running(t, func(ctx context.Context) error { return b.WatchWorkers(ctx, seen.apply, nil) })
		defer func() {
			testkit.Eventually(t, "the role sees the worker", func() bool { return seen.String() == "[a.w=ready]" })
		}()
	}
	holdAs(t, agent, "a.w")

	events, loads, bookings := make(chan string, 99), make(chan bus.Load, 99), make(chan *peers.Update, 99)
	running(t, func(ctx context.Context) error {
		return router.SubscribeEvents(ctx, func(e *feed.Message) { events <- e.Worker })
	})
	running(t, func(ctx context.Context) error { return router.SubscribeLoad(ctx, func(l bus.Load) { loads <- l }) })
	running(t, func(ctx context.Context) error {
		return router.SubscribeBookings(ctx, func(u *peers.Update) { bookings <- u })
	})
	writer := writing(t, agent, "a")
	testkit.Eventually(t, "messages arrive", func() bool {
		add(t, writer, &feed.Message{Worker: "a.w", Batch: batch()})
		err := errors.Join(
			agent.PublishLoad(bus.Load{Worker: "a.w"}),
			router.PublishBookings(&peers.Update{Replica: "r", Seq: 1}), router.PublishEnds("r", nil), router.PublishGone(bus.Gone{Replica: "r"}),
		)
		if err != nil {
			t.Fatal(err)
		}
		return len(events) > 0 && len(loads) > 0 && len(bookings) > 0
	})

	running(t, func(ctx context.Context) error {
		return agent.ServeReplay(ctx, "a.w", 7, func(_ int, from uint64, _ int) (page [][]byte, end feed.Position) {
			page = append(page, bus.EncodeBatch(&feed.Message{Worker: "a.w", Epoch: 7, Seq: from, Batch: &kvevent.Batch{}}))
			return page, feed.Position{Epoch: 7, Next: 9}
		})
	})
	testkit.Eventually(t, "the agent answers requests", func() bool {
		end, err := router.Replay(t.Context(), "a.w", 7, 0, 1, func(*feed.Message) {})
		return err == nil && end.Next == 9
	})

	demands, planned := make(chan string, 99), make(chan bus.Load, 99)
	running(t, func(ctx context.Context) error {
		return planner.SubscribeDemand(ctx, func(d *bus.Demand) { demands <- d.Replica })
	})
	running(t, func(ctx context.Context) error { return planner.SubscribeLoad(ctx, func(l bus.Load) { planned <- l }) })
	testkit.Eventually(t, "the planner receives demand and load", func() bool {
		if err := errors.Join(router.PublishDemand(&bus.Demand{Replica: "r"}), agent.PublishLoad(bus.Load{Worker: "a.w"})); err != nil {
			t.Fatal(err)
		}
		return len(demands) > 0 && len(planned) > 0
	})
	led := make(chan uint64, 9)
	running(t, func(ctx context.Context) error {
		return planner.Lead(ctx, func(ctx context.Context, term uint64) {
			led <- term
			<-ctx.Done()
		})
	})
	term := <-led
	if err := planner.PublishPlan(t.Context(), plan.Plan{Term: term}); err != nil {
		t.Error(err)
	}
	if err := planner.PutWanted(t.Context(), bus.Wanted{Decision: 1, Term: term}); err != nil {
		t.Error(err)
	}
	running(t, func(ctx context.Context) error {
		return agent.HoldSlots(ctx, func() bus.Slots { return bus.Slots{Node: "a", Slots: []bus.Slot{{Name: "a.w"}}} }, nil)
	})
	slots, assigned := make(chan bus.Slots, 99), make(chan bus.Assignment, 9)
	running(t, func(ctx context.Context) error {
		return planner.WatchSlots(ctx, func(s bus.Slots) { slots <- s }, func() {})
	})
	running(t, func(ctx context.Context) error {
		return agent.WatchAssignment(ctx, "a", func(a bus.Assignment) { assigned <- a }, func() {})
	})
	if s := <-slots; s.Node != "a" || len(s.Slots) != 1 {
		t.Errorf("the planner receives %+v", s)
	}
	if err := planner.PutAssignment(t.Context(), bus.Assignment{Term: term, Node: "a", Run: []string{"a.w"}}); err != nil {
		t.Error(err)
	}
	if a := <-assigned; a.Term != term || len(a.Run) != 1 {
		t.Errorf("the agent receives %+v", a)
	}
	other := l.join("agent-b", "password-of-b")
	running(t, func(ctx context.Context) error {
		return other.HoldKVStores(ctx, func() bus.KVStores { return storeOf("b", "10.0.0.2:7600") }, nil)
	})
	watchStores(t, agent).waitFor(t, "map[b:[{m 10.0.0.2:7600}]]")
	for day := range int64(2) {
		err := router.UpdateSpent(t.Context(), func(there bus.Spent) (bus.Spent, bool) {
			return bus.Spent{Day: there.Day + 1}, there.Day == day
		}, func(s bus.Spent) {
			if s.Day != day+1 {
				t.Errorf("day %d was stored in place of day %d", s.Day, day+1)
			}
		})
		if err != nil {
			t.Error(err)
		}
	}
	if w, _, err := l.join("scaler", "password-of-s").Wanted(t.Context()); err != nil || w.Decision != 1 {
		t.Error(w, err)
	}
}

// TestDoorIsLockedBeyondLoopback: the server does not listen on other addresses without users and TLS, or certificates of
// clients. --insecure allows it.
func TestDoorIsLockedBeyondLoopback(t *testing.T) {
	ca := testkit.NewAuthority(t)
	cert, key := ca.Issue("server", "127.0.0.1")
	users, err := bus.ParseUsers([]byte(usersFile))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		cfg  bus.EmbedConfig
		want string
	}{
		{bus.EmbedConfig{Host: "0.0.0.0"}, "Pass --users, --tls-cert and --tls-key, or --insecure"},
		{bus.EmbedConfig{Host: "::"}, "without a lock"},
		{bus.EmbedConfig{Host: "10.0.0.1", Users: users}, "without a lock"},
		{bus.EmbedConfig{Host: "0.0.0.0", TLSCert: cert, TLSKey: key}, "without a lock"},
		{bus.EmbedConfig{Host: "127.0.0.1", TLSCert: cert}, "need each other"},
		{bus.EmbedConfig{Host: "127.0.0.1", ClientCA: cert}, "--client-ca needs"},
		{bus.EmbedConfig{Host: "127.0.1.1"}, ""},
		{bus.EmbedConfig{Host: "0.0.0.0", Users: users, TLSCert: cert, TLSKey: key}, ""},
		{bus.EmbedConfig{Host: "0.0.0.0", TLSCert: cert, TLSKey: key, ClientCA: ca.CA()}, ""},
		{bus.EmbedConfig{Host: "0.0.0.0", Insecure: true}, ""},
	} {
		c.cfg.Port, c.cfg.Dir, c.cfg.Cluster = -1, t.TempDir(), "test"
		e, err := bus.Embed(c.cfg)
		if err == nil {
			e.Close()
		}
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.cfg, err, c.want)
		}
	}
}

// TestClientCertificates: a server with a CA for clients takes clients whose certificate this CA has signed, and refuses
// others.
func TestClientCertificates(t *testing.T) {
	ca, other := testkit.NewAuthority(t), testkit.NewAuthority(t)
	cert, key := ca.Issue("server", "127.0.0.1")
	e, err := bus.Embed(bus.EmbedConfig{Host: "127.0.0.1", Port: -1, Dir: t.TempDir(), TLSCert: cert, TLSKey: key, ClientCA: ca.CA()})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()

	cert, key = ca.Issue("client")
	testkit.JoinBus(t, bus.Config{URL: e.URL(), Login: bus.Login{CAFile: ca.CA(), CertFile: cert, KeyFile: key}})

	cert, key = other.Issue("client")
	for _, login := range []bus.Login{{CAFile: ca.CA()}, {CAFile: ca.CA(), CertFile: cert, KeyFile: key}, {}} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err := bus.Connect(ctx, bus.Config{URL: e.URL(), Login: login, Cluster: "test", LeaseTTL: testkit.LeaseTTL, Log: (&testkit.Log{}).Logger()})
		cancel()
		if err == nil || !strings.Contains(err.Error(), "check bus.") {
			t.Errorf("%+v: %v", login, err)
		}
	}
}

// TestUsersFile refuses files that are empty, incomplete or contradictory. No error has a password.
func TestUsersFile(t *testing.T) {
	for text, want := range map[string]string{
		"":   "is empty",
		"[]": "is empty",
		"- {user: a, password: secret-secret, role: king}":                                                     `the role is "king"`,
		"- {user: a, password: secret-secret, role: agent}":                                                    "an agent needs the node",
		"- {user: a, password: secret-secret, role: router, node: n}":                                          "only agents have a node",
		"- {user: a, password: secret, role: router}":                                                          "at least 12 characters",
		"- {user: a, role: router}":                                                                            "set one of password and passwordHash",
		"- {user: a, passwordHash: secret-secret, role: router}":                                               "must be of bcrypt",
		"- {user: a, password: $2a$secret-secret, role: router}":                                               "set passwordHash instead",
		"- {user: a.b, password: secret-secret, role: router}":                                                 "the name must match",
		"- {user: owner, password: secret-secret, role: router}":                                               "the server's own user",
		"- {user: a, password: [secret-secret], role: router}":                                                 "must be a list of",
		"- {user: a, password: secret-secret, role: router, admin: no}":                                        "must be a list of",
		"- {user: a, password: secret-secret, role: admin}\n- {user: a, password: secret-secret, role: admin}": "there twice",
	} {
		_, err := bus.ParseUsers([]byte(text))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// TestAdminMayDoEverything shows that the attacks of TestAgentIsConfinedToItsNode work if they are allowed.
func TestAdminMayDoEverything(t *testing.T) {
	l := newLockedBus(t)
	admin := l.attack("admin", "password-of-admin")
	answer, err := admin.Request("$JS.API.STREAM.DELETE.KV_stator-test-workers", nil, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	var deleted struct{ Success bool }
	if err := json.Unmarshal(answer.Data, &deleted); err != nil || !deleted.Success {
		t.Errorf("%s, %v", answer.Data, err)
	}
}

// TestRenewedCertificateOfTheServer: new connections get the certificate that is in the files, and files that cannot be used
// leave the last one in force.
func TestRenewedCertificateOfTheServer(t *testing.T) {
	ca := testkit.NewAuthority(t)
	cert, key := ca.Issue("server", "127.0.0.1")
	var log testkit.Log
	e, err := bus.Embed(bus.EmbedConfig{Host: "127.0.0.1", Port: -1, Dir: t.TempDir(), TLSCert: cert, TLSKey: key, Log: log.Logger()})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()

	serial := func() int64 {
		t.Helper()
		nc, err := nats.Connect(e.URL(), nats.RootCAs(ca.CA()))
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		state, err := nc.TLSConnectionState()
		if err != nil {
			t.Fatal(err)
		}
		return state.PeerCertificates[0].SerialNumber.Int64()
	}
	first := serial()
	ca.Issue("server", "127.0.0.1")
	testkit.Eventually(t, "the new certificate is used", func() bool { return serial() != first })
	second := serial()

	if err := os.WriteFile(cert, []byte("broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "a warning", func() bool {
		if got := serial(); got != second {
			t.Fatalf("after a broken file: certificate %d, want %d", got, second)
		}
		return log.Contains("the last ones stay in force")
	})
}
