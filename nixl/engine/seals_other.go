//go:build !linux

package engine

import (
	"errors"
	"os"

	"github.com/stator-project/stator/nixl"
)

// mapSealed returns an error: only Linux has sealed memory.
func mapSealed(*os.File, int) (*nixl.Mapping, error) {
	return nil, errors.New("transfers with NIXL need Linux, which has sealed memory")
}
