package nixl

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// library opens the library that `make test-nixl` installs, or skips the test.
func library(t testing.TB) *Library {
	t.Helper()

	folder := os.Getenv("NIXL_LIB_DIR")
	if folder == "" {
		t.Skip("NIXL_LIB_DIR names no folder with libnixl_capi.so: run make test-nixl, which installs it into the checkout")
	}
	lib, err := Open(filepath.Join(folder, "libnixl_capi.so"))
	if err != nil {
		t.Fatal(err)
	}
	return lib
}

// memory returns a mapping of a file.
func memory(t testing.TB, size int) *Mapping {
	t.Helper()

	file, err := os.CreateTemp(t.TempDir(), "memory")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := file.Truncate(int64(size)); err != nil {
		t.Fatal(err)
	}
	m, err := Map(int(file.Fd()), size)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// must ends the test with an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// agent returns an agent with a backend, which has memory registered.
func agent(t testing.TB, lib *Library, plugin string, m *Mapping) (*Agent, *Backend) {
	t.Helper()

	a, err := lib.NewAgent(AgentConfig{
		Name: fmt.Sprintf("%s-%d-%p", t.Name(), os.Getpid(), m), ProgressDelay: 500 * time.Microsecond,
	})
	must(t, err)
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	b, err := a.CreateBackend(plugin, nil)
	must(t, err)
	must(t, a.Register(m.At(0, len(m.Bytes()))))
	return a, b
}

// transfer posts a request and waits until it is done.
func transfer(t testing.TB, r *Request) {
	t.Helper()

	done, err := r.Post()
	for deadline := time.Now().Add(20 * time.Second); err == nil && !done; {
		if time.Now().After(deadline) {
			t.Fatal("the transfer is not done after 20 s")
		}
		time.Sleep(20 * time.Microsecond)
		done, err = r.Poll()
	}
	must(t, err)
}

// fill writes bytes that depend on the position and a seed.
func fill(data []byte, seed int) {
	for i := range data {
		data[i] = byte(seed + i + i>>8)
	}
}

func TestLibraryErrors(t *testing.T) {
	_, err := Open("/nowhere/libnixl_capi.so")
	if err == nil || !strings.Contains(err.Error(), "nixl-cu12==1.5.1") {
		t.Errorf("a missing library: %v", err)
	}

	text := filepath.Join(t.TempDir(), "libnixl_capi.so")
	must(t, os.WriteFile(text, []byte("no library"), 0o600))
	_, err = Open(text)
	if err == nil || !strings.Contains(err.Error(), "nixl-cu12==1.5.1") {
		t.Errorf("a file that is no library: %v", err)
	}

	other := loadedLibrary(t)
	_, err = Open(other)
	if err == nil || !strings.Contains(err.Error(), "lacks nixl_capi_create_configured_agent, nixl_capi_") {
		t.Errorf("%s, which is another library: %v", other, err)
	}
}

// loadedLibrary returns the path of a library of this process, which is not NIXL.
func loadedLibrary(t *testing.T) string {
	t.Helper()

	maps, err := os.ReadFile("/proc/self/maps")
	must(t, err)
	for _, field := range strings.Fields(string(maps)) {
		if strings.HasPrefix(field, "/") && strings.Contains(filepath.Base(field), "libc.so") {
			return field
		}
	}
	t.Skipf("this process of %s has no libc", runtime.GOOS)
	return ""
}

func TestStatusErrors(t *testing.T) {
	for code, want := range map[int32]string{
		-1: "nixl call: invalid parameter", -3: "nixl call: invalid state", -6: "nixl call: not found", -99: "nixl call: unknown status -99",
	} {
		err := check("call", code)
		if err == nil || err.Error() != want || !errors.Is(err, Status(code)) {
			t.Errorf("%d: %v", code, err)
		}
	}
	if err := check("call", 0); err != nil {
		t.Error(err)
	}
	if done, err := finished("call", 0xdead_0000_0001); done || err != nil {
		t.Errorf("status 1 in a dirty register: %v, %v", done, err)
	}
	if done, err := finished("call", 0x0000_ffff_fffe); !done || !errors.Is(err, ErrBackend) {
		t.Errorf("status -2: %v, %v", done, err)
	}
}

// TestBackends gets the parameters of UCX, and an error with the name of the call for a plugin that does not exist.
func TestBackends(t *testing.T) {
	lib := library(t)
	a, err := lib.NewAgent(AgentConfig{Name: "backends"})
	must(t, err)
	defer a.Close()

	params, err := a.defaults("UCX")
	must(t, err)
	if params["ucx_error_handling_mode"] != "peer" {
		t.Errorf("UCX: %v", params)
	}
	_, err = a.CreateBackend("ABSENT", nil)
	if err == nil || !strings.Contains(err.Error(), "nixl get_plugin_params ABSENT: ") {
		t.Errorf("a plugin that does not exist: %v", err)
	}
}

// TestAgentsReadAndWrite copies blocks between two agents in both directions, in the reverse order of slots, and posts a request twice.
func TestAgentsReadAndWrite(t *testing.T) {
	const block, count = 64 << 10, 8
	lib := library(t)
	here, there := memory(t, block*count), memory(t, block*count)
	a, _ := agent(t, lib, "UCX", here)
	b, _ := agent(t, lib, "UCX", there)

	metadata, err := b.LocalMetadata()
	must(t, err)
	name, err := a.LoadRemote(metadata)
	must(t, err)
	if name != b.Name() {
		t.Errorf("the peer is %q, want %q", name, b.Name())
	}
	local, err := a.Prepare("", blocks(here, block))
	must(t, err)
	remote, err := a.Prepare(name, blocks(there, block))
	must(t, err)

	for _, op := range []Op{Read, Write} {
		fill(here.Bytes(), 1)
		fill(there.Bytes(), 2)
		ordered, reversed := indices(count)
		r, err := a.MakeRequest(op, local, ordered, remote, reversed)
		must(t, err)
		transfer(t, r)
		transfer(t, r)

		for i := range count {
			mine := here.Bytes()[i*block:][:block]
			theirs := there.Bytes()[(count-1-i)*block:][:block]
			if !bytes.Equal(mine, theirs) {
				t.Errorf("op %d: block %d differs", op, i)
			}
		}
		must(t, r.Close())
	}
	must(t, local.Close())
	must(t, remote.Close())
	must(t, a.Forget(name))
}

// loadBack makes an agent known to its peer, and returns its name.
func loadBack(t testing.TB, a, peer *Agent) string {
	t.Helper()

	metadata, err := a.LocalMetadata()
	must(t, err)
	name, err := peer.LoadRemote(metadata)
	must(t, err)
	return name
}

func blocks(m *Mapping, size int) (list []Descriptor) {
	for at := 0; at < len(m.Bytes()); at += size {
		list = append(list, m.At(at, size))
	}
	return list
}

func indices(n int) (ordered, reversed []int32) {
	for i := range int32(n) {
		ordered = append(ordered, i)
		reversed = append(reversed, int32(n)-1-i)
	}
	return ordered, reversed
}

// TestRefusals checks that wrong calls are errors.
func TestRefusals(t *testing.T) {
	lib := library(t)
	m := memory(t, 4096)
	a, b := agent(t, lib, "UCX", m)

	if _, err := a.LoadRemote([]byte("garbage")); err == nil || !strings.Contains(err.Error(), "nixl load_remote_md: ") {
		t.Errorf("metadata that is none: %v", err)
	}
	if err := a.Forget("stranger"); !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrBackend) {
		t.Errorf("a peer that is not there: %v", err)
	}
	if _, err := a.Prepare("stranger", []Descriptor{m.At(0, 8)}, b); err == nil {
		t.Error("a list for a peer that is not there is accepted")
	}
	if _, err := a.MakeRequest(Read, nil, []int32{1}, nil, nil); err == nil {
		t.Error("a request with different numbers of indices is accepted")
	}
}

