// Command stator-transfer copies KV blocks with NIXL for an agent, which starts it. It is a program apart from stator because NIXL needs
// a dynamic linker, and because its end is the only way to stop transfers for certain.
package main

import (
	"flag"
	"fmt"
	"os"
	"syscall"

	"github.com/stator-project/stator/nixl/engine"
	"github.com/stator-project/stator/nixl/serve"
	"github.com/stator-project/stator/nixl/wire"
)

func main() {
	library := flag.String("library", "", "path of libnixl_capi.so")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "stator-transfer is started by `stator`, with a socket as file descriptor 3. Try `make bench-nixl`.")
	}
	flag.Parse()

	if err := run(*library); err != nil {
		fmt.Fprintln(os.Stderr, "stator-transfer:", err)
		os.Exit(1)
	}
}

// run serves the socket that the parent has left as the first file after standard error.
func run(library string) error {
	const socketFD = 3
	syscall.CloseOnExec(socketFD)
	conn, err := wire.NewConn(os.NewFile(socketFD, "socket"))
	if err != nil {
		return fmt.Errorf("%w: it is started by `stator`; try `make bench-nixl`", err)
	}
	e, err := engine.New(library)
	if err != nil {
		return err
	}
	return serve.Run(conn, e)
}
