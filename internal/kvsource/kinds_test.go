package kvsource

import (
	"testing"

	"github.com/stator-project/stator/internal/engines"
)

// TestKindsHaveDecoders: the dialect of each kind of engine has a decoder, and a source accepts it at an endpoint of the kind.
func TestKindsHaveDecoders(t *testing.T) {
	for _, k := range engines.All() {
		endpoint := "tcp://a:1"
		if k.Dialect == engines.TRTLLMEvents {
			endpoint = "http://a:1/kv_cache_events"
		}
		d, ok := decoders[k.Dialect]
		c := Config{Endpoint: endpoint, Dialect: DialectOf(k.Name, endpoint)}
		if err := c.Validate(); !ok || c.Dialect != d || err != nil {
			t.Errorf("%s: dialect %s, decoder %s, %v", k.Name, c.Dialect, d, err)
		}
	}
}
