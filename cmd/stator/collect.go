package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/stator-project/stator/admin"
	"github.com/stator-project/stator/internal/adminclient"
	"github.com/stator-project/stator/internal/bundle"
	"github.com/stator-project/stator/internal/cli"
	"github.com/stator-project/stator/internal/listen"
)

const collectAbout = `Gathers into one file what a bug report needs: the admin pages and metrics of all processes, the newest decisions
with their explanations, the configuration without secrets, the end of the decision log, the version, and the configuration and
statistics of an Envoy. It prints the list of files before it writes them, and changes nothing.

The file has no prompts and no answers. It has the names of models, workers, tenants and sessions, and addresses.

--serve answers at --admin-address as the first process of such a file did: the console, stator status and stator explain show its state.
stator replay --decisions reads its decisions.jsonl, the end of the log.`

// mostLog bounds the bytes of the decision log in a bundle.
const mostLog = 64 << 20

// envoyPages are the pages of an Envoy's admin port that a bundle has. Envoy leaves private keys out of its dump.
var envoyPages = []string{"/server_info", "/config_dump", "/clusters", "/listeners", "/stats"}

func runCollect(ctx context.Context, env environment, args []string) error {
	f := cli.New(env.out, env.err, "collect", collectAbout)
	var port adminclient.Config
	port.AddFlags(f.FlagSet)
	var parts cli.List
	f.Var(&parts, "part", "`address` of the admin port of another process, like --admin-address; may be repeated")
	envoyAt := f.String("envoy-admin", "", "`address` of the admin port of an Envoy: http://ip:port, ip:port or unix:///path")
	file := f.String("config", "", "configuration `file`, of which a copy without secrets is added")
	log := f.String("decision-log", "", "decision log `file`, of which the last 64 MiB are added")
	out := f.String("out", "", "`file` to write (default stator-bundle-TIME.tar.gz)")
	list := f.Bool("list", false, "print the list of files, and write nothing")
	serve := f.String("serve", "", "bundle `file` to serve, in place of gathering one")
	if err := f.Read(args); err != nil {
		return err
	}
	if *serve != "" {
		return serveBundle(ctx, env, *serve, port.Address)
	}

	ports, err := collectedPorts(ctx, port, parts, *envoyAt)
	if err != nil {
		return err
	}
	bar := cli.NewProgressBar(env.err)
	b := bundle.Collect(ctx, ports, func(done, of int) { bar.Show(float64(done) / float64(of)) })
	bar.Clear()
	if err := ctx.Err(); err != nil {
		return err
	}
	if len(b.Files) == 0 {
		return fmt.Errorf("nothing was gathered: %s", strings.Join(b.Missing[:min(1, len(b.Missing))], ""))
	}
	if err := addOwn(b, *file, *log); err != nil {
		return err
	}

	for _, f := range b.Files {
		fmt.Fprintf(env.out, "%9d  %s\n", len(f.Data), f.Name)
	}
	for _, text := range b.Missing {
		fmt.Fprintf(env.out, "  missing  %.300q\n", text)
	}
	if *list {
		return nil
	}
	return writeBundle(env, b, *out)
}

// collectedPorts returns the ports to ask, with the pages to read there.
func collectedPorts(ctx context.Context, router adminclient.Config, parts []string, envoyAt string) ([]bundle.Port, error) {
	pages := []string{"/debug/decisions/latest"}
	for _, p := range admin.Pages() {
		if p.JSON && !strings.Contains(p.Path, "{") || strings.HasPrefix(p.Path, "/metrics") || p.Path == "/readyz" {
			pages = append(pages, p.Path)
		}
	}
	all := withParts(eachRouter(ctx, router), parts)
	var ports []bundle.Port
	for _, one := range all {
		client, err := adminclient.New(one, bundle.Timeout)
		if err != nil {
			return nil, err
		}
		ports = append(ports, bundle.Port{Address: one.Address, Admin: client, Pages: pages})
	}

	if envoyAt != "" {
		client, err := adminclient.New(adminclient.Config{Address: envoyAt}, bundle.Timeout)
		if err != nil {
			return nil, err
		}
		ports = append(ports, bundle.Port{Address: "envoy-" + envoyAt, Admin: client, Pages: envoyPages, OfEnvoy: true})
	}
	return ports, nil
}

// addOwn adds the version of this program, the configuration and the end of the decision log.
func addOwn(b *bundle.Bundle, file, log string) error {
	b.Add("version.txt", fmt.Appendf(nil, "stator %s (revision %s)\n", version(), revision()))
	if log != "" {
		data, err := bundle.EndOfLog(log, mostLog)
		if err != nil {
			return fmt.Errorf("--decision-log: %w", err)
		}
		b.Add("decisions.jsonl", data)
	}
	if file == "" {
		return nil
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	data, err = bundle.WithoutSecrets(data)
	if err != nil {
		return err
	}
	b.Add("stator.yaml", data)
	return nil
}

// writeBundle writes a bundle that only its owner can read. It replaces no file.
func writeBundle(env environment, b *bundle.Bundle, name string) error {
	now := time.Now().UTC()
	if name == "" {
		name = "stator-bundle-" + now.Format("20060102-150405") + ".tar.gz"
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("--out: %w", err)
	}
	if err := errors.Join(b.Write(f, now), f.Close()); err != nil {
		return errors.Join(err, os.Remove(name))
	}
	fmt.Fprintf(env.out, "\nwritten to %s, %d files; read them before you send them to others\n", name, len(b.Files))
	return nil
}

// serveBundle serves the pages of the first admin port of a bundle until ctx ends.
func serveBundle(ctx context.Context, env environment, file, address string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	b, err := bundle.Read(f)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	ports := b.Addresses()
	if len(ports) == 0 {
		return fmt.Errorf("%s has no admin port: it is no bundle of stator collect", file)
	}

	ln, err := listen.On(address, "--admin-address")
	if err != nil {
		return err
	}
	srv := &http.Server{Handler: admin.WithConsole(b.Handler(ports[0])), ReadHeaderTimeout: 10 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	fmt.Fprintf(env.out, "%s of %s: http://%s\n", ports[0], file, ln.Addr())
	if others := slices.Clone(ports[1:]); len(others) > 0 {
		fmt.Fprintf(env.out, "it also has %s, which are not served\n", strings.Join(others, ", "))
	}
	if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
