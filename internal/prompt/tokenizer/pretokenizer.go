package tokenizer

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"unicode/utf8"
)

// preTokenizerConfig is a pre-tokenizer of a tokenizer.json, with the settings of all types.
type preTokenizerConfig struct {
	Type          string               `json:"type"`
	PreTokenizers []preTokenizerConfig `json:"pretokenizers"`
	// Split, Punctuation
	Pattern  patternConfig `json:"pattern"`
	Behavior *string       `json:"behavior"`
	Invert   bool          `json:"invert"`
	// ByteLevel, Metaspace
	AddPrefixSpace *bool   `json:"add_prefix_space"`
	UseRegex       *bool   `json:"use_regex"`
	Replacement    string  `json:"replacement"`
	PrependScheme  *string `json:"prepend_scheme"`
	Split          *bool   `json:"split"`
	// Digits, CharDelimiterSplit, FixedLength
	IndividualDigits bool   `json:"individual_digits"`
	Delimiter        string `json:"delimiter"`
	Length           *int   `json:"length"`
}

// patterns maps the expressions of common models to handwritten scanners, which find the same pieces. Type
// pattern runs all other expressions, which is slower.
var patterns = map[string]splitter{
	`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`: llama3,
	`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`:      qwen,
	qwen35Pattern:   qwen35,
	o200kPattern:    o200k,
	tekkenPattern:   tekken,
	gpt2Pattern:     gpt2,
	digitsPattern:   digits3,
	cjkPattern:      cjk,
	deepseekPattern: deepseek,
}

const (
	qwen35Pattern = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	digitsPattern = `\p{N}{1,3}`
	cjkPattern    = "[一-龥\u3040-ゟ゠-ヿ]+"
	gpt2Pattern   = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
	o200kPattern  = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|` +
		`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|` +
		`\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	tekkenPattern = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|` +
		`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|` +
		`\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	deepseekPattern = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| " +
		"?[\\p{P}\\p{S}]+[\r\n]*|" +
		"\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
)

// readPreTokenizer returns the stages of c. Bytes is set if they include ByteLevel, so that the symbols are
// bytes. Stages after ByteLevel must split text in its alphabet, so such stages are put between stageSpell and
// stageUnspell.
func readPreTokenizer(c *preTokenizerConfig) (stages []stage, bytes bool, err error) {
	if c == nil {
		return nil, false, nil
	}
	var flat []*preTokenizerConfig
	var flatten func(c *preTokenizerConfig)
	flatten = func(c *preTokenizerConfig) {
		if c.Type != "Sequence" {
			flat = append(flat, c)
		}
		for i := range c.PreTokenizers {
			flatten(&c.PreTokenizers[i])
		}
	}

	flatten(c)
	spelled := false
	for i, c := range flat {
		switch {
		case c.Type == "ByteLevel" && bytes:
			return nil, false, errors.New("a second pre_tokenizer ByteLevel is not supported")
		case c.Type == "Metaspace" && bytes:
			return nil, false, errors.New("pre_tokenizer Metaspace after ByteLevel is not supported")
		case bytes && !spelled:
			stages = append(stages, stage{kind: stageSpell})
			spelled = true
		}
		more, err := c.stages(i == 0)
		if err != nil {
			return nil, false, err
		}
		stages = append(stages, more...)
		bytes = bytes || c.Type == "ByteLevel"
	}

	if spelled {
		stages = append(stages, stage{kind: stageUnspell})
	}
	return stages, bytes, nil
}

// stages returns the stages of one pre-tokenizer other than a Sequence. First is set for the first one.
func (c *preTokenizerConfig) stages(first bool) ([]stage, error) {
	switch c.Type {
	case "Split":
		return c.splitStages()
	case "ByteLevel":
		var out []stage
		if c.AddPrefixSpace == nil || *c.AddPrefixSpace {
			out = append(out, stage{kind: stagePrefix})
		}
		if c.UseRegex == nil || *c.UseRegex {
			out = append(out, stage{kind: stageSplit, split: gpt2})
		}
		return out, nil
	case "Metaspace":
		return c.metaspaceStages(first)
	case "Punctuation":
		how := isolated
		if c.Behavior != nil {
			var ok bool
			how, ok = behaviors[*c.Behavior]
			if !ok {
				return nil, fmt.Errorf("pre_tokenizer Punctuation with behavior %s is not supported", *c.Behavior)
			}
		}
		return []stage{{kind: stageMatch, finder: findPunctuation(), behavior: how}}, nil
	}
	return c.simpleStages()
}

// metaspaceStages returns the stage of a Metaspace.
func (c *preTokenizerConfig) metaspaceStages(first bool) ([]stage, error) {
	scheme, err := readScheme(c.PrependScheme, c.AddPrefixSpace)
	if err != nil {
		return nil, err
	}
	if c.Replacement != lowerBlock || scheme == prependFirst && !first {
		return nil, errors.New("pre_tokenizer Metaspace is supported only with the replacement ▁, and with prepend_scheme first only as " +
			"the first pre_tokenizer")
	}
	return []stage{{kind: stageMetaspace, scheme: scheme, cut: c.Split == nil || *c.Split}}, nil
}

