package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/adminclient"
	"github.com/stator-project/stator/internal/backoff"
	"github.com/stator-project/stator/internal/cli"
)

const drainAbout = `Takes a worker, or all workers of a node, out of service, and waits until no request is left there. Its engines
run on. Routers send it no requests any more, and Envoys none without a pick. On a bus all routers and control
planes do as the one that is asked; without one, ask each. --undo puts it back.`

// drained is /debug/drains.
type drained struct {
	Shared bool       `json:"shared"`
	Drains []oneDrain `json:"drains"`
}

// oneDrain is the drain of a worker or of a node.
type oneDrain struct {
	Name    string          `json:"name"`
	Workers []drainedWorker `json:"workers"`
}

// drainedWorker is a worker that is drained, with the requests that are left there.
type drainedWorker struct {
	Worker  string   `json:"worker"`
	Idle    bool     `json:"idle"`
	Booked  int64    `json:"booked"`
	Running *int     `json:"running"`
	Waiting *int     `json:"waiting"`
	KVUsage *float64 `json:"kv_usage"`
}

func runDrain(ctx context.Context, env environment, args []string) error {
	f := cli.New(env.out, env.err, "drain NODE|WORKER", drainAbout)
	var admin adminclient.Config
	admin.AddFlags(f.FlagSet)
	undo := f.Bool("undo", false, "end the drain")
	status := f.Bool("status", false, "print all drains, and change none")
	deadline := f.Duration("deadline", 10*time.Minute, "how long to wait for requests; the drain stays in force after it")
	words, err := f.ReadMixed(args)
	if err != nil {
		return err
	}
	if *status {
		if len(words) > 0 {
			return f.Refuse(words)
		}
		text, err := fetchPage(ctx, admin, "/debug/drains")
		if err == nil {
			fmt.Fprint(env.out, text)
		}
		return err
	}
	if len(words) != 1 {
		return f.UsageError("name one worker or node, as /debug/fleet has it")
	}

	name := words[0]
	client, err := adminclient.New(admin, 10*time.Second)
	if err != nil {
		return err
	}
	now, err := orderDrain(ctx, client, name, *undo)
	if err != nil {
		return err
	}
	if !now.Shared {
		fmt.Fprintf(env.err, "the part at %s has no bus: ask each router and each control plane\n", admin.Address)
	}
	if *undo {
		fmt.Fprintf(env.out, "%s gets requests again\n", name)
		return nil
	}

	ctx, cancel := context.WithTimeout(ctx, *deadline)
	defer cancel()
	return awaitDrain(ctx, env.out, name, now, func() (drained, error) {
		var next drained
		text, err := fetchPage(ctx, admin, "/debug/drains?format=json")
		if err == nil {
			err = json.Unmarshal([]byte(text), &next)
		}
		return next, err
	})
}

// orderDrain gives a part the order.
func orderDrain(ctx context.Context, client *adminclient.Client, name string, undo bool) (now drained, err error) {
	body, err := json.Marshal(map[string]any{"name": name, "undo": undo})
	if err != nil {
		return now, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, client.URL("/drain?format=json"), bytes.NewReader(body))
	if err != nil {
		return now, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.HTTP().Do(req)
	if err != nil {
		return now, fmt.Errorf("ask the admin port: %w; is the router running, and is that its --admin-address?", err)
	}
	defer func() { _ = resp.Body.Close() }()

	text, err := io.ReadAll(io.LimitReader(resp.Body, 16<<20))
	if err == nil && resp.StatusCode == http.StatusNotFound {
		err = errors.New("this part has no workers: ask a router, a control plane or stator up")
	} else if err == nil && resp.StatusCode != http.StatusOK {
		err = errors.New(strings.TrimSpace(string(text)))
	}
	if err != nil {
		return now, err
	}
	return now, json.Unmarshal(text, &now)
}

// awaitDrain prints the requests that are left until there are none, or ctx ends.
func awaitDrain(ctx context.Context, out io.Writer, name string, now drained, look func() (drained, error)) error {
	said := ""
	for {
		i := slices.IndexFunc(now.Drains, func(d oneDrain) bool { return d.Name == name })
		if i < 0 {
			return fmt.Errorf("the drain of %s was ended by another command", name)
		}
		workers := now.Drains[i].Workers
		if len(workers) == 0 {
			return fmt.Errorf("no worker or node of the fleet is called %s; the drain is kept for one that comes: end it with --undo", name)
		}

		left := leftAt(workers)
		if left == "" {
			fmt.Fprintf(out, "%s is drained: no request is left at %d workers; --undo puts it back\n", name, len(workers))
			return nil
		}
		if left != said {
			fmt.Fprintf(out, "waiting for %s\n", left)
			said = left
		}
		if backoff.Sleep(ctx, time.Second) != nil {
			return fmt.Errorf("%s is out of service, and not idle yet: %s; end the drain with --undo", name, left)
		}
		next, err := look()
		if err == nil {
			now = next
		} else if ctx.Err() == nil {
			return err
		}
	}
}

// leftAt describes the requests that workers still have; empty if there are none.
func leftAt(workers []drainedWorker) string {
	var list []string
	for i := range workers {
		w := &workers[i]
		if w.Idle {
			continue
		}
		text := fmt.Sprintf("%s (%d requests of routers", w.Worker, w.Booked)
		if w.Running != nil {
			text += fmt.Sprintf(", %d in the engine", *w.Running+*w.Waiting)
		}
		list = append(list, text+")")
	}
	return strings.Join(list, ", ")
}
