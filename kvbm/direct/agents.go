package direct

import (
	"context"
	"errors"
	"fmt"

	"github.com/stator-project/stator/nixl/transfer"
	"github.com/stator-project/stator/nixl/wire"
)

// join adds the peer's agent to the child, unless the child has it, and removes the one before it.
func (p *Peer) join(ctx context.Context, h helper, epoch uint64, a *answer) error {
	p.joining.Lock()
	defer p.joining.Unlock()
	if p.agent != a.Agent {
		if err := p.change(ctx, h, epoch, a); err != nil {
			return err
		}
	}
	if p.epoch == epoch {
		return nil
	}

	name, err := h.AddPeer(ctx, p.endpoint)
	if err == nil && name != a.Agent {
		err = fmt.Errorf("%w: the endpoint of %s is that of %s", errAnswer, a.Agent, name)
	}
	if err != nil {
		p.agent = "" // the next answer has the endpoint again
		return err
	}
	p.epoch = epoch
	return nil
}

// change takes over another agent of the peer. The one before is removed from the child, if it is in this one.
//
// Requires: joining.
func (p *Peer) change(ctx context.Context, h helper, epoch uint64, a *answer) error {
	if len(a.Endpoint) == 0 {
		return fmt.Errorf("%w: the endpoint of %s is missing", errAnswer, a.Agent)
	}
	if p.epoch == epoch {
		if err := h.RemovePeer(ctx, p.agent); err != nil && !errors.Is(err, transfer.ErrNoPeer) {
			return fmt.Errorf("remove the peer's process of before: %w", err)
		}
	}
	p.agent = a.Agent
	p.endpoint = a.Endpoint
	p.epoch = 0
	return nil
}

// free ends the quarantine of a transfer whose peer's process has ended.
func (p *Peer) free(h helper, agent string, f *transfer.Failure) {
	ctx, cancel := context.WithTimeout(context.Background(), callTime)
	defer cancel()
	_ = h.PeerDied(ctx, agent) // after an error the child is fenced
	select {
	case <-f.Safe:
	case <-ctx.Done():
	}
}

// agentOf returns the name of the agent of an endpoint. A helper without an endpoint is one whose child starts again.
func agentOf(endpoint []byte) (string, error) {
	if endpoint == nil {
		return "", transfer.ErrStarting
	}
	e, err := wire.ParseEndpoint(endpoint)
	if err != nil {
		return "", err
	}
	return e.Agent, nil
}
