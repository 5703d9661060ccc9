package config_test

import (
	"fmt"

	"github.com/stator-project/stator/internal/config"
)

// A misspelt key is an error with its path and line, and with the key that was probably meant.
func ExampleParse() {
	_, err := config.Parse([]byte(`
apiVersion: stator.dev/v1alpha1
kind: Stator
gateway: {listn: "127.0.0.1:8080"}
models:
- name: sim
  path: "builtin:sim"
  launch: [{engine: sim, count: 2}]
`))
	fmt.Println(err)
	// Output:
	// gateway.listn (line 4): is not a known key; did you mean listen?
}
