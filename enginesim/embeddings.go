package enginesim

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"math"
	"net/http"
	"strconv"

	"github.com/stator-project/stator/internal/prompt/openai"
)

// usualDimensions is the length of simulated embeddings, and maxDimensions the longest one that a request may ask for.
const (
	usualDimensions = 32
	maxDimensions   = 8192
)

// vectors is the form of the embeddings that a request asks for.
type vectors struct {
	dimensions int
	inBase64   bool // as the bytes of their float32 in little endian, which is the default of OpenAI's client for Node
}

// readVectors reads the form from the body of a request.
func readVectors(body []byte) (v vectors, err error) {
	// Fields that are absent keep these values.
	asked := struct {
		Format     string `json:"encoding_format"`
		Dimensions int    `json:"dimensions"`
	}{"float", usualDimensions}
	if err := json.Unmarshal(body, &asked); err != nil {
		return v, &openai.Error{Status: http.StatusBadRequest,
			Message: "encoding_format must be text, and dimensions a number: " + err.Error()}
	}
	// vLLM refuses both, too. A client that asks for a form gets it, or an error, but never another form.
	switch {
	case asked.Format != "float" && asked.Format != "base64":
		return v, &openai.Error{Status: http.StatusBadRequest, Param: "encoding_format",
			Message: "encoding_format must be float or base64."}
	case asked.Dimensions < 1 || asked.Dimensions > maxDimensions:
		return v, &openai.Error{Status: http.StatusBadRequest, Param: "dimensions",
			Message: "dimensions must lie between 1 and " + strconv.Itoa(maxDimensions) + "."}
	}
	return vectors{asked.Dimensions, asked.Format == "base64"}, nil
}

// value returns one component of the embedding of a seed. Uniform values in [-1, 1] have a variance of 1/3, so the sum of squares is
// about 1.
func (v *vectors) value(seed uint64, at int) float64 {
	return float64(int64(mix(seed+uint64(at)))) / math.MaxInt64 / math.Sqrt(float64(v.dimensions)/3)
}

// appendVector appends the embedding of a seed.
func (v *vectors) appendVector(b []byte, seed uint64) []byte {
	// vLLM writes the numbers of its own machine, which are in little endian.
	if v.inBase64 {
		bytes := make([]byte, 0, 4*v.dimensions)
		for at := range v.dimensions {
			bytes = binary.LittleEndian.AppendUint32(bytes, math.Float32bits(float32(v.value(seed, at))))
		}
		b = append(b, '"')
		b = base64.StdEncoding.AppendEncode(b, bytes)
		return append(b, '"')
	}

	// Six digits are about as many as a float32 has.
	b = append(b, '[')
	for at := range v.dimensions {
		if at > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendFloat(b, v.value(seed, at), 'g', 6, 64)
	}
	return append(b, ']')
}

// appendEmbeddings appends the answer to an embedding request. Embeddings have about unit length and depend on
// the prompt alone.
func (c *completion) appendEmbeddings(b []byte) []byte {
	b = append(b, `{"object":"list","data":[`...)
	for i := range c.choices {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendNumber(b, `{"object":"embedding","index":`, i)
		b = append(b, `,"embedding":`...)
		b = c.vectors.appendVector(b, c.choices[i].answer.start)
		b = append(b, '}')
	}

	b = appendText(b, `],"model":`, c.req.Model)
	b = append(b, ',')
	return append(c.appendUsage(b), '}')
}
