//go:build !linux

package disk

import (
	"errors"
	"os"
)

// The tier needs Linux: O_DIRECT, fallocate and flock. Open returns errors.ErrUnsupported elsewhere.

func openBlocks(string, bool) (*os.File, error) { return nil, errors.ErrUnsupported }
func space(*os.File) (int64, int64, error)      { return 0, 0, errors.ErrUnsupported }
func allocate(*os.File, int64) error            { return errors.ErrUnsupported }
func lockFile(*os.File) error                   { return errors.ErrUnsupported }
func mapBuffer(int) ([]byte, error)             { return nil, errors.ErrUnsupported }
func unmapBuffer([]byte)                        {}
func syncDir(string) error                      { return errors.ErrUnsupported }
