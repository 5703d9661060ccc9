package config

import (
	"fmt"

	"github.com/stator-project/stator/internal/fleet"
)

// FleetWorkers returns the workers that the configuration lists, and those that were found. They have no agent that could report their
// state, so it is ready; their engines are asked for their health, unless that is turned off. Workers that are listed by a DNS name have
// no address yet.
func (c *Config) FleetWorkers() ([]fleet.Worker, error) {
	var workers []fleet.Worker
	for i := range c.Models {
		m := &c.Models[i]
		for j := range m.Workers {
			w, err := m.Workers[j].fleetWorker(m)
			if err != nil {
				return nil, fmt.Errorf("worker %s: %w", m.Workers[j].Name, err)
			}
			workers = append(workers, w)
		}
	}
	return append(workers, c.Found...), nil
}

// fleetWorker returns the worker of a model.
func (w *Worker) fleetWorker(m *Model) (fleet.Worker, error) {
	role, err := fleet.ParseRole(w.Role)
	if err != nil {
		return fleet.Worker{}, err
	}
	taints, err := fleet.NewTaints(w.Taints)
	if err != nil {
		return fleet.Worker{}, err
	}
	transfer, err := fleet.ParseTransfer(w.Transfer)
	if err != nil {
		return fleet.Worker{}, err
	}

	asked := w.HealthPath
	if asked == noHealthPath {
		asked = ""
	}
	address, named := w.Address, ""
	if _, _, isName := fleet.SplitName(w.Address); isName {
		address, named = "", w.Address
	}
	return fleet.Worker{
		Name: w.Name, Model: m.Name, Role: role, Address: address, Named: named, Engine: w.Engine,
		Ranks: w.Ranks, Weight: uint32(w.Weight), KVEvents: w.KVEvents, KVReplay: w.KVReplay,
		Blocks: w.Blocks, BlockSize: int(m.BlockSize), State: fleet.Ready, Taints: taints,
		HealthPath: asked, Transfer: transfer, TransferAt: w.TransferAddress,
	}, nil
}
