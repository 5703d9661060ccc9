package hub

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// Files are the files that are downloaded if the model has them: the ones that package prompt reads. The first is the
// one without which a model cannot be read; it is downloaded last.
var Files = []string{
	tokenizerFile, "tokenizer_config.json", "special_tokens_map.json", "config.json", "preprocessor_config.json", "processor_config.json",
	"chat_template.jinja", "chat_template.json", "additional_chat_templates/tool_use.jinja",
}

const tokenizerFile = "tokenizer.json"

// Client downloads models into a cache. Create it with New.
type Client struct {
	Config
	http  *http.Client
	pause time.Duration // before the second attempt
}

// New returns a client. It asks for nothing.
func New(cfg Config) *Client {
	// Redirects are followed by get, which knows which hosts may have the token.
	stay := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &Client{Config: cfg, http: &http.Client{CheckRedirect: stay}, pause: time.Second}
}

// Fetch returns a folder with the files of a model. It asks the hub for the commit of the revision, and downloads the files that the
// cache lacks. If that fails, the files of the revision that the cache has are used, with a warning in the log.
//
// Errors name the model and the remedy.
func (c *Client) Fetch(ctx context.Context, ref Ref) (folder string, err error) {
	if c.Cache == "" {
		return "", fmt.Errorf("there is no folder for the files of %s: set %s or %s", ref, envHome, envCache)
	}
	if c.Offline {
		folder = c.Cached(ref)
		if folder == "" {
			return "", fmt.Errorf("%s is set, and the cache %s does not have %s", envOffline, c.Cache, ref)
		}
		return folder, nil
	}

	folder, err = c.download(ctx, ref)
	if err == nil {
		return folder, nil
	}
	err = fmt.Errorf("download %s: %w", ref, explained(ref, err))
	folder = c.Cached(ref)
	if folder != "" && ctx.Err() == nil {
		c.Log.Warn("the hub does not give the files of a model; those of the cache are used", "model", ref, "folder", folder, "err", err)
		return folder, nil
	}
	return "", err
}

// explained adds the remedy to an error of the hub.
func explained(ref Ref, err error) error {
	var status statusError
	if !errors.As(err, &status) {
		return err
	}
	switch status.code {
	case http.StatusUnauthorized, http.StatusForbidden:
		return fmt.Errorf("%w: set %s, accept the terms on the model's page, or correct the name", err, envToken)
	case http.StatusNotFound:
		return fmt.Errorf("%w: it has no model %s, or the model has no revision %s", err, ref.Name(), ref.Revision)
	}
	return err
}

// download makes the snapshot of a revision complete and returns its folder.
func (c *Client) download(ctx context.Context, ref Ref) (string, error) {
	l, err := c.list(ctx, ref)
	if err != nil {
		return "", err
	}
	if err := l.check(); err != nil {
		return "", err
	}

	repo := c.repository(ref)
	repo.removeLeftovers(time.Now())
	for i := range Files {
		name := Files[len(Files)-1-i]
		if !l.files[name] || isFile(repo.file(l.commit, name)) {
			continue
		}
		what := ref.Name() + "/" + name
		err := c.retry(ctx, what, maxAttempts, func() error { return c.fetchFile(ctx, ref, repo, l.commit, name) })
		if err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
		c.Log.Info("downloaded", "file", what, "commit", l.commit)
	}

	if ref.Revision != l.commit {
		if err := repo.setCommit(ref.Revision, l.commit); err != nil {
			return "", err
		}
	}
	return repo.snapshot(l.commit), nil
}

// check refuses a model whose tokenizer cannot be read.
func (l *listing) check() error {
	if l.files[tokenizerFile] {
		return nil
	}
	for name := range l.files {
		if strings.HasSuffix(name, ".gguf") {
			return fmt.Errorf("it has .gguf files and no %s: name the repository of the original model, or a .gguf file on this machine",
				tokenizerFile)
		}
	}
	return fmt.Errorf("it has no %s: save the fast tokenizer in a folder with its other files, and name the folder", tokenizerFile)
}

// fetchFile downloads one file into the cache, unless its content is there.
func (c *Client) fetchFile(ctx context.Context, ref Ref, repo repository, commit, name string) error {
	a, err := c.get(ctx, "/"+ref.Name()+"/resolve/"+commit+"/"+name, ref.Name()+"/"+name)
	if err != nil {
		return err
	}
	defer func() { _ = a.body.Close() }()

	switch {
	case a.commit != "" && a.commit != commit:
		return fmt.Errorf("the hub sends the file of commit %.40q and not of %s", a.commit, commit)
	case a.checksum == "":
		return errors.New("the hub sends no checksum of the file")
	}
	if !isFile(repo.blob(a.checksum)) {
		if err := repo.write(a.checksum, a.body); err != nil {
			return err
		}
	}
	return repo.link(a.checksum, commit, name)
}
