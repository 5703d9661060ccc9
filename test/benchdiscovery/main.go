// Program benchdiscovery measures what it costs to follow the pods of a cluster: memory, CPU time for each change, and the time from a
// change until a worker can be picked. It makes pods on a real API server, and follows them in a separate process.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/discovery/kubernetes"
	"github.com/stator-project/stator/test/process"
)

// options are the flags.
type options struct {
	api              string
	pods, rate, port int
	length           time.Duration
	follow           bool

	out        io.Writer
	client     *http.Client
	follower   *exec.Cmd
	toFollower io.WriteCloser
	lines      *bufio.Scanner // of the follower's answers
	latencies  []time.Duration
}

func main() { process.Main("benchdiscovery", run) }

func run(ctx context.Context, args []string, out, _ io.Writer) error {
	o := &options{out: out, client: &http.Client{Transport: &http.Transport{MaxConnsPerHost: 8, MaxIdleConnsPerHost: 8}}}
	f := flag.NewFlagSet("benchdiscovery", flag.ContinueOnError)
	f.StringVar(&o.api, "api", "", "`url` of an API server that asks for no token")
	f.IntVar(&o.pods, "pods", 1000, "number of pods")
	f.IntVar(&o.rate, "rate", 200, "changes each second that are offered")
	f.DurationVar(&o.length, "time", time.Minute, "how long pods change")
	f.BoolVar(&o.follow, "follow", false, "follow the pods: what the program starts itself with")
	f.IntVar(&o.port, "port", 0, "port of the engines, with --follow")
	if err := f.Parse(args); err != nil {
		return err
	}
	if o.follow {
		return o.followPods(ctx)
	}
	return o.measure(ctx)
}

// followPods follows the pods, and answers each line of its standard input with the number of workers.
func (o *options) followPods(ctx context.Context) error {
	client, err := kubernetes.NewClient(o.api)
	if err != nil {
		return err
	}
	source := kubernetes.New(kubernetes.Config{
		Client: client, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
		Selections: []kubernetes.Selection{{Namespace: "default", Labels: "app=bench", Ports: []int{o.port}}},
	})
	go source.Run(ctx)
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		names := []string{}
		for _, w := range source.Workers() {
			names = append(names, w.Name)
		}
		if in.Text() == "count" {
			names = []string{fmt.Sprint(len(names))}
		}
		fmt.Fprintln(o.out, strings.Join(names, " "))
	}
	return nil
}

// ask returns the follower's answer.
func (o *options) ask(question string) string {
	_, _ = io.WriteString(o.toFollower, question+"\n")
	o.lines.Scan()
	return o.lines.Text()
}

// measure makes the pods, starts the follower, changes pods, and prints the figures.
func (o *options) measure(ctx context.Context) error {
	stop, err := o.serveEngines()
	if err != nil {
		return err
	}
	defer stop()
	began := time.Now()
	if err := o.each(o.pods, 0, o.create); err != nil {
		return err
	}
	fmt.Fprintf(o.out, "%d pods made in %.0f s\n", o.pods, time.Since(began).Seconds())

	began = time.Now()
	if err := o.startFollower(ctx); err != nil {
		return err
	}
	defer func() { _ = o.toFollower.Close(); _ = o.follower.Wait() }()
	for o.ask("count") != fmt.Sprint(o.pods) {
		time.Sleep(20 * time.Millisecond)
	}
	started := time.Since(began)
	base, err := process.CPU(o.follower.Process.Pid)
	if err != nil {
		return err
	}

	began = time.Now()
	changes := int(o.length.Seconds() * float64(o.rate))
	if err := o.each(changes, o.rate, o.toggle); err != nil {
		return err
	}
	changed := time.Since(began)
	time.Sleep(2 * time.Second)
	after, err := process.CPU(o.follower.Process.Pid)
	if err != nil {
		return err
	}
	resident, err := process.Resident(o.follower.Process.Pid)
	if err != nil {
		return err
	}
	if err := o.compare(); err != nil {
		return err
	}
	if err := o.timeOf20(); err != nil {
		return err
	}

	slices.Sort(o.latencies)
	fmt.Fprintf(o.out, "%-34s %.1f s, %d ms of CPU\n", "start, until all are workers", started.Seconds(), base.Milliseconds())
	fmt.Fprintf(o.out, "%-34s %d in %.0f s: %.0f a second\n", "changes", changes, changed.Seconds(), float64(changes)/changed.Seconds())
	fmt.Fprintf(o.out, "%-34s %.3f ms of CPU\n", "each change", (after-base).Seconds()*1000/float64(changes))
	fmt.Fprintf(o.out, "%-34s %.1f MB, of which an idle process of Go with TLS has 6 to 8\n", "resident memory", float64(resident)/1e6)
	fmt.Fprintf(o.out, "%-34s p50 %d ms, p95 %d ms\n", "from ready to pickable, 20 pods",
		o.latencies[10].Milliseconds(), o.latencies[18].Milliseconds())
	fmt.Fprintf(o.out, "%-34s equal to the list\n", "workers afterwards")
	fmt.Fprintln(o.out, "load average", process.LoadAverage())
	return nil
}

