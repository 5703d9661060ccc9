package prompt_test

import (
	"fmt"

	"github.com/stator-project/stator/internal/models"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/prompt/openai"
)

// This example renders a chat with the model's template and tokenizes the text.
func ExampleModel_Prepare() {
	model, err := prompt.Load(models.Sim())
	if err != nil {
		fmt.Println(err)
		return
	}
	request, err := openai.Parse(openai.Chat, []byte(`{"model": "sim", "messages": [{"role": "user", "content": "Hello"}]}`), openai.Limits{})
	if err != nil {
		fmt.Println(err)
		return
	}

	var p prompt.Prompt
	err = model.Prepare(request, &p)

	fmt.Printf("%q\n%d tokens, %v\n", p.Text, len(p.Tokens), err)
	// Output:
	// "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
	// 10 tokens, <nil>
}
