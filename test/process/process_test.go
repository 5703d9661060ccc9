package process

import (
	"os"
	"testing"
	"time"
)

func TestParseStat(t *testing.T) {
	const stat = "42 (a (strange) name) S 1 42 42 0 -1 4194560 100 0 0 0 123 45 0 0 20 0 9 0 100 1000 10\n"
	if got, err := parseStat([]byte(stat)); err != nil || got != 1680*time.Millisecond {
		t.Errorf("%v, %v: want 1.68s", got, err)
	}
	if _, err := parseStat([]byte("42 (short) S 1")); err == nil {
		t.Error("a short line is no error")
	}
}

// TestReadersOfThisProcess: a test has some memory, and both readers of CPU time work.
func TestReadersOfThisProcess(t *testing.T) {
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("no /proc")
	}
	resident, err := Resident(os.Getpid())
	if err != nil || resident < 1<<20 {
		t.Errorf("%d bytes, %v", resident, err)
	}
	if spent, err := ThreadsCPU(os.Getpid()); err != nil || spent <= 0 {
		t.Errorf("%v, %v", spent, err)
	}
	own, err := CPU(os.Getpid())
	if err != nil {
		t.Error(err)
	}
	tree, err := TreeCPU(os.Getpid())
	if err != nil || tree < own {
		t.Errorf("the process has used %v, and it and those under it %v, %v", own, tree, err)
	}
	if all, err := MachineCPU(); err != nil || all <= 0 {
		t.Errorf("%v, %v", all, err)
	}
}
