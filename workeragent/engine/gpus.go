package engine

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/engines"
)

// visibleDevices is the variable that limits a CUDA program to some devices of its host.
const visibleDevices = "CUDA_VISIBLE_DEVICES"

// GPUs returns how many GPUs one engine of a launch uses: by its options, or for other kinds of engines by the list of devices, at
// least 1.
func GPUs(l *config.Launch) (int, error) {
	args, err := arguments(l)
	if err != nil {
		return 0, err
	}
	launch := Launch{Kind: l.Engine, Args: args}
	n, known, err := launch.gpusNeeded()
	if err != nil {
		return 0, err
	}
	if !known {
		n = len(l.GPUs) / max(1, l.Count)
	}
	return max(1, n), nil
}

// gpusNeeded returns how many GPUs the engine uses. ok is false for kinds of engines whose use is not known.
func (l *Launch) gpusNeeded() (n int, ok bool, err error) {
	options := engines.Of(l.Kind).Launch.GPUs
	if options == nil {
		return 0, false, nil
	}

	n = 1
	for key, text := range l.Args {
		name := engines.OptionName(key)
		if l.sharesGPUs(name) {
			continue
		}
		for option, shortest := range options {
			if !strings.HasPrefix(option, name) || !strings.HasPrefix(name, shortest) {
				continue
			}
			size, err := strconv.Atoi(text)
			if err != nil || size < 1 || size > maxGPUs {
				return 0, false, fmt.Errorf("args.%s is %q: it must lie between 1 and %d", key, text, maxGPUs)
			}
			n *= size
		}
	}
	if n > maxGPUs {
		return 0, false, fmt.Errorf("args ask for %d GPUs for one engine: an agent starts engines of one host", n)
	}
	return n, true, nil
}

// sharesGPUs reports whether the ranks of that option use the GPUs of tensor parallelism, as the ranks of
// SGLang with --enable-dp-attention do.
func (l *Launch) sharesGPUs(option string) bool {
	own := &engines.Of(l.Kind).Launch
	if own.SharesGPUs == "" || !slices.ContainsFunc(own.Ranks, func(o string) bool { return strings.HasPrefix(o, option) }) {
		return false
	}
	for key, text := range l.Args {
		if engines.OptionName(key) == own.SharesGPUs {
			return text != "false"
		}
	}
	return false
}

// maxGPUs bounds the GPUs of one engine.
const maxGPUs = 1024

// shareGPUs divides the configured list among count engines. Without a list each gets none.
func (l *Launch) shareGPUs(list []string, count int) (groups [][]string, err error) {
	groups = make([][]string, count)
	if len(list) == 0 {
		return groups, nil
	}

	each, known, err := l.gpusNeeded()
	switch {
	case err != nil:
		return nil, err
	case !known:
		each = len(list) / count
	}
	if each == 0 || len(list) != each*count {
		if !known {
			return nil, fmt.Errorf("has %d devices, which cannot be divided evenly among %d engines", len(list), count)
		}
		return nil, fmt.Errorf("has %d devices: %d engines need %d each, %d in all; list a device twice to share it",
			len(list), count, each, each*count)
	}

	for i := range groups {
		groups[i] = list[i*each : (i+1)*each]
		seen := map[string]bool{}
		for _, id := range groups[i] {
			if seen[id] {
				return nil, fmt.Errorf("gives engine %d device %s twice: one engine needs different devices", i, id)
			}
			seen[id] = true
		}
	}
	return groups, nil
}

// takenGPUs returns the devices that launches name themselves.
func takenGPUs(launches []Launch) map[string]bool {
	taken := map[string]bool{}
	for i := range launches {
		for _, id := range launches[i].GPUs {
			taken[id] = true
		}
		for _, id := range splitDevices(launches[i].Env[visibleDevices]) {
			taken[id] = true
		}
	}
	return taken
}

// splitDevices returns the devices of CUDA_VISIBLE_DEVICES. A negative index ends the list.
func splitDevices(text string) (all []string) {
	for id := range strings.SplitSeq(text, ",") {
		id = strings.TrimSpace(id)
		if id == "" || strings.HasPrefix(id, "-") || id == "NoDevFiles" {
			break
		}
		all = append(all, id)
	}
	return all
}

// AssignGPUs gives the engines whose use of GPUs is known, and that have no configured devices, the devices of found that no
// launch of the list names, in order. Engines that set CUDA_VISIBLE_DEVICES in their environment keep that. If none is found it
// changes nothing: the host may have devices of another kind. Spare engines get the rest. It returns the launches without spare
// ones that get no device.
func AssignGPUs(launches []Launch, found []string) ([]Launch, error) {
	if len(found) == 0 {
		return launches, nil
	}
	taken := takenGPUs(launches)
	var free []string
	for _, id := range found {
		if !taken[id] {
			free = append(free, id)
		}
	}

	without := map[string]bool{} // names of spare engines that get no devices
	for _, i := range spareLast(launches) {
		l := &launches[i]
		n, known, err := l.gpusNeeded()
		if err != nil {
			return nil, fmt.Errorf("GPUs of %s: %w", l.Name, err)
		}
		if _, isSet := l.Env[visibleDevices]; !known || isSet || len(l.GPUs) > 0 {
			continue
		}
		for id := range taken {
			if !slices.Contains(found, id) {
				return nil, fmt.Errorf("GPUs of %s: another launch has device %s, which is not among those found, %s: write both alike, "+
					"or list launch[].gpus for all", l.Name, id, strings.Join(found, ","))
			}
		}
		if n > len(free) && l.Spare {
			without[l.Name] = true
			continue
		}
		if n > len(free) {
			return nil, fmt.Errorf("GPUs of %s: it needs %d, and %d of the %d found are left after those of other engines: lower "+
				"launch[].count or tensor-parallel-size, or list devices to share with launch[].gpus", l.Name, n, len(free), len(found))
		}
		l.GPUs, free = free[:n:n], free[n:]
	}
	return slices.DeleteFunc(launches, func(l Launch) bool { return without[l.Name] }), nil
}

// spareLast returns the indexes of launches in their order, with the indexes of spare engines behind the others.
func spareLast(launches []Launch) []int {
	var first, last []int
	for i := range launches {
		if launches[i].Spare {
			last = append(last, i)
		} else {
			first = append(first, i)
		}
	}
	return append(first, last...)
}
