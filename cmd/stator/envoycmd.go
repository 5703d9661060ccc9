package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/stator-project/stator/internal/cli"
	"github.com/stator-project/stator/xds"
)

const envoyAbout = `Prints the bootstrap of an Envoy that you run: node, admin server and the xds cluster. Everything
else comes from ` + "`stator xds`" + `. To add Stator to an Envoy that you have, use ` + "`stator envoy snippet`" + `.`

// maxConnections bounds the connections of clients to an Envoy by default.
const maxConnections = 10_000

func runEnvoy(_ context.Context, env environment, args []string) error {
	if len(args) > 0 && args[0] == "snippet" {
		return runSnippet(env, args[1:])
	}

	f := cli.New(env.out, env.err, "envoy bootstrap", envoyAbout)
	var b xds.BootstrapSettings
	f.StringVar(&b.NodeID, "node-id", nodeID, "`name` of the Envoy, different for each: bookings of an Envoy that dies are found by it")
	f.StringVar(&b.Admin, "admin-address", "127.0.0.1:9901", "`address` of Envoy's admin server, ip:port or unix:///path")
	f.IntVar(&b.MaxConnections, "max-connections", maxConnections, "bound on the connections of clients; 0 is none")
	f.Int64Var(&b.MaxHeapBytes, "max-heap-bytes", 0, "bound on Envoy's heap in bytes, near which it answers 503; 0 is none")
	f.StringVar(&b.XDS, "xds-address", "127.0.0.1:9003",
		"`address` of stator xds: ip:port, name:port or unix:///path; may be a list with commas")
	var pem xds.PEMFiles
	f.StringVar(&b.Secrets, "secrets", "",
		"`folder` for files that refer to --ca, --cert and --key: Envoy reads these again when they are moved there")
	f.StringVar(&pem.CA, "ca", "", "PEM `file` with the CA of stator xds and of routers, as Envoy sees it")
	f.StringVar(&pem.Cert, "cert", "", "PEM `file` with the certificate of Envoy, as Envoy sees it")
	f.StringVar(&pem.Key, "key", "", "PEM `file` with its key, as Envoy sees it")
	f.StringVar(&b.XDSServerName, "xds-server-name", xds.DefaultXDSServerName,
		"DNS `name` in the certificate of stator xds, with --secrets")

	if len(args) == 0 || args[0] != "bootstrap" {
		if len(args) > 0 && (args[0] == "-h" || args[0] == "--help") {
			return f.Read(args)
		}
		fmt.Fprintln(env.err, "stator envoy: use `stator envoy bootstrap` or `stator envoy snippet`")
		return cli.ErrUsage
	}
	if err := f.Read(args[1:]); err != nil {
		return err
	}

	if err := writeSecrets(f, b.Secrets, pem); err != nil {
		return err
	}
	text, err := xds.Bootstrap(b)
	if err != nil {
		return err
	}

	_, err = fmt.Fprintf(env.out, "%s\n", text)
	return err
}

// writeSecrets writes the files by which Envoy finds its certificates. They hold paths and no secrets.
func writeSecrets(f *cli.Flags, folder string, pem xds.PEMFiles) error {
	switch {
	case folder == "" && pem == (xds.PEMFiles{}):
		return nil
	case folder == "" || pem.CA == "" || pem.Cert == "" || pem.Key == "":
		return f.UsageError("--secrets, --ca, --cert and --key need each other")
	}

	files, err := xds.SecretFiles(pem)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return fmt.Errorf("--secrets: %w", err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(folder, name), text, 0o644); err != nil {
			return fmt.Errorf("--secrets: %w", err)
		}
	}
	return nil
}
