package enginesim

import "net"

// TransferPort returns the port of the side channel.
func (s *Sim) TransferPort() int { return s.transfer.Addr().(*net.TCPAddr).Port }

// Leases returns the number of leases that have not ended.
func (s *Sim) Leases() int {
	s.leases.mu.Lock()
	defer s.leases.mu.Unlock()
	return len(s.leases.byID)
}
