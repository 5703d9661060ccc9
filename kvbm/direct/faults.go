package direct

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/stator-project/stator/internal/kv/block"
	"github.com/stator-project/stator/kvbm/stream"
	"github.com/stator-project/stator/nixl/transfer"
)

// notTried are the errors with which no transfer was begun, for a reason that is not the peer's or is over soon. They are no reason to wait
// before the peer is tried again.
var notTried = []error{errNotRunning, errRoom, errTime, transfer.ErrStarting, transfer.ErrTooMany, transfer.ErrNoPeer}

// kinds are the errors that are logged by their kind, because their texts may change with each failure.
var kinds = []error{
	stream.ErrNoCalls, stream.ErrDeclined, stream.ErrDamaged, errAnswer, transfer.ErrDeadline, transfer.ErrBackend, block.ErrLayout,
}

// ended notes the end of a read, and logs a reason if its kind differs from the kind before.
func (p *Peer) ended(ctx context.Context, err error) {
	if errors.Is(err, errPausing) || err != nil && ctx.Err() != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.isNIXL = err == nil
	p.reason = err
	if err == nil {
		p.d.counts.nixlOK.Add(1)
		p.pauses.Reset()
		p.logFault("nixl", nil)
		return
	}
	if slices.ContainsFunc(notTried, func(own error) bool { return errors.Is(err, own) }) {
		return
	}
	p.d.counts.nixlFailed.Add(1)
	if errors.Is(err, transfer.ErrEnded) {
		return // of this node's child, perhaps because of another peer
	}

	kind := "other"
	for _, k := range kinds {
		if errors.Is(err, k) {
			kind = k.Error()
		}
	}
	p.until = time.Now().Add(p.pauses.Next())
	p.logFault(kind, err)
}

// logFault logs a kind of result that differs from the kind before.
//
// Requires: mu.
func (p *Peer) logFault(kind string, err error) {
	if p.logged == kind {
		return
	}
	p.logged = kind
	if err == nil {
		p.d.cfg.Log.Info("KV blocks of a peer come by NIXL", "peer", p.address)
		return
	}
	p.d.cfg.Log.Warn("KV blocks of a peer come by TCP and not by NIXL", "peer", p.address, "err", err)
}
