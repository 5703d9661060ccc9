package engine

import (
	"strings"
	"syscall"
	"testing"
)

// TestBuildWithoutPorts: when the process can open no more sockets, the error names the engine.
func TestBuildWithoutPorts(t *testing.T) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	none := limit
	none.Cur = 0
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}

	_, err := Launch{Kind: "sim", Name: "a"}.Build()

	if restored := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); restored != nil {
		t.Fatal(restored)
	}
	if err == nil || !strings.HasPrefix(err.Error(), "find free ports for a: ") {
		t.Errorf("error %v", err)
	}
}
