package config

import (
	"fmt"
	"strings"
	"testing"
)

// TestBlockSize: a number, or the word for the size of the engines, which is the default.
func TestBlockSize(t *testing.T) {
	for text, want := range map[string]BlockSize{
		"": AutoBlockSize, "blockSize: auto": AutoBlockSize, "blockSize: 2096": 2096,
	} {
		c, err := Parse([]byte(fmt.Sprintf(`{apiVersion: stator.dev/v1alpha1, kind: Stator, models: [{name: m, path: "builtin:sim", %s}]}`, text)))
		if err != nil || c.Models[0].BlockSize != want {
			t.Errorf("%q: %v", text, err)
		}
	}
	for text, want := range map[string]string{
		"0": "must lie between", "-1": `must lie between 1 and 4096, or be "auto"`, "4097": "must lie between",
		"1.5": "must be a whole number", "large": "must be a whole number",
	} {
		_, err := Parse([]byte(`{apiVersion: stator.dev/v1alpha1, kind: Stator, models: [{name: m, path: "builtin:sim", blockSize: ` + text + `}]}`))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
