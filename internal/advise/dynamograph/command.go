package dynamograph

import (
	"path"
	"strconv"
	"strings"
)

// option is an option of a command line with its values: none for a switch.
type option struct {
	name   string
	values []string
}

// value returns the only value of the option, or true.
func (o *option) value() string {
	if len(o.values) == 0 {
		return "true"
	}
	return o.values[0]
}

// shortOptions are vLLM's short options.
var shortOptions = map[string]string{
	"tp": "tensor-parallel-size", "pp": "pipeline-parallel-size", "dp": "data-parallel-size", "q": "quantization",
}

// parseCommand returns the Python module of a command line and its options. ok is false for a script of a shell that is more than one
// command.
func parseCommand(command, args []string) (module string, options []option, ok bool) {
	words := append(append([]string{}, command...), args...)
	if len(words) > 0 && isShell(words[0]) {
		script := ""
		for i, w := range words {
			if strings.HasPrefix(w, "-") && strings.HasSuffix(w, "c") && i+1 < len(words) {
				script = words[i+1]
				break
			}
		}
		words, ok = splitWords(script)
		if !ok {
			return "", nil, false
		}
	}

	for i, w := range words {
		if w == "-m" && i+1 < len(words) {
			module = words[i+1]
			words = words[i+2:]
			break
		}
	}
	for _, w := range words {
		name, value, hasValue := strings.Cut(strings.TrimLeft(w, "-"), "=")
		switch {
		case !isOption(w):
			if n := len(options); n > 0 {
				options[n-1].values = append(options[n-1].values, w)
			}
			continue
		case !strings.HasPrefix(w, "--") && shortOptions[name] != "":
			name = shortOptions[name]
		}
		o := option{name: strings.ReplaceAll(name, "_", "-")}
		if hasValue {
			o.values = []string{value}
		}
		options = append(options, o)
	}
	return module, options, true
}

// isOption reports whether a word is an option: a negative number is none.
func isOption(word string) bool {
	if _, err := strconv.ParseFloat(word, 64); err == nil {
		return false
	}
	return len(word) > 1 && word[0] == '-'
}

func isShell(program string) bool {
	switch path.Base(program) {
	case "sh", "bash", "dash":
		return true
	}
	return false
}

// splitWords splits a script of a shell that is one command. ok is false if it has anything else: variables, pipes, lists of commands.
func splitWords(script string) (words []string, ok bool) {
	var word strings.Builder
	inWord := false
	end := func() {
		if inWord {
			words = append(words, word.String())
		}
		word.Reset()
		inWord = false
	}

	quote := byte(0)
	for i := 0; i < len(script); i++ {
		c := script[i]
		switch {
		case quote == '\'' && c != '\'', quote == '"' && !strings.ContainsRune("\"\\$`", rune(c)):
			word.WriteByte(c)
		case quote != 0 && c == quote:
			quote = 0
		case c == '\\' && i+1 < len(script):
			i++
			if script[i] != '\n' {
				word.WriteByte(script[i])
				inWord = true
			}
		case quote == 0 && (c == '\'' || c == '"'):
			quote, inWord = c, true
		case strings.ContainsRune(" \t", rune(c)):
			end()
		case c == '\n' && strings.TrimSpace(script[i:]) == "":
			end()
		case strings.ContainsRune("\n$`|&;<>()*?#~", rune(c)):
			return nil, false
		default:
			word.WriteByte(c)
			inWord = true
		}
	}
	end()
	return words, quote == 0 && len(words) > 0
}

// typed returns the text of an option as a configuration has it: numbers and switches without quotation marks.
func typed(value string) any {
	if n, err := strconv.Atoi(value); err == nil && strconv.Itoa(n) == value {
		return n
	}
	switch value {
	case "true":
		return true
	case "false":
		return false
	}
	return value
}
