package xds_test

import (
	"encoding/json"
	"testing"

	"github.com/stator-project/stator/xds"
)

// TestSecretFiles: each file has one secret, because Envoy refuses files with two. They name the PEM files.
func TestSecretFiles(t *testing.T) {
	files, err := xds.SecretFiles(xds.PEMFiles{CA: "/tls/ca.crt", Cert: "/tls/tls.crt", Key: "/tls/tls.key"})
	if err != nil {
		t.Fatal(err)
	}

	const kind = `"@type":"type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"`
	for name, want := range map[string]string{
		"stator-ca.json": `{"resources":[{` + kind + `,"name":"stator-ca","validation_context":{"trusted_ca":{"filename":"/tls/ca.crt"}}}]}`,
		"stator-client.json": `{"resources":[{` + kind + `,"name":"stator-client","tls_certificate":{` +
			`"certificate_chain":{"filename":"/tls/tls.crt"},"private_key":{"filename":"/tls/tls.key"}}}]}`,
	} {
		var v any
		if err := json.Unmarshal(files[name], &v); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got, err := json.Marshal(v)
		if err != nil || string(got) != want {
			t.Errorf("%s:\n%s, want\n%s, %v", name, got, want, err)
		}
	}
	if len(files) != 2 {
		t.Errorf("%d files", len(files))
	}
}
