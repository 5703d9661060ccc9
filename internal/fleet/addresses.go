package fleet

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Addresses is a set of addresses of engines. The zero value is empty.
type Addresses []addressRange

// addressRange has the addresses of a network, or all, with ports from first to last.
type addressRange struct {
	network     netip.Prefix // not valid for all addresses
	first, last uint16
}

// ParseAddresses returns the addresses that match one of these texts:
//
//	10.0.0.7:8000         an engine
//	10.0.0.7, 10.0.0.0/8  the engines of a host or of a network
//	:8000, :8000-8099     the engines with these ports, on all hosts
//	10.0.0.0/8:8000-8099  those of a network
//
// An address of IPv6 with a port is in brackets.
func ParseAddresses(texts []string) (Addresses, error) {
	var set Addresses
	for _, text := range texts {
		r, ok := parseAddressRange(text)
		if !ok {
			return nil, fmt.Errorf("%.80q: use IP:PORT, an IP, a network such as 10.0.0.0/8, :PORT or :PORT-PORT", text)
		}
		set = append(set, r)
	}
	return set, nil
}

func parseAddressRange(text string) (r addressRange, ok bool) {
	r.last = 1<<16 - 1
	var isNetwork bool
	r.network, isNetwork = parseNetwork(text)
	if isNetwork {
		return r, true
	}
	end := strings.LastIndexByte(text, ':')
	if end < 0 {
		return r, false
	}
	if host := text[:end]; host != "" {
		r.network, isNetwork = parseNetwork(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"))
		if !isNetwork {
			return r, false
		}
	}

	first, last, isRange := strings.Cut(text[end+1:], "-")
	if !isRange {
		last = first
	}
	low, errLow := strconv.ParseUint(first, 10, 16)
	high, errHigh := strconv.ParseUint(last, 10, 16)
	r.first = uint16(low)
	r.last = uint16(high)
	return r, errLow == nil && errHigh == nil && 0 < low && low <= high
}

// parseNetwork reads an IP, or a network.
func parseNetwork(text string) (netip.Prefix, bool) {
	if ip, err := netip.ParseAddr(text); err == nil {
		ip = ip.Unmap().WithZone("")
		return netip.PrefixFrom(ip, ip.BitLen()), true
	}
	network, err := netip.ParsePrefix(text)
	return network, err == nil
}

// Has reports whether ip:port is in the set.
func (s Addresses) Has(address string) bool {
	if len(s) == 0 {
		return false
	}
	at, err := netip.ParseAddrPort(address)
	ip := at.Addr().Unmap().WithZone("")
	return err == nil && slices.ContainsFunc(s, func(r addressRange) bool {
		return r.first <= at.Port() && at.Port() <= r.last && (!r.network.IsValid() || r.network.Contains(ip))
	})
}
