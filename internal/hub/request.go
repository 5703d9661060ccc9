package hub

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/stator-project/stator/internal/backoff"
)

// Bounds of a request.
const (
	maxRedirects = 5
	maxAttempts  = 4
	maxStall     = 10 * time.Second // without a byte from the server
	maxTime      = 15 * time.Minute // of one attempt
	maxListing   = 8 << 20          // bytes of the answer about a revision
	maxFile      = 128 << 20        // bytes; the largest known vocabularies have about 35 MB
	maxMessage   = 200              // bytes of a message of the hub
)

// progressEvery is the interval at which a running download is logged.
const progressEvery = 10 * time.Second

// temporaryError is an error of the network or of a server, after which another attempt may succeed.
type temporaryError struct{ error }

func (e temporaryError) Unwrap() error { return e.error }

// statusError is an answer of the hub that refuses the request for good.
type statusError struct {
	code    int
	message string // the hub's own; may be empty
}

func (e statusError) Error() string {
	text := fmt.Sprintf("the hub answers with status %d", e.code)
	if e.message != "" {
		text += fmt.Sprintf(" (%.*q)", maxMessage, e.message)
	}
	return text
}

// answer is the successful end of a request. Its body must be closed.
type answer struct {
	body     io.ReadCloser
	commit   string // of which the hub says the file is; empty if it does not say
	checksum string // in hexadecimal digits, by the hub itself and not by a server that it redirects to
}

// get sends one request to the endpoint and follows its redirects, without a second attempt.
//
// The token goes to the endpoint's own scheme, host and port alone: files in LFS come from other hosts.
func (c *Client) get(ctx context.Context, path, what string) (*answer, error) {
	at, err := url.Parse(c.Endpoint + path)
	if err != nil || at.Host == "" || at.Scheme != "https" && at.Scheme != "http" {
		return nil, fmt.Errorf("%s is not the URL of a hub: write one such as https://huggingface.co", envEndpoint)
	}

	endpoint, a := at, &answer{}
	for range maxRedirects {
		own := at.Scheme == endpoint.Scheme && at.Host == endpoint.Host
		resp, err := c.send(ctx, at, own, what)
		if err != nil {
			return nil, err
		}
		if own {
			a.note(resp.Header)
		}
		if resp.StatusCode == http.StatusOK {
			a.body = resp.Body
			return a, nil
		}

		_ = resp.Body.Close()
		next, err := resp.Location()
		switch {
		case resp.StatusCode/100 != 3 || err != nil:
			return nil, refusal(resp, own)
		case next.Scheme != "https" && next.Scheme != at.Scheme:
			return nil, fmt.Errorf("%s redirects to %s, which is not encrypted", at.Host, next.Host)
		}
		at = next
	}
	return nil, fmt.Errorf("the hub redirects more than %d times", maxRedirects)
}

// note keeps what the headers of the endpoint say about the file. A later answer does not replace the checksum of a file in LFS.
func (a *answer) note(h http.Header) {
	a.commit = cmp.Or(h.Get("X-Repo-Commit"), a.commit)
	if linked := h.Get("X-Linked-Etag"); linked != "" {
		a.checksum = checksum(linked)
	} else if a.checksum == "" || len(a.checksum) == gitDigits {
		a.checksum = cmp.Or(checksum(h.Get("ETag")), a.checksum)
	}
}

// refusal returns the error of an answer that is neither a file nor a redirect. Other hosts refuse links that have expired, and a new
// attempt gets a new link.
func refusal(resp *http.Response, own bool) error {
	code := resp.StatusCode
	if own && code < 500 && code != http.StatusTooManyRequests && code != http.StatusRequestTimeout {
		return statusError{code, resp.Header.Get("X-Error-Message")}
	}
	return temporaryError{fmt.Errorf("%s answers with status %d", resp.Request.URL.Host, code)}
}

// errStalled is why a request was ended.
var errStalled = fmt.Errorf("the server sent nothing for %s", maxStall)

