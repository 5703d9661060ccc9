package engine

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stator-project/stator/internal/config"
)

// TestConfiguredGPUs gives each engine of a launch its part of the list.
func TestConfiguredGPUs(t *testing.T) {
	for _, c := range []struct{ launch, want string }{
		{`{engine: vllm, count: 4, gpus: [0, 1, 2, 3]}`, "0 1 2 3"},
		{`{engine: vllm, count: 2, gpus: [4, 5, 6, 7], args: {tensor-parallel-size: 2}}`, "4,5 6,7"},
		{`{engine: vllm, gpus: [GPU-a, GPU-b, GPU-c, GPU-d], args: {tensor_parallel_size: 2, data-parallel-size: 2}}`, "GPU-a,GPU-b,GPU-c,GPU-d"},
		{`{engine: vllm, gpus: [0, 1], args: {tensor: 1, pipeline-parallel: 2}}`, "0,1"},
		{`{engine: vllm, count: 2, gpus: [0, 0]}`, "0 0"},
		{`{engine: exec, command: [./serve], count: 2, gpus: [0, 1, 2, 3]}`, "0,1 2,3"},
		{`{engine: vllm, count: 2}`, " "},
		{`{engine: vllm, count: 1, max: 3, gpus: [0, 1, 2]}`, "0 1 2"},
		{`{engine: vllm, count: 1, max: 3, gpus: [0]}`, "models[0].launch[0].gpus: has 1 devices: 3 engines need 1 each, 3 in all; list a device twice to share it"},
		{`{engine: vllm, count: 4, gpus: [0, 1]}`, "models[0].launch[0].gpus: has 2 devices: 4 engines need 1 each, 4 in all; list a device twice to share it"},
		{`{engine: vllm, gpus: [0, 1]}`, "models[0].launch[0].gpus: has 2 devices: 1 engines need 1 each, 1 in all; list a device twice to share it"},
		{`{engine: vllm, gpus: [0, 0], args: {tensor-parallel-size: 2}}`, "models[0].launch[0].gpus: gives engine 0 device 0 twice: one engine needs different devices"},
		{`{engine: exec, command: [./serve], count: 2, gpus: [0]}`, "models[0].launch[0].gpus: has 1 devices, which cannot be divided evenly among 2 engines"},
		{`{engine: vllm, gpus: [0], args: {tensor-parallel-size: two}}`, `models[0].launch[0].gpus: args.tensor-parallel-size is "two": it must lie between 1 and 1024`},
	} {
		cfg, err := config.Parse([]byte("apiVersion: stator.dev/v1alpha1\nkind: Stator\nmodels:\n- {name: m, path: m, launch: [" + c.launch +
			", {engine: sim, max: 2, node: other}]}\nplanner: {connector: local}\n"))
		if err != nil {
			t.Errorf("%s: %v", c.launch, err)
			continue
		}
		launches, err := Configured(cfg, "")
		got := devicesOf(launches)
		if err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s:\n%s, want\n%s", c.launch, got, c.want)
		}
	}
}

// devicesOf returns the devices of each engine, with commas within one.
func devicesOf(launches []Launch) string {
	var all []string
	for _, l := range launches {
		all = append(all, strings.Join(l.GPUs, ","))
	}
	return strings.Join(all, " ")
}

// TestAssignGPUs gives devices that were found to engines that have none.
func TestAssignGPUs(t *testing.T) {
	vllm := func(gpus ...string) Launch { return Launch{Kind: "vllm", Name: "v", GPUs: gpus} }
	two := Launch{Kind: "vllm", Name: "two", Args: map[string]string{"tensor-parallel-size": "2"}}
	spare := func(name string) Launch { return Launch{Kind: "vllm", Name: name, Spare: true} }
	own := Launch{Kind: "vllm", Name: "own", Env: map[string]string{visibleDevices: "1, 2"}}
	for _, c := range []struct {
		launches    []Launch
		found, want string
	}{
		{[]Launch{vllm(), vllm(), vllm(), vllm()}, "0 1 2 3", "0 1 2 3"},
		{[]Launch{two, two}, "0 1 2 3", "0,1 2,3"},
		{[]Launch{vllm(), vllm("0"), vllm()}, "0 1 2 3", "1 0 2"},
		{[]Launch{own, vllm(), vllm()}, "0 1 2 3", " 0 3"},
		{[]Launch{{Kind: "sim"}, {Kind: "exec"}, {Kind: "llamacpp"}, vllm()}, "0", "   0"},
		{[]Launch{vllm(), vllm()}, "", " "},
		{[]Launch{vllm(), spare("a"), spare("b"), vllm()}, "0 1 2", "0 2 1"},
		{[]Launch{spare("a"), vllm()}, "0", "0"},
		{[]Launch{vllm("GPU-a"), vllm("GPU-b")}, "0 1", "GPU-a GPU-b"},
		{[]Launch{vllm("GPU-a"), vllm()}, "0 1", "GPUs of v: another launch has device GPU-a, which is not among those found, 0,1: write both alike, " +
			"or list launch[].gpus for all"},
		{[]Launch{two, two}, "0 1 2", "GPUs of two: it needs 2, and 1 of the 3 found are left after those of other engines: lower launch[].count " +
			"or tensor-parallel-size, or list devices to share with launch[].gpus"},
	} {
		launches, err := AssignGPUs(c.launches, strings.Fields(c.found))
		got := devicesOf(launches)
		if err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s:\n%q, want\n%q", c.found, got, c.want)
		}
	}
}

// TestKernelGPUs counts the devices whose files this process can see, in the order of the bus.
func TestKernelGPUs(t *testing.T) {
	root := t.TempDir()
	write := func(path, text string) {
		t.Helper()
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got := kernelGPUs(root); len(got) != 0 {
		t.Errorf("without a driver: %v", got)
	}

	for bus, minor := range map[string]string{"0000:19:00.0": "1", "0000:3b:00.0": "0", "0000:4c:00.0": "2", "0000:5d:00.0": "../0"} {
		write("proc/driver/nvidia/gpus/"+bus+"/information", "Model: \t\t NVIDIA H200\nDevice Minor: \t "+minor+"\n")
	}
	write("dev/nvidia0", "")
	write("dev/nvidia2", "")
	if got := strings.Join(kernelGPUs(root), " "); got != "0 1" {
		t.Errorf("%s, want the two that have a file", got)
	}
}

// TestFindGPUs: a process that is limited to some devices gives its engines no others.
func TestFindGPUs(t *testing.T) {
	for limit, want := range map[string]string{"2,3": "2 3", "": "", "-1": "", "0,-1,2": "0", "GPU-a, GPU-b": "GPU-a GPU-b"} {
		t.Setenv(visibleDevices, limit)
		if got, _ := FindGPUs(); strings.Join(got, " ") != want {
			t.Errorf("%q: %v, want %s", limit, got, want)
		}
	}
}