// BenchmarkFunction measures a call by a function of purego, beside BenchmarkPoll, which calls by address.
func BenchmarkFunction(b *testing.B) {
	lib := library(b)
	a, err := lib.NewAgent(AgentConfig{Name: "benchmark"})
	must(b, err)
	defer a.Close()
	var list uintptr
	must(b, check("create_xfer_dlist", a.f.createDescriptors(dram, &list)))
	defer a.f.destroyDescriptors(list)

	b.ReportAllocs()
	for b.Loop() {
		must(b, check("xfer_dlist_add_desc", a.f.addDescriptor(list, 1, 1, 0)))
	}
}

// BenchmarkPoll measures one poll of a transfer that is done.
func BenchmarkPoll(b *testing.B) {
	lib := library(b)
	here, there := memory(b, 4096), memory(b, 4096)
	mine, _ := agent(b, lib, "UCX", here)
	theirs, _ := agent(b, lib, "UCX", there)
	peer := loadBack(b, theirs, mine)
	local, err := mine.Prepare("", blocks(here, 4096))
	must(b, err)
	remote, err := mine.Prepare(peer, blocks(there, 4096))
	must(b, err)
	r, err := mine.MakeRequest(Read, local, []int32{0}, remote, []int32{0})
	must(b, err)
	transfer(b, r)

	b.ReportAllocs()
	for b.Loop() {
		if done, err := r.Poll(); !done || err != nil {
			b.Fatal(done, err)
		}
	}
	must(b, r.Close())
	must(b, local.Close())
	must(b, remote.Close())
}
