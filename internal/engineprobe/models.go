package engineprobe

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/stator-project/stator/internal/fleet"
)

// maxAnswer bounds the bytes of a list of models that are read. One model of vLLM's list has about 600.
const maxAnswer = 4 << 20

// Models is the content of an engine's list of models. It is the answer to GET /v1/models:
//
//	{"data": [{"id": "qwen", "parent": null, "max_model_len": 4096},
//	          {"id": "poet", "parent": "qwen", "max_model_len": null}]}
type Models struct {
	// MaxModelLen is the most tokens of a prompt and its answer that the engine accepts; 0 if it does not report
	// that. It belongs to the first model: the adapters behind it have none.
	MaxModelLen int
	// Names are the models without a parent, which are the base model and its aliases.
	Names []string
	// Adapters are the models that have a parent. They are unknown if no model has the member "parent": such an
	// engine does not list adapters.
	Adapters fleet.Adapters
	// Skipped is the number of adapters that cannot be used: their names are no names, or there are too
	// many.
	Skipped int
}

// modelList is an engine's answer. A parent is null for a base model, and missing in the answers of engines without
// adapters.
type modelList struct {
	Data []struct {
		ID          string          `json:"id"`
		Root        string          `json:"root"`
		Parent      json.RawMessage `json:"parent"`
		MaxModelLen int             `json:"max_model_len"`
	} `json:"data"`
}

// readList reads an engine's answer.
func readList(r io.Reader) (answer modelList, err error) {
	// Only a connection whose body was read to its end is used again, so the body is read as a whole.
	body, err := io.ReadAll(io.LimitReader(r, maxAnswer))
	if err == nil {
		err = json.Unmarshal(body, &answer)
	}
	return answer, err
}

// isAdapter reports whether the model at an index has a parent.
func (l *modelList) isAdapter(i int) bool {
	var parent string
	return json.Unmarshal(l.Data[i].Parent, &parent) == nil && parent != ""
}

// readModels reads an engine's answer.
func readModels(r io.Reader) (Models, error) {
	answer, err := readList(r)
	if err != nil {
		return Models{}, err
	}

	var m Models
	var adapters []string
	isListed := false
	for i := range answer.Data {
		model := &answer.Data[i]
		isAdapter := answer.isAdapter(i)
		isListed = isListed || model.Parent != nil
		if !isAdapter {
			m.Names = append(m.Names, model.ID)
		}
		switch {
		case isAdapter:
			adapters = append(adapters, model.ID)
		case i > 0:
		case model.MaxModelLen < 0 || model.MaxModelLen > fleet.MaxContext:
			return Models{}, fmt.Errorf("max_model_len is %d: it must lie between 0 and %d", model.MaxModelLen, fleet.MaxContext)
		default:
			m.MaxModelLen = model.MaxModelLen
		}
	}

	if isListed {
		m.Adapters, m.Skipped = fleet.NewAdapters(adapters)
	}
	return m, nil
}
