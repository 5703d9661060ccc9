package main

import (
	"fmt"
	"strings"
)

// integerCases: integers of any length, which templates print as Python does. Python refuses to print more than
// 4,300 digits.
func integerCases() []testCase {
	var list []testCase
	for _, digits := range []int{1, 18, 19, 20, 39, 300, 1000, 4299, 4300, 4301, 10_000, 1_000_000} {
		number := "7" + strings.Repeat("3", digits-1)
		status := func(allowed bool) int {
			if allowed {
				return 200
			}
			return 400
		}
		list = append(list,
			post(fmt.Sprintf("%d digits in a tool", digits), chatPath,
				chatWith("tools", `[{"type":"function","function":{"name":"f","parameters":{"a":`+number+`}}}]`),
				status(digits <= 4300), "*"),
			post(fmt.Sprintf("%d digits, negative, in the template's arguments", digits), chatPath,
				chatWith("chat_template_kwargs", `{"a":-`+number+`}`), status(digits <= 4300), "*"),
			post(fmt.Sprintf("%d digits in the arguments of a call", digits), chatPath,
				chatWith("messages", `[{"role":"user","content":"hi"},{"role":"assistant","content":null,"tool_calls":[{"id":"1",`+
					`"type":"function","function":{"name":"f","arguments":"{\"a\":`+number+`}"}}]}]`), 200, "*"))
	}
	return list
}