// simpleStages returns the stage of a pre-tokenizer with at most one setting.
func (c *preTokenizerConfig) simpleStages() ([]stage, error) {
	st := stage{kind: stageMatch, behavior: removed}
	switch c.Type {
	case "Digits":
		st.finder, st.behavior = findNumeric(), contiguous
		if c.IndividualDigits {
			st.behavior = isolated
		}
	case "Whitespace":
		st.finder, st.invert = findWords(), true
	case "WhitespaceSplit":
		st.finder = findWhiteSpace()
	case "CharDelimiterSplit":
		if utf8.RuneCountInString(c.Delimiter) != 1 {
			return nil, errors.New("pre_tokenizer CharDelimiterSplit needs a delimiter of one character")
		}
		st.finder = literal(c.Delimiter)
	case "FixedLength":
		n := 5
		if c.Length != nil {
			n = *c.Length
		}
		if n < 1 {
			return nil, errors.New("pre_tokenizer FixedLength needs a length of at least 1")
		}
		st.finder, st.behavior = fixedLength(n), isolated
	default:
		return nil, fmt.Errorf("pre_tokenizer %q is not supported", c.Type)
	}

	return []stage{st}, nil
}

// splitStages returns the stage of a Split: a handwritten scanner for an expression in patterns, else its
// matches.
func (c *preTokenizerConfig) splitStages() ([]stage, error) {
	if c.Behavior == nil {
		return nil, errors.New("pre_tokenizer Split has no behavior")
	}
	how, ok := behaviors[*c.Behavior]
	if !ok {
		return nil, fmt.Errorf("pre_tokenizer Split with behavior %s is not supported", *c.Behavior)
	}

	if regex := c.Pattern.Regex; regex != nil {
		// Scanners isolate each match. An inverted Removed removes the text between matches; it gives the
		// same pieces if the matches of an expression cover all text.
		split, ok := patterns[*regex]
		coversText := !slices.Contains([]string{digitsPattern, cjkPattern, deepseekPattern}, *regex)
		if ok && (how == isolated || how == removed && c.Invert && coversText) {
			return []stage{{kind: stageSplit, split: split}}, nil
		}
	}

	find, err := c.Pattern.finder()
	if err != nil {
		return nil, fmt.Errorf("pre_tokenizer Split: %w", err)
	}
	return []stage{{kind: stageMatch, finder: find, behavior: how, invert: c.Invert}}, nil
}

var errScheme = errors.New("the prepend_scheme of a Metaspace must be always, first or never, and never where add_prefix_space is false")

// readScheme returns the prepend scheme of a Metaspace. Older files have add_prefix_space instead.
func readScheme(name *string, prefix *bool) (prependScheme, error) {
	scheme := prependAlways
	if name != nil {
		var ok bool
		scheme, ok = map[string]prependScheme{"always": prependAlways, "first": prependFirst, "never": prependNever}[*name]
		if !ok {
			return 0, errScheme
		}
	}

	if prefix != nil && !*prefix {
		if name != nil && scheme != prependNever {
			return 0, errScheme
		}
		scheme = prependNever
	}
	return scheme, nil
}

// These functions return the finders of pre-tokenizers that have no expression. Each builds its finder at the
// first call.
var (
	findNumeric = sync.OnceValue(func() finder {
		return oneOf{newCharset(categoryRunsOf("N").xor(rustNumeric[:]))}
	})
	findPunctuation = sync.OnceValue(func() finder {
		ascii := runs{{'!', '/'}, {':', '@'}, {'[', '`'}, {'{', '~'}}
		return oneOf{newCharset(categoryRunsOf("P").or(ascii).xor(rustPunctuation[:]))}
	})
	findWhiteSpace = sync.OnceValue(func() finder { return oneOf{newCharset(shorthand('s'))} })
	// findWords is \w+|[^\w\s]+ with the \w of Rust's regular expressions; see wordChar.
	findWords = sync.OnceValue(func() finder {
		word := categoryRunsOf("L").or(categoryRunsOf("M")).or(categoryRunsOf("Nd")).or(categoryRunsOf("Pc")).xor(rustWord[:])
		p := &pattern{}
		p.emit(&expr{kind: nodeChoice, subs: []*expr{
			{kind: nodeRepeat, min: 1, max: -1, subs: []*expr{{kind: nodeSet, chars: word}}},
			{kind: nodeRepeat, min: 1, max: -1, subs: []*expr{{kind: nodeSet, chars: word.or(shorthand('s')).not()}}},
		}})
		p.emitInst(inst{op: opMatch})
		return p
	})
)
