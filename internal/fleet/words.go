package fleet

import "fmt"

// Role is the part of a request that a worker serves.
type Role uint8

// The roles of the field. Aggregated workers prefill and decode.
const (
	Aggregated Role = iota
	Prefill
	Decode
	Encode
)

var roleNames = [...]string{"aggregated", "prefill", "decode", "encode"}

func (r Role) String() string { return name(roleNames[:], uint8(r)) }

// ParseRole reads a role's name; the empty name is Aggregated.
func ParseRole(s string) (Role, error) {
	if s == "" {
		return Aggregated, nil
	}
	for i, n := range roleNames {
		if n == s {
			return Role(i), nil
		}
	}
	return 0, fmt.Errorf("role %q is unknown: use aggregated, prefill, decode or encode", s)
}

// State is the state of a worker, by which requests may be sent to it or not.
type State uint8

// A worker starts, is ready, and ends by draining or by being down. Only a ready worker
// is picked for new requests.
const (
	Starting State = iota
	Ready
	Draining
	Down

	// States is the number of states.
	States = 4
)

var stateNames = [States]string{"starting", "ready", "draining", "down"}

func (s State) String() string { return name(stateNames[:], uint8(s)) }

// Tier is the kind of memory in which a KV block lies.
type Tier uint8

// The tiers, fastest first: G1 to G4.
const (
	Device Tier = iota
	Host
	Disk
	External

	// Tiers is the number of tiers.
	Tiers = 4
)

var tierNames = [Tiers]string{"device", "host", "disk", "external"}

func (t Tier) String() string { return name(tierNames[:], uint8(t)) }

func name(names []string, i uint8) string {
	if int(i) < len(names) {
		return names[i]
	}
	return fmt.Sprintf("%d?", i)
}