// send sends one request. Errors do not contain the URL: links to other hosts are credentials.
func (c *Client) send(ctx context.Context, at *url.URL, own bool, what string) (*http.Response, error) {
	ctx, stop := context.WithTimeout(ctx, maxTime)
	ctx, cancel := context.WithCancelCause(ctx)
	b := &body{ctx: ctx, client: c, what: what, logged: time.Now()}
	b.stalled = time.AfterFunc(maxStall, func() { cancel(errStalled) })
	b.end = func() {
		b.stalled.Stop()
		cancel(nil)
		stop()
	}

	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		b.end()
		return nil, errors.New("the hub redirects to an address that is not valid")
	}
	req.Header.Set("User-Agent", "stator")
	req.Header.Set("Accept-Encoding", "identity") // sizes are then those of files
	if own {
		token, err := c.token()
		if err != nil {
			b.end()
			return nil, err
		}
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
	}

	resp, err := c.http.Do(req)
	if err != nil {
		if inner := (*url.Error)(nil); errors.As(err, &inner) {
			err = inner.Err
		}
		err = temporaryError{fmt.Errorf("ask %s: %w", at.Host, cmp.Or(context.Cause(ctx), err))}
		b.end()
		return nil, err
	}
	b.from, b.total = resp.Body, resp.ContentLength
	resp.Body = b
	return resp, nil
}

// body reads the body of an answer. Its request ends if the server sends nothing for a while.
type body struct {
	ctx     context.Context
	client  *Client
	what    string
	from    io.ReadCloser
	stalled *time.Timer
	end     func()

	logged      time.Time // the last line of progress
	read, total int64     // bytes; a total below 0 is unknown
}

// Read is io.Reader.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.from.Read(p)
	b.read += int64(n)
	b.stalled.Reset(maxStall)
	if err != nil && err != io.EOF { //nolint:errorlint // an io.Reader returns it unwrapped
		err = temporaryError{fmt.Errorf("after %d bytes: %w", b.read, cmp.Or(context.Cause(b.ctx), err))}
	}

	if now := time.Now(); now.Sub(b.logged) > progressEvery {
		b.logged = now
		b.client.Log.Info("downloading", "file", b.what, "bytes", b.read, "of", b.total)
	}
	return n, err
}

// Close ends the request.
func (b *body) Close() error {
	b.end()
	return b.from.Close()
}

// copyBounded copies r to w. More than most bytes are an error.
func copyBounded(w io.Writer, r io.Reader, most int64) error {
	n, err := io.Copy(w, io.LimitReader(r, most+1))
	if err == nil && n > most {
		return fmt.Errorf("the answer has more than %d MiB", most>>20)
	}
	return err
}

// retry calls f until it succeeds, fails for good, or has failed so many times.
func (c *Client) retry(ctx context.Context, what string, attempts int, f func() error) error {
	pauses := backoff.Backoff{Min: c.pause, Max: 8 * c.pause}
	for attempt := 1; ; attempt++ {
		err := f()
		if temporary := (temporaryError{}); err == nil || !errors.As(err, &temporary) || attempt == attempts || ctx.Err() != nil {
			return err
		}

		c.Log.Info("download failed and is tried again", "file", what, "attempt", attempt, "err", err)
		if err := pauses.Wait(ctx); err != nil {
			return err
		}
	}
}

// listing is the part of the hub's answer about a revision that is used.
type listing struct {
	commit string
	files  map[string]bool
}

// parseListing parses the answer. The names of the files are the repository's and may be anything: they must not become paths.
func parseListing(data []byte) (listing, error) {
	var l struct {
		SHA      string `json:"sha"`
		Siblings []struct {
			Name string `json:"rfilename"`
		} `json:"siblings"`
	}
	if err := json.Unmarshal(data, &l); err != nil {
		return listing{}, fmt.Errorf("read the answer of the hub: %w", err)
	}
	if !commitPattern.MatchString(l.SHA) {
		return listing{}, fmt.Errorf("read the answer of the hub: %w", errNotCommit)
	}

	parsed := listing{commit: l.SHA, files: map[string]bool{}}
	for _, s := range l.Siblings {
		parsed.files[s.Name] = true
	}
	return parsed, nil
}

// list asks for the commit and the files of a revision. It asks once if the cache can answer instead.
func (c *Client) list(ctx context.Context, ref Ref) (l listing, err error) {
	path := "/api/models/" + ref.Name() + "/revision/" + url.PathEscape(ref.Revision)
	attempts := maxAttempts
	if c.Cached(ref) != "" {
		attempts = 1
	}

	err = c.retry(ctx, ref.String(), attempts, func() error {
		a, err := c.get(ctx, path, ref.String())
		if err != nil {
			return err
		}
		defer func() { _ = a.body.Close() }()

		var text bytes.Buffer
		if err := copyBounded(&text, a.body, maxListing); err != nil {
			return fmt.Errorf("read the answer of the hub: %w", err)
		}
		l, err = parseListing(text.Bytes())
		return err
	})
	if err == nil && commitPattern.MatchString(ref.Revision) && l.commit != ref.Revision {
		err = fmt.Errorf("the hub answers with commit %s", l.commit)
	}
	return l, err
}
