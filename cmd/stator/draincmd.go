package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/stator-project/stator/admin"
	"github.com/stator-project/stator/internal/adminclient"
	"github.com/stator-project/stator/internal/backoff"
	"github.com/stator-project/stator/internal/cli"
)

const drainAbout = `Takes a worker, or all workers of a node, out of service, and waits until no request is left there. Its engines
run on. Routers send it no requests any more, and Envoys none without a pick. On a bus all routers and control
planes do as the one that is asked; without one, ask each. --undo puts it back.`

func runDrain(ctx context.Context, env environment, args []string) error {
	f := cli.New(env.out, env.err, "drain NODE|WORKER", drainAbout)
	var at adminclient.Config
	at.AddFlags(f.FlagSet)
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
		text, err := fetchPage(ctx, at, "/debug/drains")
		if err == nil {
			fmt.Fprint(env.out, text)
		}
		return err
	}
	if len(words) != 1 {
		return f.UsageError("name one worker or node, as /debug/fleet has it")
	}

	name := words[0]
	now, err := orderDrain(ctx, at, name, *undo)
	if err != nil {
		return err
	}
	if !now.Shared {
		fmt.Fprintf(env.err, "the part at %s has no bus: ask each router and each control plane\n", at.Address)
	}
	if *undo {
		fmt.Fprintf(env.out, "%s gets requests again\n", name)
		return nil
	}

	ctx, cancel := context.WithTimeout(ctx, *deadline)
	defer cancel()
	return awaitDrain(ctx, env.out, name, now, func() (next admin.Drains, err error) {
		text, err := fetchPage(ctx, at, "/debug/drains?format=json")
		if err == nil {
			err = json.Unmarshal([]byte(text), &next)
		}
		return next, err
	})
}

// orderDrain gives a part the order.
func orderDrain(ctx context.Context, at adminclient.Config, name string, undo bool) (now admin.Drains, err error) {
	text, err := adminCall{
		method: http.MethodPost, path: "/drain?format=json", body: map[string]any{"name": name, "undo": undo},
		timeout: 10 * time.Second, most: 16 << 20, part: "the router",
	}.send(ctx, at)
	switch {
	case err != nil && err.Error() == noPage:
		return now, errors.New("this part has no workers: ask a router, a control plane or stator up")
	case err != nil:
		return now, err
	}
	return now, json.Unmarshal(text, &now)
}

// awaitDrain prints the requests that are left until there are none, or ctx ends.
func awaitDrain(ctx context.Context, out io.Writer, name string, now admin.Drains, look func() (admin.Drains, error)) error {
	said := ""
	for {
		i := slices.IndexFunc(now.Drains, func(d admin.Drain) bool { return d.Name == name })
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
func leftAt(workers []admin.Drained) string {
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
