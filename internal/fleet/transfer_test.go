package fleet

import (
	"strings"
	"testing"
)

// TestTransferNames: each transfer has a name of its own, which is read back.
func TestTransferNames(t *testing.T) {
	for i, name := range transferNames {
		got, err := ParseTransfer(name)
		if err != nil || int(got) != i || got.String() != name {
			t.Errorf("%s is %d, %v", name, got, err)
		}
	}
	if _, err := ParseTransfer("pull"); err == nil || !strings.Contains(err.Error(), "use none, nixl") {
		t.Error(err)
	}
}

// TestTransferAddress: a transfer with an address needs one, and others must have none.
func TestTransferAddress(t *testing.T) {
	for _, c := range []struct {
		transfer Transfer
		at       string
		ok       bool
	}{
		{NoTransfer, "", true},
		{TransferNixl, "", true},
		{TransferNixl, "10.0.0.1:5600", false},
		{TransferP2P, "", false},
		{TransferP2P, "10.0.0.1:25710", true},
		{TransferBootstrap, "engine-0.engines:8998", true},
		{TransferBootstrap, "engine-0", false},
		{TransferContext, "", true},
		{TransferContext + 1, "", false},
	} {
		w := Worker{Name: "w", Model: "m", Address: "10.0.0.1:80", Ranks: 1, Transfer: c.transfer, TransferAt: c.at}
		if err := w.Validate(); (err == nil) != c.ok {
			t.Errorf("%s %q: %v", c.transfer, c.at, err)
		}
	}
}
