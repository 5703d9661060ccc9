//go:build !linux || (!amd64 && !arm64)

package disk

import (
	"errors"
	"os"
)

func openAIO(*os.File, int) (*os.File, error) { return nil, errors.ErrUnsupported }
