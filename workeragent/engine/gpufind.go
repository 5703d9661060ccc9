package engine

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// FindGPUs returns the devices that engines of this process can use, as CUDA_VISIBLE_DEVICES has them, and the source of
// the list. Devices that this process itself is limited to come first; then devices that NVML lists, in programs that
// are built with the tag nvml; then devices that the kernel lists.
func FindGPUs() (devices []string, source string) {
	if limit, ok := os.LookupEnv(visibleDevices); ok {
		return splitDevices(limit), visibleDevices
	}
	if devices, ok := nvmlGPUs(); ok {
		return devices, "NVML"
	}
	return kernelGPUs("/"), "/proc/driver/nvidia"
}

// kernelGPUs returns the indexes of the devices of NVIDIA's driver below root. CUDA counts the devices that this process
// can open, in the order of the PCI bus: in a container the kernel lists more.
func kernelGPUs(root string) (devices []string) {
	files, err := filepath.Glob(filepath.Join(root, "proc/driver/nvidia/gpus/*/information"))
	if err != nil {
		return nil
	}

	// The name of each folder is the address on the bus.
	slices.Sort(files)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		minor, ok := deviceMinor(string(text))
		if !ok {
			continue
		}
		if _, err := os.Stat(filepath.Join(root, "dev/nvidia"+minor)); err == nil {
			devices = append(devices, strconv.Itoa(len(devices)))
		}
	}
	return devices
}

// deviceMinor returns the number in the name of the device's file.
func deviceMinor(information string) (minor string, ok bool) {
	for line := range strings.Lines(information) {
		key, value, _ := strings.Cut(line, ":")
		if key == "Device Minor" {
			minor = strings.TrimSpace(value)
			_, err := strconv.ParseUint(minor, 10, 16)
			return minor, err == nil
		}
	}
	return "", false
}