// startFollower starts this program as a follower.
func (o *options) startFollower(ctx context.Context) error {
	o.follower = exec.CommandContext(ctx, os.Args[0], "--follow", "--api", o.api, "--port", fmt.Sprint(o.port))
	o.follower.Stderr = os.Stderr
	var err error
	o.toFollower, err = o.follower.StdinPipe()
	if err != nil {
		return err
	}
	out, err := o.follower.StdoutPipe()
	if err != nil {
		return err
	}
	o.lines = bufio.NewScanner(out)
	o.lines.Buffer(nil, 16<<20)
	return o.follower.Start()
}

// serveEngines answers as vLLM does, at every loopback address.
func (o *options) serveEngines() (stop func(), err error) {
	ln, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		return nil, err
	}
	o.port = ln.Addr().(*net.TCPAddr).Port
	server := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/metrics" {
			fmt.Fprint(w, "vllm:num_requests_running{engine=\"0\"} 0\nvllm:cache_config_info{block_size=\"16\"} 1\n")
			return
		}
		fmt.Fprint(w, `{"data": [{"id": "m", "root": "m", "parent": null}]}`)
	})}
	go func() { _ = server.Serve(ln) }()
	return func() { _ = server.Close() }, nil
}

// each calls do n times, eight at a time, at a rate a second; 0 is as fast as it goes.
func (o *options) each(n, rate int, do func(i int) error) error {
	jobs, errs := make(chan int), make(chan error, 8)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for i := range jobs {
				if err := do(i); err != nil {
					select {
					case errs <- err:
					default:
					}
				}
			}
		})
	}

	began := time.Now()
	for i := range n {
		if rate > 0 {
			time.Sleep(time.Until(began.Add(time.Duration(i) * time.Second / time.Duration(rate))))
		}
		jobs <- i
	}
	close(jobs)
	all.Wait()
	select {
	case err := <-errs:
		return err
	default:
		return nil
	}
}

func name(i int) string { return fmt.Sprintf("bench-%05d", i) }

// create makes a pod of 7 KB of JSON, as pods of engines have, and makes it ready.
func (o *options) create(i int) error {
	var env []string
	for j := range 20 {
		env = append(env, fmt.Sprintf(`{"name": "VARIABLE_%d", "value": %q}`, j, strings.Repeat("x", 200)))
	}
	body := fmt.Sprintf(`{"metadata": {"name": %q, "labels": {"app": "bench"}},
		"spec": {"containers": [{"name": "vllm", "image": "vllm", "env": [%s]}]}}`, name(i), strings.Join(env, ", "))
	if err := o.send(http.MethodPost, "/api/v1/namespaces/default/pods", "application/json", body); err != nil {
		return err
	}
	return o.setReady(i, true)
}

func (o *options) setReady(i int, ready bool) error {
	status := map[bool]string{true: "True", false: "False"}[ready]
	return o.send(http.MethodPatch, "/api/v1/namespaces/default/pods/"+name(i)+"/status", "application/merge-patch+json", fmt.Sprintf(
		`{"status": {"podIP": "127.55.%d.%d", "podIPs": [{"ip": "127.55.%[1]d.%[2]d"}], "conditions": [{"type": "Ready", "status": %q}]}}`,
		i/200, 1+i%200, status))
}

// toggle makes a ready pod not ready, and the other way round. Changes to one pod come one after the other.
func (o *options) toggle(i int) error { return o.setReady(i%o.pods, i/o.pods%2 == 1) }

func (o *options) send(method, path, kind, body string) error {
	req, err := http.NewRequest(method, o.api+path, bytes.NewBufferString(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", kind)
	resp, err := o.client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode >= http.StatusMultipleChoices {
		err = fmt.Errorf("%s %s: %s: %.300s", method, path, resp.Status, answer)
	}
	return err
}

// compare compares the workers with the ready pods of a list.
func (o *options) compare() error {
	resp, err := o.client.Get(o.api + "/api/v1/namespaces/default/pods?labelSelector=app%3Dbench")
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	var list struct {
		Items []struct {
			Metadata struct{ Name string }
			Status   struct {
				Conditions []struct{ Type, Status string }
			}
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&list); err != nil {
		return err
	}

	var want []string
	for _, p := range list.Items {
		for _, c := range p.Status.Conditions {
			if c.Type == "Ready" && c.Status == "True" {
				want = append(want, p.Metadata.Name)
			}
		}
	}
	slices.Sort(want)
	if got := o.ask("names"); got != strings.Join(want, " ") {
		return errors.New("the workers are not the ready pods of a list")
	}
	return nil
}

// timeOf20 times how long it takes from the answer to a change until a pod is a worker, 20 times.
func (o *options) timeOf20() error {
	for i := range 20 {
		if err := o.setReady(i, false); err != nil {
			return err
		}
		time.Sleep(100 * time.Millisecond)
		if err := o.setReady(i, true); err != nil {
			return err
		}
		began := time.Now()
		for !strings.Contains(o.ask("names"), name(i)) {
			time.Sleep(time.Millisecond)
		}
		o.latencies = append(o.latencies, time.Since(began))
	}
	return nil
}
