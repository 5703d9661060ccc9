package engine

import (
	"fmt"

	"github.com/stator-project/stator/internal/config"
)

// vllmStore has an engine use the store of KV blocks of its node, by the connector of the package stator-connector. Connectors in the
// arguments stay as they are: a MultiConnector can have that one among others.
func (l Launch) vllmStore(c *Command) error {
	if !l.KVStore {
		return nil
	}
	connectors, err := config.ReadConnectors(l.Args)
	if err != nil {
		return fmt.Errorf("launch %s: %w", l.Name, err)
	}

	if len(connectors.Names) == 0 {
		c.Args = append(c.Args, "--kv-transfer-config", toJSON(map[string]any{
			"kv_connector": config.StoreConnector, "kv_connector_module_path": "stator_connector.connector", "kv_role": "kv_both",
			"kv_load_failure_policy": "recompute",
		}))
	}
	c.Env = append(c.Env, "STATOR_KV_SOCKET="+c.at.KVStore(l.Model), "STATOR_KV_MODEL="+l.Model)
	return nil
}
