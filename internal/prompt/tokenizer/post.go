package tokenizer

import "fmt"

// postProcessorConfig describes the special tokens that an engine puts before and after a text.
type postProcessorConfig struct {
	Type       string                `json:"type"`
	Processors []postProcessorConfig `json:"processors"`
	// TemplateProcessing
	Single []struct {
		SpecialToken *struct{ ID string }
		Sequence     *struct{ ID string }
	} `json:"single"`
	SpecialTokens map[string]struct{ IDs []uint32 } `json:"special_tokens"`
}

// readPostProcessor returns the ids that an engine puts before and after the ids of a text.
func readPostProcessor(c *postProcessorConfig) (before, after []uint32, err error) {
	if c == nil {
		return nil, nil, nil
	}
	switch c.Type {
	case "ByteLevel": // changes only offsets
		return nil, nil, nil
	case "TemplateProcessing":
		return c.readTemplate()
	case "Sequence":
		for i := range c.Processors {
			b, a, err := readPostProcessor(&c.Processors[i])
			if err != nil {
				return nil, nil, err
			}
			before, after = append(b, before...), append(after, a...)
		}
		return before, after, nil
	}

	return nil, nil, fmt.Errorf("post_processor %q is not supported; ByteLevel and TemplateProcessing are", c.Type)
}

// readTemplate returns the ids of the special tokens before and after the text in a TemplateProcessing.
func (c *postProcessorConfig) readTemplate() (before, after []uint32, err error) {
	seen := 0
	for _, piece := range c.Single {
		switch {
		case piece.Sequence != nil && piece.Sequence.ID == "A":
			seen++
		case piece.SpecialToken != nil:
			special, ok := c.SpecialTokens[piece.SpecialToken.ID]
			if !ok {
				return nil, nil, fmt.Errorf("post_processor names %q, which is not among its special_tokens", piece.SpecialToken.ID)
			}
			if seen == 0 {
				before = append(before, special.IDs...)
			} else {
				after = append(after, special.IDs...)
			}
		default:
			return nil, nil, fmt.Errorf("post_processor template has a piece that is neither the text nor a special token")
		}
	}

	if seen != 1 {
		return nil, nil, fmt.Errorf("post_processor template contains the text %d times; once is supported", seen)
	}
	return before, after, nil
}
