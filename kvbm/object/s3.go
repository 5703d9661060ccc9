package object

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

// S3Config configures the access to a bucket of an S3 server.
type S3Config struct {
	// Endpoint is the server's URL, such as https://s3.eu-central-1.amazonaws.com or http://minio:9000.
	Endpoint string
	Bucket   string
	// Region is part of the signature (us-east-1).
	Region string
	// PathStyle puts the bucket into the path instead of the host's name. Most servers outside of Amazon need it.
	PathStyle bool
	// AccessKey and SecretKey are the credentials. Without them the credentials of the environment are used:
	// AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, and without these the role of the instance or the pod.
	AccessKey, SecretKey string
	// RootCAs are the authorities of the server's certificate (default: the system's).
	RootCAs *x509.CertPool
	// Attempts bounds how often a request is sent within its deadline (2).
	Attempts int
	// Connections is the number of idle connections that are kept (16).
	Connections int
}

// S3 is a bucket of an S3 server. It implements [Bucket].
type S3 struct {
	core      minio.Core
	bucket    string
	endpoint  string
	keys      *heldKeys
	transport *http.Transport
}

// dialTimeout bounds connecting and the handshake of TLS, so that goroutines which no one waits for end.
const dialTimeout = 5 * time.Second

// OpenS3 checks the configuration. It sends no request.
func OpenS3(cfg S3Config) (*S3, error) {
	if cfg.Region == "" {
		cfg.Region = "us-east-1"
	}
	if cfg.Attempts == 0 {
		cfg.Attempts = 2
	}
	if cfg.Connections == 0 {
		cfg.Connections = 16
	}
	u, err := url.Parse(cfg.Endpoint)
	switch {
	case err != nil:
		return nil, fmt.Errorf("open bucket: %w", err)
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.Path != "" && u.Path != "/":
		return nil, fmt.Errorf("open bucket: endpoint %q must be http://host:port or https://host:port", cfg.Endpoint)
	case cfg.Bucket == "":
		return nil, errors.New("open bucket: it needs a name")
	case (cfg.AccessKey == "") != (cfg.SecretKey == ""):
		return nil, errors.New("open bucket: accessKey and secretKey need each other")
	}

	transport := &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            (&net.Dialer{Timeout: dialTimeout}).DialContext,
		TLSHandshakeTimeout:    dialTimeout,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: cfg.RootCAs},
		MaxIdleConnsPerHost:    cfg.Connections,
		IdleConnTimeout:        time.Minute,
		ResponseHeaderTimeout:  time.Minute, // requests have shorter deadlines; those for credentials may have none
		DisableCompression:     true,
		MaxResponseHeaderBytes: 64 << 10,
	}
	keys := newHeldKeys(cfg, &http.Client{Transport: bounded{transport}, Timeout: dialTimeout})
	lookup := minio.BucketLookupAuto
	if cfg.PathStyle {
		lookup = minio.BucketLookupPath
	}
	core, err := minio.NewCore(u.Host, &minio.Options{Creds: credentials.New(keys), Secure: u.Scheme == "https",
		Transport: bounded{transport}, Region: cfg.Region, BucketLookup: lookup, MaxRetries: cfg.Attempts})
	if err != nil {
		return nil, fmt.Errorf("open bucket %s: %w", cfg.Bucket, err)
	}
	return &S3{core: *core, bucket: cfg.Bucket, endpoint: cfg.Endpoint, keys: keys, transport: transport}, nil
}

// mostName is the longest name of an object in S3, in bytes.
const mostName = 1024

// Close closes idle connections.
func (s *S3) Close() { s.transport.CloseIdleConnections() }

// PutIfAbsent implements [Bucket]. The payload is not signed: TLS protects it on the way, and checksums at rest.
func (s *S3) PutIfAbsent(ctx context.Context, name string, data []byte) (created bool, err error) {
	if err := s.keys.refresh(ctx); err != nil {
		return false, s.fault("find credentials", err)
	}
	opts := minio.PutObjectOptions{ContentType: "application/octet-stream", DisableContentSha256: true}
	opts.SetMatchETagExcept("*")

	_, err = s.core.PutObject(ctx, s.bucket, name, bytes.NewReader(data), int64(len(data)), "", "", opts)
	if minio.ToErrorResponse(err).StatusCode == http.StatusPreconditionFailed {
		return false, nil
	}
	return err == nil, s.fault("write "+name, err)
}

// GetRange implements [Bucket].
func (s *S3) GetRange(ctx context.Context, name string, offset int64, dst [][]byte, filled func(i int)) error {
	if err := s.keys.refresh(ctx); err != nil {
		return s.fault("find credentials", err)
	}
	var size int64
	for _, d := range dst {
		size += int64(len(d))
	}
	var opts minio.GetObjectOptions
	if err := opts.SetRange(offset, offset+size-1); err != nil {
		return err
	}

	body, info, _, err := s.core.GetObject(ctx, s.bucket, name, opts)
	if err != nil {
		return s.fault("read "+name, err)
	}
	defer func() { _ = body.Close() }()
	if info.Size != size {
		return fmt.Errorf("read %s: %d bytes from %d on, and not %d: %w", name, info.Size, offset, size, ErrMissing)
	}

	for i, d := range dst {
		if _, err := io.ReadFull(body, d); err != nil {
			return s.fault("read "+name, err)
		}
		if filled != nil {
			filled(i)
		}
	}
	// The end is read too, so that the connection can be used again.
	_, err = body.Read(make([]byte, 1))
	if err != nil && !errors.Is(err, io.EOF) {
		return s.fault("read "+name, err)
	}
	return nil
}

// Delete implements [Bucket].
func (s *S3) Delete(ctx context.Context, name string) error {
	if err := s.keys.refresh(ctx); err != nil {
		return s.fault("find credentials", err)
	}
	err := s.fault("delete "+name, s.core.RemoveObject(ctx, s.bucket, name, minio.RemoveObjectOptions{}))
	if errors.Is(err, ErrMissing) {
		return nil
	}
	return err
}

// List implements [Bucket].
func (s *S3) List(ctx context.Context, prefix, after string, limit int) (page []Object, more bool, err error) {
	if err := s.keys.refresh(ctx); err != nil {
		return nil, false, s.fault("find credentials", err)
	}
	owner := false
	names := s.core.ListObjectsIter(ctx, s.bucket, minio.ListObjectsOptions{Prefix: prefix, StartAfter: after, Recursive: true,
		MaxKeys: limit, FetchOwner: &owner})
	for o := range names {
		switch {
		case o.Err != nil:
			return nil, false, s.fault("list "+prefix, o.Err)
		case len(o.Key) > mostName:
			return nil, false, s.fault("list "+prefix, fmt.Errorf("a name of %d bytes: %w", len(o.Key), errTooLong))
		case o.Key <= after:
			continue // some servers return the name itself
		}
		page = append(page, Object{Name: o.Key, Size: o.Size})
		if len(page) == limit {
			return page, true, nil // without a request for the next page
		}
	}
	return page, false, ctx.Err()
}
