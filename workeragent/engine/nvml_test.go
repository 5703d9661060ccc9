//go:build cgo && nvml && linux

package engine

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestNVMLListsTheDevices compares NVML's list with the driver's own tool, and with the kernel's list if no device is
// divided by MIG.
func TestNVMLListsTheDevices(t *testing.T) {
	devices, ok := nvmlGPUs()
	if !ok {
		t.Skip("this host has no NVIDIA driver")
	}
	out, err := exec.Command("nvidia-smi", "--query-gpu=index,mig.mode.current", "--format=csv,noheader").Output()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("NVML lists %v, nvidia-smi %q, the kernel %v", devices, out, kernelGPUs("/"))
	if strings.Contains(string(out), "Enabled") {
		t.Skip("devices are divided by MIG")
	}

	var want []string
	for line := range strings.Lines(string(out)) {
		index, _, _ := strings.Cut(line, ",")
		want = append(want, index)
	}
	if !slices.Equal(devices, want) || !slices.Equal(kernelGPUs("/"), want) {
		t.Errorf("NVML lists %v, the kernel %v, nvidia-smi %v", devices, kernelGPUs("/"), want)
	}
}
