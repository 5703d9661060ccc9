//go:build cgo && nvml && linux

package engine

import (
	"strconv"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// nvmlGPUs returns the devices that NVIDIA's management library lists. ok is false if the host does not have the
// library or its driver. A device that is divided by MIG is listed as its parts: CUDA cannot use it as a whole.
func nvmlGPUs() (devices []string, ok bool) {
	if nvml.Init() != nvml.SUCCESS {
		return nil, false
	}
	defer func() { _ = nvml.Shutdown() }()

	count, result := nvml.DeviceGetCount()
	if result != nvml.SUCCESS {
		return nil, false
	}
	for i := range count {
		device, result := nvml.DeviceGetHandleByIndex(i)
		if result != nvml.SUCCESS {
			continue // one that has failed, or that this process may not use
		}
		mode, _, result := device.GetMigMode()
		if result == nvml.SUCCESS && mode == nvml.DEVICE_MIG_ENABLE {
			devices = append(devices, migParts(device)...)
			continue
		}
		devices = append(devices, strconv.Itoa(i))
	}
	return devices, true
}

// migParts returns the UUIDs of the parts of a device.
func migParts(device nvml.Device) (parts []string) {
	most, result := device.GetMaxMigDeviceCount()
	if result != nvml.SUCCESS {
		return nil
	}
	for i := range most {
		part, result := device.GetMigDeviceHandleByIndex(i)
		if result != nvml.SUCCESS {
			continue // an empty place
		}
		uuid, result := part.GetUUID()
		if result == nvml.SUCCESS {
			parts = append(parts, uuid)
		}
	}
	return parts
}
