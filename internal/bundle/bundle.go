// Package bundle gathers the pages of a fleet's processes into one file for a bug report, and serves them again.
//
// A bundle is a tar archive, compressed by gzip. Each admin port has a folder, and each page two files there: its JSON and its text. The
// newest decisions are explained one by one. Pages have no prompts and no answers. They do have names: of models, workers, tenants,
// sessions and addresses.
//
// [Collect] only reads. The list of files, with what each one is for, is complete before anything is written.
package bundle

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/adminclient"
)

const (
	// Timeout bounds the request for one page.
	Timeout = 30 * time.Second
	// maxPage bounds the bytes of one page, and maxBundle of all files together; what does not fit is left out and listed.
	maxPage   = 64 << 20
	maxBundle = 512 << 20
	// explained is the number of decisions whose explanation is kept, and decisions of those that are kept at all.
	explained = 50
	decisions = 4096
)

// Port is the admin port of one process, or of an Envoy.
type Port struct {
	Address string
	Admin   *adminclient.Client
	Pages   []string // paths
	// OfEnvoy means that the pages have one form only, and no decisions.
	OfEnvoy bool
}

// File is one file of a bundle.
type File struct {
	Name string
	Data []byte
}

// Bundle is the content of a bundle, sorted by name. Missing has a line for each page that could not be read.
type Bundle struct {
	Files   []File
	Missing []string
	size    int
}

// Add adds a file, unless the bundle is full.
func (b *Bundle) Add(name string, data []byte) {
	if b.size+len(data) > maxBundle {
		b.Missing = append(b.Missing, fmt.Sprintf("%s: the bundle has %d MiB already", name, b.size>>20))
		return
	}
	b.size += len(data)
	i, _ := slices.BinarySearchFunc(b.Files, name, func(f File, name string) int { return strings.Compare(f.Name, name) })
	b.Files = slices.Insert(b.Files, i, File{name, data})
}

// Collect reads the pages of all ports, one after the other. progress is called before each page; it may be nil.
func Collect(ctx context.Context, ports []Port, progress func(done, of int)) *Bundle {
	b := &Bundle{}
	done, of := 0, 0
	for _, p := range ports {
		of += len(p.Pages)
	}
	for _, p := range ports {
		for _, page := range p.Pages {
			if progress != nil {
				progress(done, of)
			}
			done++
			b.read(ctx, p, page)
		}
	}
	return b
}

// read adds a page in each of its forms. A page that a process does not serve is left out.
func (b *Bundle) read(ctx context.Context, p Port, page string) {
	forms := map[string]string{".txt": "", ".json": "format=json"}
	if p.OfEnvoy || strings.HasPrefix(page, "/metrics") || !strings.HasPrefix(page, "/debug/") {
		forms = map[string]string{".txt": ""}
	}
	for ending, query := range forms {
		if page == "/debug/decisions" {
			query += fmt.Sprintf("&n=%d", decisions)
		}
		data, status, err := get(ctx, p, page, strings.TrimPrefix(query, "&"))
		switch {
		case err != nil:
			b.Missing = append(b.Missing, fmt.Sprintf("%s%s: %v", p.Address, page, err))
			return
		case status == http.StatusNotFound:
			return
		case status != http.StatusOK && page != "/readyz":
			b.Missing = append(b.Missing, fmt.Sprintf("%s%s: status %d: %.200q", p.Address, page, status, data))
			return
		}

		b.Add(fileOf(p.Address, page)+ending, data)
		if page == "/debug/decisions" && ending == ".json" {
			b.explain(ctx, p, data)
		}
	}
}

// explain adds the explanations of the newest decisions.
func (b *Bundle) explain(ctx context.Context, p Port, page []byte) {
	var list []struct{ ID string }
	if err := json.Unmarshal(page, &list); err != nil {
		b.Missing = append(b.Missing, fmt.Sprintf("%s/debug/decisions: %v", p.Address, err))
		return
	}
	for _, d := range list[:min(len(list), explained)] {
		text, status, err := get(ctx, p, "/debug/decisions/"+url.PathEscape(d.ID), "")
		if err == nil && status == http.StatusOK {
			b.Add(fileOf(p.Address, "/debug/decisions/"+d.ID)+".txt", text)
		}
	}
}

// get returns the answer to a GET, and its status.
func get(ctx context.Context, p Port, page, query string) (data []byte, status int, err error) {
	if query != "" {
		page += "?" + query
	}
	data, status, err = p.Admin.Get(ctx, page, maxPage+1)
	if len(data) > maxPage {
		return nil, 0, fmt.Errorf("it has more than %d MiB", maxPage>>20)
	}
	return data, status, err
}

// fileOf returns the name of a page's file, without its ending. Neither an address nor an id of a decision leaves the folder.
func fileOf(address, page string) string {
	clean := strings.NewReplacer("https://", "", "http://", "", "unix://", "", "/", "_", "\\", "_").Replace(address)
	return path.Join(strings.TrimLeft(clean, "."), strings.ReplaceAll(path.Clean("/"+page), "/../", "/"))
}

// Write writes the bundle.
func (b *Bundle) Write(w io.Writer, now time.Time) error {
	packed := gzip.NewWriter(w)
	archive := tar.NewWriter(packed)
	for _, f := range b.Files {
		header := &tar.Header{Name: "stator-bundle/" + f.Name, Mode: 0o600, Size: int64(len(f.Data)), ModTime: now}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		if _, err := archive.Write(f.Data); err != nil {
			return err
		}
	}
	return errors.Join(archive.Close(), packed.Close())
}

// Read reads a bundle.
func Read(r io.Reader) (*Bundle, error) {
	packed, err := gzip.NewReader(r)
	if err != nil {
		return nil, fmt.Errorf("it is no bundle of stator collect: %w", err)
	}
	b := &Bundle{}
	archive := tar.NewReader(packed)
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return b, nil
		}
		if err != nil {
			return nil, err
		}
		data, err := io.ReadAll(io.LimitReader(archive, maxPage+1))
		if err != nil {
			return nil, err
		}
		if len(data) > maxPage || b.size+len(data) > maxBundle {
			return nil, fmt.Errorf("%.200q is too large", header.Name)
		}
		b.Add(strings.TrimPrefix(header.Name, "stator-bundle/"), data)
	}
}

// Addresses returns the folders of the admin ports that are in the bundle.
func (b *Bundle) Addresses() (all []string) {
	for _, f := range b.Files {
		if folder, ok := strings.CutSuffix(f.Name, "/readyz.txt"); ok {
			all = append(all, folder)
		}
	}
	return all
}

// Handler serves the pages of one admin port of the bundle as they were.
func (b *Bundle) Handler(address string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ending, kind := ".txt", "text/plain; charset=utf-8"
		if r.URL.Query().Get("format") == "json" {
			ending, kind = ".json", "application/json"
		}
		name := path.Join(address, path.Clean("/"+r.URL.Path)) + ending
		i, found := slices.BinarySearchFunc(b.Files, name, func(f File, name string) int { return strings.Compare(f.Name, name) })
		if !found {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", kind)
		w.Header().Set("X-Content-Type-Options", "nosniff")
		_, _ = w.Write(b.Files[i].Data) // an error means that the client is gone
	})
}
