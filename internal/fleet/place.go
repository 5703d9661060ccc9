package fleet

import (
	"fmt"
	"strings"
	"unique"
)

// Level is a level of places in the network: the narrowest one at which two workers share a place. A higher level is a narrower place.
type Level uint8

// The levels.
const (
	Apart    Level = iota // in different zones, or in no place that is known to be common
	InZone                // taint "zone=…"
	InRack                // taint "rack=…": below one switch
	InNVLink              // taint "nvlink=…": among GPUs that NVLink connects
	Levels
)

var levelNames = [Levels]string{"apart", "zone", "rack", "nvlink"}

func (l Level) String() string {
	if l < Levels {
		return levelNames[l]
	}
	return "unknown"
}

// MarshalText writes the level's name.
func (l Level) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalText reads the level's name. An unknown one is Apart.
func (l *Level) UnmarshalText(text []byte) error {
	*l = Apart
	for level, name := range levelNames {
		if name == string(text) {
			*l = Level(level)
		}
	}
	return nil
}

// Phrase returns the level as a sentence about two workers has it, such as "in the same rack".
func (l Level) Phrase() string {
	return [...]string{"in no common place", "in the same zone", "in the same rack", "in the same NVLink domain"}[min(l, Levels-1)]
}

// Taint returns the taint that names a place of a level.
func (l Level) Taint(place string) string { return l.String() + "=" + place }

// Place is the place of a worker in the network, as far as its taints name it. The zero Place names nothing. Names of racks and of NVLink
// domains are unique in their zone.
type Place struct {
	names [Levels]unique.Handle[string] // by level, the zero handle for one that is not named; none at Apart
}

// PlaceOf returns the place that taints name. Of two taints of a level the first one counts.
func PlaceOf(t Taints) (p Place) {
	for rest := string(t); rest != ""; {
		taint, more, _ := strings.Cut(rest, ",")
		rest = more
		key, name, isNamed := strings.Cut(taint, "=")
		if !isNamed || name == "" {
			continue
		}
		for level := InZone; level < Levels; level++ {
			if key == levelNames[level] && !p.has(level) {
				p.names[level] = unique.Make(name)
			}
		}
	}
	return p
}

// has reports whether the place names a level.
func (p *Place) has(l Level) bool { return p.names[l] != unique.Handle[string]{} }

// IsKnown reports whether the place names any level.
func (p *Place) IsKnown() bool { return *p != Place{} }

// Shared returns the narrowest level that two places are known to share. Two zones share nothing, whatever their racks are called.
func (p *Place) Shared(o *Place) Level {
	if p.has(InZone) && o.has(InZone) && p.names[InZone] != o.names[InZone] {
		return Apart
	}
	for level := InNVLink; level > Apart; level-- {
		if p.has(level) && p.names[level] == o.names[level] {
			return level
		}
	}
	return Apart
}

// String returns the levels that are named, the widest first, such as "zone=a rack=7"; empty for none.
func (p *Place) String() string {
	var named []string
	for level := InZone; level < Levels; level++ {
		if p.has(level) {
			named = append(named, level.Taint(p.names[level].Value()))
		}
	}
	return strings.Join(named, " ")
}

// MarshalText writes the levels that are named.
func (p Place) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (p *Place) UnmarshalText(text []byte) error {
	taints, err := NewTaints(strings.Fields(string(text)))
	if err == nil {
		*p = PlaceOf(taints)
		return nil
	}
	return fmt.Errorf("a place: %w", err)
}

// Site is the place and the revision of a worker, with its slice. Workers of one site exchange KV caches with the same others, in
// the same time.
type Site struct {
	Place    Place
	Revision string
}

// Exchanges reports whether workers of two sites exchange KV caches.
func (s *Site) Exchanges(o *Site) bool { return oneRevision(s.Revision, o.Revision) }

// PlaceSource names the source of the taints of a place.
type PlaceSource uint8

// The sources.
const (
	ByTaints     PlaceSource = iota // the taints of the configuration
	ByPodLabels                     // labels of a Kubernetes pod
	ByNodeLabels                    // labels of a Kubernetes node, or of it and of the pod
)

func (s PlaceSource) String() string {
	return [...]string{"taints", "pod labels", "node labels"}[min(s, ByNodeLabels)]
}
