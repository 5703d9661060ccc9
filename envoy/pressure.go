package envoy

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/stator-project/stator/internal/envoynames"
)

// pressureFile is the file in which Envoy reads how full it is of connections: a number from 0 to 1.
const pressureFile = "connections"

// pressureInterval is the interval at which the connections are counted.
const pressureInterval = time.Second

// PressureFile returns the path of the file, for Envoy's bootstrap, if Config.Dir is dir.
func PressureFile(dir string) string { return filepath.Join(dir, pressureFile) }

// reportConnections writes to the file which part of Config.MaxConnections clients have open, until Envoy or ctx ends.
// Envoy knows the number too, but none of its overload actions can be triggered by it.
func (p *Process) reportConnections(ctx context.Context, bound int) {
	for written := 0; bound > 0; {
		// Envoy may be too busy to answer in time. Then the last number stays.
		n, err := p.Stat(ctx, "http."+envoynames.ConnectionManager+".downstream_cx_active")
		if err == nil && n != written && writePressure(p.dir, min(1, float64(n)/float64(bound))) == nil {
			written = n
		}
		if p.pause(ctx, pressureInterval) != nil {
			return
		}
	}
}

// writePressure replaces the file, because Envoy reads it when another one is moved there. Start writes
// the first one, so that Envoy finds a number when it begins to watch.
func writePressure(dir string, share float64) error {
	path := PressureFile(dir)
	if err := os.WriteFile(path+".new", fmt.Appendf(nil, "%.4f", share), 0o600); err != nil {
		return fmt.Errorf("write how many connections are open: %w", err)
	}
	return os.Rename(path+".new", path)
}
