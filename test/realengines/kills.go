package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/stator-project/stator/test/process"
)

// engineKills is the number of kills of engines in the llama.cpp section.
const engineKills = 10

// kills has the results for engines that were killed.
type kills struct {
	killed, back int
	longest      time.Duration // until a killed engine was ready again
	addresses    []string      // of all engines, for the search at the end
	shared       []string      // the files of /dev/shm before
	left         []string      // processes, ports and files that are left at the end
}

// killEngines kills engines in turn, and waits until each is ready again.
func killEngines(ctx context.Context, g *gateway) (*kills, error) {
	k := &kills{shared: sharedFiles()}
	for n := range engineKills {
		ranks, err := g.Ranks(ctx)
		if err != nil {
			return nil, err
		}
		target := ranks[n%len(ranks)]
		pids := processesOf(target.Address)
		if len(pids) == 0 {
			return nil, fmt.Errorf("no process serves %s", target.Address)
		}
		for _, pid := range pids {
			err = errors.Join(err, syscall.Kill(pid, syscall.SIGKILL))
		}
		if err != nil {
			return nil, err
		}

		k.killed++
		k.addresses = append(k.addresses, target.Address)
		began := time.Now()
		if k.awaitBack(ctx, g, target.Worker, pids) {
			k.back++
			k.longest = max(k.longest, time.Since(began))
		}
	}
	return k, nil
}

// awaitBack reports whether another process of the worker is ready within two minutes: pauses between starts grow.
func (k *kills) awaitBack(ctx context.Context, g *gateway, worker string, killed []int) bool {
	ctx, stop := context.WithTimeout(ctx, 2*time.Minute)
	defer stop()
	for ctx.Err() == nil {
		time.Sleep(100 * time.Millisecond)
		ranks, err := g.Ranks(ctx)
		if err != nil {
			continue
		}
		i := slices.IndexFunc(ranks, func(r process.Rank) bool { return r.Worker == worker && r.State == "ready" })
		if i < 0 {
			continue
		}
		pids := processesOf(ranks[i].Address)
		isNew := func(pid int) bool { return !slices.Contains(killed, pid) }
		if slices.ContainsFunc(pids, isNew) {
			k.addresses = append(k.addresses, ranks[i].Address)
			return true
		}
	}
	return false
}

// look finds processes, ports and files of the engines that are left after the gateway's end.
func (k *kills) look() {
	for _, address := range slices.Compact(slices.Sorted(slices.Values(k.addresses))) {
		for _, pid := range processesOf(address) {
			k.left = append(k.left, fmt.Sprintf("process %d", pid))
		}
		connection, err := net.DialTimeout("tcp", address, time.Second)
		if err == nil {
			_ = connection.Close()
			k.left = append(k.left, "port "+address)
		}
	}
	for _, file := range sharedFiles() {
		if !slices.Contains(k.shared, file) {
			k.left = append(k.left, "/dev/shm/"+file)
		}
	}
}

// processesOf returns the llama.cpp processes of the port of an address. Their arguments name it. The arguments of the program
// that holds such a process name it too, but that one is no program of Python.
func processesOf(address string) (pids []int) {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil
	}
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, line := range lines {
		text, err := os.ReadFile(line)
		program, _, _ := bytes.Cut(text, []byte{0})
		isEngine := bytes.Contains(program, []byte("python")) && bytes.Contains(text, []byte(`"port":`+port))
		if err != nil || !isEngine {
			continue
		}
		pid, err := strconv.Atoi(strings.Split(line, "/")[2])
		if err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// sharedFiles lists /dev/shm.
func sharedFiles() (names []string) {
	entries, _ := os.ReadDir("/dev/shm")
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}
