package xds

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/prototext"

	"github.com/stator-project/stator/internal/envoynames"
)

// Headers of hints leave Envoy only if clients are trusted with them.
func TestHintHeaders(t *testing.T) {
	for _, trusted := range []bool{false, true} {
		text := prototext.Format(buildExtProc(Settings{}, audience{hints: trusted}))
		for _, h := range envoynames.HintHeaders() {
			if strings.Contains(text, `"`+h+`"`) != trusted {
				t.Errorf("trusted %v: %s", trusted, h)
			}
		}
	}
}
