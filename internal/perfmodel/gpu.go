package perfmodel

import (
	"fmt"
	"slices"
	"strings"
)

// GPU has the figures of an accelerator's data sheet. Roofline multiplies them by the shares that engines reach.
type GPU struct {
	Name string
	// Memory is in bytes, and Bandwidth, of the memory, in bytes per second.
	Memory, Bandwidth float64
	// FLOPS16 and FLOPS8 are dense floating point operations per second with elements of 16 bits, and of 8 bits. A GPU without units for
	// the latter has FLOPS16 for both.
	FLOPS16, FLOPS8 float64
	// Link is the bandwidth to another GPU of the same node, in bytes per second in one direction.
	Link float64
	// Watts is the board's limit of power.
	Watts float64
}

// GPUs are the accelerators with known figures, by name. Sources: the vendors' data sheets (NVIDIA H200, H100, A100, B200, L40S, L4, A10,
// GeForce RTX 4090; AMD Instinct MI300X, MI325X), dense figures, which are half of the figures with sparsity.
var GPUs = []GPU{
	{"A10", 24e9, 600e9, 125e12, 125e12, 32e9, 150},
	{"A100-40GB", 40e9, 1.555e12, 312e12, 312e12, 300e9, 400},
	{"A100-80GB", 80e9, 2.039e12, 312e12, 312e12, 300e9, 400},
	{"B200", 180e9, 7.7e12, 2.25e15, 4.5e15, 900e9, 1000},
	{"H100", 80e9, 3.35e12, 989e12, 1.979e15, 450e9, 700},
	{"H100-PCIE", 80e9, 2.0e12, 756e12, 1.513e15, 64e9, 350},
	{"H200", 141e9, 4.8e12, 989e12, 1.979e15, 450e9, 700},
	{"L4", 24e9, 300e9, 121e12, 242e12, 32e9, 72},
	{"L40S", 48e9, 864e9, 362e12, 733e12, 32e9, 350},
	{"MI300X", 192e9, 5.3e12, 1.307e15, 2.615e15, 448e9, 750},
	{"MI325X", 256e9, 6.0e12, 1.307e15, 2.615e15, 448e9, 1000},
	{"RTX4090", 24e9, 1.008e12, 165e12, 330e12, 32e9, 450},
}

// FindGPU returns the GPU of a name, in which case does not matter.
func FindGPU(name string) (GPU, error) {
	i := slices.IndexFunc(GPUs, func(g GPU) bool { return strings.EqualFold(g.Name, name) })
	if i >= 0 {
		return GPUs[i], nil
	}
	var names []string
	for _, g := range GPUs {
		names = append(names, g.Name)
	}
	return GPU{}, fmt.Errorf("GPU %q is unknown: use %s", name, strings.Join(names, ", "))
}
