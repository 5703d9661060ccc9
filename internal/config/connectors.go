package config

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/stator-project/stator/internal/engines"
	"github.com/stator-project/stator/internal/fleet"
)

// Connectors are the parts of vLLM's --kv-transfer-config that decide how an engine transfers KV caches.
type Connectors struct {
	// Names are the connectors in their order, those in a MultiConnector included.
	Names []string
	// P2P is the tier of type p2p of an OffloadingConnector; nil if there is none. vLLM reads tiers only with a spec_name
	// such as TieringOffloadingSpec, which is not the default.
	P2P *P2PTier
}

// P2PTier is the address on which a tier of type p2p listens: rank r has the port raised by r.
type P2PTier struct {
	Host string // empty if it is not set
	Port int    // 0 if it is not set
}

// transferConfig is vLLM's --kv-transfer-config.
type transferConfig struct {
	Connector string `json:"kv_connector"`
	Extra     struct {
		Spec       string           `json:"spec_name"`
		Connectors []transferConfig `json:"connectors"` // of a MultiConnector
		Tiers      []struct {
			Type string `json:"type"`
			Host string `json:"host"`
			Port int    `json:"port"`
		} `json:"secondary_tiers"`
	} `json:"kv_connector_extra_config"`
}

// optionOfConnectors is the key of launch[].args with vLLM's --kv-transfer-config.
const optionOfConnectors = "kv-transfer-config"

// ReadConnectors returns the connectors of a launch of engine vllm by its args, in which a map may be JSON in a text. None
// is no error.
func ReadConnectors[V any](args map[string]V) (Connectors, error) {
	for key, value := range args {
		if engines.OptionName(key) != optionOfConnectors {
			continue
		}
		text, isText := any(value).(string)
		if !isText {
			encoded, err := json.Marshal(value)
			if err != nil {
				return Connectors{}, fmt.Errorf("args.%s cannot be written as JSON: %w", key, err)
			}
			text = string(encoded)
		}

		var read transferConfig
		err := json.Unmarshal([]byte(text), &read)
		if err != nil {
			return Connectors{}, fmt.Errorf("args.%s is not vLLM's form, such as {kv_connector: NixlConnector, kv_role: kv_both}: %w",
				key, err)
		}
		var c Connectors
		err = c.addConnector(&read, 0)
		return c, err
	}
	return Connectors{}, nil
}

// maxNesting bounds how deep a MultiConnector has others in it.
const maxNesting = 4

// addConnector adds a connector and those in it.
func (c *Connectors) addConnector(from *transferConfig, depth int) error {
	if depth > maxNesting {
		return fmt.Errorf("args.%s has connectors in more than %d others", optionOfConnectors, maxNesting)
	}
	if from.Connector != "" {
		c.Names = append(c.Names, from.Connector)
	}
	for i := range from.Extra.Tiers {
		t := &from.Extra.Tiers[i]
		hasTiers := from.Connector == "OffloadingConnector" && from.Extra.Spec != "" && from.Extra.Spec != "CPUOffloadingSpec"
		if t.Type == fleet.TransferP2P.String() && hasTiers {
			c.P2P = &P2PTier{Host: t.Host, Port: t.Port}
		}
	}
	for i := range from.Extra.Connectors {
		if err := c.addConnector(&from.Extra.Connectors[i], depth+1); err != nil {
			return err
		}
	}
	return nil
}

// HasNixl reports whether the engine has NIXL's side channel, and answers a prefill request with the parameters of a pull.
func (c *Connectors) HasNixl() bool {
	return slices.Contains(c.Names, "NixlConnector") || slices.Contains(c.Names, "NixlPullConnector")
}

// StoreConnector is the connector by which a vLLM uses the store of KV blocks of its node.
const StoreConnector = "StatorConnector"

// UseStore reports whether an engine with these connectors uses the store of its node, if its model has one: with none, the agent adds
// [StoreConnector].
func (c *Connectors) UseStore() bool {
	return len(c.Names) == 0 || slices.Contains(c.Names, StoreConnector)
}

// UsesStore reports whether engines of a launch use the store of KV blocks of their node, if their model has one.
func (l *Launch) UsesStore() bool {
	if l.Engine == engines.Sim.Name {
		return true
	}
	c, err := ReadConnectors(l.Args)
	return engines.Of(l.Engine).Connectors && err == nil && c.UseStore()
}

// Transfer returns how a worker with these connectors takes part in transfers. An aggregated worker has none but p2p, by which
// others pull from its cache.
func (c *Connectors) Transfer(role fleet.Role) fleet.Transfer {
	switch {
	case role != fleet.Aggregated && c.HasNixl():
		return fleet.TransferNixl
	case c.P2P != nil:
		return fleet.TransferP2P
	}
	return fleet.NoTransfer
}

// connectors checks that a vLLM that prefills or decodes is started with a connector whose handshake routers have, and that no
// two engines are given one port.
func (v *validator) connectors(l *Launch, path string) {
	at := path + ".args." + optionOfConnectors
	c, err := ReadConnectors(l.Args)
	v.is(err == nil, at, "cannot be used: %v", err)
	if err != nil {
		return
	}
	v.is(c.P2P == nil || c.P2P.Port == 0 || l.Count == 1, at,
		"gives %d engines one port: remove port from the tier of type p2p, and the agent chooses one for each", l.Count)
	for _, name := range []string{"VLLM_NIXL_SIDE_CHANNEL_PORT", "VLLM_P2P_SIDE_CHANNEL_PORT"} {
		v.is(l.Env[name] == "" || l.Count == 1, path+".env."+name,
			"gives %d engines one port: remove it, and the agent chooses one for each", l.Count)
	}
	if l.Role == fleet.Aggregated.String() {
		return
	}

	v.is(len(c.Names) > 0, at, "must name the connector with role %s: {kv_connector: NixlConnector, kv_role: kv_both}", l.Role)
	v.is(len(c.Names) == 0 || c.HasNixl() || c.P2P != nil, at,
		"names %s, whose handshake routers do not have: with role %s use NixlConnector, or OffloadingConnector with spec_name "+
			"TieringOffloadingSpec and a tier of type p2p",
		strings.Join(c.Names, " and "), l.Role)
}

// transfer returns the name of the transfer of a launch with the role prefill or decode. It is empty for the simulated engine,
// which takes part in each, and for args that are refused.
func (l *Launch) transfer() string {
	role, err := fleet.ParseRole(l.Role)
	if err != nil || role == fleet.Aggregated || l.Engine == engines.Sim.Name {
		return ""
	}
	kind := engines.Of(l.Engine)
	transfer := kind.Transfer
	if kind.Connectors {
		c, err := ReadConnectors(l.Args)
		if err != nil {
			return ""
		}
		transfer = c.Transfer(role)
	}
	if transfer == fleet.NoTransfer {
		return ""
	}
	return transfer.String()
}
