package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
)

// benchServe is a running benchserve.py, which plays loads with `vllm bench serve`.
type benchServe struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	results *json.Decoder
	log     string
}

func startBenchServe(b *bench) (*benchServe, error) {
	s := &benchServe{log: filepath.Join(b.folder, "bench-serve.log")}
	log, err := os.Create(s.log)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()

	s.cmd = exec.Command(filepath.Join(filepath.Dir(b.vllm), "python"), "-B", "test/realengines/benchserve.py")
	s.cmd.Env = engineEnvironment()
	s.cmd.Stderr = log
	s.in, err = s.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	s.results = json.NewDecoder(out)
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start vllm bench serve: %w", err)
	}
	return s, nil
}

// stop ends the process.
func (s *benchServe) stop() {
	_ = s.in.Close()
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

// figures are the members of a result that the report has. Times are in milliseconds, and rates per second.
type figures struct {
	Completed int     `json:"completed"`
	TTFT      float64 `json:"mean_ttft_ms"`
	TTFT99    float64 `json:"p99_ttft_ms"`
	Latency   float64 `json:"mean_e2el_ms"`
	Requests  float64 `json:"request_throughput"`
}

// play plays so many prompts of a load against a gateway. All of them must be answered.
func (s *benchServe) play(g *gateway, l load, model string, seed uint64, prompts int) (f figures, err error) {
	args := append([]string{
		"--backend", "openai", "--base-url", g.URL, "--model", modelName, "--tokenizer", model,
		"--num-prompts", strconv.Itoa(prompts), "--max-concurrency", strconv.Itoa(l.concurrent), "--seed", strconv.FormatUint(seed, 10),
		"--ignore-eos", "--disable-tqdm", "--percentile-metrics", "ttft,e2el", "--metric-percentiles", "99",
	}, l.dataset.args...)
	line, err := json.Marshal(args)
	if err != nil {
		return f, err
	}
	if _, err := s.in.Write(append(line, '\n')); err != nil {
		return f, fmt.Errorf("vllm bench serve has ended: %w\n%s", err, lastLines(s.log, 20))
	}
	if err := s.results.Decode(&f); err != nil {
		return f, fmt.Errorf("vllm bench serve has ended: %w\n%s", err, lastLines(s.log, 20))
	}
	if f.Completed != prompts {
		return f, fmt.Errorf("%d of %d requests completed\n%s", f.Completed, prompts, lastLines(s.log, 20))
	}
	return f, nil
}
