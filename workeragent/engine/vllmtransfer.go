package engine

import (
	"cmp"
	"fmt"
	"net"
	"strconv"

	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/fleet"
)

// vLLM has one socket for each rank and each way by which other engines fetch its KV cache. All are described by variables of
// the environment, with the port of rank 0:
//
//	connector                                  variables                     when the agent sets them
//	NixlConnector                              VLLM_NIXL_SIDE_CHANNEL_HOST   unless launch[].env has them
//	                                           VLLM_NIXL_SIDE_CHANNEL_PORT
//	OffloadingConnector, tier of type p2p      VLLM_P2P_SIDE_CHANNEL_HOST    the same, and unless the tier has host and port
//	                                           VLLM_P2P_SIDE_CHANNEL_PORT
//
// Without the hosts vLLM listens on localhost. Without the ports, two engines of a host have the same.
const (
	nixlHost = "VLLM_NIXL_SIDE_CHANNEL_HOST"
	nixlPort = "VLLM_NIXL_SIDE_CHANNEL_PORT"
	p2pHost  = "VLLM_P2P_SIDE_CHANNEL_HOST"
	p2pPort  = "VLLM_P2P_SIDE_CHANNEL_PORT"
)

// channels are the sockets of an engine for which the agent chooses ports.
type channels struct {
	connectors config.Connectors
	ranks      int
	nixl, p2p  bool // the agent chooses their ports
}

// channels returns the sockets for transfers that the arguments ask for.
func (l Launch) channels() (c channels, err error) {
	c.connectors, err = config.ReadConnectors(l.Args)
	if err != nil {
		return c, fmt.Errorf("launch %s: %w", l.Name, err)
	}
	c.ranks, err = l.ranks(dataParallel)
	if err != nil {
		return c, err
	}

	c.nixl = c.connectors.HasNixl() && l.Env[nixlPort] == ""
	c.p2p = c.connectors.P2P != nil && c.connectors.P2P.Port == 0 && l.Env[p2pPort] == ""
	return c, nil
}

// vllmTransferPorts is transferPorts for vLLM: the ports of NIXL come before the ports of the p2p tier.
func (l Launch) vllmTransferPorts() (int, error) {
	c, err := l.channels()
	if err != nil {
		return 0, err
	}
	n := 0
	for _, chosen := range []bool{c.nixl, c.p2p} {
		if chosen {
			n += c.ranks
		}
	}
	return n, nil
}

// vllmTransfer sets how the worker takes part in transfers, and the variables of its sockets.
func (l Launch) vllmTransfer(c *Command) error {
	s, err := l.channels()
	if err != nil {
		return err
	}
	next := c.transferPort
	if s.connectors.HasNixl() {
		c.Env = append(c.Env, nixlHost+"="+c.at.Host)
	}
	if s.nixl {
		c.Env = append(c.Env, nixlPort+"="+strconv.Itoa(next))
		next += s.ranks
	}

	c.Worker.Transfer = s.connectors.Transfer(l.Role)
	tier := s.connectors.P2P
	if tier == nil {
		return nil
	}
	port := strconv.Itoa(tier.Port)
	switch {
	case s.p2p:
		port = strconv.Itoa(next)
		c.Env = append(c.Env, p2pPort+"="+port)
	case tier.Port == 0:
		port = l.Env[p2pPort]
	}
	c.Env = append(c.Env, p2pHost+"="+c.at.Host)
	if c.Worker.Transfer == fleet.TransferP2P {
		c.Worker.TransferAt = net.JoinHostPort(cmp.Or(tier.Host, l.Env[p2pHost], c.at.Host), port)
	}
	return nil
}
