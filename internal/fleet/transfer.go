package fleet

import (
	"fmt"
	"net/netip"
	"strings"
)

// Transfer is the way in which the KV cache of a prompt gets from the worker that computes it to the one that decodes. Package
// handoff has the requests of each.
type Transfer uint8

// The transfers.
const (
	NoTransfer        Transfer = iota
	TransferNixl               // vLLM's NixlConnector: the decode worker pulls from the place that the prefill worker's answer names
	TransferP2P                // vLLM's OffloadingConnector with a p2p tier: the decode worker pulls from an address
	TransferBootstrap          // SGLang: both workers meet at the prefill worker's bootstrap server
	TransferContext            // TensorRT-LLM: the decode worker pulls by the "disaggregated_params" of the prefill worker
)

var transferNames = [...]string{"none", "nixl", "p2p", "bootstrap", "context"}

func (t Transfer) String() string {
	if int(t) < len(transferNames) {
		return transferNames[t]
	}
	return "unknown"
}

// MarshalText writes the transfer's name.
func (t Transfer) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText reads the transfer's name.
func (t *Transfer) UnmarshalText(text []byte) (err error) {
	*t, err = ParseTransfer(string(text))
	return err
}

// ParseTransfer returns the transfer of that name.
func ParseTransfer(name string) (Transfer, error) {
	for t, known := range transferNames {
		if name == known {
			return Transfer(t), nil
		}
	}
	return NoTransfer, fmt.Errorf("%q is no transfer of KV caches: use %s", name, strings.Join(transferNames[:], ", "))
}

// HasAddress reports whether the prefill worker has an address that requests must name.
func (t Transfer) HasAddress() bool { return t == TransferP2P || t == TransferBootstrap }

// DefaultBootstrapPort is the port of SGLang's bootstrap server unless --disaggregation-bootstrap-port sets another.
const DefaultBootstrapPort = 8998

// ValidateTransfer returns the first mistake in the worker's transfer and its address.
func (w *Worker) ValidateTransfer() error {
	switch {
	case int(w.Transfer) >= len(transferNames):
		return fmt.Errorf("worker %s: transfer is %d: it must be at most %d", w.Name, w.Transfer, len(transferNames)-1)
	case w.Transfer.HasAddress() == (w.TransferAt == ""):
		return fmt.Errorf("worker %s: transfer address %q does not fit transfer %s", w.Name, w.TransferAt, w.Transfer)
	case w.TransferAt == "":
		return nil
	}
	if _, err := netip.ParseAddrPort(w.TransferAt); err == nil {
		return nil
	}
	if _, _, ok := SplitName(w.TransferAt); !ok {
		return fmt.Errorf("worker %s: transfer address %q must be a host and a port, such as 10.0.0.1:8998", w.Name, w.TransferAt)
	}
	return nil
}
